"""A training step of a GPT of about 10 M parameters: O2 against torch FP32, BF16 autocast and torchao's float8."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fp8amp
import torch
from timing import Row, compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gpt"))
from fused_block import FusedBlock
from model import GPT, Block, Size

SIZE = Size(layers=6, heads=6, width=384, block_size=256)
VOCABULARY, BATCH = 512, 8


def has_bf16_units() -> bool:
    """True where the CPU multiplies BF16 natively (AVX512_BF16 or AMX), so that BF16 autocast is a fair race."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def make_step(
    convert: Callable[[GPT, torch.optim.Optimizer], tuple[Any, Any]],
    autocast: bool = False,
    block: type[Block] = Block,
) -> Callable[[], float]:
    """A function that runs one training step (forward, backward, optimizer) on fixed tokens and returns the loss."""
    torch.manual_seed(0)
    model = GPT(SIZE, VOCABULARY, block=block)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    model, optimizer = convert(model, optimizer)
    tokens = torch.randint(VOCABULARY, (BATCH, SIZE.block_size + 1))

    def run() -> float:
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def _torchao(model: GPT, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    from torchao.float8 import convert_to_float8_training

    return convert_to_float8_training(model, module_filter_fn=lambda m, name: name != "lm_head"), optimizer


def step(threads: int, elements: int) -> Iterator[Row]:
    def o2(model: GPT, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        return fp8amp.initialize(model, optimizer, opt_level="O2")

    parameters = sum(p.numel() for p in GPT(SIZE, VOCABULARY).parameters())
    name = f"O2 training step, GPT {parameters / 1e6:.1f} M, {BATCH * SIZE.block_size} tokens"
    ours = {name: make_step(o2), f"{name}, fused norms and GELU": make_step(o2, block=FusedBlock)}
    fp32 = make_step(lambda m, o: (m, o))
    for row, run in ours.items():
        yield compare(row, run, fp32, baseline_name="torch FP32", threads=threads, goal=1.0, floor=1.15, rounds=9)
    if has_bf16_units():
        print("torch BF16 autocast: this CPU has BF16 units, no race")
    else:
        bf16 = make_step(lambda m, o: (m, o), autocast=True)
        yield compare(
            name,
            ours[name],
            bf16,
            baseline_name="torch BF16 autocast",
            threads=threads,
            goal=1.0,
            floor=1.0,
            rounds=1,
        )
    if importlib.util.find_spec("torchao") is None:
        print("torchao: not installed, rows left out")
    else:
        torchao = make_step(_torchao)
        for row, run in ours.items():
            yield compare(
                row,
                run,
                torchao,
                baseline_name="torchao float8",
                threads=threads,
                goal=0.5,
                floor=0.5,
                rounds=9,
            )
