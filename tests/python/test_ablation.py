"""The switches of initialize for studies: one factor at a time, each with the formats it says."""

import copy
import pickle

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor, _ops
from torch import nn
from twins import E4M3, E5M2, FP16, batch, dense, is_fp8, net, train, trainer


def formats(model, opt):
    w = model[0].weight
    state = opt.state[w]
    return tuple(getattr(t, "format", t.dtype) for t in (w, w.grad, state["exp_avg"], state["exp_avg_sq"]))


F32 = torch.float32
FACTORS = [
    ({}, (FP16, E4M3, E4M3, FP16)),
    (dict(gemm="none"), (FP16, E4M3, E4M3, FP16)),
    (dict(grad_format=None), (FP16, F32, E4M3, FP16)),
    (dict(exp_avg_format=F32), (FP16, E4M3, F32, FP16)),
    (dict(exp_avg_sq_format=F32), (FP16, E4M3, E4M3, F32)),
    (dict(exp_avg_sq_format=E4M3), (FP16, E4M3, E4M3, E4M3)),
    (dict(exp_avg_sq_format=E5M2), (FP16, E4M3, E4M3, E5M2)),
    (dict(master_format=F32), (F32, E4M3, E4M3, FP16)),
    (dict(master_format=E4M3), (E4M3, E4M3, E4M3, FP16)),
    (dict(moment_rounding="nearest"), (FP16, E4M3, E4M3, FP16)),
    (dict(master_rounding="nearest"), (FP16, E4M3, E4M3, FP16)),
    (dict(second_moment_rounding="stochastic"), (FP16, E4M3, E4M3, FP16)),
    (
        dict(gemm="none", grad_format=None, exp_avg_format=F32, exp_avg_sq_format=F32, master_format=F32),
        (F32, F32, F32, F32),
    ),
]


@pytest.mark.parametrize("options,want", FACTORS)
def test_each_factor_has_its_formats_and_trains(options, want):
    model, opt = trainer("O2", **options)
    losses = train(model, opt, 60)
    assert formats(model, opt) == want
    plain = net()
    assert sum(losses[-20:]) < 1.3 * sum(train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 60)[-20:])
    fp8amp.memory_report(model, opt)


def test_everything_off_is_torch():
    off = dict(gemm="none", grad_format=None, exp_avg_format=F32, exp_avg_sq_format=F32, master_format=F32)
    plain = net()
    assert train(*trainer("O2", **off), 20) == pytest.approx(
        train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 20), rel=1e-4
    )


def test_dense_gemms_run_none_of_ours(monkeypatch):
    monkeypatch.setattr(_ops, "gemm", None)
    model = fp8amp.initialize(net(), gemm="none")
    x = batch().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    twin, z = fp8amp.to_dense(model), batch().requires_grad_()
    twin(z).square().sum().backward()
    assert (
        torch.allclose(y, twin(z), atol=1e-5)
        and torch.allclose(x.grad, z.grad, atol=1e-4)
        and is_fp8(model[0].weight.grad)
    )
    assert torch.allclose(
        dense(model[0].weight.grad), twin[0].weight.grad, rtol=0.07, atol=float(twin[0].weight.grad.abs().max()) / 2**8
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert model(batch()).dtype is torch.bfloat16


def assigned(model):
    model.load_state_dict(net().state_dict(), assign=True)
    return model


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), assigned])
def test_a_copy_of_a_model_with_fp32_masters_keeps_the_state_formats(copied):
    model = copied(fp8amp.initialize(net(), master_format=F32))
    opt = fp8amp.optim.AdamW(model.parameters())
    train(model, opt, 1)
    assert formats(model, opt) == (F32, E4M3, E4M3, FP16)
    assert fp8amp.memory_report(model, opt).fp8_parameters == 1024
    assert vars(fp8amp.to_dense(model)[0].weight) == {}


def test_an_e4m3_master_is_its_own_fp8_copy():
    model = nn.Linear(16, 16)
    fp8amp.initialize(model, master_format=E4M3)
    assert isinstance(model.weight, ScaledTensor) and model.weight.format is E4M3
    model(batch()).sum().backward()
    assert model.weight._fp8_copy is None and all("copies" not in row.kind for row in fp8amp.memory_report(model).rows)
