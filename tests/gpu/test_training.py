"""The package on a GPU: products within the bound of Hopper's accumulators, optimizers bit for bit, a training step,
streams, CUDA graphs, torch.compile."""

from __future__ import annotations

import copy
from typing import Any

import fp8amp
import pytest
import torch
from fp8amp import _ops
from fp8amp.scaled_tensor import ScaledTensor
from guarded import Guards, numbers, same_bits
from torch import Tensor, nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Of the sum of |products|: an H100 that keeps 14 bits differs from FP32 by 2.2e-4 at most (fast accumulation, K = 256).
ACCUMULATORS = 2.0**-11


@pytest.mark.parametrize("formats", ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_gemm(guards: Guards, formats: tuple[torch.dtype, torch.dtype], dtype: torch.dtype) -> None:
    for m, n, k in ((16, 16, 16), (1, 48, 32), (17, 33, 65), (256, 384, 512), (130, 64, 4096)):
        for layout in range(4):
            transpose_a, transpose_b = bool(layout & 1), bool(layout & 2)
            a = numbers(m * k, formats[0], 1).view((k, m) if transpose_a else (m, k))
            b = numbers(k * n, formats[1], 2).view((n, k) if transpose_b else (k, n))
            scales = torch.tensor(0.5), torch.tensor(1.37)
            bias = numbers(n, dtype, 3)
            options = {"transpose_a": transpose_a, "transpose_b": transpose_b, "dtype": dtype}
            host = _ops.gemm(a, scales[0], b, scales[1], bias=bias, **options).float()
            there = [guards.copy(x) for x in (a, scales[0], b, scales[1], bias)]
            device = _ops.gemm(*there[:4], bias=there[4], **options).float().cpu()
            sizes = [x.float().abs().T if t else x.float().abs() for x, t in ((a, transpose_a), (b, transpose_b))]
            rounding = torch.finfo(dtype).eps * (host.abs() + bias.float().abs())
            bound = ACCUMULATORS * 0.5 * 1.37 * (sizes[0] @ sizes[1]) + rounding + 1e-6
            assert bool(((device - host).abs() <= bound).all()), f"{m}x{n}x{k}, layout {layout}"


def make(device: torch.device, level: str, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 96, bias=False), nn.LayerNorm(96)).to(device)
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
def test_step_is_that_of_the_cpu(device: torch.device, level: str) -> None:
    x = torch.randn(160, 64, generator=torch.Generator().manual_seed(1))
    runs = [(*make(torch.device(d), level), x.to(d)) for d in ("cpu", device)]
    for _ in range(5):
        losses = []
        for model, optimizer, inputs in runs:
            optimizer.zero_grad()
            loss = loss_of(model, inputs)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=2e-2)


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
        optimizer.step()

    plain, captured = make(device, "O2"), make(device, "O2")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*captured)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step(*captured)
    for _ in range(2):
        graph.replay()
    for _ in range(5):
        step(*plain)
    torch.cuda.synchronize()
    expected, got = tensors(*plain), tensors(*captured)
    assert [name for name in expected if not same_bits(expected[name], got[name])] == []


def test_compiled_step(device: torch.device) -> None:
    x = torch.randn(160, 64, device=device)
    model, _ = make(device, "O2")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(loss_of(compiled, x), loss_of(model, x), rtol=1e-3, atol=1e-5)
