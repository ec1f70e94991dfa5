"""ScaledTensor as a parameter and as a value: identity, writes through every door, views, copies, pickling."""

import copy
import io
import math
import pickle
import warnings

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor
from fp8amp.scaled_tensor import scaled, version
from torch import nn
from twins import E4M3, E5M2, FP16, MAX, batch, dense, is_fp8, net, same

X = batch()


@pytest.fixture
def model():
    return fp8amp.initialize(net())


@pytest.fixture
def weight(model):
    return model[0].weight


def power_of_two(x):
    return math.log2(float(x.scale_inv)).is_integer()


def close(a, b, tolerance):
    return float((dense(a) - dense(b)).abs().max()) <= tolerance * float(dense(b).abs().max())


def test_parameter_looks_like_the_one_it_replaces(weight):
    assert isinstance(weight, nn.Parameter) and isinstance(weight, torch.Tensor) and weight.dtype is torch.float32
    assert (
        weight.is_leaf
        and weight.requires_grad
        and weight.shape == (32, 16)
        and weight.format is FP16
        and power_of_two(weight)
    )
    assert close(weight, net()[0].weight, 2.0**-11) and float(weight.scale) == 1.0 / float(weight.scale_inv)


WRITES = [
    lambda w: w.data.mul_(3.0),
    lambda w: w.data.div_(3.0),
    lambda w: w.data.add_(0.5),
    lambda w: w.data[0].zero_(),
    lambda w: [row.fill_(0.01) for row in w.data],
    lambda w: nn.init.normal_(w, std=0.02),
    lambda w: w.data.copy_(torch.ones(32, 16)),
    lambda w: w.data.view(-1).clamp_(-0.01, 0.01),
    lambda w: w.data.t().mul_(2.5),
    lambda w: setattr(w, "data", torch.ones(32, 16)),
    lambda w: w.data.lerp_(torch.ones(32, 16), 0.25),
    lambda w: torch._foreach_add_([w.data], 1.0),
    lambda w: torch.add(w.detach(), 1.0, out=w.data),
    lambda w: w.data.t()[3].copy_(torch.arange(32.0)),
    lambda w: nn.utils.vector_to_parameters(torch.arange(512.0), [w]),
    lambda w: w.data.masked_fill_(w.data.dequantize() > 0, 0.5),
    lambda w: w.data.index_fill_(0, torch.tensor([1, 5]), 2.0),
    lambda w: w.data[::2, 1:].neg_(),
]


@pytest.mark.parametrize("write", WRITES)
def test_every_write_reaches_the_payload_bumps_the_version_and_keeps_a_power_of_two(weight, write):  # BR-125
    want, before = nn.Parameter(dense(weight).clone()), version(weight)
    for target in (weight, want):
        torch.manual_seed(3)
        if target is want:
            want.dequantize = lambda: want  # what a plain tensor needs to go through the same lambda
        try:
            write(target)
        except AttributeError:
            want.data.masked_fill_(want.data > 0, 0.5)
    assert close(weight, want, 2.0**-10) and version(weight) > before and power_of_two(weight)


def test_a_partial_view_rescales_its_base_instead_of_saturating(weight):
    want = dense(weight).clone()
    weight.data[3] *= 1e6
    want[3] *= 1e6
    assert close(weight, want, 2.0**-10) and power_of_two(weight)
    nn.init.zeros_(weight)
    for row in weight.data:  # values far below the scale 1 of a zeroed weight
        row.fill_(3e-7)
    assert torch.allclose(dense(weight), torch.full((32, 16), 3e-7), rtol=2.0**-10)


def row_with(t, value):
    return torch.cat([torch.full((3,), float(value)), torch.ones(t.shape[-1] - 3)])


NON_FINITE_WRITES = {
    "copy": lambda t, bad: t.copy_(torch.cat([row_with(t, bad)[None], torch.ones(t.shape[0] - 1, t.shape[1])])),
    "fill": lambda t, bad: t.fill_(bad),
    "index": lambda t, bad: t.__setitem__((1, 2), bad),
    "row": lambda t, bad: t.__setitem__(1, row_with(t, bad)),
    "row of a transpose": lambda t, bad: t.t()[1].fill_(bad),
    "strided": lambda t, bad: t.t().copy_(torch.full(t.t().shape, bad)),
    "slice": lambda t, bad: t[::2, 1:].fill_(bad),
    "masked": lambda t, bad: t.masked_fill_(torch.eye(*t.shape, dtype=torch.bool), bad),
    "index_put": lambda t, bad: t.index_put_((torch.tensor([0, 3]),), torch.tensor(bad)),
}


@pytest.mark.parametrize("write", NON_FINITE_WRITES)
@pytest.mark.parametrize("bad", [math.inf, -math.inf])
@pytest.mark.parametrize("role", ["gradient", "weight", "tensor"])
@pytest.mark.parametrize("format", [E4M3, E5M2, FP16])
def test_an_infinity_written_is_nan_in_a_gradient_and_the_largest_number_elsewhere(write, bad, role, format):
    t = scaled(batch(1, 8, 16), format, role=role)
    want = dense(t).clone()
    for target in (t, want):
        NON_FINITE_WRITES[write](target, bad)
    hit = want.isinf()
    stored = t.payload.float()
    assert hit.any() and not stored[~hit].isnan().any()
    if role == "gradient":
        assert stored[hit].isnan().all()
    else:
        assert (stored[hit] == math.copysign(MAX[format], bad)).all()


@pytest.mark.parametrize("factor", [0.0, math.inf, math.nan, 1e-45, 1e38])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_no_factor_gets_stuck_in_a_scale(factor, as_tensor):
    for make in (lambda x: fp8amp.quantize(x), lambda x: fp8amp.initialize(nn.Linear(16, 16)).weight.data):
        g = make(torch.ones(16, 16))
        want = dense(g) * factor
        g.mul_(torch.tensor(factor) if as_tensor else factor)
        assert torch.isfinite(g.scale_inv) and float(g.scale_inv) != 0.0
        if math.isfinite(factor) and factor < 1e30:
            assert torch.allclose(dense(g), want)


def test_multiplying_a_value_moves_the_scale_alone():  # BR-087
    g = fp8amp.quantize(batch())
    before, payload = dense(g), g.payload.clone()
    g.mul_(0.3).div_(torch.tensor([2.0]))
    assert same(payload, g.payload) and torch.allclose(dense(g), before * 0.15)


@pytest.mark.parametrize(
    "cast,dtype",
    [("half", torch.float16), ("bfloat16", torch.bfloat16), ("double", torch.float64), ("float", torch.float32)],
)
def test_module_casts_change_the_label_alone(model, cast, dtype):
    weight, payload, calls = model[0].weight, model[0].weight.payload.clone(), []
    handle = weight.register_post_accumulate_grad_hook(lambda p: calls.append(p))
    getattr(model, cast)()
    assert (
        model[0].weight is weight
        and weight.dtype is dtype
        and same(weight.payload, payload)
        and model[0].bias.dtype is dtype
    )
    model(X.to(dtype)).sum().backward()
    assert len(calls) == 1 and is_fp8(weight.grad) and weight.grad.dtype is dtype
    handle.remove()
    model(X.to(dtype)).sum().backward()
    assert len(calls) == 1


def test_to_empty_and_meta_keep_the_kind(model):
    model.to("meta")
    assert isinstance(model[0].weight, ScaledTensor) and model[0].weight.is_meta
    model.to_empty(device="cpu")
    assert isinstance(model[0].weight, ScaledTensor) and isinstance(model[0].weight, nn.Parameter)
    model.load_state_dict(net().state_dict())
    assert close(model[0].weight, net()[0].weight, 2.0**-11)


def test_deepcopy_is_independent_and_complete(model):  # BR-052
    for _ in range(2):  # before and after a forward and backward
        twin = copy.deepcopy(model)
        assert isinstance(twin[0].weight, nn.Parameter) and same(twin[0].weight, model[0].weight)
        assert twin[0].weight.payload.data_ptr() != model[0].weight.payload.data_ptr()
        out = twin(X)
        with torch.no_grad():
            model[0].weight.add_(1.0)
        assert torch.equal(twin(X), out)
        model(X).sum().backward()
    assert is_fp8(copy.deepcopy(model)[0].weight.grad)
    (twin[0].weight * 2).sum().backward()
    assert is_fp8(twin[0].weight.grad), "the copy compresses its gradients too"


@pytest.mark.parametrize(
    "make",
    [
        lambda: fp8amp.quantize(batch(), E4M3),
        lambda: fp8amp.quantize(batch(), E5M2, dtype=torch.bfloat16),
        lambda: fp8amp.initialize(net())[0].weight,
    ],
)
def test_pickle_and_weights_only_load(make, tmp_path):  # BR-097, BR-098
    t = make()
    t.tag = "kept"
    file = io.BytesIO()
    torch.save(t, file)
    torch.save(t, tmp_path / "t.pt")
    file.seek(0)
    for got in (pickle.loads(pickle.dumps(t)), torch.load(file), torch.load(tmp_path / "t.pt", mmap=True)):
        assert same(got, t) and got.dtype is t.dtype and got.role == t.role and got.scale_rounding == t.scale_rounding
        assert got.requires_grad == t.requires_grad and isinstance(got, nn.Parameter) == isinstance(t, nn.Parameter)
        assert got.grad is None and got.tag == "kept"


def test_a_whole_model_pickles(model):
    model(X).sum().backward()
    got = pickle.loads(pickle.dumps(model))
    assert torch.equal(got(X), model(X))
    (got[0].weight * 2.0).sum().backward()
    assert is_fp8(got[0].weight.grad)


def test_usual_tensor_methods_work(weight):  # BR-054, BR-093
    w = weight.detach()
    assert (
        w.view(-1).shape == (512,)
        and w.reshape(8, 64).shape == (8, 64)
        and w[0, 0].item() == float(w.dequantize()[0, 0])
    )
    assert (w.numel(), w.size(), w.dim(), w.is_contiguous(), w.element_size()) == (512, (32, 16), 2, True, 4)
    assert (
        w.device.type == "cpu"
        and same(w.clone(), w)
        and same(w.cpu(), w)
        and w.to(torch.bfloat16).dtype is torch.bfloat16
    )
    assert w.numpy().shape == (32, 16) and len(w.tolist()) == 32 and torch.from_dlpack(w).shape == w.shape
    assert (
        type(w.new_zeros(3)) is torch.Tensor
        and type(torch.empty_like(w)) is torch.Tensor
        and torch.equal(w == w, torch.ones(32, 16) > 0)
    )
    assert type(w + 1) is torch.Tensor and type(w @ w.t()) is torch.Tensor and type(w.to(torch.int32)) is torch.Tensor
    assert torch.equal(torch.cat([w, w])[:32], dense(w)) and isinstance(w.unsqueeze(0).expand(2, 32, 16), ScaledTensor)
    assert (
        repr(w).startswith("ScaledTensor([[")
        and "format=torch.float16" in repr(w)
        and len(w.unbind()) == 32
        and w.split(16)[1].shape == (16, 16)
    )
    assert fp8amp.memory_bytes(w) == 2 * 512 + 4


def test_what_cannot_work_says_so(weight):
    with pytest.raises(ValueError, match=r"\(32, 16\).*\(3,\)"):
        weight.data = torch.zeros(3)
    with pytest.raises(NotImplementedError, match="dequantize"):
        weight.detach().resize_(3, 3)
    for change in (lambda w: w.t_(), lambda w: w.unsqueeze_(0), lambda w: w.transpose_(0, 1)):
        with pytest.raises(NotImplementedError, match="shape in place"):
            change(weight.detach())
    assert weight.shape == weight.payload.shape == (32, 16)


GOOD = dict(payload=torch.ones(2, dtype=torch.float16), scale_inv=torch.tensor(1.0), dtype=torch.float32)


@pytest.mark.parametrize(
    "kwargs,error,text",
    [
        (dict(payload=torch.ones(2)), TypeError, "payload.*float32"),
        (dict(payload=[1.0]), TypeError, "payload"),
        (dict(payload=GOOD["payload"].to_sparse()), TypeError, "payload"),
        (dict(scale_inv=1.0), TypeError, r"scale_inv.*1\.0"),
        (dict(scale_inv=torch.ones(2)), ValueError, r"scale_inv.*\(2,\)"),
        (dict(scale_inv=torch.tensor(1)), ValueError, "scale_inv.*int64"),
        (dict(scale_inv=torch.tensor(math.nan)), ValueError, "scale_inv.*nan"),
        (dict(scale_inv=torch.tensor(0.0)), ValueError, "scale_inv.*0.0"),
        (dict(scale_inv=torch.ones((), device="meta")), ValueError, "scale_inv.*meta"),
        (dict(dtype=torch.int32), TypeError, "dtype.*int32"),
        (dict(dtype="float32"), TypeError, "dtype.*'float32'"),
        (dict(role="banana"), ValueError, "role.*'banana'"),
        (dict(scale_rounding="foo"), ValueError, "scale_rounding.*'foo'"),
    ],
)
def test_the_constructor_names_bad_arguments(kwargs, error, text):
    assert ScaledTensor(**GOOD).role == "tensor"
    with pytest.raises(error, match=text):
        ScaledTensor(**{**GOOD, **kwargs})


@pytest.mark.parametrize("dtype", ["float32", torch.int32, 3])
def test_dequantize_takes_floating_dtypes_alone(weight, dtype):
    with pytest.raises(TypeError, match=f"dequantize: dtype.*{dtype}"):
        weight.dequantize(dtype)


def test_shared_memory_does_not_crash(model):
    model.share_memory()
    assert model[0].weight.is_shared() and torch.isfinite(model(X)).all()


def test_inference_mode_and_no_grad(model):
    with torch.no_grad():
        want = model(X)
    with torch.inference_mode():
        assert torch.equal(model(X), want)
        inside = fp8amp.initialize(net())
        assert torch.equal(inside(X), want)
        inside[0].weight.data.mul_(2.0)


def test_swa_average_of_dense_copies_moves():
    model = fp8amp.initialize(net())
    average = torch.optim.swa_utils.AveragedModel(
        fp8amp.to_dense(model), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    average.update_parameters(model)
    average.update_parameters(model)
    assert type(average.module[0].weight) is nn.Parameter and close(average.module[0].weight, model[0].weight, 1e-6)


def test_stock_collectives_are_refused(weight, tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with warnings.catch_warnings(), pytest.raises(NotImplementedError, match="ScaledTensor"):
            warnings.simplefilter("ignore")
            dist.all_reduce(weight.detach())
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
        lambda p: torch.optim.AdamW(p, 1e-2, foreach=False),
        lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    ],
)
def test_stock_optimizers_work_on_it(model, optimizer):
    twin = net()
    for m in (model, twin):
        opt = optimizer(m.parameters())
        for _ in range(3):
            opt.zero_grad()
            (m(X) - 1).square().mean().backward()
            opt.step()
    assert isinstance(model[0].weight, ScaledTensor) and power_of_two(model[0].weight)
    assert float((dense(model[0].weight) - dense(twin[0].weight)).norm() / dense(twin[0].weight).norm()) < 0.1
