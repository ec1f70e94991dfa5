"""Derivatives of derivatives: an FP8 layer has none, and says so on every way to them."""

import fp8amp
import pytest
import torch
from fp8amp.nn import functional, fused
from torch import nn
from twins import batch, same

LAYERS = {
    "linear": lambda x, w: functional.linear(x, w),
    "rowwise": lambda x, w: functional.linear(x, w, recipe=fp8amp.RowwiseScaling()),
    "layer_norm_linear": lambda x, w: fused.layer_norm_linear(x, torch.ones(32), torch.zeros(32), w),
    "gelu_linear": lambda x, w: fused.gelu_linear(x, w),
}


@pytest.fixture(params=LAYERS)
def call(request):
    torch.manual_seed(0)
    weight = fp8amp.initialize(nn.Linear(32, 48), None, opt_level="O2").weight
    return lambda x: LAYERS[request.param](x, weight)


def test_gradients_do_not_differentiate(call):
    x = batch(1, 16, 32).requires_grad_()
    (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="FP8 layer cannot be differentiated"):
        gradient.sum().backward()


def test_jvp_by_two_backwards_is_refused(call):
    x = batch(1, 16, 32)
    with pytest.raises(RuntimeError, match="FP8 layer cannot be differentiated"):
        torch.autograd.functional.jvp(call, (x,), (x,))


def test_a_graph_of_the_gradients_changes_no_bit(call):
    x = batch(1, 16, 32).requires_grad_()
    plain, in_graph = (torch.autograd.grad(call(x).square().sum(), x, create_graph=graph)[0] for graph in (False, True))
    assert in_graph.requires_grad and same(plain, in_graph.detach())
