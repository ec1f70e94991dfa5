"""What the FP8 linear layers share: checks of their arguments, shapes and dtypes, and what a backward leaves."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _ops
from ..policies import E4M3
from ..recipe import Recipe
from ..scaled_tensor import ScaledTensor, dense, plain_operand, scaled

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Options(NamedTuple):
    """What a layer fixes for its calls. `update`: this call may move the amax histories."""

    recipe: Recipe
    in_out: bool = False
    gradient_format: torch.dtype | None = E4M3
    update: bool = False


def as_rows(x: Tensor) -> Tensor:
    """[..., in] -> [rows, in], for `in` of 0 too."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def output_dtype(x: Tensor) -> torch.dtype:
    """The dtype of x, or autocast's inside autocast, which leaves float64 alone."""
    kind = x.device.type
    casts = x.dtype is not torch.float64 and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts else x.dtype


def gemm_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a GEMM can write what is wanted in `dtype`."""
    return dtype if dtype in FLOATS else torch.float32


def gemm_bias(bias: Tensor | None) -> Tensor | None:
    """A bias as the GEMM reads it."""
    if bias is None:
        return None
    return bias.detach() if bias.dtype in FLOATS else bias.detach().float()


def checked(x: Tensor, weight: Tensor, bias: Tensor | None, in_out: bool) -> Tensor:
    """x, dequantised if it is a ScaledTensor; TypeError or ValueError that names the argument."""
    check_operand("x", x)
    check_operand("weight", weight)
    if bias is not None:
        check_operand("bias", bias)
    if weight.dim() != 2:
        raise ValueError(f"linear: weight must be 2-D, got shape {tuple(weight.shape)}")
    features_in, features_out = weight.shape if in_out else (weight.shape[1], weight.shape[0])
    if x.dim() == 0 or x.shape[-1] != features_in:
        raise ValueError(f"linear: the last side of x must be {features_in}, got shape {tuple(x.shape)}")
    if bias is not None and bias.shape != (features_out,):
        raise ValueError(f"linear: bias must have shape ({features_out},), got {tuple(bias.shape)}")
    if x.device != weight.device:
        raise ValueError(f"linear: x is on {x.device} and weight on {weight.device}")
    if bias is not None and bias.device != weight.device:
        raise ValueError(f"linear: bias is on {bias.device} and weight on {weight.device}")
    return x.dequantize() if isinstance(x, ScaledTensor) else x


def check_operand(name: str, value: Any) -> None:
    """TypeError unless value is a dense tensor of a floating dtype."""
    if not isinstance(value, Tensor):
        raise TypeError(f"linear: {name} must be a tensor, got {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(f"linear: {name} must be dense, got layout {value.layout}")
    if value.dtype not in FLOATS and value.dtype is not torch.float64:
        raise TypeError(f"linear: {name} must be float32, float16, bfloat16 or float64, got {value.dtype}")


class _Once(torch.autograd.Function):
    """Gradients as they are, which do not differentiate."""

    @staticmethod
    def forward(dy: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.detach() for gradient in gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # torch.func asks for one
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> Tensor:
        raise RuntimeError(
            "fp8amp: the gradients of an FP8 layer cannot be differentiated: its backward is made of casts"
        )


def differentiable_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward(ctx, dy, ...) whose gradients raise when they are differentiated, by `dy` too: torch's own
    once_differentiable lets autograd.functional.jvp take them for constants and return zeros."""

    @functools.wraps(backward)
    def run(ctx: Any, *dys: Tensor | None) -> tuple[Any, ...]:
        with torch.no_grad():
            gradients = backward(ctx, *dys)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return gradients
        if torch._C._functorch.maybe_current_level() is not None:  # torch.func unwraps plain tensors only
            gradients = tuple(dense(g) if isinstance(g, ScaledTensor) else g for g in gradients)
        root = next((dy for dy in dys if dy is not None and dy.requires_grad), None)
        if root is None:
            return gradients
        there = [g for g in gradients if g is not None]
        once = iter(_Once.apply(root, *there))  # type: ignore[no-untyped-call]
        return tuple(None if g is None else next(once) for g in gradients)

    return run


def remember(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> None:
    """What every backward needs to know of the forward's arguments."""
    ctx.options, ctx.x_dtype, ctx.weight_dtype = options, x.dtype, weight.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)


def weight_gradient(ctx: Any, dw: Tensor) -> Tensor:
    """dW (FP32) as it is left in .grad."""
    format, dtype = ctx.options.gradient_format, ctx.weight_dtype
    return dw.to(dtype) if format is None else scaled(dw, format, role="gradient", dtype=dtype)


def wants_bias_gradient(ctx: Any) -> bool:
    """Whether there is a bias that wants its gradient; the third argument of the forward is the bias."""
    return ctx.bias_dtype is not None and ctx.needs_input_grad[2]


def bias_gradient(ctx: Any, dy: Tensor, sums: Tensor | None = None) -> Tensor | None:
    """db, if it is wanted: the sums over the rows of dy, which a cast of it may have made."""
    if not wants_bias_gradient(ctx):
        return None
    return (_ops.column_sums(*plain_operand(dy)) if sums is None else sums).to(ctx.bias_dtype)
