"""The FP8 linear layer: values, shapes, strides, dtypes, and which GEMMs run (field reports C and D)."""

import copy
import math

import fp8amp
import pytest
import torch
from fp8amp import _ops
from fp8amp.nn import Conv1D, Linear
from fp8amp.nn.functional import linear
from torch import nn
from torch.nn.functional import linear as stock_linear
from twins import E4M3, E5M2, batch, code, dense, is_fp8, same


def layer(inside=17, outside=5, bias=True, seed=0, **options):
    torch.manual_seed(seed)
    return Linear(inside, outside, bias, **options)


def cast(x, format):
    """Independent of the library: power-of-two current scaling and torch's cast after clamping."""
    limit = {E4M3: 448.0, E5M2: 57344.0}[format]
    amax = float(x.abs().max()) if x.numel() else 0.0
    scale = 2.0 ** math.floor(math.log2(limit / amax)) if amax else 1.0
    return (x.float() * scale).clamp(-limit, limit).to(format).float() / scale


def reference(x, w, b, dy):
    """Forward and backward in float64 on independently quantised operands."""
    xq, wq, gq = cast(x, E4M3).double(), cast(w, E4M3).double(), cast(dy, E5M2).double()
    return xq @ wq.t() + b.double(), gq @ wq, gq.t() @ xq, dy.double().sum(0)


@pytest.mark.parametrize(
    "rows,inside,outside", [(1, 17, 5), (3, 17, 5), (15, 64, 48), (16, 64, 48), (17, 33, 31), (64, 128, 96)]
)
def test_forward_and_backward_against_float64_on_quantised_operands(rows, inside, outside):  # BR-028, BR-029
    m, x, dy = layer(inside, outside), batch(1, rows, inside).requires_grad_(), batch(2, rows, outside)
    w = dense(m.weight)
    y, dx, dw, db = reference(x.detach(), w, m.bias.detach(), dy)
    out = m(x)
    out.backward(dy)
    assert out.shape == (rows, outside) and is_fp8(m.weight.grad) and m.weight.grad.shape == (outside, inside)
    assert torch.allclose(out.double(), y, atol=2e-5, rtol=1e-5) and torch.allclose(
        x.grad.double(), dx, atol=2e-5, rtol=1e-5
    )
    assert torch.allclose(m.bias.grad.double(), db, atol=1e-5)
    assert torch.allclose(dense(m.weight.grad), cast(dw.float(), E4M3), rtol=0.07, atol=1e-5)
    bound = 0.20 * (dy.abs().t() @ x.detach().abs()) + 2.0**-9 * float(m.weight.grad.scale_inv)
    assert ((dense(m.weight.grad) - dy.t() @ x.detach()).abs() <= bound).all()


@pytest.mark.parametrize("shape", [(17,), (1, 17), (2, 3, 17), (2, 3, 4, 17), (0, 17), (4, 0, 17)])
def test_every_input_shape(shape):  # BR-031, BR-032
    m, flat = layer(), layer()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    a, b = x.clone().requires_grad_(), x.reshape(-1, 17).clone().requires_grad_()
    y = m(a)
    y.square().sum().backward()
    z = flat(b)
    z.square().sum().backward()
    assert (
        y.shape == (*shape[:-1], 5) and torch.equal(y.reshape(-1, 5), z) and torch.equal(a.grad.reshape(-1, 17), b.grad)
    )
    assert same(m.weight.grad, flat.weight.grad) and torch.equal(m.bias.grad, flat.bias.grad)
    if not x.numel():
        assert not dense(m.weight.grad).any() and float(m.weight.grad.scale_inv) == 1.0


def test_strides_of_input_and_gradient(monkeypatch):  # BR-035, BR-037
    for view in (lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:, 3:20], lambda x: x[:1, :17].expand(6, 17)):
        x = view(torch.randn(17, 34, generator=torch.Generator().manual_seed(5)))
        if x.shape[-1] != 17:
            continue
        m, n = layer(), layer()
        m(x).transpose(0, 1).sum().backward()
        n(x.contiguous()).backward(torch.ones(x.shape[0], 5))
        assert same(m.weight.grad, n.weight.grad) and torch.equal(m.bias.grad, n.bias.grad)


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_of_input_and_bias(x_dtype, bias_dtype):  # BR-050
    m = layer(32, 24)
    m.bias.data = batch(3, 1, 24)[0].to(bias_dtype)
    x = batch(1, 8, 32).to(x_dtype).requires_grad_()
    y = m(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, m.bias.grad.dtype, m.weight.grad.dtype) == (
        x_dtype,
        x_dtype,
        bias_dtype,
        torch.float32,
    )
    want = cast(x.detach(), E4M3).double() @ cast(dense(m.weight), E4M3).double().t() + m.bias.detach().double()
    one_rounding = torch.finfo(x_dtype if x_dtype is not torch.float64 else torch.float32).eps
    assert torch.allclose(y.double(), want, rtol=one_rounding, atol=2e-6 + one_rounding / 8)


def test_autocast_decides_the_output_dtype():  # BR-051
    m = nn.Sequential(layer(16, 32), nn.Linear(32, 8))
    with torch.autocast("cpu", torch.bfloat16):
        y = m[0](batch())
        z = m(batch())
    assert y.dtype is torch.bfloat16 and z.dtype is torch.bfloat16
    z.float().sum().backward()
    assert (
        is_fp8(m[0].weight.grad) and m[0].weight.grad.dtype is torch.float32 and m[0].bias.grad.dtype is torch.float32
    )


def test_autocast_leaves_float64_alone_as_torch_does():
    m, stock, x = layer(16, 16), nn.Linear(16, 16).double(), batch().double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert m(x).dtype is stock(x).dtype is torch.float64
        m.gemm = "none"
        assert m(x).dtype is torch.float64


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("gemm", ["fp8", "none"])
@pytest.mark.parametrize("shape", [(2, 0), (0,), (3, 2, 0), (0, 0)])
def test_no_input_features_give_the_bias(shape, gemm):
    m, stock = layer(0, 5), nn.Linear(0, 5)
    m.gemm = gemm
    stock.bias.data = m.bias.detach()
    x = torch.empty(shape, requires_grad=True)
    y = m(x)
    assert torch.equal(y, stock(x.detach()))
    y.sum().backward()
    assert x.grad.shape == shape and m.weight.grad.shape == (5, 0) and m.bias.grad.shape == (5,)


def test_hand_made_scales_are_all_used():  # BR-017
    for bias in (0, 2, 3):
        m = layer(16, 16, bias=False, recipe=fp8amp.ConstantScaling(bias=bias))
        m.weight.data = 3 * torch.eye(16)
        assert torch.equal(m(2 * torch.eye(16)), 6 * torch.eye(16))


def test_zero_rows_give_the_bias_and_leave_the_others_alone():  # BR-001, BR-002
    m, x = layer(32, 24), batch(1, 8, 32)
    x[0, 0] = 9.0  # amax in a row that stays
    y = m(x)
    z = x.clone()
    z[3:5] = 0
    w = m(z)
    assert (
        torch.equal(w[3:5], m.bias.detach().expand(2, 24)) and torch.equal(w[:3], y[:3]) and torch.equal(w[5:], y[5:])
    )
    assert torch.equal(m(torch.zeros(4, 32)), m.bias.detach().expand(4, 24))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_zero_initialised_layers_train(level):  # BR-003
    m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    nn.init.zeros_(m[0].weight)
    nn.init.zeros_(m[0].bias)
    m, opt = fp8amp.initialize(m, torch.optim.AdamW(m.parameters()), level)
    m(batch()).square().sum().backward()
    assert not dense(m[1].weight.grad).any() and torch.isfinite(dense(m[0].weight.grad)).all()
    opt.step()
    assert all(torch.isfinite(dense(p)).all() for p in m.parameters())


@pytest.mark.parametrize(
    "weight_grad,input_grad,gemms", [(True, True, 3), (False, True, 2), (True, False, 2), (False, False, 1)]
)
def test_only_the_gemms_that_are_needed_run(monkeypatch, weight_grad, input_grad, gemms):  # BR-057
    count, original = [], _ops.gemm
    monkeypatch.setattr(_ops, "gemm", lambda *a, **k: (count.append(1), original(*a, **k))[1])
    m, x = layer(16, 16), batch().requires_grad_(input_grad)
    m.weight.requires_grad_(weight_grad)
    m(x).sum().backward()
    assert len(count) == gemms and (m.weight.grad is None) is not weight_grad and (x.grad is None) is not input_grad


def test_eval_mode_has_the_same_gradients():  # BR-019
    m, n, x, z = layer(16, 16), layer(16, 16).eval(), batch().requires_grad_(), batch().requires_grad_()
    m(x).sum().backward()
    n(z).sum().backward()
    assert torch.equal(x.grad, z.grad) and same(m.weight.grad, n.weight.grad)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", ["gradient", "input"])
def test_a_non_finite_value_is_nan_in_the_gradient(bad, where):  # never a saturated number
    m, x, dy = layer(16, 16), batch(), batch(2)
    (dy if where == "gradient" else x)[2, 3] = bad
    x.requires_grad_()
    m(x).backward(dy)
    assert (where == "input" and not math.isnan(bad)) or not torch.isfinite(dense(m.weight.grad)).all()
    assert where == "input" or not torch.isfinite(x.grad).all()


def test_fp8_weight_is_made_once_per_version_and_never_stale(monkeypatch):  # BR-125
    m, x = layer(16, 16, bias=False), torch.eye(16)
    opt = torch.optim.SGD(m.parameters(), lr=0.5)
    other = layer(16, 16, bias=False, seed=9).state_dict()
    changes = [
        lambda: (m(x).sum().backward(), opt.step()),
        lambda: m.weight.data.copy_(torch.ones(16, 16)),
        lambda: m.load_state_dict(other),
        lambda: m.load_state_dict(other, assign=True),
        lambda: m.weight.data.mul_(2),
        lambda: m.weight.data[1].zero_(),
        lambda: setattr(m.weight, "data", 0.5 * torch.eye(16)),
        lambda: nn.init.normal_(m.weight),
        lambda: m.weight.payload.fill_(1.0),
    ]
    made, original = [], _ops.quantize
    monkeypatch.setattr(_ops, "quantize", lambda *a, **k: (made.append(a), original(*a, **k))[1])
    for change in changes:
        m(x)
        made.clear()
        m(x)
        assert len(made) == 1, "only x is cast"
        change()
        z = x.clone().requires_grad_()
        y = m(z)
        y.sum().backward()
        w = cast(dense(m.weight), E4M3)
        if change is not changes[-1]:  # a write past every wrapper still counts, through the payload's version
            assert torch.allclose(y, w.t(), rtol=1e-6) and torch.allclose(
                z.grad, w.sum(0).expand(16, 16), rtol=1e-5, atol=1e-5
            )
        m.zero_grad()


@pytest.mark.parametrize("recipe", [fp8amp.CurrentScaling(), fp8amp.DelayedScaling(history=3)])
@pytest.mark.parametrize("make", [lambda r: layer(16, 16, recipe=r), lambda r: Conv1D(16, 16, recipe=r)])
def test_validating_in_inference_mode_leaves_training_alone(make, recipe, monkeypatch):
    torch.manual_seed(0)
    m, x = make(recipe), batch().requires_grad_()
    twin, made, original = copy.deepcopy(m), [], _ops.quantize
    monkeypatch.setattr(_ops, "quantize", lambda *a, **k: (made.append(a), original(*a, **k))[1])
    m.eval()
    with torch.inference_mode():
        m(x)
        m(x)
    assert len([a for a in made if a[1] is not None]) == 1, "the copy of the weight serves a whole validation"
    for trained in (m.train(), twin):
        trained(x).sum().backward()
    assert same(m.weight.grad, twin.weight.grad)
    m.zero_grad()
    with torch.inference_mode():
        m(x)
    m(x).sum().backward()


def test_a_layer_may_run_twice_before_backward_with_delayed_scaling():
    m = layer(16, 16, recipe=fp8amp.DelayedScaling(history=3))
    (m(batch(1)) + m(batch(2))).sum().backward()
    assert float(m.x_history[0]) == 2 and float(m.gradient_history[0]) == 2
    assert torch.allclose(dense(m.weight.grad), (batch(1) + batch(2)).sum(0).expand(16, 16), rtol=0.2, atol=0.5)


def test_layers_take_their_input_by_the_stock_name():
    m, conv, x = layer(16, 16), Conv1D(16, 16), batch()
    assert torch.equal(m(input=x), m(x)) and torch.equal(conv(x=x), conv(x))


def test_the_fp8_weight_follows_a_write_to_its_scale():
    layer, x = fp8amp.initialize(nn.Sequential(nn.Linear(16, 16, bias=False)))[0], batch()
    before = layer(x)
    with torch.no_grad():
        layer.weight.scale_inv.mul_(2)
    assert torch.equal(layer(x), 2 * before)


def test_the_fp8_weight_follows_the_recipe():
    w, x = layer(16, 16).weight.detach(), batch()
    for recipe in (fp8amp.CurrentScaling(), fp8amp.ConstantScaling(-9), fp8amp.CurrentScaling()):
        assert torch.equal(linear(x, w, recipe=recipe), linear(x, w.clone(), recipe=recipe))


def test_conv1d_is_linear_with_a_transposed_weight():
    torch.manual_seed(0)
    conv, m = Conv1D(24, 32), layer(32, 24)
    m.weight.data, m.bias.data = dense(conv.weight).t(), batch(4, 1, 24)[0]
    conv.bias.data = batch(4, 1, 24)[0]
    x, z, dy = batch(1, 8, 32).requires_grad_(), batch(1, 8, 32).requires_grad_(), batch(2, 8, 24)
    a, b = conv(x), m(z)
    a.backward(dy)
    b.backward(dy)
    assert torch.allclose(a, b, atol=1e-6) and torch.allclose(x.grad, z.grad, atol=1e-6)
    assert torch.equal(dense(conv.weight.grad), dense(m.weight.grad).t()) and torch.equal(conv.bias.grad, m.bias.grad)


def test_functional_linear_takes_plain_and_scaled_weights():
    w, x = batch(4, 24, 16), batch()
    q = fp8amp.quantize(w)
    want = cast(x, E4M3) @ cast(w, E4M3).t()
    assert torch.allclose(linear(x, w), want, atol=1e-5) and torch.allclose(linear(x, q), want, atol=1e-5)
    w.requires_grad_()
    linear(x, w).sum().backward()
    assert w.grad is not None and torch.allclose(dense(w.grad), x.sum(0).expand(24, 16), rtol=0.2, atol=0.5)
    assert type(linear(fp8amp.quantize(x), w)) is torch.Tensor


def test_stock_linear_on_a_scaled_weight_works():
    m = layer(16, 16)
    assert torch.allclose(stock_linear(batch(), m.weight, m.bias), batch() @ dense(m.weight).t() + m.bias, atol=1e-5)


def test_subclass_of_linear_with_its_attributes():  # BR-055
    m = layer(32, 16)
    assert isinstance(m, nn.Linear) and (m.in_features, m.out_features, m.weight.shape) == (32, 16, (16, 32))
    a, b = torch.randn(4, 32, requires_grad=True), torch.zeros(16, 4, requires_grad=True)
    m.requires_grad_(False)
    (m(batch(1, 8, 32)) + batch(1, 8, 32) @ a.t() @ b.t()).sum().backward()
    assert m.weight.grad is None and a.grad is not None and b.grad is not None


def test_operand_formats(monkeypatch):  # BR-130
    seen, original = [], _ops.gemm
    monkeypatch.setattr(
        _ops, "gemm", lambda a, sa, b, sb, **k: (seen.append((a.dtype, b.dtype)), original(a, sa, b, sb, **k))[1]
    )
    m = layer(16, 16)
    m(batch().requires_grad_()).sum().backward()
    assert seen == [(E4M3, E4M3), (E5M2, E4M3), (E5M2, E4M3)] and m.weight.grad.format is E4M3
    assert m.weight.grad.payload.nbytes == 256 and code(m.weight.grad.payload).dtype is torch.uint8


@pytest.mark.parametrize(
    "call,error,text",
    [
        (lambda m: m(torch.ones(3, 16)), ValueError, r"17.*\(3, 16\)"),
        (lambda m: m(torch.tensor(1.0)), ValueError, r"\(\)"),
        (lambda m: m(torch.ones(3, 17, dtype=torch.int64)), TypeError, "int64"),
        (lambda m: m([1.0]), TypeError, "list"),
        (lambda m: m(torch.ones(3, 17, device="meta")), ValueError, "meta"),
        (lambda m: linear(torch.ones(3, 17), m.weight, torch.ones(4)), ValueError, r"\(5,\).*\(4,\)"),
        (lambda m: linear(torch.ones(3, 17), torch.ones(17)), ValueError, r"2-D.*\(17,\)"),
        (lambda m: linear(torch.ones(3, 17), m.weight, recipe=fp8amp.DelayedScaling()), ValueError, "DelayedScaling"),
        (lambda m: linear(torch.ones(3, 17), m.weight, recipe="current"), TypeError, "'current'"),
        (lambda m: linear(torch.ones(3, 17), "w"), TypeError, "weight.*str"),
        (lambda m: linear(torch.ones(3, 17), None), TypeError, "weight.*NoneType"),
        (lambda m: linear(torch.ones(3, 17), torch.ones(5, 17, dtype=torch.int32)), TypeError, "weight.*int32"),
        (lambda m: linear(torch.ones(3, 17), torch.ones(5, 17, dtype=torch.bool)), TypeError, "weight.*bool"),
        (lambda m: linear(torch.ones(3, 17), torch.ones(5, 17) * 1j), TypeError, "weight.*complex64"),
        (lambda m: linear(torch.ones(3, 17), torch.ones(5, 17).to_sparse()), TypeError, "weight.*sparse"),
        (lambda m: linear(torch.ones(3, 17).to_sparse(), m.weight), TypeError, "x must.*sparse"),
        (lambda m: linear(torch.ones(3, 17).to(E4M3), m.weight), TypeError, "x must.*float8_e4m3fn"),
        (lambda m: linear(torch.ones(3, 17), m.weight, [1.0] * 5), TypeError, "bias.*list"),
        (lambda m: linear(torch.ones(3, 17), m.weight, torch.ones(5, dtype=torch.int64)), TypeError, "bias.*int64"),
        (lambda m: linear(torch.ones(3, 17), m.weight, torch.ones(5, device="meta")), ValueError, "bias.*meta"),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call(layer())


@pytest.mark.parametrize("kind", (Linear, Conv1D))
@pytest.mark.parametrize(
    "recipe",
    (fp8amp.CurrentScaling(), fp8amp.DelayedScaling(history=2), fp8amp.ConstantScaling(4, 9)),
    ids=("current", "delayed", "constant"),
)
@pytest.mark.parametrize("compiled", (False, True), ids=("eager", "compiled"))
def test_transposed_operands_change_no_bit(monkeypatch, kind, recipe, compiled):
    def steps():
        torch.manual_seed(3)
        m = Linear(40, 24, recipe=recipe) if kind is Linear else Conv1D(24, 40, recipe=recipe)
        torch.compiler.reset()
        call = torch.compile(m, fullgraph=True, backend="aot_eager") if compiled else m
        found = []
        for seed in range(3):
            x = batch(seed, 18, 40).view(2, 9, 40).requires_grad_()
            y = call(x)
            y.backward(batch(10 + seed, 18, 24).view(2, 9, 24))
            found += [y.detach(), x.grad, dense(m.weight.grad), m.bias.grad.clone()]
        frozen = m.requires_grad_(False)
        found += [frozen(x).detach(), frozen.eval()(x.detach())]
        return found

    products = []
    if not compiled:  # a graph may not reach outside
        gemm = _ops.gemm
        monkeypatch.setattr(_ops, "gemm", lambda *a, **k: (products.append(k), gemm(*a, **k))[1])
    plain = steps()
    assert compiled or any(product.get("transpose_a") for product in products)
    products.clear()
    monkeypatch.setattr(_ops, "gemm_prefers_k_contiguous", lambda device: True)
    transposed = steps()
    for product in products[:9]:  # of the three training steps
        assert product["transpose_b"] and not product.get("transpose_a")
    for a, b in zip(plain, transposed, strict=True):
        assert same(a, b)
