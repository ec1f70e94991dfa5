#!/usr/bin/env python3
"""What becomes of small updates in an FP16 master weight: a two-layer net, trained in FP32, is fine-tuned to a shifted
target at small learning rates, in FP32 and at O2 with both roundings of the master. Half a minute.

    python benchmarks/small_updates.py
"""

from __future__ import annotations

import copy

import fp8amp
import torch
from torch import Tensor, nn

WIDTH, HIDDEN, ROWS, STEPS, LAST = 64, 256, 128, 400, 20
RATES = (1e-4, 1e-5, 3e-6, 1e-6)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, target: Tensor, seed: int) -> float:
    """Mean loss of the last steps of a regression to x @ target."""
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH, generator=generator)
        loss = (model(x) - x @ target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-LAST:]) / LAST


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in fp8amp.to_dense(model).parameters() if p.dim() == 2])


def fine_tune(model: nn.Module, target: Tensor, rate: float, rounding: str | None) -> tuple[float, float]:
    """(loss, share of the weights that moved at all); in FP32 without a rounding."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    if rounding is not None:
        fp8amp.initialize(model, optimizer, "O2", master_rounding=rounding)
    before = values(model)
    loss = train(model, optimizer, target, seed=2)
    return loss, float((values(model) != before).float().mean())


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    target = torch.randn(WIDTH, WIDTH) / 8
    train(model, torch.optim.AdamW(model.parameters(), lr=2e-3), target, seed=1)
    shifted = target + 0.02 * torch.randn(WIDTH, WIDTH)
    print(f"median |weight| {values(model).abs().median():.3f}; loss, and weights that moved")
    print(f"{'lr':>8s}{'FP32':>18s}{'O2 stochastic':>18s}{'O2 nearest':>18s}")
    for rate in RATES:
        cells = [fine_tune(model, shifted, rate, rounding) for rounding in (None, "stochastic", "nearest")]
        print(f"{rate:8.0e}" + "".join(f"{loss:10.4f}{100 * moved:6.1f} %" for loss, moved in cells))


if __name__ == "__main__":
    main()
