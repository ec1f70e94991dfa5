"""Bias gradients: sums over the rows of the output gradient, made by its cast, in one order everywhere."""

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor, _ops
from fp8amp.nn import Conv1D, Linear
from fp8amp.nn.fused import gelu_linear
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from twins import E4M3, E5M2, batch, code, same

RECIPES = [
    fp8amp.CurrentScaling(),
    fp8amp.DelayedScaling(history=2),
    fp8amp.ConstantScaling(4),
    fp8amp.RowwiseScaling(),
    fp8amp.BlockScaling(),
]
SHAPES = [(0, 5), (1, 3), (31, 17), (33, 64), (1025, 33)]


def in_order(x):
    """Groups of 32 rows, row by row, until one is left; independent of the library."""
    x = x.float()
    while len(x) > 1:
        x = torch.stack([_add(rows) for rows in x.split(32)])
    return x[0] if len(x) else torch.zeros(x.shape[1])


def _add(rows):
    total = torch.zeros(rows.shape[1])
    for row in rows:
        total = total + row
    return total


class Calls(TorchDispatchMode):
    """Names of the ops that are called."""

    def __enter__(self):
        self.names = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name().split(".")[0])
        return func(*args, **(kwargs or {}))

    def count(self, name):
        return self.names.count(name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, E4M3])
@pytest.mark.parametrize("shape", SHAPES)
def test_ops(shape, dtype):
    x, scale_inv = batch(1, *shape), None
    if dtype is E4M3:
        x, scale_inv, _ = _ops.quantize(x, None, E4M3, scale=torch.tensor(3.0))
    x = x.to(dtype)
    values = x.float() if scale_inv is None else x.float() * scale_inv
    want, history = in_order(values), torch.zeros(4)
    assert same(_ops.column_sums(x, scale_inv), want)
    for cast, options in (
        (_ops.quantize, {}),
        (_ops.quantize_transpose, {}),
        (_ops.quantize_delayed, {"history": history, "update": True}),
    ):
        plain = cast(x, scale_inv, E5M2, **{**options, **({"history": history.clone()} if options else {})})
        *rest, sums = cast(x, scale_inv, E5M2, column_sums=True, **options)
        assert same(sums, want) and len(rest) == len(plain)
        assert all(torch.equal(code(a), code(b)) for a, b in zip(rest, plain, strict=True) if a.itemsize < 4)
        assert all(torch.equal(a, b) for a, b in zip(rest, plain, strict=True) if a.itemsize == 4)


def test_near_the_exact_sum():
    x = batch(1, 5000, 40)
    error = (_ops.column_sums(x, None).double() - x.double().sum(0)).abs()
    assert (error <= 3 * 32 * 2.0**-24 * x.double().abs().sum(0)).all() and float(error.max()) < 1e-4


def test_bad_input():
    with pytest.raises(fp8amp.Error, match="column_sums: x must have 2 dimensions"):
        _ops.column_sums(torch.ones(3), None)
    with pytest.raises(fp8amp.Error, match="quantize: x must have 2 dimensions"):
        _ops.quantize(torch.ones(3, 3, 3), None, E4M3, column_sums=True)
    with pytest.raises(fp8amp.Error, match="column_sums: x must be contiguous"):
        _ops.column_sums(torch.ones(3, 4).t(), None)


def test_shapes_when_traced():
    history = torch.zeros(4)
    for wanted in (False, True):
        real = [
            _ops.quantize(batch(1, 5, 7), None, E5M2, column_sums=wanted),
            _ops.quantize_transpose(batch(1, 5, 7), None, E5M2, column_sums=wanted),
            _ops.quantize_delayed(batch(1, 5, 7), None, E5M2, history, update=False, column_sums=wanted),
            (_ops.column_sums(batch(1, 5, 7), None),),
        ]
        with FakeTensorMode():
            x, h = torch.empty(5, 7), torch.empty(4)
            fake = [
                _ops.quantize(x, None, E5M2, column_sums=wanted),
                _ops.quantize_transpose(x, None, E5M2, column_sums=wanted),
                _ops.quantize_delayed(x, None, E5M2, h, update=False, column_sums=wanted),
                (_ops.column_sums(x, None),),
            ]
        for a, b in zip(real, fake, strict=True):
            assert [(t.shape, t.dtype) for t in a] == [(t.shape, t.dtype) for t in b]


def backward(m, rows, inside, outside, dtype=torch.float32, x_grad=True):
    """What the backward calls, and the output gradient."""
    x, dy = batch(1, rows, inside).to(dtype).requires_grad_(x_grad), batch(2, rows, outside).to(dtype)
    y = m(x)
    with Calls() as calls:
        y.backward(dy)
    return calls, dy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("kind", [Linear, lambda i, o, recipe: Conv1D(o, i, recipe=recipe)])
def test_the_cast_makes_the_bias_gradient(kind, recipe, dtype):
    torch.manual_seed(0)
    m = kind(17, 33, recipe=recipe).to(dtype)
    calls, dy = backward(m, 70, 17, 33, dtype)
    assert m.bias.grad.dtype is dtype and same(m.bias.grad, in_order(dy).to(dtype))
    fine = isinstance(recipe, fp8amp.recipe.FineScaling)
    assert calls.count("fp8amp::column_sums") == int(fine) and calls.count("aten::sum") == 0
    name = "quantize_blocks" if fine else "quantize_delayed" if recipe.window else "quantize"
    assert calls.count(f"fp8amp::{name}") >= 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_of_the_bias_alone(recipe):
    m = Linear(17, 33, recipe=recipe)
    m.weight.requires_grad_(False)
    calls, dy = backward(m, 70, 17, 33, x_grad=False)
    assert same(m.bias.grad, in_order(dy))
    assert [name for name in calls.names if name.startswith("fp8amp")] == ["fp8amp::column_sums"]


def test_without_a_bias_that_wants_it_nothing_is_summed(monkeypatch):
    made, original = [], _ops.quantize
    monkeypatch.setattr(_ops, "quantize", lambda *a, **k: (made.append(k), original(*a, **k))[1])
    for m in (Linear(17, 33, bias=False), Linear(17, 33)):
        if m.bias is not None:
            m.bias.requires_grad_(False)
        y = m(batch(1, 70, 17).requires_grad_())
        made.clear()
        y.sum().backward()
        assert len(made) == 2 and not any(k.get("column_sums") for k in made)  # dY and dW


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_products(dtype):
    m = Linear(17, 33).to(dtype)
    m.adopt(gemm="none")
    _, dy = backward(m, 70, 17, 33, dtype)
    assert m.bias.grad.dtype is dtype and same(m.bias.grad, in_order(dy).to(dtype))


def test_gradients_in_fp8():
    """The output gradient of the first layer is an E5M2 ScaledTensor."""
    torch.manual_seed(0)
    first, second, seen = Linear(17, 33), Linear(33, 16), []
    h = first(batch(1, 70, 17).requires_grad_())
    h.register_hook(seen.append)
    y = gelu_linear(h, second.weight, second.bias, fp8_gradient=True)
    y.backward(batch(2, 70, 16))
    assert isinstance(seen[0], ScaledTensor)
    assert same(first.bias.grad, in_order(seen[0].dequantize(torch.float32)))
    assert same(second.bias.grad, in_order(batch(2, 70, 16)))


def test_expanded_and_strided_gradients():
    m = Linear(17, 33)
    m(batch(1, 70, 17)).sum().backward()
    assert same(m.bias.grad, torch.full((33,), 70.0))
    m.zero_grad()
    dy = batch(2, 33, 70).t()
    m(batch(1, 70, 17)).backward(dy)
    assert same(m.bias.grad, in_order(dy))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_compiled(recipe, alone):
    torch._dynamo.reset()
    dy, gradients = batch(2, 70, 33), []
    for compiled in (False, True):
        torch.manual_seed(0)
        m = Linear(17, 33, recipe=recipe)
        m.weight.requires_grad_(not alone)
        run = torch.compile(m, backend="aot_eager", fullgraph=True) if compiled else m
        run(batch(1, 70, 17)).backward(dy)
        gradients.append(m.bias.grad)
    assert same(gradients[0], gradients[1]) and same(gradients[0], in_order(dy))
    torch._dynamo.reset()
