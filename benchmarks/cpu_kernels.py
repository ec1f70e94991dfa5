"""Casts, GEMM and Adam against memcpy, torch's FP32 matmul and torch's fused AdamW."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import fp8amp
import torch
from timing import Row, compare
from torch import Tensor

ops = (
    torch.ops.fp8amp
)  # preallocated outputs: the public functions return new tensors, whose first touch would be timed
E4M3 = torch.float8_e4m3fn


def casts(threads: int, elements: int) -> Iterator[Row]:
    """bf16 -> E4M3 with amax, scale given and current; E4M3 -> FP32."""
    x = torch.randn(elements).bfloat16()
    y = torch.empty_like(x)
    codes = torch.empty(elements, dtype=E4M3)
    scale_inv = torch.tensor(0.01)

    def quantize(keep_scale: bool) -> Tensor:
        return ops.quantize_(codes, scale_inv, x, None, keep_scale, 0, 0, 0, 0, 0)

    memcpy = functools.partial(y.copy_, x)
    run = functools.partial(compare, baseline=memcpy, baseline_name="memcpy of the bf16 tensor", threads=threads)
    yield run("quantize bf16 to E4M3 + amax, scale given", lambda: quantize(True), goal=1.2, floor=1.6)
    yield run("quantize bf16 to E4M3, current scaling", lambda: quantize(False), goal=1.8, floor=2.4)

    wide, wide_copy = torch.randn(elements), torch.empty(elements)
    yield compare(
        "dequantize E4M3 to FP32",
        lambda: ops.dequantize_(wide, codes, scale_inv),
        lambda: wide_copy.copy_(wide),
        baseline_name="memcpy of the FP32 tensor",
        threads=threads,
        goal=1.1,
        floor=1.5,
    )


# name, M, N, K of fprop
SHAPES = [
    ("1024^3", 1024, 1024, 1024),
    ("2048^3", 2048, 2048, 2048),
    ("GPT 2048x3072x768", 2048, 3072, 768),
    ("GPT 2048x768x3072", 2048, 768, 3072),
    ("GPT 2048x1024x256", 2048, 1024, 256),
    ("GPT 2048x256x1024", 2048, 256, 1024),
]


Case = tuple[
    str, Callable[[], object], Callable[[], object], str, float, float
]  # name, ours, baseline, its name, goal, floor


def _gemm_cases(m: int, n: int, k: int) -> list[Case]:
    one = torch.ones(())
    x, w, dy = torch.randn(m, k), torch.randn(n, k), torch.randn(m, n)
    xq, wq, dyq = (t.to(E4M3) for t in (x, w, dy))
    y, dx, dw = torch.empty(m, n), torch.empty(m, k), torch.empty(n, k)

    def ours(out: Tensor, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Callable[[], object]:
        return lambda: ops.gemm_(out, a, one, b, one, transpose_a, transpose_b, None, False, False)

    def scaled_mm() -> Tensor:
        return torch._scaled_mm(xq, wq.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)

    fprop, torch_fp32 = ours(y, xq, wq, False, True), "torch FP32 matmul"
    return [
        ("fprop", fprop, lambda: torch.mm(x, w.t(), out=y), torch_fp32, 0.95, 1.1),
        ("dgrad", ours(dx, dyq, wq, False, False), lambda: torch.mm(dy, w, out=dx), torch_fp32, 0.95, 1.1),
        ("wgrad", ours(dw, dyq, xq, True, False), lambda: torch.mm(dy.t(), x, out=dw), torch_fp32, 0.95, 1.1),
        ("fprop", fprop, scaled_mm, "torch._scaled_mm", 1.0, 1.0),
    ]


def gemm(threads: int, elements: int) -> Iterator[Row]:
    """FP8 operands in, FP32 out, against torch's FP32 matmul of the same shape and layout and torch._scaled_mm."""
    for name, m, n, k in SHAPES:
        for kind, ours, baseline, baseline_name, goal, floor in _gemm_cases(m, n, k):
            title = f"FP8 GEMM {name} {kind}"
            yield compare(title, ours, baseline, baseline_name=baseline_name, threads=threads, goal=goal, floor=floor)


def _trained(optimizer: type, values: Tensor, **options: Any) -> torch.optim.Optimizer:
    """An optimizer over one parameter that has taken its first step, so that its states exist."""
    parameter = torch.nn.Parameter(values)
    parameter.grad = torch.randn_like(values) * 1e-3
    instance: torch.optim.Optimizer = optimizer([parameter], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **options)
    instance.step()
    return instance


def _ours(elements: int) -> torch.optim.Optimizer:
    model = torch.nn.Linear(4096, elements // 4096, bias=False)
    model, optimizer = fp8amp.initialize(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1),
        opt_level="O2",
    )
    model.weight.grad = fp8amp.quantize(torch.randn(model.weight.shape) * 1e-3, "e4m3")
    optimizer.step()
    return optimizer


def adam(threads: int, elements: int) -> Iterator[Row]:
    """O2 AdamW (E4M3 m, stochastic rounding; FP16 v; FP16 master) against torch's fused AdamW and 8-bit optimizers."""
    ours = _ours(elements)
    fused = _trained(torch.optim.AdamW, torch.randn(elements), fused=True)
    title = f"O2 AdamW, {elements / 2**20:.0f} Mi parameters"
    name = "torch AdamW(fused=True)"
    yield compare(title, ours.step, fused.step, baseline_name=name, threads=threads, goal=0.85, floor=1.05, rounds=61)
    del ours, fused
    small = min(elements, 2**22)
    ours = _ours(small)
    title = f"O2 AdamW, {small / 2**20:.0f} Mi parameters"
    for module, attribute in (("bitsandbytes.optim", "AdamW8bit"), ("torchao.optim", "AdamWFp8")):
        package = module.split(".")[0]
        if importlib.util.find_spec(package) is None:
            print(f"{package} {attribute}: not installed, row left out")
            continue
        cls = getattr(importlib.import_module(module), attribute)
        other = _trained(cls, torch.randn(4096, small // 4096))
        name = f"{package} {attribute}"
        yield compare(title, ours.step, other.step, baseline_name=name, threads=threads, goal=0.1, floor=0.1, rounds=3)
