"""Scaling recipes: histories that move in training alone, warm-up, and the constant recipe (field reports B)."""

import copy
import math

import fp8amp
import pytest
import torch
from fp8amp import ConstantScaling, CurrentScaling, DelayedScaling
from torch import nn
from torch.utils.checkpoint import checkpoint
from twins import batch, dense, net, same, snapshot, train, trainer, unchanged

RECIPES = [
    CurrentScaling(),
    CurrentScaling(margin=1, scale_rounding="exact"),
    DelayedScaling(history=3),
    ConstantScaling(bias=4),
]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_every_recipe_trains(recipe, level):
    losses = train(*trainer(level, recipe=recipe), steps=80)
    plain = net()
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 80)
    assert sum(losses[-20:]) < 1.1 * sum(want[-20:])


@pytest.mark.parametrize("recipe", RECIPES)
def test_evaluation_is_pure(recipe):  # BR-018
    (a, opt_a), (b, opt_b) = trainer(recipe=recipe), trainer(recipe=recipe)
    train(a, opt_a, 4)
    train(b, opt_b, 4)
    before = snapshot(a)
    a.eval()
    with torch.no_grad():
        for _ in range(3):
            a(batch(7) * 100)
    a(batch(8) * 1000).sum().backward()
    assert unchanged(before, a)
    a.train()
    assert train(a, opt_a, 2, 4) == train(b, opt_b, 2, 4)


def layer(**options):
    torch.manual_seed(0)
    model = nn.Linear(16, 16, bias=False)
    fp8amp.initialize(model, recipe=DelayedScaling(**options))
    return model


def scale_in_use(model):
    return float(model.x_history[1])


def test_delayed_scale_is_the_largest_of_the_window():  # BR-024, BR-026
    model = layer(history=2)
    for amax, scale in ((8.0, 56), (1.0, 448), (1.0, 56), (1.0, 448), (0.5, 448)):
        model(torch.full((4, 16), amax))
        assert scale_in_use(model) == 2.0 ** math.floor(math.log2(scale)), amax


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_the_first_step_is_as_well_scaled_as_the_tenth(size):  # BR-026
    model, errors = layer(history=4), []
    for step in range(10):
        x = batch(step) * size
        want = x @ dense(model.weight).t()
        got = model(x).detach()
        errors.append(float((got - want).norm() / want.norm()))
    assert errors[0] < 0.06 and max(errors) < 0.06


def test_a_non_finite_amax_is_dropped_and_warm_up_restarts():
    model = layer(history=2)
    for _ in range(3):
        model(torch.ones(4, 16))
    before = scale_in_use(model)
    model(torch.full((4, 16), math.nan))
    assert math.isfinite(scale_in_use(model)) and float(model.x_history[0]) == 0
    model(torch.full((4, 16), 64.0))
    assert scale_in_use(model) < before and torch.isfinite(model.x_history).all()


def test_only_modules_that_ran_move():
    model = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
    fp8amp.initialize(model, recipe=DelayedScaling())
    model[0](batch()).sum().backward()
    assert float(model[0].x_history[0]) == 1 and float(model[0].gradient_history[0]) == 1
    assert float(model[1].x_history[0]) == 0 and float(model[1].gradient_history[0]) == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_does_not_count(reentrant):  # BR-020
    model = layer()
    checkpoint(model, batch().requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert float(model.x_history[0]) == 1 and float(model.gradient_history[0]) == 1


def test_histories_stay_fp32_and_follow_deepcopy():
    model = layer()
    model(batch())
    twin = copy.deepcopy(model)
    model.half()
    assert model.x_history.dtype is torch.float32 and float(model.x_history[2]) == float(batch().abs().max())
    model(batch().half())
    assert float(twin.x_history[0]) == 1 and float(model.x_history[0]) == 2


def test_histories_are_saved_and_missing_ones_are_no_error():  # BR-027, BR-099
    model, other = layer(), layer()
    for step in range(3):
        model(batch(step))
    size = sum(v.numel() for v in model.state_dict().values())
    for step in range(40):
        model(batch(step))
    assert sum(v.numel() for v in model.state_dict().values()) == size
    other.load_state_dict(model.state_dict())
    assert same(other.x_history, model.x_history)
    plain = nn.Linear(16, 16, bias=False)
    other.load_state_dict(plain.state_dict())
    current = fp8amp.initialize(nn.Linear(16, 16, bias=False))
    current.load_state_dict(model.state_dict())
    assert same(current.weight, model.weight)
    fp8amp.to_dense(model).load_state_dict(fp8amp.to_dense(other).state_dict())


def test_margin_and_exact_scales_reach_the_cast(monkeypatch):
    seen, original = [], fp8amp._ops.gemm
    monkeypatch.setattr(
        fp8amp._ops, "gemm", lambda a, sa, b, sb, **k: (seen.append(float(sa)), original(a, sa, b, sb, **k))[1]
    )
    for recipe, want in (
        (CurrentScaling(), 2.0**-7),
        (CurrentScaling(margin=2), 2.0**-5),
        (CurrentScaling(scale_rounding="exact"), 3 / 448),
        (ConstantScaling(bias=5), 2.0**-5),
    ):
        model = nn.Linear(16, 16)
        fp8amp.initialize(model, recipe=recipe)
        seen.clear()
        model(torch.full((2, 16), 3.0))
        assert seen == [pytest.approx(want, rel=1e-7)]


def test_gradient_bias_of_the_constant_recipe(monkeypatch):
    seen, original = [], fp8amp._ops.gemm
    monkeypatch.setattr(
        fp8amp._ops,
        "gemm",
        lambda a, sa, b, sb, **k: (seen.append((float(sa), float(sb))), original(a, sa, b, sb, **k))[1],
    )
    model = nn.Linear(16, 16)
    fp8amp.initialize(model, recipe=ConstantScaling(bias=1, gradient_bias=8))
    model(batch()).sum().backward()
    assert seen == [(0.5, 0.5), (2.0**-8, 0.5)]


@pytest.mark.parametrize(
    "make,error,text",
    [
        (lambda: DelayedScaling(history=0), ValueError, "history.*0"),
        (lambda: DelayedScaling(history=1.5), TypeError, "1.5"),
        (lambda: DelayedScaling(margin=99), ValueError, "margin.*99"),
        (lambda: CurrentScaling(margin="1"), TypeError, "'1'"),
        (lambda: CurrentScaling(scale_rounding="up"), ValueError, "'up'"),
        (lambda: ConstantScaling(bias=40), ValueError, "40"),
        (lambda: ConstantScaling(bias=1, gradient_bias=True), TypeError, "True"),
        (lambda: ConstantScaling(), TypeError, "bias"),
    ],
)
def test_bad_arguments_are_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
