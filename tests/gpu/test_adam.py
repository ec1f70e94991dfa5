"""Adam, the norm and clipping: the CUDA backend gives the bits of the CPU backend, and writes nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fp8amp import _ops
from fp8amp.policies import Rounding, ScaleRounding
from guarded import E4M3, E5M2, Guards, assert_same, numbers
from torch import Tensor

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
O1, O2, PLAIN_STATES = (FP16, E4M3, FP32, FP32), (FP16, E4M3, E4M3, FP16), (FP32, FP32, FP32, FP32)
NEAREST, STOCHASTIC = Rounding.NEAREST, Rounding.STOCHASTIC
Stored = tuple[Tensor, Tensor]  # numbers, scale_inv


def stored(x: Tensor, format: torch.dtype, rounding: ScaleRounding = ScaleRounding.EXACT) -> Stored:
    if format in (FP32, BF16):
        return x.to(format), torch.ones(())
    payload, scale_inv, _ = _ops.quantize(x, None, format, scale_rounding=rounding)
    return payload, scale_inv


def largest(x: Stored) -> Tensor:
    return _ops.amax(x[0]) * x[1]


@dataclass
class Parameters:
    """Lists as `adam_` takes them."""

    p: list[Stored] = field(default_factory=list)
    g: list[Stored] = field(default_factory=list)
    m: list[Stored] = field(default_factory=list)
    v: list[Stored] = field(default_factory=list)
    amax: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)
    weights: dict[int, Stored] = field(default_factory=dict)

    def add(self, n: int, formats: tuple[torch.dtype, ...], seed: int, weight: torch.dtype | None = None) -> None:
        if weight is not None:
            self.weights[len(self.p)] = torch.zeros(n, dtype=weight), torch.tensor(0.5)
        self.p.append(stored(numbers(n, FP32, seed, 0.1), formats[0], ScaleRounding.POWER_OF_TWO))
        self.g.append(stored(numbers(n, FP32, seed + 1), formats[1], ScaleRounding.POWER_OF_TWO))
        self.m.append(stored(numbers(n, FP32, seed + 2, 1e-3), formats[2]))
        self.v.append(stored(numbers(n, FP32, seed + 3, 1e-6).abs(), formats[3]))
        self.amax.append(torch.stack([largest(x[-1]) for x in (self.p, self.m, self.v)] + [torch.zeros(())]))
        self.steps.append(torch.tensor(3.0))

    def copies(self, guards: Guards, offset: int = 0) -> Parameters:
        def stored_there(x: Stored) -> Stored:
            return guards.copy(x[0], offset), guards.copy(x[1])

        lists = ([*map(stored_there, x)] for x in (self.p, self.g, self.m, self.v))
        scalars = ([*map(guards.copy, x)] for x in (self.amax, self.steps))
        return Parameters(*lists, *scalars, {i: stored_there(w) for i, w in self.weights.items()})

    def tensors(self) -> tuple[Tensor, ...]:
        pairs = [*self.p, *self.g, *self.m, *self.v, *self.weights.values()]
        return (*(t for pair in pairs for t in pair), *self.amax, *self.steps)

    def step(self, device: torch.device, **policy: Any) -> Tensor:
        grads = [x for x, _ in self.g], [s for _, s in self.g]
        found_inf = _ops.grad_amax_(*grads, self.amax)
        lists = [[x[i] for x in pairs] for pairs in (self.p, self.g, self.m, self.v) for i in (0, 1)]
        options = {
            "lr": torch.tensor(1e-2, device=device),
            "betas": (0.9, 0.95),
            "eps": 1e-8,
            "weight_decay": 0.1,
            "decoupled": True,
            "maximize": False,
            "master_rounding": NEAREST,
            "moment_rounding": STOCHASTIC,
            "second_moment_rounding": NEAREST,
            "seed": 42,
            "grad_scale": None,
            "found_inf": found_inf,
        }
        _ops.adam_(*lists, self.amax, self.steps, list(range(len(self.p))), **(options | policy),
                   compute_weights=self.weights)  # fmt: skip
        return found_inf


def compare(guards: Guards, host: Parameters, steps: int = 3, offset: int = 0, **policy: Any) -> None:
    there = host.copies(guards, offset)
    for _ in range(steps):
        assert_same((host.step(torch.device("cpu"), **policy),), (there.step(guards.device, **policy),))
        assert_same(host.tensors(), there.tensors())


@pytest.mark.parametrize("formats", (O1, O2, PLAIN_STATES))
@pytest.mark.parametrize("weight", (None, E4M3, FP16))
def test_levels_and_compute_weights(guards: Guards, formats: Any, weight: torch.dtype | None) -> None:
    for n, offset in ((1, 0), (15, 0), (16, 0), (1000, 0), (16384, 0), (70001, 0), (1000, 1)):
        parameters = Parameters()
        parameters.add(n, formats, n, weight)
        compare(guards, parameters, offset=offset)


@pytest.mark.parametrize("formats", (O1, O2))
@pytest.mark.parametrize("rounding", (NEAREST, STOCHASTIC))
@pytest.mark.parametrize("decoupled", (True, False))
def test_roundings_and_rules(guards: Guards, formats: Any, rounding: Rounding, decoupled: bool) -> None:
    for moments in (NEAREST, STOCHASTIC):
        parameters = Parameters()
        parameters.add(5000, formats, 7)
        compare(guards, parameters, master_rounding=rounding, moment_rounding=moments,
                second_moment_rounding=moments, decoupled=decoupled, maximize=not decoupled)  # fmt: skip


def test_any_types(guards: Guards) -> None:
    parameters = Parameters()
    for p in (FP32, FP16, E4M3):
        for g in (FP32, FP16, BF16, E4M3, E5M2):
            for m in (FP32, E4M3):
                for v in (FP32, FP16, E4M3, E5M2):
                    parameters.add(100, (p, g if g is not FP16 else FP32, m, v), 9)
    compare(guards, parameters)


def test_many_tensors_and_a_gradient_that_is_not_finite(guards: Guards) -> None:
    parameters = Parameters()
    for i in range(1100):
        weight = E4M3 if i % 4 == 0 else None
        parameters.add(0 if i % 10 == 4 else 50 + i % 50, (O1, O2, PLAIN_STATES)[i % 3], i, weight)
    compare(guards, parameters, 1)
    parameters.g[700][0].view(torch.uint8)[3] = 0x7F
    before = [t.clone() for t in parameters.tensors()]
    compare(guards, parameters, 1)
    after = parameters.tensors()
    kept = len(after) - 2 * len(parameters.p)  # all but amax and steps
    assert_same(tuple(before[:kept]), after[:kept])


def test_norm(guards: Guards) -> None:
    for count in (1, 300, 1500):
        grads = [stored(numbers(i % 97 + 3, FP32, i), (FP32, BF16, E4M3, E5M2)[i % 4]) for i in range(count)]
        there = [(guards.copy(x), guards.copy(s)) for x, s in grads]
        host = _ops.grad_norm([x for x, _ in grads], [s for _, s in grads])
        assert_same((host,), (_ops.grad_norm([x for x, _ in there], [s for _, s in there]),))
