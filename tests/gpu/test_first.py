"""Every op once, on small and odd shapes: what a new GPU is asked first, and what compute-sanitizer watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8amp import _fused_ops, _ops
from fp8amp.block_ops import Blocks, Granularity, dequantize_blocks, gemm_blocks, quantize_blocks
from fp8amp.policies import Rounding
from guarded import E4M3, E5M2, Guards, assert_same, numbers
from test_adam import O1, O2, Parameters, compare
from torch import Tensor

Op = Callable[..., Any]
STOCHASTIC = Rounding.STOCHASTIC
CASTS: dict[str, Op] = {
    "amax": lambda x: (_ops.amax(x),),
    "quantize": lambda x: _ops.quantize(x, None, E4M3),
    "stochastic": lambda x: _ops.quantize(x, None, E5M2, rounding=STOCHASTIC, seed=3),
    "transpose": lambda x: _ops.quantize_transpose(x, None, E4M3),
    "gelu": lambda x: _fused_ops.gelu_quantize(x, True, E4M3, transpose=True),
    "swiglu": lambda x: _fused_ops.swiglu_quantize(x, E4M3),
    "gelu_backward": lambda x: _fused_ops.gelu_backward_quantize(x, x, False, E5M2),
    "norm": lambda x: (_ops.grad_norm([x], [torch.ones((), device=x.device)]),),
}


@pytest.mark.parametrize("rows,cols", ((33, 130), (128, 272)))
@pytest.mark.parametrize("name", CASTS)
def test_casts(guards: Guards, name: str, rows: int, cols: int) -> None:
    x = numbers(rows * cols, torch.bfloat16, 1, 3.0).view(rows, cols)
    assert_same(CASTS[name](x), CASTS[name](guards.copy(x)))


@pytest.mark.parametrize("granularity", Granularity)
@pytest.mark.parametrize("rows,cols", ((33, 130), (128, 272)))
def test_casts_of_blocks(guards: Guards, granularity: Granularity, rows: int, cols: int) -> None:
    x = numbers(rows * cols, torch.bfloat16, 1, 3.0).view(rows, cols)
    host = quantize_blocks(x, None, E4M3, granularity, columns=True)
    device = quantize_blocks(guards.copy(x), None, E4M3, granularity, columns=True)
    for h, d in zip(host, device, strict=True):
        assert_same((h.payload, h.scale_inv), (d.payload, d.scale_inv))
        assert_same((dequantize_blocks(h),), (dequantize_blocks(d),))


@pytest.mark.parametrize("rows,cols", ((33, 130), (128, 272)))
def test_norms(guards: Guards, rows: int, cols: int) -> None:
    x, dy = (numbers(rows * cols, torch.bfloat16, seed, 3.0).view(rows, cols) for seed in (1, 2))
    gamma, mean, rstd = (numbers(n, torch.float32, 3) for n in (cols, rows, rows))
    there = guards.copy(x), guards.copy(gamma)
    assert_same(_fused_ops.layer_norm_quantize(x, gamma, gamma, 1e-5, E4M3, transpose=True),
                _fused_ops.layer_norm_quantize(*there, there[1], 1e-5, E4M3, transpose=True))  # fmt: skip
    assert_same(_fused_ops.rms_norm_quantize(x, gamma, 1e-6, E4M3), _fused_ops.rms_norm_quantize(*there, 1e-6, E4M3))
    operands = dy, x, mean, rstd, gamma
    assert_same(_fused_ops.layer_norm_backward(*operands),
                _fused_ops.layer_norm_backward(*map(guards.copy, operands)))  # fmt: skip


def test_sums(guards: Guards) -> None:
    shards = [numbers(1003, E4M3, i) for i in range(3)]
    scale_inv, x = torch.tensor(0.1), numbers(1003, torch.bfloat16, 7)
    there = [*map(guards.copy, shards)]
    scale_there = guards.copy(scale_inv)
    assert_same(_ops.sum_shards(shards, [scale_inv] * 3, E4M3), _ops.sum_shards(there, [scale_there] * 3, E4M3))
    _ops.accumulate_(shards[0], scale_inv, x, None)
    _ops.accumulate_(there[0], scale_there, guards.copy(x), None)
    assert_same((shards[0], scale_inv), (there[0], scale_there))


def test_adam(guards: Guards) -> None:
    parameters = Parameters()
    for i in range(6):
        parameters.add((1, 700, 17000)[i % 3], (O1, O2)[i % 2], i, E4M3 if i > 3 else None)
    compare(guards, parameters, 2)


@pytest.mark.parametrize("m,n,k", ((33, 45, 130), (128, 256, 272)))
def test_products(guards: Guards, m: int, n: int, k: int) -> None:
    """Of small integers, which every accumulator adds exactly."""
    a, b = ((numbers(rows * k, torch.float32, rows).sign() * 2).to(E4M3).view(rows, k) for rows in (m, n))
    one, bias = torch.ones(()), numbers(n, torch.float32, 3).sign()
    host = _ops.gemm(a, one, b, one, transpose_b=True, bias=bias, dtype=torch.bfloat16)
    there: list[Tensor] = [*map(guards.copy, (a, one, b, one))]
    device = _ops.gemm(*there, transpose_b=True, bias=guards.copy(bias), dtype=torch.bfloat16)
    assert_same((host,), (device,))
    for granularity in (Granularity.ROW, Granularity.BLOCK1X128):
        operands = [Blocks(x, torch.ones(s), granularity) for x, s in (
            (a, m if granularity == Granularity.ROW else ((k + 127) // 128, m)),
            (b, n if granularity == Granularity.ROW else ((k + 127) // 128, n)))]  # fmt: skip
        copies = [Blocks(guards.copy(x.payload), guards.copy(x.scale_inv), granularity) for x in operands]
        assert_same((gemm_blocks(*operands),), (gemm_blocks(*copies),))
