"""What Hopper's FP8 accumulators cost: the error of one GEMM, and the loss of a small GPT trained on the CPU.

    python benchmarks/hopper.py                    # both, some minutes
    python benchmarks/hopper.py --steps 0          # the GEMM alone

The GEMM models the accumulators of an H100 (fp8amp/numerics/hopper.h). "as on a GPU": fast accumulation in the
forward products and FP32 promotion every 128 products in the others, as the CUDA backend asks of cuBLASLt. "all fast":
no promotion anywhere. Initial weights and batches depend on the seed alone; validation uses the same accumulators.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fp8amp
import torch
from fp8amp import _ops
from fp8amp.policies import Accumulation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))

import data
from model import GPT, Size

SIZE = Size(layers=2, heads=4, width=96, block_size=128)
BATCH, VALIDATION_BATCHES = 4, 8
exact_gemm = _ops.gemm


def hopper_gemm(*args: Any, **options: Any) -> torch.Tensor:
    return exact_gemm(*args, **options, accumulation=Accumulation.HOPPER)


def fast_gemm(*args: Any, **options: Any) -> torch.Tensor:
    return hopper_gemm(*args, **(options | {"fast_accumulation": True}))


ACCUMULATORS: dict[str, Callable[..., torch.Tensor]] = {
    "FP32": exact_gemm,
    "as on a GPU": hopper_gemm,
    "all fast": fast_gemm,
}


def gemm_errors() -> None:
    """|error| / |result| in norm, of normally distributed operands."""
    print(f"{'K':>6s}{'promoted':>12s}{'fast':>12s}")
    for k in (128, 512, 2048, 8192):
        generator = torch.Generator().manual_seed(0)
        a, b = (_ops.quantize(torch.randn(64, k, generator=generator), None, torch.float8_e4m3fn)[:2] for _ in range(2))
        exact = exact_gemm(*a, *b, transpose_b=True)
        errors = [
            (hopper_gemm(*a, *b, transpose_b=True, fast_accumulation=fast) - exact).norm() / exact.norm()
            for fast in (False, True)
        ]
        print(f"{k:6d}" + "".join(f"{error:12.1e}" for error in errors), flush=True)


def train(seed: int, steps: int, text: data.Data, gemm: Callable[..., torch.Tensor]) -> float:
    """The final validation loss at O2."""
    device = torch.device("cpu")
    torch.manual_seed(seed)
    model = GPT(SIZE, text.vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    fp8amp.initialize(model, optimizer, opt_level="O2", seed=seed)
    batches = data.RandomBatches(text.train, BATCH, SIZE.block_size, seed, device)
    _ops.gemm = gemm
    try:
        for _ in range(steps):
            loss = model(*batches.next())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        validation = data.validation_batches(text.val, VALIDATION_BATCHES, BATCH, SIZE.block_size, device)
        with torch.no_grad():
            return sum(model(*batch).item() for batch in validation) / VALIDATION_BATCHES
    finally:
        _ops.gemm = exact_gemm


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments = p.parse_args()
    gemm_errors()
    if not arguments.steps:
        return
    text = data.load(
        [],
        tokenizer="byte",
        vocab_size=None,
        cache=Path("out"),
        token_dtype="uint16",
        val_fraction=0.1,
        block_size=SIZE.block_size,
    )
    for seed in arguments.seeds:
        losses: dict[str, float] = {}
        for name, gemm in ACCUMULATORS.items():
            start = time.monotonic()
            losses[name] = train(seed, arguments.steps, text, gemm)
            difference = 100 * (losses[name] / losses["FP32"] - 1)
            seconds = time.monotonic() - start
            print(f"seed {seed}  {name:12s} {losses[name]:.4f}  {difference:+.3f} %  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
