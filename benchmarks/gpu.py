#!/usr/bin/env python3
"""Times of the CUDA backend on the GPU at hand, against what it could be at best: memory copies, BF16 products.

    gpu.py kernels|products|linear|block|graph [--json FILE] [--device cuda] [--small]

kernels   bandwidth of each kernel beside a device-to-device copy in the same run
products  error of FP8 products against FP32 sums, and how many differ from the modelled accumulators of an H100
linear    fprop + dgrad + wgrad of the four layers of a transformer block, hidden 4096, ffn 16384, 15872 rows: the
          whole FP8 layers, their products alone, and BF16
block     a training step of a GPT block at O2 beside BF16 autocast with FP32 weights: time and peak memory
graph     the same O2 step captured in a CUDA graph, beside itself launched op by op

Each row is a ratio, more is better; medians of interleaved rounds. Exit 1 if one is short of its target.
`--device cpu --small` only shows that everything here runs.
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
from fp8amp import _fused_ops, _ops
from fp8amp.block_ops import Granularity, quantize_blocks
from fp8amp.nn.weight_cache import drop_fp8_weight
from fp8amp.policies import Accumulation, Rounding
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gpt"))
import model as gpt

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROUNDS, WARM_UP = 11, 3
Work = Callable[[], object]


@dataclass
class Row:
    name: str
    value: float
    target: float | None
    detail: str

    @property
    def missed(self) -> bool:
        return self.target is not None and not self.value >= self.target


def milliseconds(device: torch.device, *works: Work, repeat: int = 1) -> list[float]:
    """Median time of one call of each, run in turn. The host waits only at the end: on a GPU it runs ahead, and its
    own time counts where the GPU waits for it."""
    times: list[list[float]] = [[] for _ in works]
    if device.type == "cuda":
        events = []
        for _ in range(WARM_UP + ROUNDS):
            for work in works:
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                for _ in range(repeat):
                    work()
                end.record()
                events.append((start, end))
        torch.cuda.synchronize(device)
        for i, (start, end) in enumerate(events):
            times[i % len(works)].append(start.elapsed_time(end) / repeat)
    else:
        for _ in range(WARM_UP + ROUNDS):
            for work, mine in zip(works, times, strict=True):
                begin = time.perf_counter()
                work()
                mine.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(mine[WARM_UP:]) for mine in times]


# ---- kernels
def optimizer_step(device: torch.device, n: int, level: str) -> Work:
    layer = nn.Linear(n, n, bias=False, device=device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.1)
    fp8amp.initialize(layer, optimizer, opt_level=level)
    layer(torch.randn(16, n, device=device)).sum().backward()
    return optimizer.step


def kernels(device: torch.device, small: bool) -> Iterator[Row]:
    n = 1 << (8 if small else 14)  # of n * n elements
    fp32 = torch.randn(n, n, device=device)
    bf16 = fp32.bfloat16()
    gamma, target = torch.ones(n, device=device), torch.empty_like(fp32)
    scale = torch.ones((), device=device)
    codes, scale_inv, _ = _ops.quantize(bf16, None, E4M3)
    sum_, sum_scale_inv = codes.clone(), scale_inv.clone()
    given = _fused_ops.CastRule(scale)
    row, piece, square = Granularity.ROW, Granularity.BLOCK1X128, Granularity.BLOCK128X128
    cases: list[tuple[str, float, float | None, Work]] = [  # bytes that are moved per element, target
        ("quantize BF16 to E4M3, scale given", 3, 0.8, lambda: _ops.quantize(bf16, None, E4M3, scale=scale)),
        ("quantize FP32 to E4M3, scale given", 5, 0.8, lambda: _ops.quantize(fp32, None, E4M3, scale=scale)),
        ("quantize BF16 to E4M3, current scaling", 5, 0.8, lambda: _ops.quantize(bf16, None, E4M3)),
        ("quantize BF16 to E5M2, current scaling", 5, 0.8, lambda: _ops.quantize(bf16, None, E5M2)),
        ("quantize BF16 to E4M3, stochastic", 3, 0.8,
         lambda: _ops.quantize(bf16, None, E4M3, scale=scale, rounding=Rounding.STOCHASTIC)),
        ("quantize and transpose BF16, scale given", 4, 0.8,
         lambda: _ops.quantize_transpose(bf16, None, E4M3, scale=scale)),
        ("quantize and transpose BF16, current scaling", 6, 0.8, lambda: _ops.quantize_transpose(bf16, None, E4M3)),
        ("quantize BF16 rowwise", 3, 0.8, lambda: quantize_blocks(bf16, None, E4M3, row)),
        ("quantize BF16 by 1x128, both sides", 4, 0.8, lambda: quantize_blocks(bf16, None, E4M3, piece, columns=True)),
        ("quantize BF16 by 128x128, both sides", 4, 0.8,
         lambda: quantize_blocks(bf16, None, E4M3, square, columns=True)),
        ("dequantize E4M3 to BF16", 3, 0.8, lambda: _ops.dequantize(codes, scale_inv, torch.bfloat16)),
        ("amax of BF16", 2, None, lambda: _ops.amax(bf16)),
        ("LayerNorm and cast, scale given", 3, None,
         lambda: _fused_ops.layer_norm_quantize(bf16, gamma, gamma, 1e-5, E4M3, given)),
        ("GELU and cast, scale given", 3, None, lambda: _fused_ops.gelu_quantize(bf16, True, E4M3, given)),
        ("SwiGLU and cast, scale given", 2.5, None, lambda: _fused_ops.swiglu_quantize(bf16, E4M3, given)),
        ("accumulate BF16 into E4M3", 7, None, lambda: _ops.accumulate_(sum_, sum_scale_inv, bf16, None)),
        ("sum of 4 E4M3 shards, scale given", 5, None,
         lambda: _ops.sum_shards([codes] * 4, [scale_inv] * 4, E4M3, factor=0.25, scale=scale)),
        ("norm of an E4M3 gradient", 1, None, lambda: _ops.grad_norm([codes], [scale_inv])),
        ("Adam O1, of 21 bytes a parameter", 21, None, optimizer_step(device, n, "O1")),
        ("Adam O2, of 11 bytes a parameter", 11, 0.8, optimizer_step(device, n, "O2")),
    ]  # fmt: skip
    for name, size, goal, work in cases:
        ours, copy = milliseconds(device, work, lambda: target.copy_(fp32), repeat=1 if small else 4)
        bandwidth, best = size * n * n / ours / 1e9, 8 * n * n / copy / 1e9
        yield Row(name, bandwidth / best, goal, f"{ours:.3f} ms, {bandwidth:.2f} TB/s, copy {best:.2f} TB/s")


# ---- products
def products(device: torch.device, small: bool) -> Iterator[Row]:
    for k in (128, 512) if small else (128, 512, 2048, 8192, 16384):
        generator = torch.Generator().manual_seed(0)
        a, b = (_ops.quantize(torch.randn(64, k, generator=generator), None, E4M3)[:2] for _ in range(2))
        exact = a[0].double() @ b[0].double().T * a[1] * b[1]
        sizes = a[0].double().abs() @ b[0].double().abs().T * a[1] * b[1]
        there = [t.to(device) for t in (*a, *b)]
        for fast in (False, True):
            got = _ops.gemm(*there, transpose_b=True, fast_accumulation=fast).cpu()
            model = _ops.gemm(
                *a, *b, transpose_b=True, fast_accumulation=fast, accumulation=Accumulation.HOPPER
            )  # on the CPU
            error = float(((got - exact).abs() / sizes).max())
            unlike = float((got != model).float().mean())
            limit = 2.0**-11 if not fast else 2e-3  # as tests/gpu/test_products.py has it
            yield Row(f"product, K {k}{', fast accumulation' if fast else ''}", limit / max(error, 1e-12), 1.0,
                      f"error {error:.1e} of the sum of magnitudes, bound {limit:.1e}; {unlike:.1%} unlike the model "
                      "of an H100")  # fmt: skip


# ---- linear layers
def raw_products(x: Tensor, w: Tensor, dy: Tensor) -> Work:
    """The three products of a layer on operands that are FP8 already, each K-contiguous."""
    xq, xt, xs, _ = _ops.quantize_transpose(x, None, E4M3)
    wq, wt, ws, _ = _ops.quantize_transpose(w, None, E4M3)
    yq, yt, ys, _ = _ops.quantize_transpose(dy, None, E5M2)

    def run() -> None:
        _ops.gemm(xq, xs, wq, ws, transpose_b=True, dtype=torch.bfloat16, fast_accumulation=True)
        _ops.gemm(yq, ys, wt, ws, transpose_b=True, dtype=torch.bfloat16)
        _ops.gemm(yt, ys, xt, xs, transpose_b=True, dtype=torch.bfloat16)

    return run


def linear(device: torch.device, small: bool) -> Iterator[Row]:
    h, ffn, m = (64, 256, 160) if small else (4096, 16384, 15872)
    recipes: dict[str, tuple[fp8amp.Recipe, float | None, str]] = {
        "current scaling": (fp8amp.CurrentScaling(), 1.58, ", goal 1.69"),
        "delayed scaling": (fp8amp.DelayedScaling(history=3), None, ""),
        "block scaling": (fp8amp.BlockScaling(), None, ""),
    }
    total = dict.fromkeys((*recipes, "BF16", "products alone"), 0.0)
    for name, n_in, n_out in (("qkv", h, 3 * h), ("proj", h, h), ("up", h, ffn), ("down", ffn, h)):
        x = torch.randn(m, n_in, device=device, dtype=torch.bfloat16, requires_grad=True)
        dy = torch.randn(m, n_out, device=device, dtype=torch.bfloat16)

        def run(layer: nn.Module, x: Tensor = x, dy: Tensor = dy) -> None:
            x.grad = None
            layer.zero_grad()
            drop_fp8_weight(layer.weight, _ops.current_stream(device))  # cast in every step
            layer(x).backward(dy)

        layers = [nn.Linear(n_in, n_out, bias=False, device=device, dtype=torch.bfloat16)]
        raw = raw_products(x.detach(), layers[0].weight.detach(), dy)
        for recipe, _, _ in recipes.values():
            holder = nn.Sequential(nn.Linear(n_in, n_out, bias=False, device=device, dtype=torch.bfloat16))
            fp8amp.initialize(holder, opt_level="O1", recipe=recipe)
            layers.append(holder[0])
        works: list[Work] = [lambda layer=layer, run=run: run(layer) for layer in layers]
        bf16, *ours, alone = milliseconds(device, *works, raw)
        for key, value in zip(total, (*ours, bf16, alone), strict=True):
            total[key] += value
        text = ", ".join(f"{key} {bf16 / value:.2f}" for key, value in zip(recipes, ours, strict=True))
        print(f"{name}, {n_in} to {n_out}: BF16 {bf16:.3f} ms; ratios: {text}, products alone {bf16 / alone:.2f}")
    for key, (_, goal, note) in recipes.items():
        yield Row(f"four linear layers, {key}", total["BF16"] / total[key], goal,
                  f"{total[key]:.2f} ms, BF16 {total['BF16']:.2f} ms{note}")  # fmt: skip
    yield Row("four linear layers, FP8 products alone", total["BF16"] / total["products alone"], None,
              f"{total['products alone']:.2f} ms, BF16 {total['BF16']:.2f} ms")  # fmt: skip


# ---- a block
def make_step(device: torch.device, small: bool, level: str | None) -> Work:
    """A training step of one GPT block with its embeddings, 8 x 2048 tokens. No level: FP32 weights, BF16 autocast."""
    torch.manual_seed(0)
    size = gpt.Size(layers=1, heads=4, width=64, block_size=64) if small else gpt.Size(1, 32, 4096, 2048)
    tokens = torch.randint(512, (2 if small else 8, size.block_size + 1), device=device)
    model = gpt.GPT(size, 512).to(device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    if level:
        fp8amp.initialize(model, optimizer, opt_level=level)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):  # no cache: a graph cannot hold it
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()

    return step


def block(device: torch.device, small: bool) -> Iterator[Row]:
    steps: list[Work] = []
    peaks: list[float] = []
    for level in ("O2", None):
        held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        steps.append(make_step(device, small, level))
        for _ in range(2):  # the states are made, and what the first step keeps
            steps[-1]()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            steps[-1]()
            peaks.append((torch.cuda.max_memory_allocated(device) - held) / 1e9)
    ours, bf16 = milliseconds(device, *steps)
    yield Row("step of a GPT block at O2", bf16 / ours, None, f"{ours:.2f} ms, BF16 autocast {bf16:.2f} ms")
    if peaks:
        yield Row("peak memory of that step", peaks[1] / peaks[0], None, f"{peaks[0]:.2f} GB, BF16 {peaks[1]:.2f} GB")


def graph(device: torch.device, small: bool) -> Iterator[Row]:
    step, stream, captured = make_step(device, small, "O2"), torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(captured, stream=stream):
        step()
    with torch.cuda.stream(stream):
        replayed, launched = milliseconds(device, captured.replay, step)
    yield Row(
        "O2 step, replayed as a graph", launched / replayed, None, f"{replayed:.2f} ms, launched {launched:.2f} ms"
    )


SECTIONS = {"kernels": kernels, "products": products, "linear": linear, "block": block, "graph": graph}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=SECTIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    if not torch.cuda.is_available() and (device.type == "cuda" or args.what == "graph"):
        print("skipped: no CUDA device")
        return 77
    rows = []
    for row in SECTIONS[args.what](device, args.small):
        rows.append(row)
        judged = row.target is not None and not args.small
        verdict = f", target {row.target}: {'MISSED' if row.missed else 'met'}" if judged else ""
        print(f"{row.name}: {row.value:.2f} ({row.detail}){verdict}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    missed = [row.name for row in rows if row.missed and not args.small]
    print(f"{len(rows)} rows, {len(missed)} short of their target{': ' if missed else ''}{', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
