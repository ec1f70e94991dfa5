"""What a param group may hold: hyper-parameters in range, and parameters of dtypes that a step can update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import finite
from ..scaled_tensor import ScaledTensor

_PLAIN = (torch.float32, torch.float16, torch.bfloat16)
_NUMBERS = ("lr", "eps", "weight_decay")
_FLAGS = ("maximize", "amsgrad", "differentiable", "capturable", "foreach", "fused", "decoupled_weight_decay")


def check_group(caller: str, group: Mapping[str, Any]) -> None:
    """ValueError or TypeError if a hyper-parameter of a param group is missing, out of range, NaN or unsupported."""
    for name in (*_NUMBERS, "betas"):
        if name not in group:
            raise ValueError(f"{caller}: a param group must hold {name!r}, got {sorted(map(str, group))}")
    for name in _NUMBERS:
        if name == "lr" and _on_a_gpu(group[name]):
            continue  # reading it would wait for the device, and cannot be done in a capture
        finite(group[name], f"{caller}: {name}", 0.0)
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"{caller}: betas must be two numbers, got {betas!r}")
    for beta in betas:
        if finite(beta, f"{caller}: each of betas", 0.0) >= 1.0:
            raise ValueError(f"{caller}: betas must be from 0 to below 1, got {tuple(map(float, betas))}")
    for name in _FLAGS:
        if not isinstance(group.get(name), (bool, type(None))):
            raise TypeError(f"{caller}: {name} must be True or False, got {group[name]!r}")
    for name in ("amsgrad", "differentiable"):
        if group.get(name):
            raise ValueError(f"{caller}: {name} must be False, got True: it has no low-precision form here")


def _on_a_gpu(lr: Any) -> bool:
    return isinstance(lr, Tensor) and lr.numel() == 1 and lr.is_floating_point() and lr.device.type != "cpu"


def check_parameter(caller: str, parameter: Tensor) -> None:
    """TypeError for a trainable parameter of a dtype that no step can update. A frozen one may have any."""
    if parameter.requires_grad and not isinstance(parameter, ScaledTensor) and parameter.dtype not in _PLAIN:
        raise TypeError(f"{caller}: parameters must be float32, float16 or bfloat16, got {parameter.dtype}")


def check_memory(caller: str, parameters: Sequence[Tensor]) -> None:
    """ValueError if two of them lie in the same memory, as `nn.Parameter(other.data)` does: both would be updated from
    the same old values."""
    places = []
    for number, parameter in enumerate(parameters):
        stored = parameter.payload if isinstance(parameter, ScaledTensor) else parameter
        if type(stored) in (Tensor, nn.Parameter) and stored.numel() > 0 and stored.is_contiguous():
            places.append((stored.device.type, stored.device.index, stored.data_ptr(), stored.nbytes, number))
    for (*device, first, size, one), (*other, second, _, two) in pairwise(sorted(places)):
        if device == other and second < first + size:
            raise ValueError(f"{caller}: parameters {one} and {two} share memory; tie them by one nn.Parameter")
