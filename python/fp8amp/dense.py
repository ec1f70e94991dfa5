"""fp8amp.to_dense: a stock copy of a converted model, for averaging (EMA), export and evaluation elsewhere."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn

from .module_filter import fp8_layers
from .nn.conv1d import Conv1D
from .nn.linear import Linear
from .scaled_tensor import ScaledTensor

_Model = TypeVar("_Model", bound=nn.Module)
_FP8_ATTRIBUTES = ("recipe", "gemm", "gradient_format")


def to_dense(model: _Model) -> _Model:
    """A deep copy with plain weights of the logical dtype and stock classes: nn.Linear, and the Conv1D of transformers.

    Values are those of the model, exactly. Weights that were shared stay shared; gradients are left out. An average
    kept in the
    converted model itself would stand still: an FP16 weight cannot take steps below 2^-11 of its value.

    A fp8amp.nn.Conv1D that was not made from a transformers layer keeps its class and computes in full precision.

    Raises TypeError if model is no nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"to_dense: model must be a torch.nn.Module, got {type(model).__name__}")
    memo: dict[int, object] = {}
    for weight in model.parameters():
        if isinstance(weight, ScaledTensor):
            memo[id(weight)] = nn.Parameter(weight.detach().dequantize(), requires_grad=weight.requires_grad)
        elif weight.grad is not None:
            memo[id(weight)] = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    result: _Model = copy.deepcopy(model, memo)
    for module in fp8_layers(result).values():
        _make_stock(module)
    for child in result.modules():
        child.__dict__.pop("_fp8amp_opt_level", None)
    return result


def _make_stock(module: nn.Module) -> None:
    for name in ("x_history", "gradient_history"):
        module._buffers.pop(name, None)
        module._non_persistent_buffers_set.discard(name)
    if type(module) is Conv1D:
        module.adopt(gemm="none", gradient_format=None)
        return
    for name in _FP8_ATTRIBUTES:
        module.__dict__.pop(name, None)
    weight: Tensor = module.weight  # type: ignore[assignment]
    if "fp8amp_managed" in weight.__dict__:
        del weight.__dict__["fp8amp_managed"]
    module.__class__ = nn.Linear if isinstance(module, Linear) else type(module).__mro__[-3]
