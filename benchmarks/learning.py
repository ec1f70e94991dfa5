"""Does a GPT learn in FP8 as well as in FP32? The tiny one, on the default text, and one factor at a time.

    python benchmarks/learning.py --jobs 2                 # everything: about an hour on two cores
    python benchmarks/learning.py --only O1 O2             # the two levels against FP32
    python benchmarks/learning.py --only O2 --seeds 0 -- --steps 100   # after --: options of train.py

Initial weights and batches depend on the seed alone, so each run is compared with the FP32 run of its seed.
FP32, O1, O2 and torchao run with every seed, the single factors with the first one.
Bar: O1 and O2 within 0.25 % of FP32 as a mean over the seeds, no seed beyond 0.5 %. Results are in --out, a
folder for each run, with results.json and table.txt. Finished runs are skipped, interrupted ones go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "gpt"))

import options
import report
from train import train
from trainer import Interrupted

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP16, FP32 = torch.float16, torch.float32
MEAN_BAR, WORST_BAR = 0.25, 0.5  # percent


class Configuration(NamedTuple):
    """What differs from FP32: the level and the arguments of fp8amp.initialize, or another library's conversion."""

    precision: str
    level_options: dict[str, Any]
    convert: Callable[[nn.Module], Any] | None = None


def factor(**changed: Any) -> Configuration:
    """Everything in FP32, computed by fp8amp, but what is named."""
    plain: dict[str, Any] = {
        "gemm": "none",
        "grad_format": None,
        "exp_avg_format": FP32,
        "exp_avg_sq_format": FP32,
        "master_format": FP32,
    }
    return Configuration("O2", plain | changed)


def torchao_float8(model: nn.Module) -> None:
    """torchao's FP8 GEMMs with its defaults, on the layers that fp8amp converts; the optimizer stays torch's."""
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "lm_head")


CONFIGURATIONS = {
    "fp32": Configuration("fp32", {}),
    "O1": Configuration("O1", {}),
    "O2": Configuration("O2", {}),
    "torchao float8": Configuration("fp32", {}, torchao_float8),
    "O2 m nearest": Configuration("O2", {"moment_rounding": "nearest"}),
    "O2 master nearest": Configuration("O2", {"master_rounding": "nearest"}),
    "FP32 in fp8amp": factor(),  # differs from FP32 by the rounding of sums alone: what chance does
    "FP8 GEMM": factor(gemm="fp8"),
    "FP8 GEMM and gradient": factor(gemm="fp8", grad_format=E4M3),
    "FP8 gradient": factor(grad_format=E4M3),
    "FP8 m nearest": factor(exp_avg_format=E4M3, moment_rounding="nearest"),
    "FP8 m stochastic": factor(exp_avg_format=E4M3, moment_rounding="stochastic"),
    "FP16 v": factor(exp_avg_sq_format=FP16),
    "FP16 master nearest": factor(master_format=FP16, master_rounding="nearest"),
    "FP16 master stochastic": factor(master_format=FP16, master_rounding="stochastic"),
    "FP8 master (bad)": factor(master_format=E4M3),
    "FP8 v (bad)": factor(exp_avg_sq_format=E4M3),
}
EVERY_SEED = ("fp32", "O1", "O2", "torchao float8")
AGAIN = "O2 again"  # the same run twice


def configuration(name: str) -> Configuration:
    return CONFIGURATIONS["O2" if name == AGAIN else name]


def folder(out: Path, name: str, seed: int) -> Path:
    return out / name.replace(" ", "_").replace("(", "").replace(")", "") / str(seed)


def run(name: str, seed: int, out: Path, threads: int, train_options: list[str]) -> dict[str, Any]:
    """One run in this process, its lines in a log file beside its results."""
    chosen = configuration(name)
    place = folder(out, name, seed)
    summary = place / "summary.json"
    if summary.exists():
        return dict(json.loads(summary.read_text()))
    place.mkdir(parents=True, exist_ok=True)
    own = ["--device", "cpu", "--precision", chosen.precision, "--seed", str(seed), "--out", str(place), "--resume"]
    fixed = ["--steps", "600", "--threads", str(threads), "--sample", "0", "--checkpoint-every", "100"]
    arguments = options.parse(options.parser(None), [*fixed, *train_options, *own])
    with (
        (place / "log.txt").open("a") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        return train(arguments, chosen.level_options, chosen.convert)


def run_all(names: list[str], arguments: argparse.Namespace) -> dict[str, dict[int, dict[str, Any]]]:
    """Every run, --jobs at a time, as {name: {seed: summary}}; results.json grows with each."""
    seeds = arguments.seeds
    wanted = [(name, seed) for name in names for seed in (seeds if name in EVERY_SEED else seeds[:1])]
    if "O2" in names:
        wanted.append((AGAIN, seeds[0]))
    results: dict[str, dict[int, dict[str, Any]]] = {}
    threads = max(1, (os.cpu_count() or 1) // arguments.jobs)
    start = time.monotonic()
    pool = ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        pending = {
            pool.submit(run, name, seed, arguments.out, threads, arguments.train_options): (name, seed)
            for name, seed in wanted
        }
        for number, future in enumerate(as_completed(pending), 1):
            name, seed = pending[future]
            summary = future.result()
            results.setdefault(name, {})[seed] = summary
            report.write_json(arguments.out / "results.json", results)
            minutes = (time.monotonic() - start) / 60
            loss = summary["final_val_loss"]
            shown = "diverged" if loss is None else f"{loss:.4f}"
            print(f"{number}/{len(wanted)}  {minutes:6.1f} min  {name}, seed {seed}: {shown}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)  # waits for the checkpoints of interrupted runs
    return results


def differences(runs: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]]) -> dict[int, float]:
    """Percent of FP32's final validation loss, by seed; infinite where a run diverged."""
    losses = {seed: (runs[seed]["final_val_loss"], base[seed]["final_val_loss"]) for seed in sorted(runs)}
    return {
        seed: float("inf") if ours is None else 100 * (ours / theirs - 1) for seed, (ours, theirs) in losses.items()
    }


def table(results: dict[str, dict[int, dict[str, Any]]], names: list[str]) -> str:
    """One line a configuration: mean loss, difference to FP32 of each seed, their mean and the worst."""
    seeds = sorted(results["fp32"])
    header = "".join(f"{f'seed {seed}':>10s}" for seed in seeds)
    lines = [f"{'':24s}{'val loss':>10s}{header}{'mean':>10s}{'worst':>10s}"]
    for name in names:
        found = differences(results[name], results["fp32"])
        losses = [run["final_val_loss"] for run in results[name].values()]
        loss = "diverged" if None in losses else f"{mean(losses):.4f}"
        cells = [f"{found[seed]:+.2f} %" if seed in found else "" for seed in seeds]
        cells += [f"{value:+.2f} %" for value in (mean(found.values()), max(found.values(), key=abs))]
        lines.append(f"{name:24s}{loss:>10s}" + "".join(f"{cell:>10s}" for cell in cells))
    return "\n".join(lines)


def verdict(results: dict[str, dict[int, dict[str, Any]]], out: Path) -> tuple[list[str], bool]:
    """The bars, a line each, and whether all are met."""
    lines, passed = [], True
    for name in {"O1", "O2"} & results.keys():
        found = differences(results[name], results["fp32"]).values()
        average, worst = mean(found), max(found, key=abs)
        good = abs(average) <= MEAN_BAR and abs(worst) <= WORST_BAR
        passed &= good
        bars = f"mean {average:+.3f} % (bar {MEAN_BAR}), worst {worst:+.3f} % (bar {WORST_BAR})"
        lines.append(f"{name}: {bars}, {len(found)} seeds: {'met' if good else 'MISSED'}")
    for seed in results.get(AGAIN, {}):
        first, second = (
            [(row.get("loss"), row.get("val_loss")) for row in report.read_metrics(folder(out, name, seed))]
            for name in ("O2", AGAIN)
        )
        passed &= first == second
        lines.append(f"O2 twice with seed {seed}: {'bit-identical' if first == second else 'DIFFERENT'} losses")
    return sorted(lines), passed


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=CONFIGURATIONS, metavar="NAME", help=", ".join(CONFIGURATIONS))
    p.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; the cores are shared out")
    p.add_argument("--out", type=Path, default=Path("out/learning"))
    p.add_argument("train_options", nargs="*", help="after --: options of examples/gpt/train.py")
    arguments = p.parse_args()
    names = list(CONFIGURATIONS) if arguments.only is None else list(dict.fromkeys(["fp32", *arguments.only]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        results = run_all(names, arguments)
    except (KeyboardInterrupt, Interrupted):
        print("stopped; the same command goes on from here")
        return 130
    lines, passed = verdict(results, arguments.out)
    text = table(results, names) + "\n\n" + "\n".join(lines)
    (arguments.out / "table.txt").write_text(text + "\n")
    print(f"\n{text}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
