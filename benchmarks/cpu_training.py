"""A training step of a GPT of about 10 M parameters: O2 against torch FP32, BF16 autocast and torchao's float8."""

from __future__ import annotations

import contextlib
import functools
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
TINY = Size(layers=2, heads=4, width=128, block_size=64)  # on which torchao costs 2.5 to 3.8 times FP32's step


def parameter_count(size: Size, vocabulary: int) -> int:
    return sum(p.numel() for p in GPT(size, vocabulary).parameters())


def has_bf16_units() -> bool:
    """True where the CPU multiplies BF16 natively (AVX512_BF16 or AMX), so that BF16 autocast is a fair race."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def make_step(
    convert: Callable[[GPT, torch.optim.Optimizer], tuple[Any, Any]],
    autocast: bool = False,
    block: type[Block] = Block,
    size: Size = SIZE,
    vocabulary: int = VOCABULARY,
) -> Callable[[], float]:
    """A function that runs one training step (forward, backward, optimizer) on fixed tokens and returns the loss."""
    torch.manual_seed(0)
    model = GPT(size, vocabulary, block=block)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    model, optimizer = convert(model, optimizer)
    tokens = torch.randint(vocabulary, (BATCH, size.block_size + 1))

    def run() -> float:
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def o2(model: GPT, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    return fp8amp.initialize(model, optimizer, opt_level="O2")


def torchao(model: GPT, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
    from torchao.float8 import convert_to_float8_training

    return convert_to_float8_training(model, module_filter_fn=lambda m, name: name != "lm_head"), optimizer


def step(threads: int, elements: int) -> Iterator[Row]:
    name = f"O2 training step, GPT {parameter_count(SIZE, VOCABULARY) / 1e6:.1f} M, {BATCH * SIZE.block_size} tokens"
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
        float8 = functools.partial(compare, baseline_name="torchao float8", threads=threads, goal=0.5, floor=0.5)
        baseline = make_step(torchao)
        for row, run in ours.items():
            yield float8(row, run, baseline, rounds=9)
        name = f"O2 training step, GPT {parameter_count(TINY, 256) / 1e6:.2f} M, {BATCH * TINY.block_size} tokens"
        small = functools.partial(make_step, size=TINY, vocabulary=256)
        yield float8(name, small(o2), small(torchao), rounds=25)
