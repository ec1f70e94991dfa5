"""The package on a GPU: optimizers bit for bit, training steps, fused layers, streams, CUDA graphs, torch.compile."""

from __future__ import annotations

import copy
from typing import Any

import fp8amp
import pytest
import torch
from fp8amp.nn.fused import gelu_linear, layer_norm_linear, rms_norm_linear, swiglu_linear
from fp8amp.scaled_tensor import ScaledTensor, dense
from guarded import same_bits
from torch import Tensor, nn

RECIPES = (
    fp8amp.CurrentScaling(),
    fp8amp.DelayedScaling(history=2),
    fp8amp.ConstantScaling(bias=4, gradient_bias=12),
    fp8amp.RowwiseScaling(),
    fp8amp.BlockScaling(),
)


def make(device: torch.device, level: str, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 96, bias=False)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    fp8amp.initialize(model, optimizer, opt_level=level, **options)
    return model, optimizer


def tensors(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def add(name: str, x: Any) -> None:
        if isinstance(x, ScaledTensor):
            found[f"{name} payload"], found[f"{name} scale"] = x.payload, x.scale_inv
        elif isinstance(x, Tensor):
            found[name] = x.detach()

    for i, p in enumerate(model.parameters()):
        add(f"parameter {i}", p.detach())
        for key, value in optimizer.state[p].items():
            add(f"{key} {i}", value)
    return found


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


@pytest.mark.parametrize("level", ("O1", "O2"))
@pytest.mark.parametrize("recipe", RECIPES)
def test_step_is_that_of_the_cpu(device: torch.device, level: str, recipe: fp8amp.Recipe) -> None:
    x = torch.randn(160, 64, generator=torch.Generator().manual_seed(1))
    runs = [(*make(torch.device(d), level, recipe=recipe), x.to(d).requires_grad_()) for d in ("cpu", device)]
    history = []
    for step in range(5):
        losses, gradients = [], []
        for model, optimizer, inputs in runs:
            optimizer.zero_grad()
            inputs.grad = None
            loss = loss_of(model, inputs)
            loss.backward()
            gradients.append([dense(leaf.grad).cpu() for leaf in (inputs, *model.parameters())])
            optimizer.step()
            losses.append(loss.item())
        history.append(losses[1])
        assert losses[1] == pytest.approx(losses[0], rel=2e-2)
        for host, there in zip(*gradients, strict=True) if step == 0 else ():  # later the weights differ
            assert float((there - host).norm() / host.norm()) < 0.02
    assert history[-1] < 0.8 * history[0]


@pytest.mark.parametrize("level", ("O1", "O2"))
def test_optimizer_alone_gives_the_same_bits(device: torch.device, level: str) -> None:
    host, there = make(torch.device("cpu"), level), make(device, level)
    for step in range(4):
        loss_of(host[0], torch.randn(64, 64, generator=torch.Generator().manual_seed(step))).backward()
        for p, q in zip(host[0].parameters(), there[0].parameters(), strict=True):
            assert p.grad is not None
            q.grad = copy.deepcopy(p.grad).to(device)
        for model, optimizer in (host, there):
            fp8amp.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        expected, got = tensors(*host), tensors(*there)
        assert expected.keys() == got.keys()
        assert [name for name in expected if not same_bits(expected[name].cpu(), got[name].cpu())] == [], step


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_fused_layers_are_those_of_the_cpu(device: torch.device, dtype: torch.dtype) -> None:
    def run(where: torch.device | str) -> list[Tensor]:
        torch.manual_seed(0)
        x, pair = torch.randn(160, 64).to(where, dtype), torch.randn(160, 128).to(where, dtype)
        gamma, beta, bias = (torch.randn(n).to(where).requires_grad_() for n in (64, 64, 96))
        weight = nn.Parameter(fp8amp.quantize(0.1 * torch.randn(96, 64), "fp16").to(where))
        dy = torch.randn(160, 96).to(where, dtype)
        x.requires_grad_(), pair.requires_grad_()
        outputs = [
            layer_norm_linear(x, gamma, beta, weight, bias),
            rms_norm_linear(x, gamma, weight),
            gelu_linear(x, weight, bias, approximate="tanh"),
            swiglu_linear(pair, weight, bias),
        ]
        torch.autograd.backward(outputs, [dy] * 4)
        leaves = (x, pair, gamma, beta, bias, weight)
        return [t.detach().float().cpu() for t in outputs] + [dense(leaf.grad).float().cpu() for leaf in leaves]

    for host, there in zip(run("cpu"), run(device), strict=True):
        assert float((there - host).norm() / host.norm()) < 0.01


def test_streams(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("streams are CUDA's")
    x = torch.randn(160, 64, device=device)
    results = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        model, optimizer = make(device, "O2")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model, x).backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        results.append({name: t.clone() for name, t in tensors(model, optimizer).items()})
    assert [name for name in results[0] if not same_bits(results[0][name], results[1][name])] == []


def test_graph_of_a_whole_step(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    x = torch.randn(160, 64, device=device)

    def step(model: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, x).backward()
        fp8amp.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    plain, captured = make(device, "O2"), make(device, "O2")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*captured)
    torch.cuda.current_stream().wait_stream(stream)
    for _ in range(3):
        step(*plain)

    def evaluate(model: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return loss_of(model, x)

    evaluate(captured[0])  # leaves copies of the weights, which no graph may take for those of its replays
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # on a stream of torch's, on which nothing has run
        step(*captured)
    for _ in range(2):
        graph.replay()
        step(*plain)
        assert same_bits(evaluate(captured[0]), evaluate(plain[0]))
    torch.cuda.synchronize()
    expected, got = tensors(*plain), tensors(*captured)
    assert [name for name in expected if not same_bits(expected[name], got[name])] == []
    before = {name: t.clone() for name, t in got.items() if "amax" not in name}
    x.fill_(float("nan"))
    for _ in range(2):
        graph.replay()
    assert captured[1].skipped_steps == 2
    assert [name for name, t in before.items() if not same_bits(t, got[name])] == []


def test_compiled_step(device: torch.device) -> None:
    x = torch.randn(160, 64, device=device)
    model, _ = make(device, "O2")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(loss_of(compiled, x), loss_of(model, x), rtol=1e-3, atol=1e-5)
