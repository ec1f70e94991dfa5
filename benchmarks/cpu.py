"""Speed of the CPU backend, each figure as a ratio of times to its baseline, timed in the same run.

    python benchmarks/cpu.py                      # everything, about 15 minutes on 2 cores
    python benchmarks/cpu.py --only casts gemm    # groups: casts, gemm, adam, step
    python benchmarks/cpu.py --json results.json  # a list of {name, threads, ours_s, baseline_s, ratio, goal, floor}

A ratio below 1 means faster than the baseline. "goal" and "floor" are what the CPU backend aims for and what it must
not miss. The comparisons with torchao and bitsandbytes need `pip install --no-deps torchao==0.18.0 bitsandbytes`;
without them those rows are left out and the output says so.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import fp8amp
import torch
from cpu_kernels import adam, casts, gemm
from cpu_training import step
from timing import Row

GROUPS: dict[str, Callable[[int, int], Iterator[Row]]] = {
    "casts": casts,
    "gemm": gemm,
    "adam": adam,
    "step": step,
}


def machine() -> str:
    model = "unknown CPU"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    return f"{model}, {platform.machine()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS), help="groups to run")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts (default: 1 2)")
    parser.add_argument(
        "--elements", type=int, default=64 * 2**20, help="elements of the casts and of Adam (default: 64 Mi)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a floor is missed")
    args = parser.parse_args()

    info = fp8amp.build_info()
    print(f"{machine()}; ISA level {info['isa']}; torch {torch.__version__}; fp8amp {info['version']}")
    print(f"{'':44s} {'threads':>7s} {'ours':>10s} {'baseline':>10s} {'ratio':>6s} {'goal':>5s} {'floor':>5s}")
    rows: list[Row] = []
    for group in args.only:
        for threads in args.threads:
            torch.set_num_threads(threads)
            for row in GROUPS[group](threads, args.elements):
                rows.append(row)
                times = f"{row.threads:7d} {row.ours_s * 1e3:8.2f}ms {row.baseline_s * 1e3:8.2f}ms {row.ratio:6.2f}"
                limits = f"{row.goal:5.2f} {row.floor:5.2f}" if row.goal and row.floor else f"{'-':>5s} {'-':>5s}"
                print(f"{row.name:44s} {times} {limits}  {row.verdict:6s} vs {row.baseline}", flush=True)
                if args.json:  # a run that is cut leaves what it has
                    args.json.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
    if args.json:
        print(f"wrote {args.json}")
    if args.check and any(row.verdict == "MISSED" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
