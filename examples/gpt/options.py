"""The command line of train.py: the options, and what is refused in one line."""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import NoReturn

import torch

from model import SIZES

O_LEVELS = ("O1", "O2")
PRECISIONS = ("fp32", "bf16", *O_LEVELS)


class Refused(Exception):
    """The run cannot be done as asked; the text says why in one line."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def whole(text: str, low: int = 0, high: int = 2**31 - 1) -> int:
    """A whole number from low to high."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return whole(text, low=1)


def thread_count(text: str) -> int:
    """At most 1024, which no CPU has use for."""
    return whole(text, low=1, high=1024)


def seed(text: str) -> int:
    """What every generator takes."""
    return whole(text, high=2**63 - 1)


def real(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return value


# fmt: off
def parser(description: str | None) -> Parser:
    """Every option of train.py."""
    p = Parser(description=description, allow_abbrev=False)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    add = p.add_argument_group("what is trained").add_argument
    add("--precision", choices=PRECISIONS, default="O2", help="FP8 at O1 or O2, fp32, or bf16 autocast")
    add("--compare", choices=PRECISIONS, nargs="+", metavar="PRECISION", help="train and plot each of these")
    add("--size", choices=SIZES, default="tiny")
    add("--block-size", type=positive, metavar="N", help="context in tokens (default: the size's own)")
    add("--activations", choices=("fp32", "bf16"), help="of O1 and O2 (default: bf16 on cuda, else fp32)")
    add("--fused", action="store_true", help="norms and GELU that write FP8 operands (O1, O2)")
    add("--activation-checkpointing", action="store_true", help="recompute each block in the backward pass")
    add = p.add_argument_group("data").add_argument
    add("--data", type=Path, nargs="+", default=[], metavar="PATH", help="text files and directories, or a"
        " file of prepared tokens (.npy or .bin); default: the sources and documentation Python ships")
    add("--tokenizer", choices=("byte", "bpe"), help="of text (default: bpe, trained on the data)")
    add("--vocab-size", type=positive, metavar="N", help="of the BPE (default 1024) or of a token file")
    add("--token-dtype", choices=("uint16", "uint32"), default="uint16", help="of a .bin file")
    add("--val-fraction", type=real, default=0.05, metavar="X", help="the end of the data, for validation")
    add = p.add_argument_group("training").add_argument
    add("--steps", type=positive, default=800, metavar="N")
    add("--batch-size", type=positive, default=16, metavar="N", help="sequences in a batch")
    add("--accumulate", type=positive, default=1, metavar="N", help="batches in an optimizer step")
    add("--lr", type=real, default=1e-3, metavar="X")
    add("--min-lr", type=real, metavar="X", help="at the last step (default: a tenth of --lr)")
    add("--warmup", type=whole, metavar="N", help="steps (default: a twentieth of --steps)")
    add("--weight-decay", type=real, default=0.1, metavar="X")
    add("--clip", type=real, default=1.0, metavar="NORM", help="largest gradient norm, 0 for none")
    add("--seed", type=seed, default=0, metavar="N", help="of weights, batches and stochastic rounding")
    add = p.add_argument_group("machine").add_argument
    add("--device", default="auto", metavar="NAME", help="cpu, cuda or auto")
    add("--threads", type=thread_count, metavar="N", help="of the CPU (default: torch's choice)")
    add("--compile", action="store_true", help="torch.compile the model")
    add = p.add_argument_group("output").add_argument
    add("--out", type=Path, default=Path("out/gpt"), metavar="DIR")
    add("--resume", action="store_true", help="go on exactly from the checkpoint in --out, if there is one")
    add("--overwrite", action="store_true", help="start again although --out holds a run: it is deleted")
    add("--checkpoint-every", type=whole, default=200, metavar="N", help="steps; 0: at the end and on Ctrl-C")
    add("--stop-at", type=positive, metavar="STEP", help="stop there with a checkpoint, as on Ctrl-C")
    add("--eval-every", type=positive, default=100, metavar="N", help="steps between validation losses")
    add("--eval-batches", type=positive, default=16, metavar="N", help="batches in a validation loss")
    add("--log-every", type=positive, default=20, metavar="N", help="steps between lines, if no terminal")
    add("--sample", type=whole, default=150, metavar="N", help="tokens the model writes at the end")
    add("--tensorboard", action="store_true")
    return p
# fmt: on


def check_writable(folder: Path) -> None:
    """Raise OSError where the folder could not be made and written to. Makes nothing."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    tempfile.TemporaryFile(dir=nearest).close()


def parse(p: Parser, argv: list[str] | None) -> Namespace:
    """Parse, fill in the defaults that depend on other options, and refuse what cannot work."""
    a = p.parse_args(argv)
    if a.device == "auto":
        a.device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(a.device)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        p.error(f"argument --device: must be cpu, cuda, cuda:N or auto, got {a.device!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        p.error(f"argument --device: torch finds {torch.cuda.device_count()} CUDA devices, got {a.device!r}")
    if not 0 < a.val_fraction < 1:
        p.error(f"argument --val-fraction: must be between 0 and 1, got {a.val_fraction}")
    a.min_lr = a.lr / 10 if a.min_lr is None else a.min_lr
    if a.min_lr > a.lr:
        p.error(f"argument --min-lr: must be at most --lr {a.lr}, got {a.min_lr}")
    a.warmup = max(1, a.steps // 20) if a.warmup is None else a.warmup
    try:
        check_writable(a.out)
    except OSError as error:
        p.error(f"argument --out: cannot write to {a.out}: {error.strerror}")
    if a.tensorboard and importlib.util.find_spec("tensorboard") is None:
        p.error("argument --tensorboard: needs the package tensorboard: pip install tensorboard")
    plain = [precision for precision in a.compare or [a.precision] if precision not in O_LEVELS]
    if a.fused and plain:
        p.error(f"argument --fused: is for {' and '.join(O_LEVELS)}, --precision is {plain[0]}")
    if a.compare:
        return a  # each run of the comparison settles its own --activations
    if a.precision in O_LEVELS:
        a.activations = a.activations or ("bf16" if device.type == "cuda" else "fp32")
    elif a.activations is not None:
        p.error(f"argument --activations: is for {' and '.join(O_LEVELS)}, --precision is {a.precision}")
    else:
        a.activations = a.precision
    return a
