"""The FP8 linear layer as a function: Y = X W^T + b with E4M3 operands, E5M2 output gradients and E4M3 weight
gradients.

    forward  Y  = (Xq Wq^T) sx_inv sw_inv + b    FP32 accumulation, one final rounding to the output dtype
    backward dX = (dYq Wq) sy_inv sw_inv,  dW = (dYq^T Xq) sy_inv sx_inv,  db = sum of dY

The backward uses the forward's own Xq and Wq. dW leaves as a ScaledTensor of `gradient_format`: an infinite or NaN
element is a NaN code in it, never a saturated number. A weight of layout [in, out] (`in_out`, the Conv1D of Hugging
Face) gives Y = X W.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _ops
from ..policies import E4M3, E5M2, Overflow
from ..recipe import DelayedScaling, FineScaling, Operand, Recipe, check_recipe
from ..scaled_tensor import ScaledTensor, dense, plain_operand, scaled
from .block_linear import block_linear
from .weight_cache import fp8_weight

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Options(NamedTuple):
    """What a layer fixes for its calls. `update`: this call may move the amax histories."""

    recipe: Recipe
    in_out: bool = False
    gradient_format: torch.dtype | None = E4M3
    update: bool = False


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, recipe: Recipe | None = None) -> Tensor:
    """FP8 x @ weight.T + bias.

    Args:
        x: [..., in], float32, float16, bfloat16 or float64; any strides, empty too.
        weight: [out, in]: a ScaledTensor (its gradient is a ScaledTensor too) or a plain tensor of these dtypes.
        bias: [out] or None, of these dtypes. It is added in FP32.
        recipe: CurrentScaling() by default. DelayedScaling needs the history that a module keeps: use fp8amp.nn.Linear.

    Returns: [..., out] in the dtype of x, or in autocast's inside autocast (which leaves float64 alone).

    A second differentiation (create_graph=True, then backward through the gradient) is not supported: torch says that
    the function is marked once_differentiable.

    Raises: TypeError or ValueError that names the argument.
    """
    recipe = check_recipe(recipe, "linear: recipe")
    if isinstance(recipe, DelayedScaling):
        raise ValueError(
            "linear: recipe must not be DelayedScaling, whose history only a module can keep: use fp8amp.nn.Linear"
        )
    return scaled_linear(x, weight, bias, Options(recipe))


def scaled_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    options: Options,
    x_history: Tensor | None = None,
    gradient_history: Tensor | None = None,
) -> Tensor:
    """`linear` with everything that a module can set."""
    x = _checked(x, weight, bias, options.in_out)
    out_dtype = _output_dtype(x)
    if x.dtype not in _FLOATS:
        x = x.float()
    rows = _rows(x)
    if isinstance(options.recipe, FineScaling):
        fine: Tensor = block_linear(
            rows, weight, bias, options, options.recipe, out_dtype if out_dtype in _FLOATS else torch.float32
        )
        return fine.reshape(*x.shape[:-1], fine.shape[-1]).to(out_dtype)
    transpose = _ops.gemm_prefers_k_contiguous(x.device) and torch.is_grad_enabled()
    xq = options.recipe.cast(
        *plain_operand(rows),
        E4M3,
        Overflow.SATURATE,
        x_history,
        options.update and not in_backward(),
        transposed=transpose and weight.requires_grad,
    )
    y = linear_of_operand(rows, weight, bias, xq, options, gradient_history, out_dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1]).to(out_dtype)


def linear_of_operand(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    xq: Operand,
    options: Options,
    gradient_history: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """The layer on an operand that is FP8 already. `rows` [rows, in] stands for it in autograd: the gradient goes
    there, in its dtype, and its numbers are not read."""
    transpose = _ops.gemm_prefers_k_contiguous(rows.device) and torch.is_grad_enabled()
    wq = fp8_weight(weight, options.recipe, transpose and (rows.requires_grad or options.in_out))
    y: Tensor = _ScaledLinear.apply(  # type: ignore[no-untyped-call]
        rows,
        weight,
        bias,
        xq.payload,
        xq.scale_inv,
        xq.transposed,
        wq.payload,
        wq.scale_inv,
        wq.transposed,
        gradient_history,
        options,
        out_dtype if out_dtype in _FLOATS else torch.float32,
    )
    return y


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> Tensor:
    """The same layer with full-precision GEMMs on the dequantised weight: the switch of an ablation, not a fast
    path."""
    x = _checked(x, weight, bias, options.in_out)
    y: Tensor = _DenseLinear.apply(  # type: ignore[no-untyped-call]
        _rows(x), weight, bias, options, _output_dtype(x)
    )
    return y.reshape(*x.shape[:-1], y.shape[-1])


def in_backward() -> bool:
    """Whether a backward pass is running: a forward inside it is a recomputation."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def _rows(x: Tensor) -> Tensor:
    """[..., in] -> [rows, in], for `in` of 0 too."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _output_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    casts = x.dtype is not torch.float64 and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts else x.dtype


def _checked(x: Tensor, weight: Tensor, bias: Tensor | None, in_out: bool) -> Tensor:
    _check_operand("x", x)
    _check_operand("weight", weight)
    if bias is not None:
        _check_operand("bias", bias)
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


def _check_operand(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"linear: {name} must be a tensor, got {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(f"linear: {name} must be dense, got layout {value.layout}")
    if value.dtype not in _FLOATS and value.dtype is not torch.float64:
        raise TypeError(f"linear: {name} must be float32, float16, bfloat16 or float64, got {value.dtype}")


def _weight_gradient(dw: Tensor, format: torch.dtype | None, dtype: torch.dtype) -> Tensor:
    """dW (FP32) as it is left in .grad."""
    return dw.to(dtype) if format is None else scaled(dw, format, role="gradient", dtype=dtype)


def _remember(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> None:
    ctx.options, ctx.x_dtype, ctx.weight_dtype = options, x.dtype, weight.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)


class _ScaledLinear(torch.autograd.Function):
    """Of two operands that are FP8 already; x and weight are there for autograd alone. Where a transposed payload is
    given, the product that reads it in that order takes it: the values are the same."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        xq: Tensor,
        x_scale_inv: Tensor,
        xq_t: Tensor | None,
        wq: Tensor,
        w_scale_inv: Tensor,
        wq_t: Tensor | None,
        gradient_history: Tensor | None,
        options: Options,
        out_dtype: torch.dtype,
    ) -> Tensor:
        if bias is not None:
            bias = bias.detach() if bias.dtype in _FLOATS else bias.detach().float()
        w, transpose_w = (wq_t, True) if options.in_out and wq_t is not None else (wq, not options.in_out)
        return _ops.gemm(
            xq,
            x_scale_inv,
            w,
            w_scale_inv,
            transpose_b=transpose_w,
            dtype=out_dtype,
            bias=bias,
            fast_accumulation=True,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, xq, x_scale_inv, xq_t, wq, w_scale_inv, wq_t, gradient_history, options, _ = inputs
        _remember(ctx, x, weight, bias, options)
        # a frozen weight needs no X, a leaf input no W
        need_x, need_w = weight.requires_grad, x.requires_grad
        ctx.x_is_transposed = xq_t is not None
        ctx.w_is_transposed = wq_t is not None and not options.in_out
        ctx.save_for_backward(
            (xq_t if ctx.x_is_transposed else xq) if need_x else None,
            x_scale_inv if need_x else None,
            (wq_t if ctx.w_is_transposed else wq) if need_w else None,
            w_scale_inv if need_w else None,
        )
        ctx.gradient_history = gradient_history  # not saved: every backward writes to it, and autograd would object

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
        none = (None,) * 12
        if dy is None:
            return none
        xq, x_scale_inv, wq, w_scale_inv = ctx.saved_tensors
        options: Options = ctx.options
        need_dx, need_dw = ctx.needs_input_grad[:2]
        dx = dw = db = None
        if need_dx or need_dw:
            q, s, q_t = options.recipe.cast(
                *plain_operand(dy),
                E5M2,
                Overflow.NAN,
                ctx.gradient_history,
                options.update,
                transposed=ctx.x_is_transposed and need_dw,
            )
            if need_dx:
                in_place = ctx.w_is_transposed or options.in_out
                dx = _ops.gemm(q, s, wq, w_scale_inv, transpose_b=in_place, dtype=ctx.x_dtype)
            if need_dw:
                y_side = (q if q_t is None else q_t, s)
                left, right = ((xq, x_scale_inv), y_side) if options.in_out else (y_side, (xq, x_scale_inv))
                k_contiguous = q_t is not None
                product = _ops.gemm(*left, *right, transpose_a=not k_contiguous, transpose_b=k_contiguous)
                dw = _weight_gradient(product, options.gradient_format, ctx.weight_dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
            db = dy.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return (dx, dw, db, *none[3:])


class _DenseLinear(torch.autograd.Function):
    """On the dequantised weight, in FP32; only the gradient's format is kept."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        options: Options,
        out_dtype: torch.dtype,
    ) -> Tensor:
        w = dense(weight).detach().to(out_dtype)
        y = x.to(out_dtype) @ (w if options.in_out else w.t())
        return y if bias is None else y + bias.to(out_dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, options, out_dtype = inputs
        _remember(ctx, x, weight, bias, options)
        ctx.save_for_backward(x.to(out_dtype), weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
        if dy is None:
            return (None,) * 5
        x, weight = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            w = dense(weight).detach().to(dy.dtype)
            dx = (dy @ (w.t() if ctx.options.in_out else w)).to(ctx.x_dtype)
        if ctx.needs_input_grad[1]:
            product = x.t() @ dy if ctx.options.in_out else dy.t() @ x
            dw = _weight_gradient(product.float(), ctx.options.gradient_format, ctx.weight_dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
            db = dy.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return dx, dw, db, None, None
