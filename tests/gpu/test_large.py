"""Tensors of more than 2^31 elements: nothing counts them in 32 bits. Needs 24 GB of memory; on a CPU only where
FP8AMP_TEST_LARGE is set."""

from __future__ import annotations

import os

import fp8amp
import pytest
import torch
from fp8amp import _ops
from guarded import E4M3, numbers, same_bits
from torch import Tensor, nn

ROWS, COLUMNS = 65537 + 6, 32768  # 2^31 elements and seven rows
ENDS = 8  # rows with numbers, at either end; zeros between them


@pytest.fixture
def large(device: torch.device) -> Tensor:
    if device.type == "cpu" and "FP8AMP_TEST_LARGE" not in os.environ:
        pytest.skip("FP8AMP_TEST_LARGE is not set")
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 24 << 30:
        pytest.skip("less than 24 GB are free")
    x = torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16, device=device)
    for i, part in enumerate((x[:ENDS], x[-ENDS:])):
        part.copy_(numbers(ENDS * COLUMNS, torch.bfloat16, i, 4.0).view(ENDS, COLUMNS))
    return x


def ends(x: Tensor) -> Tensor:
    return torch.cat([x[:ENDS].cpu(), x[-ENDS:].cpu()])


def test_casts(large: Tensor) -> None:
    payload, payload_t, scale_inv, amax = _ops.quantize_transpose(large, None, E4M3)
    host = _ops.quantize(ends(large), None, E4M3)
    assert same_bits(ends(payload), host[0]) and same_bits(scale_inv, host[1]) and same_bits(amax, host[2])
    assert same_bits(ends(payload_t.t()), host[0])
    between = payload[ENDS:-ENDS].view(torch.int64), payload_t.view(torch.uint8)[:, ENDS:-ENDS]
    assert not any(bool(rows.any()) for part in between for rows in part.split(4096))
    del large, payload_t, between
    norm = _ops.grad_norm([payload], [scale_inv])
    assert float(norm) == pytest.approx(float(_ops.grad_norm([host[0]], [host[1]])), rel=1e-6)
    back = _ops.dequantize(payload, scale_inv, torch.bfloat16)
    assert same_bits(ends(back), _ops.dequantize(host[0], host[1], torch.bfloat16))


def test_adam(large: Tensor) -> None:
    def step(x: Tensor) -> Tensor:
        weight = nn.Parameter(fp8amp.quantize(x, "fp16"))
        weight.grad = fp8amp.quantize(x, "e4m3")
        del x
        fp8amp.optim.AdamW([weight], lr=0.5, master_rounding="nearest", moment_rounding="nearest").step()
        return weight.detach().payload

    host = step(ends(large))
    assert same_bits(ends(step(large)), host)
