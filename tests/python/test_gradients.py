"""FP8 `.grad`: accumulation, tied use, hooks, clipping, GradScaler, activation checkpointing; and the sum of a bias."""

import copy
import math

import fp8amp
import pytest
import torch
from fp8amp.nn.functional import linear
from torch import nn
from torch.nn.functional import linear as stock_linear
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from twins import batch, code, dense, is_fp8, net, same, snapshot, train, trainer, unchanged

X = batch()


@pytest.fixture
def model():
    return fp8amp.initialize(net())


def relative(a, b):
    return float((dense(a) - dense(b)).norm() / dense(b).norm())


def test_micro_batches_accumulate_in_place(model):  # BR-121
    sums, kept = [torch.zeros_like(dense(p)) for p in model.parameters()], []
    for part in X.chunk(4):
        alone = fp8amp.initialize(net())
        alone(part).square().sum().backward()
        sums = [total + dense(p.grad) for total, p in zip(sums, alone.parameters(), strict=True)]
        model(part).square().sum().backward()
        kept = kept or [model[0].weight.grad]
    assert is_fp8(kept[0]) and model[0].weight.grad is kept[0] and kept[0].dtype is torch.float32
    errors = [relative(p.grad, total) for p, total in zip(model.parameters(), sums, strict=True)]
    assert max(errors) < 2.0**-4


def test_small_micro_batches_are_not_lost():  # BR-121: re-quantising to nearest leaves 1.0 for ever instead of 1.24
    w = nn.Parameter(fp8amp.nn.Linear(64, 64).weight.detach().clone())
    first = torch.ones(64, 64)
    first[0, 0] = 8.0
    w.grad = fp8amp.scaled_tensor.scaled(first, torch.float8_e4m3fn, role="gradient")
    for step in range(8):
        (w * torch.full((64, 64), 0.03 + 0.001 * (step - 3.5))).sum().backward()
    assert is_fp8(w.grad) and float(dense(w.grad)[first == 1.0].mean()) == pytest.approx(1.24, abs=0.03)


def test_one_weight_used_several_times_stays_fp8(model):
    w = model[0].weight
    (model[0](X).sum() + linear(X * 2, w).sum() + stock_linear(X, w).sum()).backward()
    assert is_fp8(w.grad) and relative(w.grad, 4 * X.sum(0).expand(32, 16)) < 0.1


def test_stock_ops_hooks_and_held_gradients_stay_fp8(model):
    w, kept = model[0].weight, []
    stock_linear(X, w).sum().backward()
    assert is_fp8(w.grad)
    w.register_hook(kept.append)
    model(X).sum().backward()
    assert is_fp8(w.grad) and isinstance(kept[0], fp8amp.ScaledTensor)


def test_second_backward_and_autograd_grad(model):
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert is_fp8(model[0].weight.grad)
    assert isinstance(torch.autograd.grad(model(X).sum(), model[0].weight)[0], fp8amp.ScaledTensor)


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad(model, to_none):
    model(X).sum().backward()
    model.zero_grad(set_to_none=to_none)
    grad = model[0].weight.grad
    assert grad is None if to_none else not dense(grad).any()
    model(X).sum().backward()
    assert is_fp8(model[0].weight.grad)


def test_an_unfrozen_weight_gets_fp8_gradients(model):
    model[0].weight.requires_grad_(False)
    model(X).sum().backward()
    model[0].weight.requires_grad_(True)
    model(X)
    stock_linear(X, model[0].weight).sum().backward()
    assert is_fp8(model[0].weight.grad)


CLIPS = [fp8amp.clip_grad_norm_, nn.utils.clip_grad_norm_, lambda *a: nn.utils.clip_grad_norm_(*a, foreach=False)]


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping_moves_scales_alone(model, clip, norm_type):  # BR-087
    model(X).square().sum().backward()
    want = torch.linalg.vector_norm(torch.cat([dense(p.grad).reshape(-1) for p in model.parameters()]), norm_type)
    bits = code(model[0].weight.grad.payload).clone()
    got = clip(model.parameters(), 0.1, norm_type)
    after = torch.linalg.vector_norm(torch.cat([dense(p.grad).reshape(-1) for p in model.parameters()]), norm_type)
    assert got == pytest.approx(float(want), rel=1e-5) and after == pytest.approx(0.1, rel=1e-3)
    assert torch.equal(bits, code(model[0].weight.grad.payload))


@pytest.mark.parametrize("clip", [fp8amp.clip_grad_norm_, lambda *a: nn.utils.clip_grad_norm_(*a, foreach=True)])
def test_clipping_multiplies_all_scales_at_once(clip):
    """On a GPU what is done for each gradient is a launch for each."""
    model, layers = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6))), 6
    fp8amp.initialize(model, opt_level="O2")
    model(torch.randn(16, 16)).square().sum().backward()
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as record:
        clip(model.parameters(), 0.1)
    counts = {event.key: event.count for event in record.key_averages()}
    assert counts["aten::_foreach_mul"] == counts["aten::_foreach_copy_"] == 1
    assert not counts.get("aten::mul_") and counts.get("aten::mul", 0) <= layers + 2  # of which the CPU makes the one


@pytest.mark.parametrize("factor", [0.5, -2.0, 0.0, math.inf, torch.tensor([0.25]), torch.tensor(0.0)])
@pytest.mark.parametrize("divide", [False, True])
def test_gradients_multiplied_together_are_those_multiplied_alone(model, factor, divide):
    model(X).sum().backward()
    together = [p.grad for p in model.parameters()]
    alone = [copy.deepcopy(g) for g in together]
    (torch._foreach_div_ if divide else torch._foreach_mul_)(together, factor)
    for g, other in zip(together, alone, strict=True):
        other.div_(factor) if divide else other.mul_(factor)
        assert torch.equal(dense(g).nan_to_num(1e9), dense(other).nan_to_num(1e9))
        assert not isinstance(g, fp8amp.ScaledTensor) or torch.equal(g.scale_inv, other.scale_inv)


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_clipping_adds_torchs_millionth_to_the_norm(norm_type):
    plain, stock = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    plain.grad, stock.grad = torch.tensor([1e-6]), torch.tensor([1e-6])
    fp8amp.clip_grad_norm_(plain, 1e-7, norm_type)
    nn.utils.clip_grad_norm_(stock, 1e-7, norm_type)
    assert torch.equal(plain.grad, stock.grad) and float(plain.grad[0]) == pytest.approx(5e-8)


def test_norm_of_large_half_precision_gradients_is_finite():  # BR-087
    p = nn.Parameter(torch.zeros(1_000_000, dtype=torch.float16))
    p.grad = torch.full_like(p, 1e4)
    assert fp8amp.clip_grad_norm_(p, math.inf) == pytest.approx(1e7, rel=1e-3)
    assert float(p.grad[0]) == 1e4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clipping_leaves_a_non_finite_gradient_for_the_optimizer(bad):
    model, opt = trainer()
    train(model, opt, 1)
    before = snapshot(model, opt)
    opt.zero_grad()
    model(X).sum().backward()
    model[3].bias.grad[0] = bad
    assert not torch.isfinite(fp8amp.clip_grad_norm_(model.parameters(), 1.0))
    opt.step()
    assert unchanged(before, model, opt) and opt.skipped_steps == 1
    with pytest.raises(RuntimeError, match="norm"):
        fp8amp.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["0.bias", "3.weight"])  # a plain gradient, an FP8 one
def test_clipping_by_a_non_finite_norm_changes_no_bit_of_any_gradient(model, norm_type, bad, where):
    model(X).square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    with torch.no_grad():
        grads[where].view(-1)[3] = bad
    before = {name: grad.detach().clone() for name, grad in grads.items()}
    assert not torch.isfinite(fp8amp.clip_grad_norm_(model.parameters(), 0.1, norm_type))
    assert all(p.grad is grads[name] and same(p.grad, before[name]) for name, p in model.named_parameters())


def test_clip_takes_one_tensor_a_generator_and_nothing():
    assert (
        float(fp8amp.clip_grad_norm_([], 1.0)) == 0.0
        and float(fp8amp.clip_grad_norm_(nn.Parameter(torch.ones(2)), 1.0)) == 0.0
    )


@pytest.mark.parametrize(
    "kwargs,text",
    [
        (dict(max_norm=-1.0), "-1"),
        (dict(max_norm=math.nan), "nan"),
        (dict(max_norm="1"), "'1'"),
        (dict(max_norm=1.0, norm_type=0), "0"),
        (dict(max_norm=1j), "max_norm.*1j"),
        (dict(parameters=42), "parameters.*42"),
        (dict(parameters=None), "parameters.*None"),
        (dict(parameters=["a"]), "parameters.*'a'"),
    ],
)
def test_clip_names_bad_arguments(kwargs, text):
    with pytest.raises((TypeError, ValueError), match=text):
        fp8amp.clip_grad_norm_(**{"parameters": [], "max_norm": 1.0, **kwargs})


def test_a_norm_beyond_all_numbers_clips_nothing():
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.full((2,), 3.0)
    fp8amp.clip_grad_norm_(p, 10**400)
    assert float(p.grad[0]) == 3.0


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("bad", [False, True])
def test_grad_scaler(level, unscale, bad):  # BR-082
    model, opt = trainer(level)
    twin, twin_opt = trainer(level)
    scaler, x = torch.amp.GradScaler("cpu", init_scale=1024.0), X.clone()
    if bad:
        x[0, 0] = math.nan
    before = snapshot(model)
    scaler.scale(model(x).square().mean()).backward()
    if unscale:
        scaler.unscale_(opt)
        fp8amp.clip_grad_norm_(model.parameters(), 1e6)
    scaler.step(opt)
    scaler.update()
    assert unchanged(before, model) is bad and scaler.get_scale() == (512.0 if bad else 1024.0)
    if not bad:
        twin(x).square().mean().backward()
        assert relative(model[0].weight.grad, twin[0].weight.grad) < 2.0**-4  # scale 1024 is a power of two
        twin_opt.step()
        assert relative(model[0].weight, twin[0].weight) < 1e-2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["0.weight", "0.bias", "3.weight", "3.bias"])  # first and last of either kind
def test_grad_scaler_finds_one_bad_gradient_of_either_kind(where, bad):
    model, opt = trainer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(X).square().mean()).backward()
    with torch.no_grad():
        model.get_parameter(where).grad.view(-1)[0] = bad
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 512.0


def test_grad_scaler_unscales_every_gradient_as_it_does_dense_ones():
    model, opt = trainer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0)  # no power of two
    scaler.scale(model(X).square().mean()).backward()
    scaled_grads = [dense(p.grad).clone() for p in model.parameters()]
    copies = [nn.Parameter(torch.zeros_like(grad)) for grad in scaled_grads]
    for twin, grad in zip(copies, scaled_grads, strict=True):
        twin.grad = grad.clone()
    stock = torch.optim.SGD(copies)
    payloads = [p.grad.payload.clone() for p in model.parameters() if is_fp8(p.grad)]
    scaler.unscale_(opt)
    scaler.unscale_(stock)
    for p, twin in zip(model.parameters(), copies, strict=True):
        assert twin.grad.any() and torch.allclose(dense(p.grad), twin.grad, rtol=1e-6, atol=0)
    after = [p.grad.payload for p in model.parameters() if is_fp8(p.grad)]
    assert len(payloads) == 2 and all(same(a, b) for a, b in zip(after, payloads, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(gemm="none"),
        dict(recipe=fp8amp.RowwiseScaling()),
        dict(recipe=fp8amp.BlockScaling()),
    ],
)
def test_an_fp32_bias_gets_the_fp32_sum_of_bf16_gradients(options):
    """A BF16 sum has 8 bits, however it was accumulated: up to 2^-9 of it is lost, and bias.grad would show it."""
    layer = fp8amp.initialize(nn.Linear(16, 32), **options)
    rows = 4096
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(batch(1, rows))
    dy = (batch(2, rows, 32) + 1.0).bfloat16()
    y.backward(dy)
    want = dy.double().sum(0)
    assert y.dtype is torch.bfloat16 and layer.bias.grad.dtype is torch.float32
    assert torch.allclose(layer.bias.grad.double(), want, rtol=2.0**-20, atol=0)


def test_adding_to_a_gradient_with_a_factor(model):
    model(X).sum().backward()
    grad = model[0].weight.grad
    want, x = dense(grad) + 3.0 * dense(grad), dense(grad)
    grad.add_(x, alpha=3.0)
    assert is_fp8(grad) and relative(grad, want) < 2.0**-4


@pytest.mark.parametrize(
    "recipe", [fp8amp.CurrentScaling(), fp8amp.DelayedScaling(history=3), fp8amp.ConstantScaling(4)]
)
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_is_bit_equal(recipe, reentrant):  # BR-020, BR-021
    (plain, opt), (saved, opt_saved) = trainer(recipe=recipe), trainer(recipe=recipe)
    for step in range(6):
        x = batch(step) * 3.0 ** (step % 3)
        for o, run in (
            (opt, plain),
            (opt_saved, lambda z: checkpoint(saved, z, use_reentrant=reentrant)),
        ):
            o.zero_grad()
            run(x.clone().requires_grad_()).square().mean().backward()
            o.step()
        assert all(
            same(p.grad, q.grad) and same(p, q) for p, q in zip(plain.parameters(), saved.parameters(), strict=True)
        )
    assert all(same(a, b) for a, b in zip(plain.buffers(), saved.buffers(), strict=True))


def test_gradient_checkpointing_keeps_fp8_activations_only():
    """What the layer saves for backward is its FP8 input, 1 byte an element, and never the FP32 one."""
    model, saved = fp8amp.initialize(nn.Linear(64, 64)), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        model(batch(1, 32, 64))
    assert sum(t.nbytes for t in saved) <= 32 * 64 + 64 * 64 + 64
