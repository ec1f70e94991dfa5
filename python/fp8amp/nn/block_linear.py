"""The linear layer with a scale for each row or block of its operands (RowwiseScaling, BlockScaling).

    forward  Y  [M, N] = X [M, K] W [N, K]^T       summed along K
    backward dX [M, K] = dY [M, N] (W^T) [K, N]^T  summed along N
             dW [N, K] = (dY^T) [N, M] (X^T) [K, M]^T  summed along M

Scales cannot be moved from one side of a matrix to the other, so each operand is quantised along the side that its
product sums over: X, W and dY twice, from the same numbers. Where both are wanted, one call makes both. What the
backward needs is quantised in the forward: X^T and W^T are saved, one byte an element, and X is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..block_ops import Blocks, Granularity, gemm_blocks, quantize_blocks
from ..policies import E4M3, Overflow, scale_rule
from ..recipe import FineScaling, RowwiseScaling
from ..scaled_tensor import ScaledTensor, dense, plain_operand
from .operands import Options, bias_gradient, differentiable_once, gemm_bias, remember, weight_gradient
from .weight_cache import bytes_of, cached_weight


def _cast(
    x: Tensor, recipe: FineScaling, *, weight: bool = False, rows: bool = True, columns: bool, gradient: bool = False
) -> tuple[Blocks, Blocks]:
    """(x, x^T), each quantised along its own rows."""
    if isinstance(x, ScaledTensor) and x.format.itemsize == 1:
        x = dense(x)
    if isinstance(recipe, RowwiseScaling):
        granularity = Granularity.ROW
    else:
        granularity = Granularity.BLOCK128X128 if weight else Granularity.BLOCK1X128
    return quantize_blocks(
        *plain_operand(x),
        E4M3,
        granularity,
        rows=rows,
        columns=columns,
        scale_rounding=scale_rule(recipe.scale_rounding),
        margin=recipe.margin,
        overflow=Overflow.NAN if gradient else Overflow.SATURATE,
    )


def _cast_weight(weight: Tensor, recipe: FineScaling) -> tuple[Blocks, Blocks]:
    return _cast(weight, recipe, weight=True, columns=True)


def weight_copy_bytes(weight: Tensor, recipe: FineScaling) -> int:
    """Bytes of the FP8 copies of a weight [N, K]: one for each of its two sides, and their scales."""
    return bytes_of(_cast_weight(torch.empty(weight.shape, device="meta"), recipe))


def block_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, options: Options, recipe: FineScaling, dtype: torch.dtype
) -> Tensor:
    """x [M, K] (float32, float16, bfloat16) -> [M, N] in `dtype`, one of these. Checked by functional.scaled_linear."""
    backward = torch.is_grad_enabled() and weight.requires_grad
    with torch.no_grad():
        xq, xq_t = _cast(x, recipe, columns=backward)
        wq, wq_t = cached_weight(weight, recipe, lambda: _cast_weight(weight, recipe))
        if options.in_out:
            wq, wq_t = wq_t, wq
    y: Tensor = _BlockLinear.apply(  # type: ignore[no-untyped-call]
        x,
        weight,
        bias,
        *xq,
        *xq_t[:2],
        *wq,
        *wq_t[:2],
        options,
        recipe,
        dtype,
    )
    return y


class _BlockLinear(torch.autograd.Function):
    """Of operands that are FP8 already; x and weight are there for autograd alone. A Blocks is passed as its parts."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        xq: Tensor,
        x_scale_inv: Tensor,
        x_granularity: Granularity,
        xq_t: Tensor,
        x_scale_inv_t: Tensor,
        wq: Tensor,
        w_scale_inv: Tensor,
        w_granularity: Granularity,
        wq_t: Tensor,
        w_scale_inv_t: Tensor,
        options: Options,
        recipe: FineScaling,
        dtype: torch.dtype,
    ) -> Tensor:
        return gemm_blocks(
            Blocks(xq, x_scale_inv, x_granularity),
            Blocks(wq, w_scale_inv, w_granularity),
            dtype=dtype,
            bias=gemm_bias(bias),
            fast_accumulation=True,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, _, _, ctx.x_granularity, xq_t, x_scale_inv_t, _, _, ctx.w_granularity, wq_t, w_scale_inv_t = (
            inputs[:13]
        )
        ctx.recipe = inputs[14]
        remember(ctx, x, weight, bias, inputs[13])
        need_x, need_w = weight.requires_grad, x.requires_grad
        ctx.save_for_backward(
            xq_t if need_x else None,
            x_scale_inv_t if need_x else None,
            wq_t if need_w else None,
            w_scale_inv_t if need_w else None,
        )

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Any, ...]:
        none = (None,) * 16
        if dy is None:
            return none
        xq_t, x_scale_inv_t, wq_t, w_scale_inv_t = ctx.saved_tensors
        options: Options = ctx.options
        need_dx, need_dw = ctx.needs_input_grad[:2]
        dx = dw = None
        if need_dx or need_dw:
            q, q_t = _cast(dy, ctx.recipe, rows=need_dx, columns=need_dw, gradient=True)
            if need_dx:
                dx = gemm_blocks(q, Blocks(wq_t, w_scale_inv_t, ctx.w_granularity), dtype=ctx.x_dtype)
            if need_dw:
                x_t = Blocks(xq_t, x_scale_inv_t, ctx.x_granularity)
                product = gemm_blocks(*((x_t, q_t) if options.in_out else (q_t, x_t)))
                dw = weight_gradient(ctx, product)
        return (dx, dw, bias_gradient(ctx, dy), *none[3:])
