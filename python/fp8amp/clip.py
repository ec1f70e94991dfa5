"""fp8amp.clip_grad_norm_: torch's gradient clipping without dense copies: the norm is one pass over the stored bytes,
and only scales move."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from . import _ops
from .arguments import number
from .scaled_tensor import ScaledTensor, plain_operand


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients so that their total norm is at most max_norm.

    Args: those of torch.nn.utils.clip_grad_norm_. `foreach` has no effect for norm_type 2. max_norm inf clips nothing.

    Returns: the total norm before clipping, 0-d float32, over dequantised values. It is non-finite if any gradient
    is; the gradients are then left as they are, so that the optimizer (or GradScaler) finds them and skips the step.

    Raises: TypeError or ValueError that names the argument; RuntimeError for a non-finite norm if `error_if_nonfinite`.
    """
    max_norm = number(max_norm, "clip_grad_norm_: max_norm")
    if not max_norm >= 0:
        raise ValueError(f"clip_grad_norm_: max_norm must be a number of at least 0, got {max_norm}")
    norm_type = number(norm_type, "clip_grad_norm_: norm_type")
    if not norm_type > 0:
        raise ValueError(f"clip_grad_norm_: norm_type must be a positive number, got {norm_type}")
    if not isinstance(parameters, Iterable):
        raise TypeError(f"clip_grad_norm_: parameters must be a tensor or an iterable of tensors, got {parameters!r}")
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for parameter in parameters:
        if not isinstance(parameter, Tensor):
            raise TypeError(f"clip_grad_norm_: parameters must hold tensors only, got {parameter!r}")
    grads = [p.grad.detach() for p in parameters if p.grad is not None]
    for grad in grads:
        if grad.layout is not torch.strided:
            raise RuntimeError(f"clip_grad_norm_: sparse gradients are not supported, got layout {grad.layout}")
    if not grads:
        return torch.zeros((), dtype=torch.float32)
    total = _norm(grads) if norm_type == 2.0 else torch.nn.utils.get_total_norm(grads, norm_type, False, foreach)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(f"clip_grad_norm_: the total norm of order {norm_type} is {float(total)}")
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    factor = torch.where(torch.isfinite(total), factor, torch.ones_like(factor))
    for device in dict.fromkeys(grad.device for grad in grads):
        local, here = [grad for grad in grads if grad.device == device], factor.to(device)
        for scaled in (False, True):  # one launch each
            if grads_of_kind := [grad for grad in local if isinstance(grad, ScaledTensor) is scaled]:
                torch._foreach_mul_(grads_of_kind, here)
    return total


def _norm(grads: list[Tensor]) -> Tensor:
    norms = []
    for device in dict.fromkeys(grad.device for grad in grads):
        numbers, scales, one = [], [], torch.ones((), dtype=torch.float32, device=device)
        for grad in grads:
            if grad.device == device:
                if grad.is_complex():
                    grad = torch.view_as_real(grad)
                stored, scale_inv = plain_operand(grad)
                numbers.append(stored)
                scales.append(one if scale_inv is None else scale_inv)
        norms.append(_ops.grad_norm(numbers, scales).to(grads[0].device))
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
