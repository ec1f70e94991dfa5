"""What a model or a loop meets besides the plain case: each was silently wrong, or broke, once."""

import warnings

import fp8amp
import pytest
import torch
from fp8amp import dispatch
from torch import nn
from torch.func import functional_call, grad
from twins import batch, dense, net, trainer

X = batch()


class Scaled(fp8amp.nn.Linear):
    def forward(self, input):
        return 3 * torch.relu(super().forward(input))


def test_to_dense_keeps_the_forward_of_a_subclass():
    model, x = nn.Sequential(Scaled(32, 32)), torch.randn(4, 32)
    dense = fp8amp.to_dense(model)
    assert type(dense[0]) is Scaled and type(dense[0].weight) is nn.Parameter
    want = 3 * torch.relu(nn.functional.linear(x, dense[0].weight, dense[0].bias))
    torch.testing.assert_close(dense(x), want)
    torch.testing.assert_close(model(x), want, rtol=0.1, atol=0.2)


@pytest.mark.parametrize("parametrize", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_to_dense_of_a_parametrized_layer_computes(parametrize):
    model, x = nn.Sequential(nn.Linear(32, 32)), torch.randn(4, 32)
    fp8amp.initialize(model)
    parametrize(model[0])
    dense = fp8amp.to_dense(model)
    assert not any(isinstance(p, fp8amp.ScaledTensor) for p in dense.parameters())
    torch.testing.assert_close(dense(x), model(x), rtol=0.1, atol=0.2)


def test_a_recipe_given_later_has_its_histories():
    recipe = fp8amp.DelayedScaling(history=4)
    first, later = fp8amp.initialize(net(), recipe=recipe), fp8amp.initialize(net())
    for layer in fp8amp.fp8_layers(later).values():
        layer.recipe = recipe
    for step in range(3):
        x = X * 2.0**step
        assert torch.equal(first(x), later(x))
    assert any(layer.x_history.any() for layer in fp8amp.fp8_layers(later).values())
    layer.recipe = fp8amp.CurrentScaling()
    assert layer.x_history is None and "x_history" not in dict(layer.named_buffers())
    with pytest.raises(TypeError, match="Linear: recipe must be"):
        layer.recipe = "delayed"


def test_a_stock_optimizer_on_fp16_weights_warns_once(monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", [])
    model = fp8amp.initialize(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model(X).sum().backward()
    with pytest.warns(UserWarning, match="rounded to nearest, which loses updates"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        nn.init.normal_(model[0].weight)


def test_steps_that_are_skipped_for_ever_are_told():
    model, optimizer = trainer()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(50):
            optimizer.zero_grad()
            model(X).sum().backward()
            if step not in (5, 6, 7):
                model[3].bias.grad[0] = torch.nan
            optimizer.step()
    assert [str(w.message) for w in seen] == ["fp8amp: AdamW skipped the last 20 steps: a gradient is NaN or Inf"]
    assert optimizer.skipped_steps == 47


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_clipping_under_another_default_dtype(dtype):
    model = fp8amp.initialize(net())
    model(X).sum().backward()
    want = fp8amp.clip_grad_norm_(model.parameters(), 1e9)
    torch.set_default_dtype(dtype)
    try:
        got = fp8amp.clip_grad_norm_(model.parameters(), 1e9)
        none = fp8amp.clip_grad_norm_(nn.Parameter(torch.zeros(2)), 1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.dtype is none.dtype is torch.float32 and torch.equal(got, want)


def test_clipping_counts_imaginary_parts():
    p = nn.Parameter(torch.zeros(3, 2, dtype=torch.complex64))
    p.grad = torch.randn(2, 3, dtype=torch.complex64).t()
    stock = nn.Parameter(p.detach().clone())
    stock.grad = p.grad.clone()
    got, want = fp8amp.clip_grad_norm_(p, 0.5), nn.utils.clip_grad_norm_(stock, 0.5)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(p.grad, stock.grad)


def test_torch_func_grad_of_a_model():
    model = fp8amp.initialize(net())
    values = {name: p.detach() for name, p in model.named_parameters()}
    got = grad(lambda values: functional_call(model, values, (X,)).square().mean())(values)
    model(X).square().mean().backward()
    for name, p in model.named_parameters():
        assert type(got[name]) is torch.Tensor and torch.equal(got[name], dense(p.grad)), name


def test_an_element_is_formatted_as_a_number():
    model = fp8amp.initialize(net())
    assert f"{model[0].weight[0, 0]:.3f}" == f"{float(model[0].weight[0, 0]):.3f}"
