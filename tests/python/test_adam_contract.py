"""What Adam promises beside its arithmetic: torch's decoupled_weight_decay, and the key of stochastic rounding."""

import fp8amp
import pytest
import torch
from fp8amp.optim import Adam, AdamW
from fp8amp.scaled_tensor import scaled_weight
from torch import nn
from twins import batch, dense, is_fp8, net, same, train

DECAY = dict(lr=2e-3, weight_decay=10.0)


def managed(seed):
    return nn.Parameter(scaled_weight(batch(seed, 16, 16)))


def plain(seed):
    return nn.Parameter(batch(seed, 16, 16))


def dense_copies(parameters):
    return [nn.Parameter(dense(p).clone()) for p in parameters]


def descend(optimizer, parameters, steps=20):
    """Dense FP32 gradients, the same ones in each call: what differs is the optimizer."""
    for step in range(steps):
        for place, p in enumerate(parameters):
            p.grad = batch(100 * step + place, 1, p.numel()).reshape(p.shape)
        optimizer.step()


def distance(a, b):
    return max(float((dense(p) - dense(q)).norm() / dense(q).norm()) for p, q in zip(a, b, strict=True))


def assert_decays_as_torch(opt, ours, before, decoupled, tolerance):
    adam, adamw = (dense_copies(before) for _ in range(2))
    descend(opt, ours)
    descend(torch.optim.Adam(adam, **DECAY), adam)
    descend(torch.optim.AdamW(adamw, **DECAY), adamw)
    like, unlike = (adamw, adam) if decoupled else (adam, adamw)
    assert distance(ours, like) < tolerance and distance(ours, unlike) > 0.1


@pytest.mark.parametrize("make,tolerance", [(plain, 1e-6), (managed, 5e-3)])
@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_with_decoupled_weight_decay_is_the_adamw_of_torch(make, tolerance, decoupled):
    ours = [make(1), make(2)]
    opt = Adam(ours, decoupled_weight_decay=decoupled, **DECAY)
    assert_decays_as_torch(opt, ours, dense_copies(ours), decoupled, tolerance)


@pytest.mark.parametrize("level,tolerance", [("O1", 5e-3), ("O2", 0.03)])
@pytest.mark.parametrize("decoupled", [True, False])
def test_initialize_keeps_the_decoupled_weight_decay_of_a_stock_adam(level, tolerance, decoupled):
    model = net()
    opt = torch.optim.Adam(model.parameters(), decoupled_weight_decay=decoupled, **DECAY)
    before = dense_copies(model.parameters())
    fp8amp.initialize(model, opt, level)
    assert type(opt) is Adam
    assert_decays_as_torch(opt, list(model.parameters()), before, decoupled, tolerance)


ROUNDINGS = dict(master_rounding="stochastic", second_moment_rounding="stochastic", seed=5)


@pytest.mark.parametrize("first", [managed, plain])
@pytest.mark.parametrize("groups", [False, True])
def test_a_parameter_without_a_gradient_leaves_the_rounding_of_the_others_alone(first, groups):
    """Stochastic rounding is keyed by the index of the parameter in the optimizer, over all its groups."""
    runs = []
    for absent in (False, True):
        parameters = [first(1), managed(2), managed(2)]
        opt = Adam([{"params": [p]} for p in parameters] if groups else parameters, lr=1e-2, **ROUNDINGS)
        for step in range(3):
            for p in parameters:
                p.grad = batch(step, 16, 16)
            if absent and step == 1:
                parameters[0].grad = None
            opt.step()
        runs.append([[p, opt.state[p]["exp_avg"], opt.state[p]["exp_avg_sq"]] for p in parameters])
    for here, there in zip(runs[0][1:], runs[1][1:], strict=True):
        assert all(same(a, b) for a, b in zip(here, there, strict=True))
    _, left, right = runs[0]
    assert not any(same(a, b) for a, b in zip(left, right, strict=True)), "equal values at another index differ"


def test_a_frozen_layer_leaves_the_rounding_of_the_others_alone():
    runs = []
    for frozen in (False, True):
        model = net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        fp8amp.initialize(model, opt, "O2", **ROUNDINGS)
        model[0].requires_grad_(not frozen)
        train(model, opt, 1)
        assert (model[0].weight.grad is None) is frozen and is_fp8(model[3].weight.grad)
        runs.append([model[3].weight, *(opt.state[model[3].weight][name] for name in ("exp_avg", "exp_avg_sq"))])
    assert all(same(a, b) for a, b in zip(*runs, strict=True))


def test_adamw_stays_decoupled_when_it_loads_a_checkpoint_of_adam():
    parameters = [managed(1), plain(2)]
    stock = torch.optim.Adam([nn.Parameter(dense(p).clone()) for p in parameters], weight_decay=0.1)
    opt, twin = AdamW(parameters), torch.optim.AdamW([nn.Parameter(dense(p).clone()) for p in parameters])
    for optimizer in (opt, twin):
        optimizer.load_state_dict(stock.state_dict())
        assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
