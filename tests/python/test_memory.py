"""memory_report against the tensors that really exist: every storage of the process, found through the garbage
collector (BR-088)."""

import gc

import fp8amp
import pytest
import torch
from fp8amp import ScaledTensor
from torch import nn
from twins import net, train


def storages():
    """Bytes of all live tensor storages. Nothing that a tensor is made of can hide from this."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter) and not thing.is_meta:
            try:
                found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
            except (RuntimeError, NotImplementedError):
                continue  # a fake tensor that an earlier compilation left behind
    return sum(found.values())


def big():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 1024, bias=False), nn.GELU(), nn.Linear(1024, 512, bias=False))


def step(model, opt):
    model(torch.randn(4, 512)).square().mean().backward()
    fp8amp.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()


@pytest.mark.parametrize("level,low,high", [("O1", 11.0, 11.01), ("O2", 6.0, 6.1)])
def test_bytes_per_parameter_are_those_of_the_process(level, low, high):
    base = storages()
    model = big()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fp8amp.initialize(model, opt, level)
    for _ in range(2):
        opt.zero_grad()
        step(model, opt)
    elements = sum(p.numel() for p in model.parameters())
    report = fp8amp.memory_report(model, opt)
    real = storages() - base
    assert low <= report.bytes_per_parameter <= high and low <= real / elements <= high + 0.01
    assert abs(report.total_bytes - real) < 4096  # what is left: the counter of skipped steps
    opt.zero_grad()
    assert (
        storages() - base <= (low - 1.0) * elements + 4096
        and fp8amp.memory_report(model, opt).bytes_per_parameter >= low
    )


def test_states_alone_and_their_small_change():
    model = big()
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2")
    step(model, opt)
    for p in model.parameters():
        held = sum(fp8amp.memory_bytes(v) for v in opt.state[p].values())
        assert 0 < held - 3 * p.numel() <= 64
        assert fp8amp.memory_bytes(p) == 2 * p.numel() + 4 and fp8amp.memory_bytes(p.grad) == p.numel() + 4


def test_fp8_copies_live_from_forward_to_step_and_have_their_own_line():
    model = big()
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2")

    def copies():
        return next(row for row in fp8amp.memory_report(model, opt).rows if "copies" in row.kind)

    elements = sum(p.numel() for p in model.parameters())
    assert copies().allocated == 0 and copies().bytes == elements + 8 and "forward" in copies().when
    model(torch.randn(4, 512)).sum().backward()
    assert copies().allocated == elements + 8
    opt.step()
    report = fp8amp.memory_report(model, opt)
    assert copies().allocated == 0 and report.peak_bytes == report.total_bytes + elements + 8


@pytest.mark.parametrize("recipe", [fp8amp.DelayedScaling(), fp8amp.RowwiseScaling(), fp8amp.BlockScaling()])
def test_fp8_copies_are_foretold_for_every_recipe(recipe):
    model = torch.nn.Sequential(torch.nn.Linear(200, 72), torch.nn.Linear(72, 272, bias=False))
    fp8amp.initialize(model, torch.optim.AdamW(model.parameters()), "O2", recipe=recipe)
    before = fp8amp.memory_report(model)
    model(torch.randn(8, 200)).sum().backward()
    after = fp8amp.memory_report(model)
    foretold, held = (next(row for row in report.rows if "copies" in row.kind) for report in (before, after))
    assert foretold.allocated == 0 < foretold.bytes == held.bytes == held.allocated


def test_a_step_makes_no_dense_copy_of_a_weight():
    """The largest tensors alive at any moment of clipping and stepping are the FP8 and FP16 ones."""
    model = big()
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2")
    step(model, opt)
    model(torch.randn(4, 512)).square().mean().backward()
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_leaves(out):
                if isinstance(t, torch.Tensor) and not isinstance(t, ScaledTensor):
                    sizes.append(t.nbytes)
            return out

    with Watch():
        fp8amp.clip_grad_norm_(model.parameters(), 1e-3)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        opt.step()
    assert max(sizes) < 1024


def test_tied_frozen_and_plain_parameters():
    model = net()
    model[3].weight.requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, "O2", exclude="0")
    train(model, opt, 1)
    report = fp8amp.memory_report(nn.ModuleList([model, model]), opt)
    assert report.fp8_parameters == 512 and report.plain_parameters == 512 + 32 + 64 + 16
    assert {row.kind: row.bytes for row in report.rows if not row.kind.startswith("plain")} == {
        "weight payload": 1024,
        "weight scale": 4,
        "FP8 copies of weights": 516,
    }
    text = str(report)
    assert (
        "weight payload" in text
        and "bytes per FP8-managed parameter" in text
        and len(text.splitlines()) == len(report.rows) + 3
    )


def test_a_stock_model_takes_sixteen_bytes():
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    train(model, opt, 1)
    assert fp8amp.memory_report(model, opt).bytes_per_parameter == pytest.approx(16.0, abs=0.1)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_states_are_counted_before_the_first_step(level):
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    fp8amp.initialize(model, opt, level)
    before = fp8amp.memory_report(model, opt)
    train(model, opt, 1)
    after = fp8amp.memory_report(model, opt)
    assert {row.kind: (row.tensors, row.bytes) for row in before.rows} == {
        row.kind: (row.tensors, row.bytes) for row in after.rows
    }
    assert before.bytes_per_parameter == after.bytes_per_parameter and before.uncounted == after.uncounted == 0
    assert not any(row.allocated for row in before.rows if row.kind.removeprefix("plain ").startswith("exp_avg"))


def test_states_that_nobody_can_foretell_are_said_to_be_missing():
    model = net()
    opt = torch.optim.AdamW(model.parameters())
    for report in (fp8amp.memory_report(model, opt), fp8amp.memory_report(model)):
        assert report.uncounted == 6 and "without optimizer states of 6 trainable tensors" in str(report)
    train(model, opt, 1)
    assert fp8amp.memory_report(model, opt).uncounted == 0


def test_a_gradient_counts_in_the_format_it_will_have():
    for grad_format, size in ((torch.float8_e4m3fn, 512 + 4), (None, 512 * 4)):
        model = fp8amp.initialize(nn.Linear(16, 32, bias=False), grad_format=grad_format)
        for _ in range(2):
            rows = {row.kind: row.bytes for row in fp8amp.memory_report(model).rows}
            assert rows["gradient"] == size
            model(torch.randn(4, 16)).sum().backward()


@pytest.mark.parametrize("args,text", [((3,), "model.*int"), ((net(), 3), "optimizer.*int")])
def test_bad_arguments_are_named(args, text):
    with pytest.raises(TypeError, match=text):
        fp8amp.memory_report(*args)


@pytest.mark.parametrize("call", [fp8amp.memory_bytes, fp8amp.fp8_layers])
def test_a_string_is_refused_by_name(call):
    with pytest.raises(TypeError, match=f"{call.__name__}.*str"):
        call("x")
