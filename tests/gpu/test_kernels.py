"""Casts under one scale, sums and maxima: the CUDA backend gives the bits of the CPU backend, and writes nothing
else."""

from __future__ import annotations

import pytest
import torch
from fp8amp import _ops
from fp8amp.policies import Overflow, Rounding, ScaleRounding
from guarded import E4M3, E5M2, PLAIN, Guards, assert_same, numbers

FORMATS = (E4M3, E5M2, torch.float16)
SIZES = (0, 1, 15, 16, 17, 1000, 9001, (1 << 20) + 3)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("rounding", Rounding)
def test_quantize(guards: Guards, dtype: torch.dtype, format: torch.dtype, rounding: Rounding) -> None:
    for n in SIZES:
        for specials, overflow in ((False, Overflow.SATURATE), (True, Overflow.SATURATE), (True, Overflow.NAN)):
            x = numbers(n, dtype, n, 3.0, specials)
            policy = {"rounding": rounding, "overflow": overflow, "seed": 7}
            for scale in (None, torch.tensor(300.0)):
                host = _ops.quantize(x, None, format, scale=scale, **policy)
                there = None if scale is None else guards.copy(scale)
                assert_same(host, _ops.quantize(guards.copy(x), None, format, scale=there, **policy))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("rounding", Rounding)
def test_quantize_of_all_16_bit_inputs(guards: Guards, dtype: torch.dtype, rounding: Rounding) -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    for format in FORMATS:
        for scale in (1.0, 2.0**-6, 2.0**-20, 1000.0):
            factor = torch.tensor(scale)
            host = _ops.quantize(x, None, format, scale=factor, rounding=rounding)
            assert_same(host, _ops.quantize(guards.copy(x), None, format, scale=guards.copy(factor), rounding=rounding))


@pytest.mark.parametrize("offset", (0, 1, 3))
def test_quantize_into(guards: Guards, offset: int) -> None:
    for format in FORMATS:
        for keep in (False, True):
            x = numbers(1000, torch.float32, 5)
            payload, scale_inv = torch.zeros(1000, dtype=format), torch.tensor(0.25)
            there = guards.copy(payload, offset), guards.copy(scale_inv)
            amax = _ops.quantize_(payload, scale_inv, x, None, keep_scale=keep)
            amax_there = _ops.quantize_(*there, guards.copy(x, offset), None, keep_scale=keep)
            assert_same((payload, scale_inv, amax), (*there, amax_there))


@pytest.mark.parametrize("format", (E4M3, E5M2))
@pytest.mark.parametrize("dtype", PLAIN)
def test_quantize_transpose(guards: Guards, dtype: torch.dtype, format: torch.dtype) -> None:
    for shape in ((1, 1), (3, 5), (64, 128), (129, 130), (17, 256), (200, 48), (1040, 272)):
        x = numbers(shape[0] * shape[1], dtype, 7, 2.0).view(shape)
        assert_same(_ops.quantize_transpose(x, None, format), _ops.quantize_transpose(guards.copy(x), None, format))


@pytest.mark.parametrize("dtype", (*PLAIN, E4M3, E5M2))
def test_column_sums(guards: Guards, dtype: torch.dtype) -> None:
    for shape in ((1, 1), (33, 5), (64, 128), (129, 130), (17, 256), (1040, 272)):
        x = numbers(shape[0] * shape[1], torch.float32, 7, 2.0).view(shape)
        x, scale_inv = _ops.quantize(x, None, dtype)[:2] if dtype.itemsize == 1 else (x.to(dtype), None)
        there = guards.copy(x), None if scale_inv is None else guards.copy(scale_inv)
        assert_same((_ops.column_sums(x, scale_inv),), (_ops.column_sums(*there),))
        for cast in (_ops.quantize, _ops.quantize_transpose):
            assert_same(cast(x, scale_inv, E5M2, column_sums=True), cast(*there, E5M2, column_sums=True))


def test_quantize_delayed(guards: Guards) -> None:
    history = torch.zeros(2 + 3)
    there = guards.copy(history)
    for step in range(9):
        x = numbers(500, torch.bfloat16, step, 1.0 + step % 4, specials=step == 5)
        for update in (False, True):
            policy = {"update": update, "scale_rounding": ScaleRounding.EXACT}
            host = _ops.quantize_delayed(x, None, E4M3, history, **policy)
            assert_same(host, _ops.quantize_delayed(guards.copy(x), None, E4M3, there, **policy))
            assert_same((history,), (there,))


@pytest.mark.parametrize("format", FORMATS)
def test_dequantize(guards: Guards, format: torch.dtype) -> None:
    codes = torch.arange(65536, dtype=torch.int32)
    payload = codes.to(torch.uint16).view(format) if format.itemsize == 2 else codes.to(torch.uint8).view(format)
    scale_inv = torch.tensor(0.3)
    for dtype in PLAIN:
        for n in (0, 1, 17, 65536):
            host = _ops.dequantize(payload[:n], scale_inv, dtype)
            there = _ops.dequantize(guards.copy(payload[:n]), guards.copy(scale_inv), dtype)
            torch.testing.assert_close(there.cpu(), host, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("format", (E4M3, E5M2))
def test_accumulate(guards: Guards, format: torch.dtype) -> None:
    for dtype in (*PLAIN, E4M3, E5M2):
        for n in (1, 16, 1000, 9001):
            sum_, x = numbers(n, format, 10), numbers(n, dtype, 11, specials=dtype.itemsize > 1)
            scale_inv = torch.tensor(0.002)
            x_scale_inv = torch.tensor(0.01) if dtype.itemsize == 1 else None
            there = guards.copy(sum_), guards.copy(scale_inv)
            _ops.accumulate_(sum_, scale_inv, x, x_scale_inv)
            _ops.accumulate_(*there, guards.copy(x), None if x_scale_inv is None else guards.copy(x_scale_inv))
            assert_same((sum_, scale_inv), there)


@pytest.mark.parametrize("format", (E4M3, E5M2))
def test_sum_shards(guards: Guards, format: torch.dtype) -> None:
    for count in (1, 3, 8):
        shards = [numbers(5000, format, i) for i in range(count)]
        scales = [torch.tensor(0.1 + i) for i in range(count)]
        host = _ops.sum_shards(shards, scales, E4M3, factor=0.5)
        there = _ops.sum_shards([*map(guards.copy, shards)], [*map(guards.copy, scales)], E4M3, factor=0.5)
        assert_same(host, there)


def test_amax_and_norm(guards: Guards) -> None:
    tensors = [numbers(n, dtype, n) for n in (1, 17, 5000, 70000) for dtype in (*PLAIN, E4M3)]
    for x in tensors:
        assert_same((_ops.amax(x),), (_ops.amax(guards.copy(x)),))
    scales = [torch.tensor(0.5 if x.itemsize == 1 else 1.0) for x in tensors]
    there = _ops.grad_norm([*map(guards.copy, tensors)], [*map(guards.copy, scales)])
    assert_same((_ops.grad_norm(tensors, scales),), (there,))
