"""The dispatcher ops with a scale for each row or block: fake kernels and thin typed functions, like `_ops`.

A matrix is [rows, k], k the contraction of the product that it is an operand of. Its scales are float32 of shape

    ROW           [rows]
    BLOCK1X128    [ceil(k / 128), rows]
    BLOCK128X128  [ceil(rows / 128), 4 ceil(k / 512)]

the layouts that cuBLASLt reads (include/fp8amp/numerics/scale_layout.h).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import torch
from torch import Tensor

from ._ops import _call, _fake, _ops
from .policies import Overflow, ScaleRounding


class Granularity(enum.IntEnum):
    """How many elements share a scale."""

    ROW = 1
    BLOCK1X128 = 2
    BLOCK128X128 = 3


class Blocks(NamedTuple):
    """A float8 matrix with its scales: an operand whose contraction lies along its rows."""

    payload: Tensor
    scale_inv: Tensor
    granularity: Granularity


def quantize_blocks(
    x: Tensor,
    x_scale_inv: Tensor | None,
    format: torch.dtype,
    granularity: Granularity,
    *,
    rows: bool = True,
    columns: bool = False,
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO,
    margin: int = 0,
    overflow: Overflow = Overflow.SATURATE,
) -> tuple[Blocks, Blocks]:
    """x [M, K] (float32, float16, bfloat16) as [M, K] quantised along its rows, and as [K, M] quantised along the
    columns of x; the one that is not wanted is empty."""
    payload, scale_inv, payload_t, scale_inv_t = _call(
        _ops.quantize_blocks,
        x,
        x_scale_inv,
        format,
        int(granularity),
        rows,
        columns,
        int(scale_rounding),
        margin,
        int(overflow),
    )
    return Blocks(payload, scale_inv, granularity), Blocks(payload_t, scale_inv_t, granularity)


def dequantize_blocks(x: Blocks, dtype: torch.dtype = torch.float32) -> Tensor:
    """payload * scale_inv in `dtype` (float32, float16, bfloat16), rounded once from FP32."""
    result: Tensor = _call(_ops.dequantize_blocks, x.payload, x.scale_inv, int(x.granularity), dtype)
    return result


def gemm_blocks(
    a: Blocks,
    b: Blocks,
    *,
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
    fast_accumulation: bool = False,
) -> Tensor:
    """a [M, K] @ b [N, K].T + bias [N] in `dtype`: a sum in FP32 for each 128 of K, times the two scales, summed in
    order."""
    result: Tensor = _call(
        _ops.gemm_blocks,
        a.payload,
        a.scale_inv,
        int(a.granularity),
        b.payload,
        b.scale_inv,
        int(b.granularity),
        dtype,
        bias,
        fast_accumulation,
    )
    return result


def _scale_shape(granularity: int, rows: int, k: int) -> tuple[int, ...]:
    blocks = (k + 127) // 128
    if granularity == Granularity.ROW:
        return (rows,)
    return (blocks, rows) if granularity == Granularity.BLOCK1X128 else ((rows + 127) // 128, (blocks + 3) // 4 * 4)


def _quantized(x: Tensor, format: torch.dtype, granularity: int, rows: int, k: int, wanted: bool) -> list[Tensor]:
    shape, scales = ((rows, k), _scale_shape(granularity, rows, k)) if wanted else ((0,), (0,))
    return [x.new_empty(shape, dtype=format), x.new_empty(scales, dtype=torch.float32)]


_fake("quantize_blocks")(
    lambda x, xs, format, granularity, rows, columns, sr, margin, o: (
        *_quantized(x, format, granularity, x.shape[0], x.shape[1], rows),
        *_quantized(x, format, granularity, x.shape[1], x.shape[0], columns),
    )
)
_fake("dequantize_blocks")(lambda payload, scale_inv, granularity, dtype: payload.new_empty(payload.shape, dtype=dtype))
_fake("gemm_blocks")(lambda a, sa, ga, b, sb, gb, dtype, bias, fast: a.new_empty((a.shape[0], b.shape[0]), dtype=dtype))
