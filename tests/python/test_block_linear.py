"""RowwiseScaling and BlockScaling: scales for each row, 1x128 piece and 128x128 block, in forward and backward."""

import copy
import math

import fp8amp
import pytest
import torch
from fp8amp import BlockScaling, CurrentScaling, RowwiseScaling, block_ops
from fp8amp.block_ops import Blocks, Granularity
from fp8amp.nn import Conv1D, Linear
from fp8amp.nn.functional import linear
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from twins import E4M3, batch, dense, is_fp8, net, same, same_training_state, train, trainer

RECIPES = [RowwiseScaling(), BlockScaling(), RowwiseScaling(scale_rounding="exact"), BlockScaling(margin=1)]
GRANULARITIES = [Granularity.ROW, Granularity.BLOCK1X128, Granularity.BLOCK128X128]


def block_shape(granularity, x):
    return {
        Granularity.ROW: (1, max(1, x.shape[1])),
        Granularity.BLOCK1X128: (1, 128),
        Granularity.BLOCK128X128: (128, 128),
    }[granularity]


def cast(x, granularity, recipe=None):
    """Independent of the library, in torch: each block under its own scale, and back to float32."""
    recipe = recipe or BlockScaling()
    height, width = block_shape(granularity, x)
    out = torch.empty_like(x, dtype=torch.float32)
    for i in range(0, x.shape[0], height):
        for j in range(0, x.shape[1], width):
            piece = x[i : i + height, j : j + width].float()
            amax = float(piece.abs().max())
            scale = torch.tensor(448.0 * 2.0**-recipe.margin) / amax if amax else torch.tensor(1.0)
            if recipe.scale_rounding == "power_of_two":
                scale = torch.tensor(2.0 ** math.floor(math.log2(float(scale))))
            codes = (piece * scale).clamp(-448, 448).to(E4M3).float()
            out[i : i + height, j : j + width] = codes * (1 / scale)
    return out


def operands(recipe):
    if isinstance(recipe, RowwiseScaling):
        return Granularity.ROW, Granularity.ROW
    return Granularity.BLOCK1X128, Granularity.BLOCK128X128


def outliers(rows, columns, seed=3):
    """Rows and single elements thousands of times larger than the rest."""
    x = batch(seed, rows, columns)
    x[5] *= 3000.0
    x[:, 7] *= 200.0
    return x


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 127), (128, 129), (300, 520)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_quantize_blocks_and_its_layout(granularity, shape, dtype):
    x = batch(1, *shape).to(dtype)
    q, q_t = block_ops.quantize_blocks(x, None, E4M3, granularity, columns=True)
    assert torch.equal(block_ops.dequantize_blocks(q), cast(x, granularity))
    assert torch.equal(block_ops.dequantize_blocks(q_t), cast(x.t().contiguous(), granularity))
    rows, k = shape
    want = {
        Granularity.ROW: (rows,),
        Granularity.BLOCK1X128: (-(-k // 128), rows),
        Granularity.BLOCK128X128: (-(-rows // 128), 4 * -(-k // 512)),
    }[granularity]
    assert tuple(q.scale_inv.shape) == want
    if granularity is Granularity.BLOCK1X128:  # piece p of row r stands at [p, r]
        amax = float(x[rows - 1, k // 128 * 128 :].float().abs().max()) if k % 128 else None
        assert amax is None or float(q.scale_inv[-1, -1]) == 2.0 ** -math.floor(math.log2(448 / amax))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("rows,inside,outside", [(1, 17, 5), (3, 130, 257), (129, 127, 131), (64, 256, 128)])
def test_forward_and_backward_against_float64(recipe, rows, inside, outside):
    torch.manual_seed(0)
    m, x, dy = Linear(inside, outside, recipe=recipe), batch(1, rows, inside).requires_grad_(), batch(2, rows, outside)
    w, one, two = dense(m.weight), *operands(recipe)

    def product(a, g_a, b, g_b):
        return cast(a.contiguous(), g_a, recipe).double() @ cast(b.contiguous(), g_b, recipe).double().t()

    out = m(x)
    out.backward(dy)
    xs = x.detach()
    y = product(xs, one, w, two) + m.bias.detach().double()
    dx = product(dy, one, w.t(), two)
    dw = product(dy.t(), one, xs.t(), one)
    assert torch.allclose(out.double(), y, atol=3e-5, rtol=1e-5)
    assert torch.allclose(x.grad.double(), dx, atol=3e-5, rtol=1e-5)
    assert is_fp8(m.weight.grad) and torch.allclose(
        dense(m.weight.grad).double(), dw, rtol=0.07, atol=2.0**-9 * float(m.weight.grad.scale_inv)
    )
    assert torch.allclose(m.bias.grad.double(), dy.double().sum(0), atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_gradients_are_near_those_of_float32(recipe):
    """Each operand is off by at most 2^-4 of itself: a product of two by at most 0.13 (|A| |B|^T)."""
    torch.manual_seed(0)
    m = Linear(200, 136, recipe=recipe)
    x, dy, w = batch(1, 77, 200).requires_grad_(), batch(2, 77, 136), dense(m.weight)
    y = m(x)
    y.backward(dy)
    for got, a, b in ((y - m.bias, x, w.t()), (x.grad, dy, w), (dense(m.weight.grad), dy.t(), x)):
        a, b = a.detach(), b.detach()
        floor = 2.0**-9 * float(m.weight.grad.scale_inv)  # of the gradient's own format
        extra = 2.0**-4 * (a @ b).abs() + floor if got.shape == w.shape else 0
        assert ((got - a @ b).abs() <= 0.13 * (a.abs() @ b.abs()) + 1e-3 + extra).all()


def relative_error(recipe, x, w):
    exact = x.double() @ w.double().t()
    error = (linear(x, w, recipe=recipe).double() - exact).norm(dim=1) / exact.norm(dim=1)
    return float(error.median())


def test_outliers_cost_less_than_with_one_scale():
    x, w = outliers(64, 256), batch(4, 96, 256)
    w[3] *= 1000.0
    tensor, row, block = (relative_error(r, x, w) for r in (CurrentScaling(), RowwiseScaling(), BlockScaling()))
    # measured: see the numbers in docs/numerics.md
    assert row < 0.06 and block < 0.06 and tensor > 2 * max(row, block), (tensor, row, block)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_non_finite_value_is_nan_in_the_gradient_and_stays_in_its_row(recipe, bad):
    torch.manual_seed(0)
    m, x, dy = Linear(16, 16, recipe=recipe), batch().requires_grad_(), batch(2)
    dy[2, 3] = bad
    m(x).backward(dy)
    assert not torch.isfinite(dense(m.weight.grad)[3]).any() and torch.isnan(x.grad[2]).all()
    assert torch.isfinite(x.grad[[0, 1, 3, 4, 5, 6, 7]]).all()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", [(17,), (2, 3, 17), (0, 17), (4, 0, 17)])
def test_every_input_shape(recipe, shape):
    torch.manual_seed(0)
    m = Linear(17, 5, recipe=recipe)
    flat = copy.deepcopy(m)
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    b = a.detach().reshape(-1, 17).clone().requires_grad_()
    y, z = m(a), flat(b)
    y.square().sum().backward()
    z.square().sum().backward()
    assert y.shape == (*shape[:-1], 5) and torch.equal(y.reshape(-1, 5), z)
    assert torch.equal(a.grad.reshape(-1, 17), b.grad) and same(m.weight.grad, flat.weight.grad)


@pytest.mark.parametrize("recipe", RECIPES[:2])
def test_conv1d_is_linear_with_a_transposed_weight(recipe):
    torch.manual_seed(0)
    conv, m = Conv1D(130, 40, recipe=recipe), Linear(40, 130, recipe=recipe)
    m.weight.data, m.bias.data = dense(conv.weight).t(), conv.bias.detach().clone()
    x, z, dy = batch(1, 8, 40).requires_grad_(), batch(1, 8, 40).requires_grad_(), batch(2, 8, 130)
    a, b = conv(x), m(z)
    a.backward(dy)
    b.backward(dy)
    assert torch.equal(a, b) and torch.equal(x.grad, z.grad)
    assert torch.equal(dense(conv.weight.grad), dense(m.weight.grad).t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("recipe", RECIPES[:2])
def test_dtypes_and_autocast(recipe, dtype):
    torch.manual_seed(0)
    m = Linear(32, 24, recipe=recipe)
    x = batch(1, 8, 32).to(dtype).requires_grad_()
    y = m(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, m.weight.grad.dtype) == (dtype, dtype, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert m(batch(1, 8, 32)).dtype is torch.bfloat16


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_training(recipe, level):
    losses = train(*trainer(level, recipe=recipe), steps=80)
    plain = net()
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 80)
    assert sum(losses[-20:]) < 1.1 * sum(want[-20:])


@pytest.mark.parametrize("recipe", RECIPES[:2])
@pytest.mark.parametrize("master", [torch.float16, torch.float32, E4M3])
def test_every_master_format(recipe, master):
    model = fp8amp.initialize(nn.Sequential(nn.Linear(16, 32)), recipe=recipe, master_format=master)
    model(batch()).sum().backward()
    assert is_fp8(model[0].weight.grad)


@pytest.mark.parametrize("recipe", RECIPES[:2])
def test_the_fp8_weight_is_made_once_per_version(recipe, monkeypatch):
    torch.manual_seed(0)
    m, x, made = Linear(16, 16, recipe=recipe), batch(), []
    import fp8amp.nn.block_linear as module

    original = module.quantize_blocks
    monkeypatch.setattr(module, "quantize_blocks", lambda *a, **k: (made.append(a[0].shape), original(*a, **k))[1])
    m(x)
    with torch.inference_mode():
        m(x)
    assert len(made) == 3, "x, weight, x"
    y = m(x)
    with torch.no_grad():
        m.weight.mul_(2.0)
    assert torch.allclose(m(x) - m.bias, 2 * (y - m.bias)) and len(made) == 6
    assert fp8amp.nn.weight_cache.fp8_weight_bytes(m.weight) >= 2 * 256
    frozen = copy.deepcopy(m).requires_grad_(False)
    z = batch().requires_grad_()
    frozen(z).sum().backward()
    assert z.grad is not None


def test_x_is_cast_along_its_columns_for_a_backward_alone(monkeypatch):
    m, x, wanted = Linear(40, 24, recipe=BlockScaling()), batch(1, 9, 40), []
    original = block_ops.quantize_blocks

    def counted(*arguments, columns, **options):
        wanted.append(columns)
        return original(*arguments, columns=columns, **options)

    monkeypatch.setattr("fp8amp.nn.block_linear.quantize_blocks", counted)
    m(x)
    with torch.no_grad():
        m(x)
    m.requires_grad_(False)
    m(x.requires_grad_())
    assert wanted == [True, True, False, False]  # x and the weight, then x alone


@pytest.mark.parametrize("recipe", [RowwiseScaling(), BlockScaling()])
def test_compiles_as_one_graph_and_bit_equal(recipe):
    torch._dynamo.reset()
    (a, opt_a), (b, opt_b) = trainer(recipe=recipe), trainer(recipe=recipe)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(a, backend=counter, fullgraph=True)

    def loop(run, optimizer):
        losses = []
        for step in range(3):
            optimizer.zero_grad()
            loss = (run(batch(step)) - batch(step + 9)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert loop(compiled, opt_a) == loop(b, opt_b) and counter.frame_count == 1
    assert same_training_state((a, opt_a), (b, opt_b))
    torch._dynamo.reset()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_fake_kernels_have_the_shapes_of_the_real_ones(granularity):
    for rows, columns in ((True, True), (True, False), (False, True)):
        args = (batch(1, 40, 150), None, E4M3, int(granularity), rows, columns, 0, 0, 0)
        torch.library.opcheck(torch.ops.fp8amp.quantize_blocks.default, args, test_utils="test_faketensor")
    q, q_t = block_ops.quantize_blocks(batch(1, 40, 150), None, E4M3, granularity, columns=True)
    args = (*q[:2], int(granularity), *q[:2], int(granularity), torch.float32, None, False)
    torch.library.opcheck(torch.ops.fp8amp.gemm_blocks.default, args, test_utils="test_faketensor")
    args = (*q_t[:2], int(granularity), torch.bfloat16)
    torch.library.opcheck(torch.ops.fp8amp.dequantize_blocks.default, args, test_utils="test_faketensor")


@pytest.mark.parametrize(
    "call,error,text",
    [
        (lambda: RowwiseScaling(margin=99), ValueError, "RowwiseScaling: margin.*99"),
        (lambda: BlockScaling(margin="1"), TypeError, "BlockScaling: margin.*'1'"),
        (lambda: BlockScaling(scale_rounding="up"), ValueError, "'up'"),
        (
            lambda: block_ops.gemm_blocks(
                Blocks(torch.zeros(4, 8).to(E4M3), torch.ones(3), Granularity.ROW),
                Blocks(torch.zeros(4, 8).to(E4M3), torch.ones(4), Granularity.ROW),
            ),
            fp8amp.Error,
            r"a.scale_inv must have shape \[4\], got \[3\]",
        ),
        (
            lambda: block_ops.quantize_blocks(torch.ones(3), None, E4M3, Granularity.ROW),
            fp8amp.Error,
            "x must have 2 dimensions, got 1",
        ),
        (
            lambda: block_ops.quantize_blocks(torch.ones(3, 3), None, torch.float16, Granularity.ROW),
            fp8amp.Error,
            "float8_e4m3, float8_e5m2, got float16",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
