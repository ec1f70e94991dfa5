"""Low-bit Adam and AdamW: arithmetic, known traps of low-precision states, and the optimizer protocol of torch (field
reports E).

Reference values are those of FP32 or float64 Adam, from torch.optim or from the closed form.
"""

import copy
import math
import pickle
import warnings

import fp8amp
import pytest
import torch
from fp8amp.optim import Adam, AdamW
from fp8amp.scaled_tensor import scaled, scaled_weight, version
from torch import nn
from twins import E4M3, FP16, batch, dense, is_fp8, net, same, same_training_state, snapshot, train, trainer, unchanged

LEVELS = {"O1": dict(exp_avg_format=torch.float32, exp_avg_sq_format=torch.float32), "O2": {}}


def parameter(values, managed=True):
    values = torch.as_tensor(values, dtype=torch.float32)
    return nn.Parameter(scaled_weight(values) if managed else values.clone())


def give(p, grad):
    """A dense FP32 gradient: what is measured is the optimizer, not the gradient's format."""
    p.grad = torch.as_tensor(grad, dtype=torch.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("managed", [True, False])
def test_first_step_and_placement_of_eps(level, managed):  # BR-067, BR-068
    p = parameter([0.0, 0, 0, 0, 0, 0], managed)
    opt = Adam([p], lr=1e-3, **LEVELS[level])
    give(p, [1.0, -2.0, 3.0, 0.0, 1e-6, 1e-8])
    opt.step()
    want = torch.tensor([-1e-3, 1e-3, -1e-3, 0.0, -9.901e-4, -5e-4])
    keep = (
        torch.tensor([0, 1, 2, 3, 4]) if managed and level == "O2" else torch.arange(6)
    )  # 1e-8 is flushed beside 3 in E4M3
    assert torch.allclose(dense(p)[keep], want[keep], rtol=2.0**-10, atol=0)
    for g, step in ((1e-8, 0.5), (1e-12, 9.999e-5)):
        q = parameter([0.0], managed)
        alone = Adam([q], lr=1e-3, **LEVELS[level])
        give(q, [g])
        alone.step()
        assert dense(q).item() == pytest.approx(-step * 1e-3, rel=2e-3)


@pytest.mark.parametrize("managed", [True, False])
def test_weight_decay_decoupled_or_not_and_per_group(managed):  # BR-070
    for cls, want in ((AdamW, 0.89), (Adam, 0.9)):
        p, q = parameter([1.0], managed), parameter([1.0], managed)
        opt = cls([{"params": [p], "weight_decay": 0.1}, {"params": [q], "weight_decay": 0.0}], lr=0.1)
        give(p, [1.0])
        give(q, [1.0])
        opt.step()
        assert dense(p).item() == pytest.approx(want, rel=2.0**-10) and dense(q).item() == pytest.approx(
            0.9, rel=2.0**-10
        )


@pytest.mark.parametrize("cls,stock", [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(maximize=True),
        dict(betas=(0.7, 0.95), eps=1e-3, weight_decay=0.1),
        dict(foreach=True),
        dict(fused=True),
        dict(lr=torch.tensor(3e-3)),
    ],
)
def test_plain_parameters_follow_torch(cls, stock, options):
    a, b = net(), net()
    ours, theirs = cls(a.parameters(), **{"lr": 1e-2, **options}), stock(b.parameters(), **{"lr": 1e-2, **options})
    train(a, ours, 20)
    train(b, theirs, 20)
    assert all(torch.allclose(p, q, rtol=1e-4, atol=1e-5) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert ours.param_groups[0].keys() == theirs.param_groups[0].keys()


@pytest.mark.parametrize("level", LEVELS)
def test_zero_gradients_change_nothing(level):  # BR-032, BR-067
    p = parameter(batch())
    opt = Adam([p], lr=1e-3, **LEVELS[level])
    before = p.detach().clone()
    for _ in range(3):
        give(p, torch.zeros(8, 16))
        opt.step()
    assert (
        torch.equal(dense(p), dense(before))
        and not dense(opt.state[p]["exp_avg"]).any()
        and not dense(opt.state[p]["exp_avg_sq"]).any()
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1, 4])  # FP8, plain bias, FP8 of the last layer
def test_a_non_finite_gradient_skips_the_whole_step(level, bad, where):  # BR-081, BR-084
    (model, opt), (twin, twin_opt) = trainer(level), trainer(level)
    for m, o in ((model, opt), (twin, twin_opt)):
        train(m, o, 3)
    opt.zero_grad()
    model(batch()).sum().backward()
    p = list(model.parameters())[where]
    broken = dense(p.grad)
    broken.view(-1)[3] = bad
    p.grad = scaled(broken, E4M3, role="gradient") if is_fp8(p.grad) else broken
    before = snapshot(model, opt)
    opt.step()
    assert unchanged(before, model, opt) and opt.skipped_steps == 1 and twin_opt.skipped_steps == 0
    assert train(model, opt, 3, 3) == train(twin, twin_opt, 3, 3) and same_training_state(
        (model, opt), (twin, twin_opt)
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_equal_seeds_give_equal_bits(level, rounding):
    runs = [trainer(level, master_rounding=rounding, second_moment_rounding=rounding, seed=s) for s in (3, 3, 4)]
    for m, o in runs:
        train(m, o, 10)
    assert same_training_state(runs[0], runs[1])
    assert same_training_state(runs[0], runs[2]) is (level == "O1" and rounding == "nearest")


def test_scheduler_made_before_initialize():  # BR-074
    model = net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.1)
    calls = []
    opt.register_step_pre_hook(lambda *a: calls.append("pre"))
    fp8amp.initialize(model, opt, "O2")
    opt.register_step_post_hook(lambda *a: calls.append("post"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            model(batch()).sum().backward()
            opt.step()
            scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(1e-5) and calls == ["pre", "post"] * 2
    bias = model[0].bias.detach().clone()
    model(batch()).sum().backward()
    opt.step()
    assert float((model[0].bias - bias).detach().abs().max()) == pytest.approx(1e-5, rel=0.1)


def test_add_param_group_before_and_after_steps():  # BR-075
    _model, opt = trainer()
    early, late = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    opt.add_param_group({"params": [early], "lr": 0.1})
    for step in range(4):
        for p in (early, late):
            p.grad = torch.ones(4)
        opt.step()
        if step == 2:
            state = {k: v.clone() for k, v in opt.state[early].items()}
            opt.add_param_group({"params": [late], "lr": 0.5})
            assert all(same(state[k], opt.state[early][k]) for k in state) and late not in opt.state
    assert float(early[0]) == pytest.approx(0.6, abs=0.02) and float(late[0]) == pytest.approx(0.5, abs=0.02)
    with pytest.raises(ValueError, match="lr"):
        opt.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": -1.0})


@pytest.mark.parametrize(
    "lr", [1, 0.01, torch.tensor(0.01), torch.tensor(0.01, dtype=torch.float64), torch.tensor([0.01])]
)
def test_any_kind_of_lr(lr):  # BR-076
    p = parameter([[1.0]])
    opt = AdamW([p], lr=0.5)
    opt.param_groups[0]["lr"] = lr
    give(p, [[1.0]])
    opt.step()
    assert dense(p).item() == pytest.approx(1 - float(lr) - 0.01 * float(lr), abs=1e-3)


def test_frozen_parameters_have_no_state():  # BR-078
    model = net()
    model[0].requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2")
    train(model, opt, 1)
    assert model[0].weight not in opt.state and model[3].weight in opt.state
    model[0].requires_grad_(True)
    train(model, opt, 1)
    assert model[0].weight in opt.state


def test_sparse_gradients_are_refused_before_anything_changes():  # BR-080
    model = nn.Sequential(nn.Embedding(8, 16, sparse=True), nn.Linear(16, 16))
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2")
    model(torch.arange(4)).sum().backward()
    before = snapshot(model, opt)
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()
    assert unchanged(before, model, opt) and not opt.state
    with pytest.raises(RuntimeError, match="sparse"):
        fp8amp.clip_grad_norm_(model.parameters(), 1.0)


def test_closure_and_step_without_gradients():
    model, opt = trainer()
    opt.step()
    assert not opt.state

    def closure():
        opt.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        return loss

    assert opt.step(closure).item() > opt.step(closure).item()


@pytest.mark.parametrize("level", LEVELS)
def test_existing_states_are_converted_by_value(level):
    a, b = net(), net()
    stock, ours = torch.optim.AdamW(a.parameters(), lr=1e-2), torch.optim.AdamW(b.parameters(), lr=1e-2)
    train(a, stock, 5)
    train(b, ours, 5)
    fp8amp.initialize(b, ours, level)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        for key, tolerance in (("step", 0), ("exp_avg", 0.13), ("exp_avg_sq", 1e-3)):
            x, y = stock.state[p][key], dense(ours.state[q][key])
            assert torch.allclose(x, y, rtol=tolerance, atol=float(x.abs().max()) * 2.0**-16 if tolerance else 0), key
    state = ours.state[b[0].weight]
    if level == "O2":
        assert state["exp_avg"].format is E4M3 and state["exp_avg_sq"].format is FP16
    assert train(b, ours, 10, 5)[-1] == pytest.approx(train(a, stock, 10, 5)[-1], rel=0.1)


def test_weights_written_by_others_are_followed():
    """The bound on the next scale is of the stored weight: a write from outside must not saturate, nor be thrown away
    (BR-095)."""
    for write in (
        lambda w: w.data.mul_(1e4),
        lambda w: w.data.copy_(batch(5, 32, 16) * 100),
        lambda w: w.payload.mul_(0.25),
    ):
        model, opt = trainer(lr=1e-3)
        train(model, opt, 3)
        write(model[0].weight)
        want = dense(model[0].weight)
        opt.param_groups[0]["lr"] = 0.0
        train(model, opt, 1)
        assert torch.allclose(dense(model[0].weight), want, rtol=2.0**-10)
    state = opt.state[model[0].weight]
    state["exp_avg"].mul_(1e3)
    want = dense(state["exp_avg"])
    opt.zero_grad()
    for p in model.parameters():
        p.grad = torch.zeros(p.shape)
    opt.step()
    assert torch.allclose(dense(state["exp_avg"]), 0.9 * want, rtol=0.13, atol=float(want.abs().max()) / 2**10)


@pytest.mark.parametrize("name,beta,tolerance", [("exp_avg", 0.9, 0.13), ("exp_avg_sq", 0.999, 2.0**-10)])
@pytest.mark.parametrize("replace", [False, True])
def test_states_written_or_replaced_by_others_are_followed(name, beta, tolerance, replace):
    p = parameter([[1.0, 2.0, 3.0, 4.0]])
    opt = Adam([p], lr=0.0)
    give(p, [[1.0, 1.0, 1.0, 1.0]])
    opt.step()
    state = opt.state[p]
    old = state[name]
    if replace:  # by another object, written to as often, while the old one lives
        other = scaled(dense(state[name]) * 1e3, state[name].format, scale_rounding="exact")
        while version(other) < version(old):
            other.mul_(1.0)
        state[name] = other
    else:
        state[name].mul_(1e3)
    want = dense(state[name])
    give(p, [[0.0] * 4])
    opt.step()
    assert torch.allclose(dense(state[name]), beta * want, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("strided", [False, True])
def test_plain_16_bit_parameters_are_updated_in_fp32_and_rounded_once(dtype, strided):
    values = batch().to(dtype)
    p = nn.Parameter(values.clone().t() if strided else values.clone())
    q = nn.Parameter(p.detach().float())
    opt, wide = AdamW([p], lr=0.05), AdamW([q], lr=0.05)
    for step in range(3):
        q.data.copy_(p.detach())
        p.grad = batch(step, *p.shape).to(dtype)
        q.grad = p.grad.float()
        opt.step()
        wide.step()
        assert torch.equal(p, q.to(dtype)) and not torch.equal(p, values.t() if strided else values)


def test_mixed_parameter_kinds_in_one_optimizer():  # BR-084
    torch.manual_seed(0)
    params = [
        parameter(batch()),
        nn.Parameter(batch().half()),
        nn.Parameter(batch().bfloat16()),
        nn.Parameter(batch()),
        nn.Parameter(batch().t()),
    ]
    opt = AdamW(params, lr=0.1)
    for p in params:
        p.grad = torch.ones_like(p.detach()) if not hasattr(p, "payload") else torch.ones(8, 16)
    before = [dense(p).clone() for p in params]
    opt.step()
    for p, old in zip(params, before, strict=True):
        assert torch.allclose(dense(p), old * 0.999 - 0.1, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_dtype_that_no_step_takes_is_refused_at_once(dtype):
    bad = nn.Parameter(torch.ones(2, dtype=dtype))
    opt = AdamW([parameter([[1.0]])])
    for call in (lambda: AdamW([bad]), lambda: opt.add_param_group({"params": bad})):
        with pytest.raises(TypeError, match=str(dtype)):
            call()
    assert len(opt.param_groups) == 1
    model = net()
    model.extra = bad
    stock = torch.optim.AdamW(model.parameters())
    with pytest.raises(TypeError, match=str(dtype)):
        fp8amp.initialize(model, stock)
    assert type(stock) is torch.optim.AdamW and type(model[0]) is nn.Linear
    bad.requires_grad_(False)  # a frozen one has no step: as the quantised weights of an adapter's base model
    AdamW([bad, nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)])


@pytest.mark.parametrize("name,value", [("lr", math.nan), ("betas", (0.9, 2.0)), ("eps", "x"), ("lr", 1e40)])
def test_a_bad_group_is_found_before_any_group_changes(name, value):
    model = fp8amp.initialize(net())
    opt = AdamW([{"params": model[0].parameters()}, {"params": model[3].parameters()}])
    train(model, opt, 1)
    before = snapshot(model, opt)
    opt.param_groups[1][name] = value
    with pytest.raises((TypeError, ValueError), match=f"AdamW.*{name}"):
        opt.step()
    assert unchanged(before, model, opt) and opt.skipped_steps == 0
    del opt.param_groups[1][name]
    with pytest.raises(ValueError, match=f"'{name}'"):
        opt.step()


def test_pickle_and_deepcopy():
    model, opt = trainer(seed=7, master_rounding="stochastic")
    train(model, opt, 3)
    for twin, twin_opt in (copy.deepcopy((model, opt)), pickle.loads(pickle.dumps((model, opt)))):
        assert (
            type(twin_opt) is AdamW
            and twin_opt.policy == opt.policy
            and same_training_state((model, opt), (twin, twin_opt))
        )
        mine = copy.deepcopy((model, opt))
        assert train(*mine, 3, 3) == train(twin, twin_opt, 3, 3) and same_training_state(mine, (twin, twin_opt))


@pytest.mark.parametrize(
    "kwargs,error,text",
    [
        (dict(lr=-1.0), ValueError, "lr.*-1"),
        (dict(lr=math.nan), ValueError, "lr.*nan"),
        (dict(lr="1"), TypeError, "lr.*'1'"),
        (dict(lr=torch.ones(2)), ValueError, "lr"),
        (dict(eps=-1e-8), ValueError, "eps"),
        (dict(eps=math.nan), ValueError, "eps.*nan"),
        (dict(betas=(0.9, 1.0)), ValueError, "betas.*1.0"),
        (dict(betas=(math.nan, 0.9)), ValueError, "betas"),
        (dict(betas=0.9), ValueError, "betas.*0.9"),
        (dict(betas="ab"), ValueError, "betas.*'ab'"),
        (dict(betas=(None, 0.9)), TypeError, "betas.*None"),
        (dict(betas=(torch.ones(2), 0.9)), ValueError, r"betas.*\(2,\)"),
        (dict(eps=torch.ones(2)), ValueError, r"eps.*\(2,\)"),
        (dict(lr=torch.tensor(1j)), TypeError, "lr.*1j"),
        (dict(lr=10**400), ValueError, "lr.*inf"),
        (dict(maximize="no"), TypeError, "maximize.*'no'"),
        (dict(fused="x"), TypeError, "fused.*'x'"),
        (dict(weight_decay=-0.1), ValueError, "weight_decay"),
        (dict(weight_decay=math.inf), ValueError, "weight_decay.*inf"),
        (dict(amsgrad=True), ValueError, "amsgrad"),
        (dict(differentiable=True), ValueError, "differentiable"),
        (dict(master_rounding="up"), ValueError, "master_rounding"),
        (dict(seed="0"), ValueError, "seed"),
        (dict(exp_avg_format=FP16), ValueError, "exp_avg_format.*float16"),
        (dict(params=[]), ValueError, "empty"),
    ],
)
@pytest.mark.parametrize("cls", [Adam, AdamW])
def test_bad_arguments_are_named(cls, kwargs, error, text):
    with pytest.raises(error, match=text):
        cls(**{"params": [parameter([[1.0]])], **kwargs})
