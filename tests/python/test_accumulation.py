"""The GEMM op with the accumulators of an H100."""

import fp8amp
import pytest
import torch
from fp8amp import _ops
from fp8amp.policies import Accumulation
from twins import E4M3


def operands(k):
    torch.manual_seed(3)
    return [tensor for _ in range(2) for tensor in _ops.quantize(torch.randn(40, k), None, E4M3)[:2]]


def error(k, **options):
    exact = _ops.gemm(*operands(k), transpose_b=True)
    ours = _ops.gemm(*operands(k), transpose_b=True, accumulation=Accumulation.HOPPER, **options)
    return ((ours - exact).norm() / exact.norm()).item()


def test_error_grows_with_k_unless_promoted():
    assert 5e-5 < error(128) < 3e-4
    assert error(128) == error(128, fast_accumulation=True)
    assert 5e-5 < error(4096) < 3e-4
    assert 6e-4 < error(4096, fast_accumulation=True) < 4e-3


def test_default_is_fp32_and_others_are_refused():
    plain = _ops.gemm(*operands(300), transpose_b=True)
    assert torch.equal(plain, _ops.gemm(*operands(300), transpose_b=True, accumulation=Accumulation.DEFAULT))
    with pytest.raises(fp8amp.Error, match="gemm: accumulation must be 0 or 1, got 2"):
        _ops.gemm(*operands(8), transpose_b=True, accumulation=2)
