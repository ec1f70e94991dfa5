"""The Adam op that writes the weight that is computed with beside the master (level O3)."""

import fp8amp
import pytest
import torch
from fp8amp import _ops
from fp8amp.policies import Rounding
from twins import E4M3, FP16


def one():
    return torch.ones(())


class Lists:
    """Two parameters: a scaled FP16 master with an FP8 gradient and O2 states, and a plain one."""

    def __init__(self):
        torch.manual_seed(1)
        master, self.master_scale_inv, amax = _ops.quantize(torch.randn(100, 20), None, FP16)
        grad, grad_scale_inv, _ = _ops.quantize(torch.randn(100, 20) * 1e-3, None, E4M3)
        self.params, self.param_scale_inv = [master, torch.randn(50)], [self.master_scale_inv, one()]
        self.grads, self.grad_scale_inv = [grad, torch.randn(50)], [grad_scale_inv, one()]
        self.first = [torch.zeros(100, 20, dtype=E4M3), torch.zeros(50)]
        self.second = [torch.zeros(100, 20, dtype=FP16), torch.zeros(50)]
        self.amax = [torch.stack([amax, *torch.zeros(3)]), torch.zeros(4)]
        self.steps = [torch.zeros(()), torch.zeros(())]

    def step(self, compute_weights):
        _ops.adam_(
            *(self.params, self.param_scale_inv, self.grads, self.grad_scale_inv),
            *(self.first, [one(), one()], self.second, [one(), one()], self.amax, self.steps, [0, 1]),
            lr=torch.tensor(1e-3),
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.1,
            decoupled=True,
            maximize=False,
            master_rounding=Rounding.NEAREST,
            moment_rounding=Rounding.STOCHASTIC,
            second_moment_rounding=Rounding.NEAREST,
            seed=0,
            grad_scale=None,
            found_inf=_ops.grad_amax_(self.grads, self.grad_scale_inv, self.amax),
            compute_weights=compute_weights,
        )


def weight(*shape, dtype=E4M3):
    return torch.zeros(shape, dtype=dtype), torch.tensor(0.5)


@pytest.mark.parametrize("format", [E4M3, FP16])
def test_it_has_the_bits_of_a_cast_of_the_new_master(format):
    lists, plain = Lists(), Lists()
    payload, scale_inv = weight(100, 20, dtype=format)
    other, other_scale_inv = weight(50)
    version = payload._version
    lists.step({1: (other, other_scale_inv), 0: (payload, scale_inv)})
    want, _, _ = _ops.quantize(lists.params[0], lists.master_scale_inv, format, scale=1 / scale_inv)
    assert torch.equal(payload.view(torch.uint8), want.view(torch.uint8))
    want, _, _ = _ops.quantize(lists.params[1], None, E4M3, scale=1 / other_scale_inv)
    assert torch.equal(other.view(torch.uint8), want.view(torch.uint8))
    assert payload._version > version
    plain.step(None)
    assert torch.equal(plain.params[0], lists.params[0]) and torch.equal(plain.params[1], lists.params[1])


def test_a_skipped_step_leaves_it():
    lists = Lists()
    lists.grads[1][7] = float("nan")
    payload, scale_inv = weight(100, 20)
    lists.step({0: (payload, scale_inv)})
    assert not payload.view(torch.uint8).any() and scale_inv == 0.5


@pytest.mark.parametrize(
    ("compute_weights", "message"),
    [
        ({2: weight(50)}, "compute_weight_places must be different places below 2, got 2"),
        ({-1: weight(50)}, "places below 2, got -1"),
        ({1: weight(100, 20)}, "compute_weight must have shape \\[50\\]"),
        ({0: weight(100, 20, dtype=torch.float8_e5m2)}, "compute_weight must be one of float8_e4m3, float16"),
        ({0: (torch.zeros(20, 100, dtype=E4M3).T, one())}, "compute_weight must be contiguous"),
    ],
)
def test_bad_input_is_refused(compute_weights, message):
    lists = Lists()
    before = lists.params[0].clone()
    with pytest.raises(fp8amp.Error, match=message):
        lists.step(compute_weights)
    assert torch.equal(before, lists.params[0]) and lists.steps[0] == 0
