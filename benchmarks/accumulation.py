#!/usr/bin/env python3
"""What gradient accumulation in E4M3 costs: relative error of a weight's gradient that is summed over micro-batches,
against FP32 sums, with products in full precision so that it is the sums' error alone. Half a minute.

    python benchmarks/accumulation.py
"""

from __future__ import annotations

import statistics

import fp8amp
import torch
from torch import Tensor, nn

WIDTH, ROWS, SEEDS = 256, 64, 3
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def micro_gradients(model: nn.Sequential, batches: Tensor, form: str) -> Tensor:
    """The gradient after all of `batches`; form "BF16" sums FP32 gradients in BF16."""
    weight = model[0].weight
    total = torch.zeros(WIDTH, WIDTH, dtype=torch.bfloat16)
    for x in batches:
        (model(x).square().mean() / len(batches)).backward()
        if form == "BF16":
            total += weight.grad.bfloat16()
            weight.grad = None
    return total.float() if form == "BF16" else weight.grad.dequantize() if form == "E4M3" else weight.grad


def error(count: int, form: str, seed: int) -> float:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    batches = torch.randn(count, ROWS, WIDTH)
    fp8amp.initialize(model, gemm="none")
    exact = micro_gradients(fp8amp.to_dense(model), batches, "FP32")
    got = micro_gradients(model if form == "E4M3" else fp8amp.to_dense(model), batches, form)
    return float((got - exact).norm() / exact.norm())


def main() -> None:
    print("micro-batches " + " ".join(f"{count:>8d}" for count in COUNTS))
    for form in ("E4M3", "BF16"):
        row = [statistics.mean(error(count, form, seed) for seed in range(SEEDS)) for count in COUNTS]
        print(f"{form:13s} " + " ".join(f"{value:8.2%}" for value in row))


if __name__ == "__main__":
    main()
