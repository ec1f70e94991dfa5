"""Parameters in one piece of memory that are not one: ``nn.Parameter(other.data)``, views of a flat buffer."""

from __future__ import annotations

import fp8amp
import pytest
import torch
from fp8amp.optim import AdamW
from torch import nn
from twins import batch, snapshot, unchanged


def test_a_weight_that_shares_memory_is_left_alone():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    model[1].weight = nn.Parameter(model[0].weight.data)
    fp8amp.initialize(model)
    assert [type(layer) is nn.Linear for layer in model] == [True, True, False]
    with torch.no_grad():
        model[0].weight.fill_(3)
    assert torch.equal(model[1].weight, model[0].weight)


def test_views_of_a_flat_buffer_stay_views():
    flat = torch.randn(2 * 32 * 32)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    for layer, piece in zip(model, flat.view(2, 32, 32), strict=False):
        layer.weight = nn.Parameter(piece)
    fp8amp.initialize(model)
    flat.zero_()
    assert not model[0].weight.any() and not model[1].weight.any() and type(model[2]) is not nn.Linear


def test_the_optimizer_refuses_two_parameters_of_one_memory_before_anything_changes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    one = nn.Parameter(torch.randn(8))
    two = nn.Parameter(one.data[4:])
    opt = AdamW([{"params": model.parameters()}, {"params": [one, two]}], lr=0.1)
    (model(batch()).sum() * one.sum() * two.sum()).backward()
    before = snapshot(model, opt)
    with pytest.raises(ValueError, match="parameters 4 and 5 share memory"):
        opt.step()
    assert unchanged(before, model, opt) and not opt.state


def _zero(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()


def test_another_process_updates_the_weights():
    """No version counter of this process moves: the FP8 copy must not be kept."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32))
    fp8amp.initialize(model)
    model.share_memory()
    x = batch(1, 1, 32)
    with torch.no_grad():
        assert model(x).any()
        learner = torch.multiprocessing.get_context("spawn").Process(target=_zero, args=(model,))
        learner.start()
        learner.join()
        assert learner.exitcode == 0 and not model[0].weight.dequantize().any()
        assert not model(x).any()
