"""Norms and activations with a cast, and the norms' backward: the CUDA backend gives the bits of the CPU backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fp8amp import _fused_ops as ops
from fp8amp._fused_ops import CastRule
from guarded import E4M3, E5M2, PLAIN, Guards, assert_same, numbers
from torch import Tensor

SHAPES = ((1, 1), (3, 33), (17, 160), (130, 1040), (64, 8192), (33, 4101))


def matrix(rows: int, cols: int, dtype: torch.dtype, seed: int, specials: bool = False) -> Tensor:
    return numbers(rows * cols, dtype, seed, 3.0, specials).view(rows, cols)


def casts(guards: Guards, transpose: bool, call: Callable[..., tuple[Tensor, ...]], *operands: Tensor) -> None:
    """The same on both, with current scaling and with a scale that is given."""
    there = [guards.copy(x) for x in operands]
    for scale in (None, torch.tensor(20.0)):
        host = call(*operands, CastRule(scale), transpose)
        device = call(*there, CastRule(None if scale is None else guards.copy(scale)), transpose)
        assert_same(host, device)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
    return ops.layer_norm_quantize(x, gamma, beta, 1e-5, E4M3, rule, transpose=t)


def layer_norm_without_beta(x: Tensor, gamma: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
    return ops.layer_norm_quantize(x, gamma, None, 1e-5, E4M3, rule, transpose=t)


def rms_norm(x: Tensor, gamma: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
    return ops.rms_norm_quantize(x, gamma, 1e-6, E4M3, rule, transpose=t)


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("transpose", (False, True))
def test_norms(guards: Guards, dtype: torch.dtype, transpose: bool) -> None:
    for rows, cols in SHAPES:
        x = matrix(rows, cols, dtype, 1)
        gamma, beta = numbers(cols, torch.float32, 2, 2.0), numbers(cols, torch.float32, 3)
        casts(guards, transpose, layer_norm, x, gamma, beta)
        casts(guards, transpose, layer_norm_without_beta, x, gamma)
        casts(guards, transpose, rms_norm, x, gamma)


@pytest.mark.parametrize("tanh", (False, True))
@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("transpose", (False, True))
def test_gelu(guards: Guards, dtype: torch.dtype, transpose: bool, tanh: bool) -> None:
    def forward(x: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
        return ops.gelu_quantize(x, tanh, E4M3, rule, transpose=t)

    def backward(dy: Tensor, x: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
        return ops.gelu_backward_quantize(dy, x, tanh, E5M2, rule, transpose=t)

    for rows, cols in SHAPES:
        for specials in (False, True):
            x, dy = matrix(rows, cols, dtype, 1, specials), matrix(rows, cols, dtype, 3)
            casts(guards, transpose, forward, x)
            casts(guards, transpose, backward, dy, x)


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("transpose", (False, True))
def test_swiglu(guards: Guards, dtype: torch.dtype, transpose: bool) -> None:
    def forward(x: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
        return ops.swiglu_quantize(x, E4M3, rule, transpose=t)

    def backward(dy: Tensor, x: Tensor, rule: CastRule, t: bool) -> tuple[Tensor, ...]:
        return ops.swiglu_backward_quantize(dy, x, E5M2, rule, transpose=t)

    for rows, cols in SHAPES:
        for specials in (False, True):
            x, dy = matrix(rows, 2 * cols, dtype, 2, specials), matrix(rows, cols, dtype, 3)
            casts(guards, transpose, forward, x)
            casts(guards, transpose, backward, dy, x)


@pytest.mark.parametrize("dtype", PLAIN)
def test_backward_of_norms(guards: Guards, dtype: torch.dtype) -> None:
    for rows, cols in (*SHAPES, (1100, 48)):
        x, dy = matrix(rows, cols, dtype, 1), matrix(rows, cols, dtype, 2)
        gamma = numbers(cols, torch.float32, 3, 2.0)
        mean, rstd = numbers(rows, torch.float32, 4), numbers(rows, torch.float32, 5).abs()
        layer = dy, x, mean, rstd, gamma
        assert_same(ops.layer_norm_backward(*layer), ops.layer_norm_backward(*map(guards.copy, layer)))
        rms = dy, x, rstd, gamma
        assert_same(ops.rms_norm_backward(*rms), ops.rms_norm_backward(*map(guards.copy, rms)))
