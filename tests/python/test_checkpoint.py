"""Saving and loading: bit-exact states, resume, stock checkpoints, changes of level, safetensors (field reports F)."""

import collections
import copy
import io
import math
import subprocess
import sys
from pathlib import Path

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor
from fp8amp.optim import AdamW
from fp8amp.scaled_tensor import scaled
from torch import nn
from twins import E4M3, E5M2, FP16, batch, dense, net, same, same_training_state, train, trainer

LEVELS = ["O1", "O2"]


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file)  # weights_only=True is the default: BR-098


@pytest.mark.parametrize("level", LEVELS)
def test_optimizer_states_keep_bits_formats_and_scales(level):  # BR-092, BR-101
    (model, opt), (other, other_opt) = trainer(level), trainer(level, net_seed=1)
    train(model, opt, 3)
    other.load_state_dict(saved(model.state_dict()))
    other_opt.load_state_dict(saved(opt.state_dict()))
    assert [v.dtype for v in other_opt.state[other[0].weight].values()] == [
        v.dtype for v in opt.state[model[0].weight].values()
    ]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert all(same(opt.state[p][k], other_opt.state[q][k]) for k in ("step", "exp_avg", "exp_avg_sq"))
        assert torch.equal(dense(p), dense(q))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(master_rounding="stochastic", second_moment_rounding="stochastic"),
        dict(recipe=fp8amp.DelayedScaling(history=3)),
        dict(master_format=torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_resume_is_exact(level, options, optimizer_first):  # BR-094
    straight, first, second = (trainer(level, net_seed=s, **options) for s in (0, 0, 5))
    losses = train(*straight, 10)
    train(*first, 5)
    parts = [(second[1], saved(first[1].state_dict())), (second[0], saved(first[0].state_dict()))]
    for target, state in parts if optimizer_first else reversed(parts):
        target.load_state_dict(state)
    assert train(*second, 5, 5) == losses[5:]
    assert all(
        torch.equal(dense(p), dense(q)) for p, q in zip(straight[0].parameters(), second[0].parameters(), strict=True)
    )


def test_resume_in_a_fresh_process(tmp_path):  # BR-094
    program = (
        f"import sys, torch; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from twins import train, trainer\n"
        "model, opt = trainer('O2', 3)\n"
        f"state = torch.load({str(tmp_path / 'c.pt')!r})\n"
        "model.load_state_dict(state['m']); opt.load_state_dict(state['o'])\n"
        "print(train(model, opt, 3, 3))\n"
    )
    model, opt = trainer()
    train(model, opt, 3)
    torch.save({"m": model.state_dict(), "o": opt.state_dict()}, tmp_path / "c.pt")
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(train(model, opt, 3, 3))


def test_loading_the_model_alone_is_enough():  # BR-095
    (model, opt), other = trainer(lr=0.0), net(4).state_dict()
    train(model, opt, 2)
    model.load_state_dict(other)
    train(model, opt, 1)
    assert torch.allclose(dense(model[0].weight), other["0.weight"], rtol=2.0**-11)


@pytest.mark.parametrize("assign", [False, True])
def test_stock_checkpoints_load_strictly_both_ways(assign):  # BR-099
    plain, model = net(2), fp8amp.initialize(net())
    model.load_state_dict(plain.state_dict(), assign=assign)
    assert isinstance(model[0].weight, ScaledTensor) and isinstance(model[0].weight, nn.Parameter)
    assert torch.allclose(dense(model[0].weight), plain[0].weight, rtol=2.0**-11)
    state = model.state_dict()
    assert all(type(v) is torch.Tensor and v.dtype is torch.float32 for v in state.values())
    plain.load_state_dict(state)
    assert torch.equal(plain[0].weight, dense(model[0].weight))
    model.load_state_dict(plain.state_dict(), assign=assign)
    assert torch.equal(plain[0].weight, dense(model[0].weight)), "scales are powers of two: the round trip is exact"
    del state["3.weight"]
    with pytest.raises(RuntimeError, match=r"3\.weight"):
        model.load_state_dict(state)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({**plain.state_dict(), "3.weight": torch.ones(2, 2)}, assign=assign)
    model(batch()).sum().backward()


@pytest.mark.parametrize("format,role", [(E4M3, "weight"), (FP16, "tensor"), (E4M3, "tensor"), (FP16, "weight")])
def test_an_assigned_scaled_tensor_becomes_a_weight_of_the_layer(format, role):
    model, _ = trainer()
    given = scaled(batch(5, 32, 16), format, role=role)
    state = model.state_dict() | {"0.weight": given}
    model.load_state_dict(state, assign=True)
    weight = model[0].weight
    assert weight.format is FP16 and weight.role == "weight"
    assert torch.equal(dense(weight), dense(given))  # both scales are powers of two
    assert math.log2(weight.scale_inv.item()).is_integer()


def test_saving_and_copying_in_inference_mode():
    model, opt = trainer()
    train(model, opt, 1)
    with torch.inference_mode():
        state, twin, plain = model.state_dict(), copy.deepcopy(model), fp8amp.to_dense(model)
    assert torch.equal(state["0.weight"], dense(model[0].weight)) and torch.equal(plain[0].weight, state["0.weight"])
    assert same(twin[0].weight, model[0].weight)
    train(model, opt, 1)


def test_state_dict_of_the_model_is_a_snapshot_and_keep_vars_gives_parameters():  # BR-102
    model, opt = trainer()
    state = model.state_dict()
    weights, kept = state["0.weight"].clone(), saved(opt.state_dict())
    train(model, opt, 2)
    assert torch.equal(state["0.weight"], weights) and kept["state"] == {}
    assert model.state_dict(keep_vars=True)["0.weight"] is model[0].weight


@pytest.mark.parametrize("source,target", [("O1", "O2"), ("O2", "O1"), (None, "O2"), (None, "O1")])
def test_changing_the_level_converts_by_value(source, target):  # BR-101
    model = net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if source:
        fp8amp.initialize(model, opt, source)
    train(model, opt, 5)
    other, other_opt = trainer(target)
    other.load_state_dict(model.state_dict())
    other_opt.load_state_dict(saved(opt.state_dict()))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        for key, tolerance in (("exp_avg", 0.13), ("exp_avg_sq", 2e-3)):
            x, y = dense(opt.state[p][key]), dense(other_opt.state[q][key])
            assert torch.allclose(x, y, rtol=tolerance, atol=float(x.abs().max()) * 2.0**-15), key
        assert ((dense(opt.state[p]["exp_avg_sq"]) > 0) <= (dense(other_opt.state[q]["exp_avg_sq"]) > 0)).all()
    wanted = (torch.float32, torch.float32) if target == "O1" else (E4M3, FP16)
    state = other_opt.state[other[0].weight]
    assert tuple(getattr(state[k], "format", state[k].dtype) for k in ("exp_avg", "exp_avg_sq")) == wanted
    assert train(other, other_opt, 5, 5)[-1] < 10


def stock_state(v):
    return {"step": torch.tensor(5.0), "exp_avg": v.sqrt(), "exp_avg_sq": v.clone()}


def by_initialize(v, **options):
    layer = nn.Linear(v.shape[1], v.shape[0], bias=False)
    opt = torch.optim.AdamW(layer.parameters())
    opt.state[layer.weight] = stock_state(v)
    fp8amp.initialize(layer, opt, "O2", **options)
    return opt.state[layer.weight]


def by_load_state_dict(v, **options):
    stock_layer = nn.Linear(v.shape[1], v.shape[0], bias=False)
    stock = torch.optim.AdamW(stock_layer.parameters())
    stock.state[stock_layer.weight] = stock_state(v)
    layer = nn.Linear(v.shape[1], v.shape[0], bias=False)
    _, opt = fp8amp.initialize(layer, torch.optim.AdamW(layer.parameters()), "O2", **options)
    opt.load_state_dict(saved(stock.state_dict()))
    return opt.state[layer.weight]


@pytest.mark.parametrize("convert", [by_initialize, by_load_state_dict])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("largest", [1e-6, 1.0, 1e6])
def test_no_positive_second_moment_becomes_zero_when_a_stock_state_is_converted(convert, rounding, largest):
    """With v = 0 and m > 0 the next step would be m / eps."""
    v = largest * 10.0 ** -torch.arange(32.0).reshape(2, 16).repeat(8, 1)  # far below the smallest number of FP16 too
    v[3] = 0.0
    got = convert(v, second_moment_rounding=rounding)["exp_avg_sq"]
    assert got.format is FP16 and float(v[v > 0].min()) > 0.0
    assert torch.equal(dense(got) > 0, v > 0) and not dense(got).isnan().any()
    assert torch.allclose(dense(got), v, rtol=2.0**-10, atol=float(got.scale_inv) * 2.0**-24)


def test_another_fp8_format_is_converted_by_value():  # BR-101: 448 must not come back as the NaN 0x7E of E5M2
    w = torch.full((4, 4), 0.5)
    a, b = (nn.Parameter(fp8amp.scaled_tensor.scaled_weight(w)) for _ in range(2))
    one, two = AdamW([a], exp_avg_sq_format=E4M3), AdamW([b], exp_avg_sq_format=E5M2)
    a.grad = batch(1, 4, 4)
    one.step()
    two.load_state_dict(saved(one.state_dict()))
    got, want = two.state[b]["exp_avg_sq"], dense(one.state[a]["exp_avg_sq"])
    assert got.format is E5M2 and torch.allclose(dense(got), want, rtol=0.13, atol=float(want.max()) * 2.0**-16)


def test_groups_hooks_and_extra_entries_follow_torch():
    (model, opt), (other, other_opt) = trainer(lr=0.25), trainer()
    train(model, opt, 1)
    calls = []
    other_opt.register_load_state_dict_pre_hook(lambda o, s: calls.append(sorted(s)))
    other_opt.register_load_state_dict_post_hook(lambda o: calls.append(o.state[other[0].weight]["step"].item()))
    state = opt.state_dict()
    state["state"][0]["mine"] = 5
    other_opt.load_state_dict(state)
    assert calls == [["param_groups", "state"], 1.0] and other_opt.param_groups[0]["lr"] == 0.25
    assert other_opt.param_groups[0]["params"][0] is other[0].weight and other_opt.state[other[0].weight]["mine"] == 5
    assert isinstance(other_opt.state, collections.defaultdict)
    scheduler = torch.optim.lr_scheduler.StepLR(other_opt, 1, 0.5)
    train(other, other_opt, 1)
    scheduler.step()
    assert other_opt.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda s: s["param_groups"].pop(), "0 parameter groups, the optimizer 1"),
        (lambda s: s["param_groups"][0]["params"].pop(), "5 parameters"),
        (lambda s: s["state"][0].pop("exp_avg"), "'exp_avg'"),
        (lambda s: s["state"][0].update(exp_avg=torch.ones(3)), r"\(32, 16\).*\(3,\)"),
        (lambda s: s["state"].update({0: 5}), "a dict, got int"),
        (lambda s: s["state"][0].update(step=-1.0), "step.*-1"),
        (lambda s: s["state"][0].update(step=float("nan")), "step.*nan"),
        (lambda s: s["state"][0].update(step=torch.tensor(0.5)), "step.*0.5"),
        (lambda s: s["state"][0].update(step=2.0**24), "step"),
        (lambda s: s["state"][0].update(step=torch.ones(2)), r"step.*\(2,\)"),
        (lambda s: s["state"][0].update(step="x"), "step.*'x'"),
        (lambda s: s.pop("state"), "'state'"),
        (lambda s: s.update(param_groups=3), "'param_groups'.*int"),
        (lambda s: s["param_groups"][0].pop("params"), "group 0.*'params'"),
        (lambda s: s["param_groups"][0].pop("lr"), "group 0.*'lr'"),
        (lambda s: s["param_groups"][0].update(lr=float("nan")), "group 0.*lr.*nan"),
        (lambda s: s["param_groups"][0].update(amsgrad=True), "group 0.*amsgrad"),
    ],
)
def test_a_bad_optimizer_file_is_refused_and_nothing_changes(change, text):
    model, opt = trainer()
    train(model, opt, 2)
    state = saved(opt.state_dict())
    change(state)
    before = {k: v.clone() for k, v in opt.state[model[0].weight].items()}
    with pytest.raises((TypeError, ValueError), match=text):
        opt.load_state_dict(state)
    assert all(same(before[k], opt.state[model[0].weight][k]) for k in before)


def test_loaded_states_share_no_memory():
    (model, opt), (other, other_opt) = trainer(), trainer()
    train(model, opt, 2)
    other.load_state_dict(model.state_dict())
    other_opt.load_state_dict(opt.state_dict())
    before = opt.state[model[0].weight]["exp_avg"].clone()
    train(other, other_opt, 2, 2)
    assert same(before, opt.state[model[0].weight]["exp_avg"])
    train(model, opt, 2, 2)
    assert same_training_state((model, opt), (other, other_opt))


def test_state_does_not_grow():  # BR-027
    model, opt = trainer()

    def size():
        file = io.BytesIO()
        torch.save([model.state_dict(), opt.state_dict()], file)
        return len(file.getvalue())

    train(model, opt, 1)
    first = size()
    train(model, opt, 30)
    assert abs(size() - first) < 1024


def test_safetensors(tmp_path):  # BR-103
    safetensors = pytest.importorskip("safetensors.torch")
    model, other = fp8amp.initialize(net()), fp8amp.initialize(net(3))
    safetensors.save_file(model.state_dict(), tmp_path / "m.safetensors")
    other.load_state_dict(safetensors.load_file(tmp_path / "m.safetensors"))
    assert torch.equal(other(batch()), model(batch()))
