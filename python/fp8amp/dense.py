"""fp8amp.to_dense: a stock copy of a converted model, for averaging (EMA), export and evaluation elsewhere."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn

from .module_filter import fp8_layers
from .nn.conv1d import Conv1D
from .nn.linear import Linear
from .scaled_tensor import FIELDS, ScaledTensor

_Model = TypeVar("_Model", bound=nn.Module)
_FP8_ATTRIBUTES = ("recipe", "gemm", "gradient_format")


def to_dense(model: _Model) -> _Model:
    """A deep copy with plain weights of the logical dtype and stock classes: nn.Linear, and the Conv1D of transformers.

    Values are exactly those of the model where the logical dtype is float32; in a float16 or bfloat16 model they are
    rounded to that dtype (state_dict() has them exactly, in float32). Weights that were shared stay shared, attributes
    of parameters are kept, gradients are left out.

    Keep an average of weights (EMA, SWA) in such a copy: clone() of a converted weight is FP16 too and cannot take
    steps below 2^-11 of its value, so that an average in it would stand still.

    A layer of another class - your own child of fp8amp.nn.Linear, a parametrized one, a fp8amp.nn.Conv1D that was not
    made from a transformers layer - keeps it, with its forward, and computes in full precision.

    Raises TypeError if model is no nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"to_dense: model must be a torch.nn.Module, got {type(model).__name__}")
    memo: dict[int, Any] = {}
    ours = [p for p in model.parameters() if isinstance(p, ScaledTensor) or type(p) is nn.Parameter]
    for p in ours:
        values = p.detach().dequantize() if isinstance(p, ScaledTensor) else p.detach().clone()
        memo[id(p)] = nn.Parameter(values, requires_grad=p.requires_grad)
    for p in ours:
        kept = {name: value for name, value in p.__dict__.items() if name not in (*FIELDS, "_is_param")}
        memo[id(p)].__dict__.update(copy.deepcopy(kept, memo))
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
    kind = type(module)
    from_transformers = kind.__module__ == Conv1D.__module__ and kind is not Conv1D
    if kind is not Linear and not from_transformers:
        module.adopt(gemm="none", gradient_format=None)  # type: ignore[operator]
        return
    for name in _FP8_ATTRIBUTES:
        module.__dict__.pop(name, None)
    weight: Tensor = module.weight  # type: ignore[assignment]
    if "fp8amp_managed" in weight.__dict__:
        del weight.__dict__["fp8amp_managed"]
    module.__class__ = nn.Linear if kind is Linear else kind.__mro__[-3]
