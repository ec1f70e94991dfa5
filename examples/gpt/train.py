"""Pretrain a GPT in FP32, BF16 or FP8 (fp8amp's O1 and O2).

    python examples/gpt/train.py --precision O2            # the tiny GPT, on the text that Python ships
    python examples/gpt/train.py --compare fp32 O1 O2      # several precisions, same seed and data, one plot
    python examples/gpt/train.py --data corpus/ --size 125m --device cuda

A run leaves summary.json, metrics.jsonl, memory.txt, loss.png, sample.txt and checkpoint.pt in --out.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import signal
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import report
from data import DEFAULT_TOKENIZER, DataError, load
from options import O_LEVELS, Refused, parse, parser
from trainer import Interrupted, Signals, Trainer, import_fp8amp, model_size

DIVERGED = 3  # the exit status of a run whose loss became infinite
OUTPUTS = ("checkpoint.pt", "loss.png", "memory.txt", "metrics.jsonl", "sample.txt", "summary.json")
COMPARISON_OUTPUTS = ("comparison.txt", "loss.png", "summary.json")


def memory(trainer: Trainer) -> tuple[str, float | None]:
    """The table of bytes that weights, gradients and optimizer states take, and the bytes per parameter."""
    plain, copies = 16 * trainer.num_parameters, 2 * trainer.num_parameters
    reference = (
        f"For comparison, by arithmetic: FP32 AdamW takes {plain:,} bytes, 16 per parameter (weight 4,\n"
        f"gradient 4, states 8); BF16 autocast the same, and {copies:,} more for its copies within a step."
    )
    try:
        fp8amp = import_fp8amp("the memory table")
    except Refused as error:
        return f"{error}\n{reference}", None
    found = fp8amp.memory_report(trainer.model, trainer.optimizer)
    return f"{found}\n{reference}", found.bytes_per_parameter


def build() -> dict[str, Any]:
    """Version and instruction set of fp8amp, None where it is not installed."""
    try:
        fp8amp = import_fp8amp("the summary")
    except Refused:
        return {"fp8amp": None, "isa": None}
    return {"fp8amp": fp8amp.__version__, "isa": fp8amp.build_info()["isa"]}


def summarize(trainer: Trainer, rows: list[report.Row], bytes_per_parameter: float | None) -> dict[str, Any]:
    """The content of summary.json."""
    a, data = trainer.arguments, trainer.data
    trained = [row for row in rows if "loss" in row]
    validated = [row["val_loss"] for row in rows if "val_loss" in row and math.isfinite(row["val_loss"])]
    completed = trainer.step_number == a.steps and math.isfinite(trained[-1]["loss"])
    loss = validated[-1] if completed and validated else None
    per_byte = loss / data.bytes_per_token / math.log(2) if loss and data.bytes_per_token else None
    size = model_size(a)
    return {
        "precision": a.precision,
        "size": a.size,
        "parameters": trainer.num_parameters,
        "final_val_loss": loss,
        "bits_per_byte": per_byte,
        "final_train_loss": trained[-1]["loss"] if completed else None,
        "tokens_per_second": trainer.tokens_per_step / statistics.median(row["seconds"] for row in trained),
        "train_seconds": sum(row["seconds"] for row in trained),
        "bytes_per_parameter": bytes_per_parameter,
        "peak_memory_bytes": report.peak_memory(trainer.device) - trainer.memory_before,
        "steps": trainer.step_number,
        "tokens": trainer.step_number * trainer.tokens_per_step,
        "seed": a.seed,
        "layers": size.layers,
        "heads": size.heads,
        "width": size.width,
        "block_size": size.block_size,
        "batch_size": a.batch_size,
        "accumulate": a.accumulate,
        "lr": a.lr,
        "activations": a.activations,
        "fused": a.fused,
        "tokenizer": (a.tokenizer or DEFAULT_TOKENIZER) if data.tokenizer else None,
        "vocab_size": data.vocab_size,
        "data": data.fingerprint,
        "level_options": {name: str(value) for name, value in trainer.level_options.items()},
        "device": str(trainer.device),
        "threads": torch.get_num_threads(),
        "compile": a.compile,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **build(),
    }


def prepare_out(a: Namespace) -> bool:
    """Make --out ready. True: there is a checkpoint to go on from."""
    checkpoint, summary = a.out / "checkpoint.pt", a.out / "summary.json"
    if a.resume and checkpoint.exists():
        return True
    if not a.overwrite and summary.exists():
        raise Refused(f"--out: {a.out} holds a finished run; --overwrite deletes it and starts again")
    if not a.overwrite and checkpoint.exists():
        raise Refused(f"--out: {a.out} holds an unfinished run; --resume goes on, --overwrite starts again")
    a.out.mkdir(parents=True, exist_ok=True)
    for name in OUTPUTS:
        (a.out / name).unlink(missing_ok=True)
    return False


def train(
    a: Namespace,
    level_options: dict[str, Any] | None = None,
    convert: Callable[[nn.Module], Any] | None = None,
) -> dict[str, Any]:
    """One run, or the rest of one; see Trainer for the options. Returns the content of summary.json."""
    if a.threads:
        torch.set_num_threads(a.threads)
    data = load(
        a.data,
        tokenizer=a.tokenizer,
        vocab_size=a.vocab_size,
        cache=a.out,
        token_dtype=a.token_dtype,
        val_fraction=a.val_fraction,
        block_size=model_size(a).block_size,
    )
    trainer = Trainer(a, data, level_options or {}, convert)
    print(f"data: {data}")
    print(
        f"{a.precision}: GPT {a.size}, {trainer.num_parameters:,} parameters, {a.steps} steps of "
        f"{trainer.tokens_per_step:,} tokens, {a.device}, {torch.get_num_threads()} threads",
        flush=True,
    )
    if prepare_out(a):
        trainer.load()
        print(f"resumed at step {trainer.step_number}", flush=True)
        summary = a.out / "summary.json"
        if summary.exists() and trainer.step_number >= a.steps:
            return dict(json.loads(summary.read_text()))
        summary.unlink(missing_ok=True)
    elif a.resume:
        print(f"nothing to resume in {a.out}: starting at step 0", flush=True)
    return finish(trainer, trainer.run())


def finish(trainer: Trainer, rows: list[report.Row]) -> dict[str, Any]:
    """Write and print what the run leaves. The summary comes last: a run that has it has all."""
    out = trainer.out
    table, bytes_per_parameter = memory(trainer)
    summary = summarize(trainer, rows, bytes_per_parameter)
    (out / "memory.txt").write_text(table + "\n")
    plotted = report.plot_losses(out / "loss.png", {trainer.arguments.precision: rows})
    text = trainer.sample()
    if text is not None:
        (out / "sample.txt").write_text(text + "\n")
        print(f"\nThe model writes:\n{text}")
    if trainer.saved_step != trainer.step_number:
        trainer.save()
    report.write_json(out / "summary.json", summary)
    loss, speed = summary["final_val_loss"], summary["tokens_per_second"]
    print(f"\n{table}\n")
    print(f"validation loss {'none: diverged' if loss is None else f'{loss:.4f}'}, {speed:,.0f} tokens/s")
    print(f"loss curve: {out / 'loss.png' if plotted else 'none, matplotlib is not installed'}")
    print(f"numbers: {out / 'summary.json'}, {out / 'metrics.jsonl'}, {out / 'memory.txt'}")
    return summary


def command(a: Namespace, precision: str) -> list[str]:
    """The command line of one run of a comparison."""
    own: dict[str, Any] = {"compare": None, "precision": precision, "out": a.out / precision}
    if precision not in O_LEVELS:
        own["activations"] = None
    words = [sys.executable, str(Path(__file__).resolve())]
    for name, value in (vars(a) | own).items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, list) and value:
            words += [option, *map(str, value)]
        elif value is not None and not isinstance(value, bool | list):
            words += [option, str(value)]
    return words


def compare(a: Namespace) -> int:
    """Train each precision in a process of its own (so is its peak memory), then plot all together."""
    precisions = list(dict.fromkeys(a.compare))
    for precision in precisions:
        print(f"--- {precision} ---", flush=True)
        with Signals() as signals:
            child = subprocess.Popen(command(a, precision))
            while child.poll() is None:
                time.sleep(0.1)
                if signals.received == signal.SIGTERM:  # Ctrl-C reaches the child by itself
                    child.terminate()
                    signals.received = -1
        if child.returncode not in (0, DIVERGED) or not (a.out / precision / "summary.json").exists():
            return child.returncode if child.returncode >= 0 else 128 - child.returncode
        for name in COMPARISON_OUTPUTS:  # now of other runs
            (a.out / name).unlink(missing_ok=True)
    summaries = [json.loads((a.out / precision / "summary.json").read_text()) for precision in precisions]
    table = report.comparison_table(summaries)
    report.write_json(a.out / "summary.json", summaries)
    (a.out / "comparison.txt").write_text(table + "\n")
    print(f"\n{table}\n")
    runs = {precision: report.read_metrics(a.out / precision) for precision in precisions}
    if report.plot_losses(a.out / "loss.png", runs):
        print(f"loss curves: {a.out / 'loss.png'}")
    return 0


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("fp8amp").setLevel(logging.INFO)  # what it converted
    p = parser(__doc__)
    a = parse(p, argv)
    try:
        if a.compare:
            return compare(a)
        summary = train(a)
    except (Refused, DataError, OSError) as error:
        p.error(str(error))
    except Interrupted as stop:
        print(stop)
        return 128 + stop.signal_number if stop.signal_number else 0
    return 0 if summary["final_val_loss"] is not None else DIVERGED


if __name__ == "__main__":
    sys.exit(main())
