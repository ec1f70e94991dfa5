"""The known traps of low-precision Adam states over many steps (field reports E), each beside the value of FP32
Adam."""

import fp8amp
import pytest
import torch
from fp8amp.optim import Adam
from fp8amp.scaled_tensor import scaled_weight
from torch import nn
from twins import batch, dense, net


def parameter(values, managed=True):
    values = torch.as_tensor(values, dtype=torch.float32)
    return nn.Parameter(scaled_weight(values) if managed else values.clone())


def give(p, grad):
    p.grad = torch.as_tensor(grad, dtype=torch.float32)


@pytest.mark.parametrize(
    "beta1,steps,spike,want", [(0.9, 6000, 1e-3, 0.0057), (0.95, 3000, 1.0, 0.0074), (0.98, 6000, 1e-3, None)]
)
def test_a_moment_whose_gradient_stopped_decays(
    beta1, steps, spike, want
):  # BR-063: |p| reaches 9.03 with rounding to nearest
    p = parameter([[0.0, 0.0]])
    opt = Adam([p], lr=1e-3, betas=(beta1, 0.999))
    for step in range(1, steps + 1):
        give(p, [[10.0, spike if step == 21 else 0.0]])
        opt.step()
    assert abs(float(dense(p)[0, 1])) < 0.02 and dense(opt.state[p]["exp_avg"])[0, 1] == 0


def test_a_second_moment_is_never_flushed_beside_a_spike():  # BR-064: 5.4e4 lr with rounding to zero
    p, worst = parameter([[0.0, 0.0, 0.0]]), 0.0
    opt = Adam([p], lr=1e-3)
    for step in range(1, 401):
        before = dense(p)
        small = 1e-3 * (1 - step % 2 * 2) if step % 4 < 2 else 0.0
        give(p, [[1e4 if step == 51 else 1e-3, small, small]])
        opt.step()
        worst = max(worst, float((dense(p) - before).abs().max()) / 1e-3)
    assert worst <= 5.0


@pytest.mark.parametrize("grad", [1e-4, 300.0])
def test_second_moment_has_its_own_scale(grad):  # BR-065: 25.1 and 0 without
    p = parameter([[0.0]])
    opt = Adam([p], lr=1e-3)
    for step in range(1, 3001):
        give(p, [[grad]])
        p.data.zero_()
        opt.step()
        if step in (1, 2, 10, 1000, 3000):
            assert float(dense(p)) == pytest.approx(-1e-3, rel=0.03), step


@pytest.mark.parametrize(
    "managed,rounding,want,tolerance",
    [(False, "nearest", 0.8900, 1e-5), (True, "stochastic", 0.8900, 2e-3), (True, "nearest", 0.89985, 2e-4)],
)
def test_updates_below_half_a_unit(
    managed, rounding, want, tolerance
):  # BR-071: the limit of an FP16 master, and the way out
    p = parameter([[1.0] + [0.9] * 255], managed)
    opt = Adam([p], lr=1e-4, master_rounding=rounding)
    for _ in range(100):
        give(p, [[0.0] + [1.0] * 255])
        opt.step()
    assert float(dense(p)[0, 1:].mean()) == pytest.approx(want, abs=tolerance) and float(dense(p)[0, 0]) == 1.0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_level_follows_a_learning_rate_of_fine_tuning(level):
    """100 steps of 1e-5 on weights of 0.05: with a master rounded to nearest half of them would not move."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    with torch.no_grad():
        model[0].weight.normal_(std=0.05)
    fp8amp.initialize(model, opt := torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0), level)
    before = dense(model[0].weight).clone()
    for _ in range(100):
        model[0].weight.grad = torch.ones(64, 64)
        opt.step()
    assert float((before - dense(model[0].weight)).mean()) == pytest.approx(1e-3, rel=0.03)


def test_moments_do_not_lag():  # BR-091
    for beta1 in (0.9, 0.95):
        p, g = parameter([[0.0] * 4]), torch.tensor([[1.0, 0.3, 0.07, 0.01]])
        opt = Adam([p], lr=1e-3, betas=(beta1, 0.999))
        ratios = []
        for step in range(400):
            give(p, g)
            opt.step()
            if step >= 200:
                ratios.append(dense(opt.state[p]["exp_avg"]) / g)
        mean = torch.stack(ratios).mean(0)
        assert ((mean > 0.95) & (mean < 1.03)).all(), mean


def test_low_bit_training_ends_where_fp32_does():  # BR-090
    for seed in range(2):
        torch.manual_seed(seed)
        target = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        ends = []
        for level in (None, "O1", "O2"):
            model = net(seed)
            opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
            if level:
                fp8amp.initialize(model, opt, level)
            losses = []
            for step in range(200):
                x = batch(step, 32)
                opt.zero_grad()
                loss = (model(x) - target(x).detach()).square().mean()
                loss.backward()
                opt.step()
                losses.append(loss.item())
            ends.append(sum(losses[-30:]) / 30)
        assert max(ends[1:]) < 1.1 * ends[0] + 1e-3, ends


def test_skipped_steps_are_counted_in_one_place():  # a captured graph adds to the counter it has seen
    p = parameter([[1.0]])
    opt = Adam([p])
    give(p, [[1.0]])
    opt.step()
    (counter,) = opt._skipped.values()
    for count in (1, 2):
        give(p, [[float("nan")]])
        opt.step()
        assert opt.skipped_steps == int(counter) == count
