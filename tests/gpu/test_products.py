"""Scales of rows and blocks, and products: casts bit for bit, products within the bound of Hopper's accumulators."""

from __future__ import annotations

import pytest
import torch
from fp8amp import _ops
from fp8amp.block_ops import Blocks, Granularity, dequantize_blocks, gemm_blocks, quantize_blocks
from fp8amp.policies import Overflow, ScaleRounding
from guarded import E4M3, E5M2, PLAIN, Guards, assert_same, numbers
from torch import Tensor

ROW, PIECE, SQUARE = Granularity.ROW, Granularity.BLOCK1X128, Granularity.BLOCK128X128
# |error| / sum of |products| of accumulators that keep 14 bits: the published model of an H100 gives at most 2.2e-4
# where sums are promoted every 128 products, and 3.3e-4 with fast accumulation up to K = 2048.
BOUND, FAST_BOUND = 2.0**-11, 2e-3
# Operands with blocks that cuBLASLt does not take are decoded to BF16 times their scale: exact for powers of two.


def assert_close(device: Tensor, host: Tensor, magnitudes: Tensor, bound: float, added: Tensor | None = None) -> None:
    """`magnitudes`: sums of |products|; `added`: magnitudes of what joins them before the last rounding."""
    host32, device32 = host.float(), device.float().cpu()
    largest = host32.abs() if added is None else host32.abs() + added
    limit = bound * magnitudes + torch.finfo(host.dtype).eps * largest + 1e-6
    over = (device32 - host32).abs() > limit
    assert not bool(over.any()), f"{int(over.sum())} of {over.numel()} outside of the bound"


@pytest.mark.parametrize("formats", ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)))
@pytest.mark.parametrize("dtype", PLAIN)
def test_gemm(guards: Guards, formats: tuple[torch.dtype, torch.dtype], dtype: torch.dtype) -> None:
    scales = torch.tensor(0.5), torch.tensor(1.37)
    for m, n, k in ((16, 16, 16), (1, 48, 32), (17, 33, 65), (256, 384, 512), (130, 64, 4096)):
        for layout in range(4):
            transpose_a, transpose_b = bool(layout & 1), bool(layout & 2)
            a = numbers(m * k, formats[0], 1).view((k, m) if transpose_a else (m, k))
            b = numbers(k * n, formats[1], 2).view((n, k) if transpose_b else (k, n))
            bias, old = numbers(n, dtype, 3), numbers(m * n, dtype, 4).view(m, n)
            sizes = [x.float().abs().T if t else x.float().abs() for x, t in ((a, transpose_a), (b, transpose_b))]
            magnitudes = 0.5 * 1.37 * (sizes[0] @ sizes[1])
            options = {"transpose_a": transpose_a, "transpose_b": transpose_b}
            there = [guards.copy(x) for x in (a, scales[0], b, scales[1])]
            for fast in (False, True):
                host = _ops.gemm(a, scales[0], b, scales[1], bias=bias, dtype=dtype, **options)
                device = _ops.gemm(*there, bias=guards.copy(bias), dtype=dtype, fast_accumulation=fast, **options)
                assert_close(device, host, magnitudes, FAST_BOUND if fast else BOUND, bias.float().abs())
            added = guards.copy(old)
            _ops.gemm_(added, *there, accumulate=True, **options)
            host = old.clone()
            _ops.gemm_(host, a, scales[0], b, scales[1], accumulate=True, **options)
            assert_close(added, host, magnitudes, BOUND, old.float().abs())


@pytest.mark.parametrize("granularity", (ROW, PIECE, SQUARE))
@pytest.mark.parametrize("format", (E4M3, E5M2))
@pytest.mark.parametrize("dtype", PLAIN)
def test_scales_of_rows_and_blocks(
    guards: Guards, dtype: torch.dtype, format: torch.dtype, granularity: Granularity
) -> None:
    for rows, cols in ((1, 1), (3, 127), (129, 128), (144, 272), (1000, 130), (9, 9000)):
        for specials in (False, True):
            x = numbers(rows * cols, dtype, 1, 8.0, specials).view(rows, cols)
            for wanted in ((True, False), (False, True), (True, True)):
                options = {
                    "rows": wanted[0],
                    "columns": wanted[1],
                    "scale_rounding": ScaleRounding.EXACT if specials else ScaleRounding.POWER_OF_TWO,
                    "overflow": Overflow.NAN if specials else Overflow.SATURATE,
                }
                host = quantize_blocks(x, None, format, granularity, **options)
                device = quantize_blocks(guards.copy(x), None, format, granularity, **options)
                for h, d in zip(host, device, strict=True):
                    assert_same((h.payload, h.scale_inv), (d.payload, d.scale_inv))
            there = Blocks(guards.copy(host[0].payload), guards.copy(host[0].scale_inv), granularity)
            assert_same((dequantize_blocks(host[0]),), (dequantize_blocks(there),))


@pytest.mark.parametrize("pair", ((ROW, ROW), (PIECE, PIECE), (PIECE, SQUARE), (SQUARE, PIECE)))
@pytest.mark.parametrize("dtype", PLAIN)
def test_gemm_of_rows_and_blocks(guards: Guards, pair: tuple[Granularity, Granularity], dtype: torch.dtype) -> None:
    for m, n, k in ((16, 16, 16), (132, 144, 400), (136, 144, 400), (256, 384, 1024), (130, 64, 4096), (17, 33, 65)):
        operands = [
            quantize_blocks(numbers(rows * k, torch.float32, i, 2.0).view(rows, k), None, E4M3, granularity)[0]
            for i, (rows, granularity) in enumerate(zip((m, n), pair, strict=True))
        ]
        there = [Blocks(guards.copy(x.payload), guards.copy(x.scale_inv), x.granularity) for x in operands]
        sizes = [dequantize_blocks(x).abs() for x in operands]
        bias = numbers(n, dtype, 3)
        host = gemm_blocks(*operands, dtype=dtype, bias=bias)
        device = gemm_blocks(*there, dtype=dtype, bias=guards.copy(bias))
        assert_close(device, host, sizes[0] @ sizes[1].T, BOUND, bias.float().abs())
