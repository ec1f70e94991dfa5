"""What a run shows and leaves: progress, metrics.jsonl, loss.png, peak memory, the table of a comparison."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
from collections import deque
from pathlib import Path
from typing import Any

import torch

from options import Refused

Row = dict[str, Any]


class Metrics:
    """Rows of numbers, each written to metrics.jsonl (and TensorBoard) as it comes, and kept in memory."""

    def __init__(self, out: Path, keep_until: int, tensorboard: bool) -> None:
        """Take over the rows of an earlier part of the run up to step keep_until, and drop later ones."""
        self.rows: list[Row] = [row for row in read_metrics(out) if row["step"] <= keep_until]
        file = out / "metrics.jsonl"
        write_at_once(file, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._file = file.open("a", buffering=1)
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=keep_until + 1)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        if self._writer is not None:
            for name in row.keys() - {"step"}:
                self._writer.add_scalar(name, row[name], row["step"])

    def close(self) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()


class Progress:
    """A bar with loss and tokens per second on a terminal; elsewhere a line every log_every steps."""

    def __init__(self, steps: int, done: int, tokens_per_step: int, log_every: int) -> None:
        self.steps, self.tokens_per_step, self.log_every = steps, tokens_per_step, log_every
        self._recent: deque[float] = deque(maxlen=20)
        self._bar: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                from tqdm import tqdm

                columns, rows = shutil.get_terminal_size((100, 24))  # a size of 0 x 0 would hide the bar
                self._bar = tqdm(total=steps, initial=done, unit="step", ncols=columns, nrows=rows)

    def show(self, row: Row) -> None:
        self._recent.append(row["seconds"])
        rate = self.tokens_per_step * len(self._recent) / sum(self._recent)
        validation = f"  validation loss {row['val_loss']:.4f}" if "val_loss" in row else ""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {row['loss']:.3f}, {rate:,.0f} tokens/s", refresh=False)
            self._bar.update()
            if validation:
                self._bar.write(f"step {row['step']}{validation}")
        elif validation or row["step"] % self.log_every == 0:
            place = f"step {row['step']:>{len(str(self.steps))}}/{self.steps}"
            numbers = f"loss {row['loss']:.4f}  lr {row['lr']:.2e}  norm {row['grad_norm']:.2f}"
            print(f"{place}  {numbers}  {rate:,.0f} tokens/s{validation}", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def read_metrics(out: Path) -> list[Row]:
    """The rows of out/metrics.jsonl, none where there is no such file. A last line without its end is dropped."""
    file = out / "metrics.jsonl"
    content = file.read_bytes() if file.exists() else b""
    rows = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not (isinstance(row, dict) and isinstance(row.get("step"), int)):
            raise Refused(f"{file} is damaged: line {number} is not a row of numbers; --overwrite starts again")
        rows.append(row)
    return rows


def write_at_once(file: Path, content: str) -> None:
    """Write the whole file, or leave the one that is there."""
    part = file.with_suffix(".part")
    part.write_text(content)
    os.replace(part, file)


def write_json(file: Path, content: Any) -> None:
    write_at_once(file, json.dumps(content, indent=2) + "\n")


def smooth(values: list[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average, without the bias of its start."""
    result, mean = [], 0.0
    for count, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        result.append(mean / (1 - weight**count))
    return result


def plot_losses(file: Path, runs: dict[str, list[Row]]) -> bool:
    """Training loss (smoothed, over the raw one) and validation loss of each run. False: no matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for index, (name, rows) in enumerate(runs.items()):
        color = f"C{index}"
        train = [(row["step"], row["loss"]) for row in rows if "loss" in row]
        val = [(row["step"], row["val_loss"]) for row in rows if "val_loss" in row]
        steps, losses = [step for step, _ in train], [loss for _, loss in train]
        axes.plot(steps, losses, color=color, alpha=0.2, linewidth=0.7)
        axes.plot(steps, smooth(losses), color=color, linewidth=1.2, label=f"{name} training")
        label = f"{name} validation, last {val[-1][1]:.4f}"
        axes.plot(*zip(*val, strict=True), "o", color=color, markersize=4, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
    return True


def reset_peak_memory(device: torch.device) -> None:
    """Start the peak anew: the GPU's, or the process's where the system can do that (Linux)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory_status(name: str) -> int | None:
    """Bytes in a line of /proc/self/status, such as VmRSS (now) or VmHWM (the peak). None: no such system."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def memory_in_use(device: torch.device) -> int:
    """Bytes now: of tensors on a GPU; on a CPU of the whole process, libraries included."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return memory_status("VmRSS") or 0


def peak_memory(device: torch.device) -> int:
    """memory_in_use at its highest since the reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return memory_status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def comparison_table(summaries: list[Row]) -> str:
    """One line a run; losses are compared with the first run's."""
    lines = [("precision", "val loss", "difference", "tokens/s", "bytes/parameter", "peak memory")]
    base = summaries[0]["final_val_loss"]
    for row in summaries:
        loss = row["final_val_loss"]
        lines.append(
            (
                row["precision"],
                "diverged" if loss is None else f"{loss:.4f}",
                "" if loss is None or base is None else f"{100 * (loss / base - 1):+.2f} %",
                f"{row['tokens_per_second']:,.0f}",
                "" if row["bytes_per_parameter"] is None else f"{row['bytes_per_parameter']:.2f}",
                f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(cell.rjust(width) for cell, width in line) for line in aligned)
