#!/usr/bin/env python3
"""Times of the CUDA backend on the GPU at hand, against what it could be at best: memory copies, BF16 products.

    gpu.py kernels|linear|block [--json FILE] [--device cuda] [--small]

kernels  bandwidth of casts and Adam beside a device-to-device copy in the same run
linear   fprop + dgrad + wgrad of two layers with current scaling, h 4096, ffn 16384, M 15872, beside BF16
block    a training step of a GPT block at O2 beside BF16 autocast with FP32 weights: time and peak memory

Medians of interleaved rounds. `--device cpu --small` only shows that everything here runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fp8amp
import torch
from fp8amp import _ops
from fp8amp.policies import Rounding
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gpt"))
import model as gpt

E4M3 = torch.float8_e4m3fn
ROUNDS, WARM_UP = 11, 3


@dataclass
class Row:
    name: str
    value: float  # a ratio: ours to the baseline, more is better
    target: float | None
    detail: str

    @property
    def missed(self) -> bool:
        return self.target is not None and self.value < self.target


def milliseconds(device: torch.device, *functions: Callable[[], object]) -> list[float]:
    """Median time of each, run in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for turn in range(WARM_UP + ROUNDS):
        for function, mine in zip(functions, times, strict=True):
            if device.type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                function()
                end.record()
                end.synchronize()
                elapsed = start.elapsed_time(end)
            else:
                begin = time.perf_counter()
                function()
                elapsed = 1e3 * (time.perf_counter() - begin)
            if turn >= WARM_UP:
                mine.append(elapsed)
    return [statistics.median(mine) for mine in times]


def optimizer_step(device: torch.device, n: int) -> Callable[[], object]:
    layer = nn.Linear(n, n, bias=False, device=device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1)
    fp8amp.initialize(layer, optimizer, opt_level="O2")
    layer(torch.randn(16, n, device=device)).sum().backward()
    return optimizer.step


def kernels(device: torch.device, small: bool) -> Iterator[Row]:
    n = 1 << (12 if small else 14)  # of n * n elements
    fp32 = torch.randn(n, n, device=device)
    bf16 = fp32.bfloat16()
    scale = torch.ones((), device=device)
    codes, scale_inv, _ = _ops.quantize(bf16, None, E4M3)
    stochastic = Rounding.STOCHASTIC
    cases: list[tuple[str, float, float, Callable[[], object]]] = [  # bytes per element, target
        ("quantize BF16 to E4M3, scale given", 3, 0.8, lambda: _ops.quantize(bf16, None, E4M3, scale=scale)),
        ("quantize FP32 to E4M3, scale given", 5, 0.8, lambda: _ops.quantize(fp32, None, E4M3, scale=scale)),
        ("quantize BF16 to E4M3, current scaling", 5, 0.8, lambda: _ops.quantize(bf16, None, E4M3)),
        ("quantize BF16 to E4M3, stochastic", 3, 0.8,
         lambda: _ops.quantize(bf16, None, E4M3, scale=scale, rounding=stochastic)),
        ("quantize and transpose BF16 to E4M3", 4, 0.8,
         lambda: _ops.quantize_transpose(bf16, None, E4M3, scale=scale)),
        ("dequantize E4M3 to BF16", 3, 0.8, lambda: _ops.dequantize(codes, scale_inv, torch.bfloat16)),
        ("Adam O2", 11 + 1, 0.8, optimizer_step(device, n)),  # and one byte for the amax of the gradient
    ]  # fmt: skip
    target = torch.empty_like(fp32)
    for name, size, goal, function in cases:
        ours, copy = milliseconds(device, function, lambda: target.copy_(fp32))
        bandwidth, best = size * n * n / ours / 1e9, 8 * n * n / copy / 1e9
        yield Row(name, bandwidth / best, goal, f"{ours:.3f} ms, {bandwidth:.2f} TB/s, copy {best:.2f} TB/s")


def linear(device: torch.device, small: bool) -> Iterator[Row]:
    h, ffn, m = (64, 256, 160) if small else (4096, 16384, 15872)
    layers = [nn.Linear(h, ffn, bias=False), nn.Linear(ffn, h, bias=False)]
    plain = [layer.to(device, torch.bfloat16) for layer in layers]
    for i, (n_in, n_out) in enumerate(((h, ffn), (ffn, h))):
        x = torch.randn(m, n_in, device=device, dtype=torch.bfloat16, requires_grad=True)
        dy = torch.randn(m, n_out, device=device, dtype=torch.bfloat16)

        def run(layer: nn.Module, x: Tensor = x, dy: Tensor = dy) -> None:
            x.grad = None
            layer.zero_grad()
            layer(x).backward(dy)

        holder = nn.Sequential(nn.Linear(n_in, n_out, bias=False, device=device, dtype=torch.bfloat16))
        fp8amp.initialize(holder, opt_level="O1")
        ours, bf16 = milliseconds(device, lambda h=holder, run=run: run(h), lambda p=plain[i], run=run: run(p))
        yield Row(f"linear {n_in} to {n_out}, {m} rows: fprop, dgrad, wgrad", bf16 / ours, 1.58,
                  f"{ours:.3f} ms, BF16 {bf16:.3f} ms")  # fmt: skip


def block(device: torch.device, small: bool) -> Iterator[Row]:
    size = gpt.Size(layers=1, heads=4, width=64, block_size=64) if small else gpt.Size(1, 32, 4096, 2048)
    tokens = torch.randint(512, (2 if small else 8, size.block_size + 1), device=device)
    steps: list[Callable[[], None]] = []
    peaks: list[float] = []  # of ours, of BF16

    def make(level: str | None) -> Callable[[], None]:
        torch.manual_seed(0)
        model = gpt.GPT(size, 512).to(device)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
        if level:
            fp8amp.initialize(model, optimizer, opt_level=level)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()

        return step

    for level in ("O2", None):
        if device.type == "cuda":
            held = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        steps.append(make(level))
        steps[-1]()
        steps[-1]()
        if device.type == "cuda":
            peaks.append((torch.cuda.max_memory_allocated(device) - held) / 1e9)
    ours, bf16 = milliseconds(device, *steps)
    yield Row(f"GPT block, width {size.width}, {tokens.numel()} tokens, O2", bf16 / ours, None,
              f"{ours:.2f} ms, BF16 autocast {bf16:.2f} ms; peak memory, GB: {peaks}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kernels", "linear", "block"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        return 77
    measure = {"kernels": kernels, "linear": linear, "block": block}[args.what]
    rows = []
    for row in measure(device, args.small):
        rows.append(row)
        verdict = "" if row.target is None else f", target {row.target}: {'MISSED' if row.missed else 'met'}"
        print(f"{row.name}: {row.value:.2f} ({row.detail}){verdict}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    missed = [row.name for row in rows if row.missed]
    print(f"{len(rows)} rows, {len(missed)} short of their target")
    return 1 if missed and not args.small else 0


if __name__ == "__main__":
    sys.exit(main())
