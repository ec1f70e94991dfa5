"""initialize: which layers convert, what stays the same object, and that a refusal changes nothing (field reports
D)."""

import copy
import logging
import sys
import types
import warnings

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor
from torch import nn
from twins import batch, dense, is_fp8, net, same, snapshot, train, unchanged

X = batch()


def converted(model):
    return list(fp8amp.fp8_layers(model))


def test_same_objects_and_the_optimizer_holds_them():  # BR-048
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    params, modules, groups, group = (
        list(model.parameters()),
        list(model.modules()),
        opt.param_groups,
        opt.param_groups[0],
    )
    got, got_opt = fp8amp.initialize(model, opt, "O2")
    assert got is model and got_opt is opt and list(model.modules()) == modules and opt.param_groups is groups
    assert all(p is q for p, q in zip(model.parameters(), params, strict=True)) and opt.param_groups[0] is group
    assert [id(p) for p in group["params"]] == [id(p) for p in params] and isinstance(opt, torch.optim.Optimizer)
    assert train(model, opt, 60)[-1] < 4 and converted(model) == ["0", "3"]


def test_without_an_optimizer_the_model_comes_back_alone():  # BR-047
    model = net()
    assert fp8amp.initialize(model) is model and fp8amp.initialize(net(), None, "O2")[0].weight.role == "weight"


def test_a_bare_linear():  # BR-040
    model = nn.Linear(32, 16)
    opt = torch.optim.Adam(model.parameters())
    assert fp8amp.initialize(model, opt)[0] is model and type(model) is fp8amp.nn.Linear
    assert opt.param_groups[0]["params"][0] is model.weight and isinstance(model.weight, ScaledTensor)


def test_hooks_handles_attributes_and_gradients_survive():
    model, seen = net(), []
    w = model[0].weight
    w.tag = "x"
    w.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    handle = w.register_hook(lambda g: seen.append("gradient"))
    model[0].register_forward_hook(lambda *a: seen.append("forward"))
    model(X).sum().backward()
    seen.clear()
    before = w.grad.clone()
    fp8amp.initialize(model)
    assert (
        model[0].weight is w
        and w.tag == "x"
        and is_fp8(w.grad)
        and torch.allclose(dense(w.grad), before, rtol=0.07, atol=0.3)
    )
    model(X).sum().backward()
    assert seen == ["forward", "gradient", "after"]
    handle.remove()
    model(X).sum().backward()
    assert seen[3:] == ["forward", "after"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.fc, self.lm_head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        return self.lm_head(self.fc(self.wte(tokens)))


def test_tied_weights_stay_tied_and_are_one_parameter(caplog):  # BR-044
    model = Tied()
    opt = torch.optim.AdamW(model.parameters())
    with caplog.at_level(logging.INFO, "fp8amp"):
        fp8amp.initialize(model, opt, "O2")
    assert caplog.messages == [
        "fp8amp O2: 1 of 2 layers, 32.7 % of 784 parameters in FP8; left alone: lm_head (tied to wte)"
    ]
    for _ in range(2):
        model(torch.arange(8)).square().sum().backward()
        opt.step()
    assert model.lm_head.weight is model.wte.weight and type(model.lm_head) is nn.Linear
    assert sum(p is model.wte.weight for g in opt.param_groups for p in g["params"]) == 1


def blocks():
    inner = nn.Sequential()
    inner.add_module(
        "encoder",
        nn.ModuleList([nn.ModuleDict({"fc1": nn.Linear(16, 32), "fc2": nn.Linear(32, 16)}) for _ in range(2)]),
    )
    inner.add_module("head", nn.Linear(16, 16))
    inner.add_module("small", nn.Linear(32, 12))
    return inner


@pytest.mark.parametrize(
    "include,exclude,want",
    [
        (None, None, {"encoder.0.fc1", "encoder.0.fc2", "encoder.1.fc1", "encoder.1.fc2", "head"}),
        (None, ("head",), {"encoder.0.fc1", "encoder.0.fc2", "encoder.1.fc1", "encoder.1.fc2"}),
        (None, "encoder.0.fc1", {"encoder.0.fc2", "encoder.1.fc1", "encoder.1.fc2", "head"}),
        ("encoder.*", ["*.fc2"], {"encoder.0.fc1", "encoder.1.fc1"}),
        (["small", "head"], None, {"small", "head"}),
        (lambda name, module: module.out_features == 32, None, {"encoder.0.fc1", "encoder.1.fc1"}),
        (None, lambda name, module: name.startswith("encoder"), {"head"}),
    ],
)
def test_filters_work_at_any_depth(include, exclude, want):  # BR-041
    model = blocks()
    fp8amp.initialize(model, include=include, exclude=exclude)
    assert set(converted(model)) == want
    assert all(type(m) is nn.Linear for n, m in model.named_modules() if n and n not in want and not list(m.children()))


def test_log_line_names_what_is_left(caplog):
    with caplog.at_level(logging.INFO, "fp8amp"):
        fp8amp.initialize(blocks(), exclude="head")
        fp8amp.initialize(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16).double()), exclude="nothing.*")
        fp8amp.initialize(nn.ModuleList([nn.Linear(16, 16), nn.LazyLinear(16), nn.MultiheadAttention(16, 2)]))
    assert caplog.messages[3].endswith("1 (is a LazyLinear), 2.out_proj (is a NonDynamicallyQuantizableLinear)")
    assert caplog.messages[0].endswith("left alone: head (excluded), small (12 columns)")
    assert "matches no layer" in caplog.messages[1] and caplog.messages[2].endswith("1 (float64)")


def test_modules_without_weights_or_bias():  # BR-043
    model = nn.Sequential(
        nn.Linear(16, 16, bias=False),
        nn.LayerNorm(16, elementwise_affine=False),
        nn.LayerNorm(16, bias=False),
        nn.BatchNorm1d(16, affine=False),
        nn.MultiheadAttention(16, 2),
        nn.LazyLinear(3),
    )
    names = [n for n, _ in model.named_parameters()]
    fp8amp.initialize(model)
    assert [n for n, _ in model.named_parameters()] == names and converted(model) == ["0"]


def test_frozen_layers_convert_and_stay_frozen():
    model = net()
    model[0].requires_grad_(False)
    fp8amp.initialize(model)
    assert not model[0].weight.requires_grad and model[3].weight.requires_grad and converted(model) == ["0", "3"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_16_bit_model_keeps_its_dtype(dtype):
    model = net().to(dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fp8amp.initialize(model, opt, "O2")
    assert {p.dtype for p in model.parameters()} == {dtype}
    before = snapshot(model)
    for _ in range(3):
        opt.zero_grad()
        model(X.to(dtype)).square().mean().backward()
        opt.step()
    assert not any(same(a, p) for a, p in zip(before, model.parameters(), strict=True))
    assert all(torch.isfinite(dense(p)).all() for p in model.parameters())


class HuggingFaceConv1D(nn.Module):
    """transformers.pytorch_utils.Conv1D, as published."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view((*x.size()[:-1], self.nf))


@pytest.fixture
def conv1d(monkeypatch):
    """A stand-in of the module that holds it; the real package is tested where it is installed."""
    module = types.ModuleType("transformers.pytorch_utils")
    module.Conv1D = HuggingFaceConv1D
    monkeypatch.setitem(sys.modules, "transformers", types.ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", module)
    yield HuggingFaceConv1D
    vars(sys.modules["fp8amp.nn.conv1d"]).pop("TransformersConv1D", None)


def test_transformers_conv1d(conv1d):
    torch.manual_seed(0)
    model = nn.Sequential(conv1d(48, 16), nn.GELU(), conv1d(16, 48))
    twin = copy.deepcopy(model)
    fp8amp.initialize(model)
    assert converted(model) == ["0", "2"] and isinstance(model[0], conv1d) and isinstance(model[0], fp8amp.nn.Conv1D)
    assert model[0].weight.shape == (16, 48) and isinstance(model[0].weight, ScaledTensor)
    for m in (model, twin):
        m(X).square().sum().backward()
    assert torch.allclose(model(X), twin(X), atol=0.02) and is_fp8(model[2].weight.grad)
    assert float((dense(model[0].weight.grad) - twin[0].weight.grad).norm() / twin[0].weight.grad.norm()) < 0.2
    again = copy.deepcopy(model)
    assert torch.equal(again(X), model(X))
    back = fp8amp.to_dense(model)
    assert type(back[0]) is conv1d and torch.equal(back[0].weight, dense(model[0].weight))


def test_to_dense_is_stock_and_exact():
    model, opt = fp8amp.initialize(net(), None), None
    model(X).sum().backward()
    before = snapshot(model, opt)
    plain = fp8amp.to_dense(model)
    assert [type(m) for m in plain.modules()] == [type(m) for m in net().modules()] and vars(plain[0]).keys() == vars(
        net()[0]
    ).keys()
    assert all(
        type(p) is nn.Parameter and p.grad is None and torch.equal(p, dense(q))
        for p, q in zip(plain.parameters(), model.parameters(), strict=True)
    )
    assert unchanged(before, model) and is_fp8(model[0].weight.grad)
    fp8amp.initialize(plain)  # a dense copy may start again
    assert all(torch.equal(dense(p), dense(q)) for p, q in zip(plain.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_to_dense_rounds_to_the_logical_dtype_and_keeps_attributes(dtype):
    model = net().to(dtype)
    model[0].weight.tag, model[0].bias.tag = "weight", "bias"
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fp8amp.initialize(model, opt, "O2")
    model(X.to(dtype)).sum().backward()
    opt.step()
    plain = fp8amp.to_dense(model)
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        assert p.dtype is dtype and torch.equal(p, dense(q).to(dtype))
    assert (plain[0].weight.tag, plain[0].bias.tag) == ("weight", "bias") and vars(plain[3].weight) == {}
    assert torch.equal(model.state_dict()["0.weight"], dense(model[0].weight)), "exact, whatever the dtype"


def test_hand_built_layers_beside_a_head_that_stays():
    model = nn.Sequential(fp8amp.nn.Linear(64, 64, recipe=fp8amp.ConstantScaling(4)), nn.Linear(64, 10))
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2", include="0")
    assert converted(model) == ["0"] and model[0].recipe == fp8amp.ConstantScaling(4)
    model(batch(columns=64)).sum().backward()
    opt.step()
    assert isinstance(opt.state[model[0].weight]["exp_avg"], ScaledTensor)
    fp8amp.initialize(nn.Sequential(fp8amp.nn.Linear(64, 64), nn.Linear(64, 10)))


def test_an_optimizer_of_fp8amp_keeps_its_policy():
    model = net()
    opt = fp8amp.optim.AdamW(model.parameters(), seed=7, master_rounding="nearest", exp_avg_sq_format=torch.float32)
    policy = opt.policy
    with pytest.raises(ValueError, match=r"master_rounding=stochastic.*master_rounding=nearest"):
        fp8amp.initialize(model, opt, "O2")
    assert type(model[0]) is nn.Linear and opt.policy == policy
    same_policy = dict(seed=7, master_rounding="nearest", exp_avg_sq_format=torch.float32)
    assert fp8amp.initialize(model, opt, "O2", **same_policy)[1] is opt and opt.policy == policy


def test_a_second_model_in_the_process_is_independent():  # BR-046
    a, b = fp8amp.initialize(net()), net(1)
    fp8amp.initialize(b)
    assert torch.equal(a(X), fp8amp.initialize(net())(X)) and not torch.equal(a(X), b(X))


# ---- refusals ------------------------------------------------
def wrapped():
    return nn.DataParallel(net())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def amsgrad(model):
    return torch.optim.AdamW(model.parameters(), amsgrad=True)


class OwnAdam(torch.optim.AdamW):
    pass


REFUSED = [
    (lambda m: dict(opt_level="01"), ValueError, r"opt_level.*'O1', 'O2'.*'01'"),
    (lambda m: dict(opt_level="o2"), ValueError, "'o2'"),
    (lambda m: dict(opt_level=None), ValueError, "None"),
    (lambda m: dict(opt_level=2), ValueError, "2"),
    (lambda m: dict(model=[m, m]), TypeError, "model.*list"),
    (lambda m: dict(optimizer=[sgd(m)]), TypeError, "optimizer.*list"),
    (lambda m: dict(optimizer=sgd(m)), TypeError, "SGD"),
    (lambda m: dict(optimizer=OwnAdam(m.parameters())), TypeError, "OwnAdam"),
    (lambda m: dict(optimizer=torch.optim.AdamW(net().parameters())), ValueError, "no parameter of model"),
    (lambda m: dict(optimizer=amsgrad(m)), ValueError, "amsgrad"),
    (lambda m: dict(optimizer=torch.optim.AdamW(m.parameters(), differentiable=True)), ValueError, "differentiable"),
    (lambda m: dict(model=nn.Sequential(nn.LayerNorm(4), nn.ReLU())), ValueError, "no nn.Linear"),
    (lambda m: dict(model=nn.Sequential(nn.Linear(4, 4))), ValueError, "4 columns"),
    (lambda m: dict(include="nothing"), ValueError, "include.*'nothing'"),
    (lambda m: dict(include=["0", "zzz"]), ValueError, r"include.*\['zzz'\]"),
    (lambda m: dict(include=lambda n, module: False), ValueError, "not included"),
    (lambda m: dict(include=nn.Linear), TypeError, "include.*Linear"),
    (lambda m: dict(include=lambda n: True), TypeError, r"include.*\(name, module\)"),
    (lambda m: dict(exclude=lambda: True), TypeError, r"exclude.*\(name, module\)"),
    (lambda m: dict(optimizer=fp8amp.optim.AdamW(m.parameters(), seed=7)), ValueError, "seed=0.*seed=7"),
    (lambda m: dict(model=wrapped()), ValueError, "DataParallel"),
    (lambda m: dict(model=torch.compile(m)), ValueError, "torch.compile"),
    (lambda m: dict(recipe="current"), TypeError, "'current'"),
    (lambda m: dict(recipe=fp8amp.CurrentScaling), TypeError, "recipe"),
    (lambda m: dict(include=3), TypeError, "include.*3"),
    (lambda m: dict(exclude=[1]), TypeError, r"exclude.*\[1\]"),
    (lambda m: dict(master_rounding="up"), ValueError, "master_rounding.*'up'"),
    (lambda m: dict(moment_rounding=1.0), ValueError, "1.0"),
    (lambda m: dict(second_moment_rounding="x"), ValueError, "second_moment_rounding"),
    (lambda m: dict(seed=-1), ValueError, "seed.*-1"),
    (lambda m: dict(gemm="bf16"), ValueError, "gemm.*'bf16'"),
    (lambda m: dict(grad_format=torch.float16), ValueError, "grad_format.*float16"),
    (lambda m: dict(exp_avg_format=torch.float16), ValueError, "exp_avg_format"),
    (lambda m: dict(exp_avg_sq_format="fp8"), ValueError, "'fp8'"),
    (lambda m: dict(master_format=torch.bfloat16), ValueError, "master_format.*bfloat16"),
]


@pytest.mark.parametrize("make,error,text", REFUSED)
def test_refusals_name_the_argument_and_change_nothing(make, error, text):
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    model(X).sum().backward()
    opt.step()
    before, classes = snapshot(model, opt), [type(m) for m in model.modules()]
    with pytest.raises(error, match=text), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fp8amp.initialize(**{"model": model, "optimizer": opt, **make(model)})
    assert (
        unchanged(before, model, opt)
        and [type(m) for m in model.modules()] == classes
        and type(opt) is torch.optim.AdamW
    )
    opt.zero_grad()
    model(X).sum().backward()
    opt.step()


def test_twice_is_refused():  # BR-046
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2")
    for again in (model, nn.Sequential(model), copy.deepcopy(model)):
        with pytest.raises(ValueError, match=r"already.*O2.*fp8amp\.optim\.AdamW\(model\.parameters\(\)\)"):
            fp8amp.initialize(again, opt, "O2")
    train(model, opt, 1)


def test_live_references_are_found_before_anything_changes():
    model = net()
    before, classes = snapshot(model), [type(m) for m in model.modules()]
    for hold in (lambda: model[3].weight[0], lambda: model(X)):
        held = hold()
        with pytest.raises(RuntimeError, match=r"\.weight cannot be converted"):
            fp8amp.initialize(model)
        assert unchanged(before, model) and [type(m) for m in model.modules()] == classes
        held.sum().backward()
        assert type(model[3].weight.grad) is torch.Tensor
        model.zero_grad()
        del held
    fp8amp.initialize(model)


def test_a_replaced_step_and_foreign_states_are_refused():
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    opt.step = lambda: None
    with pytest.raises(ValueError, match=r"optimizer\.step"):
        fp8amp.initialize(model, opt)
    del opt.step
    opt.state[model[0].weight] = {"momentum_buffer": torch.zeros(3)}
    with pytest.raises(ValueError, match="'step'"):
        fp8amp.initialize(model, opt)
    assert type(model[0]) is nn.Linear
