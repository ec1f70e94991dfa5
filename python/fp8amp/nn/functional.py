"""The FP8 linear layer as a function: Y = X W^T + b with E4M3 operands, E5M2 output gradients and E4M3 weight
gradients.

    forward  Y  = (Xq Wq^T) sx_inv sw_inv + b    FP32 accumulation, one final rounding to the output dtype
    backward dX = (dYq Wq) sy_inv sw_inv,  dW = (dYq^T Xq) sy_inv sx_inv,  db = sum of dY

The backward uses the forward's own Xq and Wq. dW leaves as a ScaledTensor of `gradient_format`: an infinite or NaN
element is a NaN code in it, never a saturated number. A weight of layout [in, out] (`in_out`, the Conv1D of Hugging
Face) gives Y = X W.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _ops
from ..policies import E4M3, E5M2, Overflow
from ..recipe import DelayedScaling, FineScaling, Operand, Recipe, check_recipe
from ..scaled_tensor import dense, plain_operand
from .block_linear import block_linear
from .operands import (
    FLOATS,
    Options,
    as_rows,
    bias_gradient,
    checked,
    differentiable_once,
    gemm_bias,
    gemm_dtype,
    output_dtype,
    remember,
    wants_bias_gradient,
    weight_gradient,
)
from .weight_cache import fp8_weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, recipe: Recipe | None = None) -> Tensor:
    """FP8 x @ weight.T + bias.

    Args:
        x: [..., in], float32, float16, bfloat16 or float64; any strides, empty too.
        weight: [out, in]: a ScaledTensor (its gradient is a ScaledTensor too) or a plain tensor of these dtypes.
        bias: [out] or None, of these dtypes. It is added in FP32; on a GPU it is first rounded to a
            16-bit output's dtype, if it is of another.
        recipe: CurrentScaling() by default. DelayedScaling needs the history that a module keeps: use fp8amp.nn.Linear.

    Returns: [..., out] in the dtype of x, or in autocast's inside autocast (which leaves float64 alone).

    A second differentiation (create_graph=True, then backward through the gradient) is not supported: torch says that
    differentiating its gradients raises.

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
    x = checked(x, weight, bias, options.in_out)
    out_dtype = output_dtype(x)
    if x.dtype not in FLOATS:
        x = x.float()
    rows = as_rows(x)
    if isinstance(options.recipe, FineScaling):
        fine: Tensor = block_linear(rows, weight, bias, options, options.recipe, gemm_dtype(out_dtype))
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
        gemm_dtype(out_dtype),
    )
    return y


def dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> Tensor:
    """The same layer with full-precision GEMMs on the dequantised weight: the switch of an ablation, not a fast
    path."""
    x = checked(x, weight, bias, options.in_out)
    y: Tensor = _DenseLinear.apply(  # type: ignore[no-untyped-call]
        as_rows(x), weight, bias, options, output_dtype(x)
    )
    return y.reshape(*x.shape[:-1], y.shape[-1])


def in_backward() -> bool:
    """Whether a backward pass is running: a forward inside it is a recomputation."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


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
        w, transpose_w = (wq_t, True) if options.in_out and wq_t is not None else (wq, not options.in_out)
        return _ops.gemm(
            xq,
            x_scale_inv,
            w,
            w_scale_inv,
            transpose_b=transpose_w,
            dtype=out_dtype,
            bias=gemm_bias(bias),
            fast_accumulation=True,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, xq, x_scale_inv, xq_t, wq, w_scale_inv, wq_t, gradient_history, options, _ = inputs
        remember(ctx, x, weight, bias, options)
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
    @differentiable_once
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
        none = (None,) * 12
        if dy is None:
            return none
        xq, x_scale_inv, wq, w_scale_inv = ctx.saved_tensors
        options: Options = ctx.options
        need_dx, need_dw = ctx.needs_input_grad[:2]
        dx = dw = sums = None
        if need_dx or need_dw:
            q, s, q_t, sums = options.recipe.cast(
                *plain_operand(dy),
                E5M2,
                Overflow.NAN,
                ctx.gradient_history,
                options.update,
                transposed=ctx.x_is_transposed and need_dw,
                column_sums=wants_bias_gradient(ctx),
            )
            if need_dx:
                in_place = ctx.w_is_transposed or options.in_out
                dx = _ops.gemm(q, s, wq, w_scale_inv, transpose_b=in_place, dtype=ctx.x_dtype)
            if need_dw:
                y_side = (q if q_t is None else q_t, s)
                left, right = ((xq, x_scale_inv), y_side) if options.in_out else (y_side, (xq, x_scale_inv))
                k_contiguous = q_t is not None
                product = _ops.gemm(*left, *right, transpose_a=not k_contiguous, transpose_b=k_contiguous)
                dw = weight_gradient(ctx, product)
        return (dx, dw, bias_gradient(ctx, dy, sums), *none[3:])


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
        remember(ctx, x, weight, bias, options)
        ctx.save_for_backward(x.to(out_dtype), weight)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
        if dy is None:
            return (None,) * 5
        x, weight = ctx.saved_tensors
        dx = dw = None
        if ctx.needs_input_grad[0]:
            w = dense(weight).detach().to(dy.dtype)
            dx = (dy @ (w.t() if ctx.options.in_out else w)).to(ctx.x_dtype)
        if ctx.needs_input_grad[1]:
            product = x.t() @ dy if ctx.options.in_out else dy.t() @ x
            dw = weight_gradient(ctx, product.float())
        return dx, dw, bias_gradient(ctx, dy), None, None
