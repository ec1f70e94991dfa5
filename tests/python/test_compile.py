"""torch.compile of a converted model: one whole graph, compiled once for a training loop, with the results of eager
mode (BR-128)."""

import fp8amp
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from twins import batch, dense, is_fp8, same, same_training_state, trainer


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def loop(run, optimizer, steps=3):
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(2):
            loss = (run(batch(step)) - batch(step + 9 + micro)).square().mean()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "recipe", [fp8amp.CurrentScaling(), fp8amp.DelayedScaling(history=2), fp8amp.ConstantScaling(4)]
)
def test_one_graph_compiled_once_and_bit_equal(backend, recipe):
    (a, opt_a), (b, opt_b) = trainer(recipe=recipe), trainer(recipe=recipe)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(a, backend=counter, fullgraph=True)
    assert loop(compiled, opt_a) == loop(b, opt_b) and counter.frame_count == 1
    assert is_fp8(a[0].weight.grad) and same_training_state((a, opt_a), (b, opt_b))
    assert all(same(x, y) for x, y in zip(a.buffers(), b.buffers(), strict=True))
    weight = a[0].weight.detach().clone()
    with torch.no_grad():
        a[0].weight.mul_(2.0)
        a.eval()
        assert torch.equal(compiled(batch()), a(batch())), "a write from outside is seen"
    assert torch.allclose(dense(a[0].weight), 2 * dense(weight))


@pytest.mark.parametrize("case", ["autocast", "checkpoint", "frozen", "conv1d"])
def test_whole_graphs_of_the_usual_variants(case):
    (a, opt_a), (b, opt_b) = trainer(), trainer()
    for model in (a, b):
        if case == "frozen":
            model[0].weight.requires_grad_(False)
        if case == "conv1d":
            torch.manual_seed(5)
            model.append(fp8amp.nn.Conv1D(16, 16))

    def run(model, x):
        if case == "checkpoint":
            return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            return model(x).float()

    compiled = torch.compile(lambda x: run(a, x), backend="aot_eager", fullgraph=True)
    assert loop(compiled, opt_a) == pytest.approx(
        loop(lambda x: run(b, x), opt_b), rel=0.02 if case == "autocast" else 1e-6
    )
    assert all(
        torch.allclose(dense(p), dense(q), rtol=0.02, atol=2e-3)
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )


def test_changing_batch_sizes_compile_twice_at_most():
    model, _ = trainer()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for rows in (8, 5, 7, 3):
        assert torch.equal(compiled(batch(1, rows)), model(batch(1, rows)))
    assert counter.frame_count <= 2


def test_inductor():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    b = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    b.load_state_dict(a.state_dict())
    (a, opt_a), (b, opt_b) = (fp8amp.initialize(m, torch.optim.AdamW(m.parameters(), lr=1e-2), "O2") for m in (a, b))
    compiled = torch.compile(a, fullgraph=True)
    assert loop(compiled, opt_a) == pytest.approx(loop(b, opt_b), rel=1e-4) and is_fp8(a[0].weight.grad)
