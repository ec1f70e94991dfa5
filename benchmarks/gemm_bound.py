#!/usr/bin/env python3
"""How fast could an O2 training step be on this CPU? The step of benchmarks/cpu.py with the time of its FP8 GEMMs
replaced by their operations at the pace of the core's fused multiply-adds, which no FP32-accumulating GEMM beats,
beside torch FP32 and torchao's float8 training. Two minutes.

    python benchmarks/gemm_bound.py             # needs a C++ compiler; pip install --no-deps torchao==0.18.0
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fp8amp
import torch
from cpu_training import BATCH, SIZE, VOCABULARY, FusedBlock, make_step, o2, torchao
from timing import seconds
from torch.profiler import ProfilerActivity, profile

from model import GPT

GEMM = "fp8amp::gemm"


def load_peak() -> Callable[[int], float]:
    """GFLOP/s of fused multiply-adds on so many threads at once, the most of ten tries: a peak."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fma_peak.so"
        source = Path(__file__).with_name("fma_peak.cpp")
        command = [os.environ.get("CXX", "c++"), "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        function = ctypes.CDLL(str(library)).fma_peak
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_long]

    def peak(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            return max(sum(pool.map(function, [5_000_000] * threads)) for _ in range(10))

    return peak


def gemm_operations() -> float:
    """Floating-point operations of the GEMMs of one step: three of 2 per token and weight of the blocks."""
    blocks: Any = GPT(SIZE, VOCABULARY).blocks
    return 6.0 * BATCH * SIZE.block_size * sum(p.numel() for p in blocks.parameters() if p.dim() == 2)


def profiled(step: Callable[[], float]) -> tuple[float, float]:
    """(seconds of a step, seconds of it in FP8 GEMMs)."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as record:
        whole = seconds(step)
    return whole, sum(event.self_cpu_time_total for event in record.key_averages() if event.key == GEMM) * 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all, in turn; medians (default: 7)")
    args = parser.parse_args()

    peak, operations = load_peak(), gemm_operations()
    ours = {"O2": make_step(o2), "O2, fused norms and GELU": make_step(o2, block=FusedBlock)}
    others = {"torch FP32": make_step(lambda m, o: (m, o)), "torchao float8": make_step(torchao)}
    print(f"ISA level {fp8amp.build_info()['isa']}; {operations * 1e-9:.0f} GFLOP in the FP8 GEMMs of a step")
    for threads in args.threads:
        torch.set_num_threads(threads)
        for step in (*ours.values(), *others.values()):
            step()
        peaks: list[float] = []
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ours}
        base: dict[str, list[float]] = {name: [] for name in others}
        for _ in range(args.rounds):
            for name, step in ours.items():
                times[name].append(profiled(step))
                peaks.append(peak(threads))
            for name, step in others.items():
                base[name].append(seconds(step))
        pace = statistics.median(peaks)
        medians = {name: statistics.median(values) for name, values in base.items()}
        print(
            f"{threads} thread(s): fused multiply-adds {pace:.0f} GFLOP/s; "
            + ", ".join(f"{n} {s:.2f} s" for n, s in medians.items())
        )
        for name, pairs in times.items():
            whole, gemm = (statistics.median(column) for column in zip(*pairs, strict=True))
            least = whole - gemm + operations * 1e-9 / pace
            print(
                f"  {name}: {whole:.2f} s, of it GEMM {gemm:.2f} s at {operations * 1e-9 / gemm:.0f} GFLOP/s; "
                f"with GEMM at {pace:.0f} GFLOP/s {least:.2f} s: "
                + ", ".join(f"{whole / s:.2f} now and {least / s:.2f} at best of {n}" for n, s in medians.items())
            )


if __name__ == "__main__":
    main()
