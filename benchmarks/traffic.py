#!/usr/bin/env python3
"""Kernel launches and bytes of memory of one training step of a GPT block on an H100 or H200: forward, backward and
AdamW, in BF16 PyTorch, at O2, at O2 with fused layers, and the least possible. No GPU: ops run on the emulated one.

    FP8AMP_EMULATED_TORCH=.../fp8amp_torch_emulated.so python benchmarks/traffic.py [--write]

`bash tests/run.sh python` builds that library; --write also writes benchmarks/gpu/traffic.md. Launches of fp8amp's ops
are those that the CUDA runtime is asked for, fills too. Launches of torch's ops: one each, but for those in TORCH.
Bytes: what each kernel must read and write if caches keep nothing from one kernel to the next; of matrices alone.
From two small runs, the second with twice the tokens, follow the bytes per token and width and those per parameter.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "examples" / "gpt")]
import emulated_package  # noqa: E402

from model import Block  # noqa: E402

WIDTH, HEADS, TOKENS, BATCH = 64, 2, 64, 2  # of the smaller run; the larger has twice the tokens
PARAMETERS = 12  # of a block, times width^2: the four weights
BANDWIDTH = 4.3e12  # bytes per second, of an H200's copy
# What torch launches on a GPU for an op: dx, then the gradients of gain and bias, which read the same again; sums of
# dy * y, then the gradients, then the cast of dQ.
TORCH = {
    "aten::native_layer_norm_backward": 2,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 3,
}
FILLS = ("aten::ones", "aten::full", "aten::zeros", "aten::new_zeros", "aten::fill_")


PAGE = """# One training step of a GPT block

Written by `python benchmarks/traffic.py --write`. **Nothing here was measured on a GPU: nothing has run on one.**
Forward, backward and AdamW of one pre-norm block with biases under BF16 autocast, its residual stream in FP32.

{table}

Launches are counted: the kernels, fills and products that the CUDA runtime and cuBLASLt are asked for by fp8amp, and
one for each op of torch (two for the backward of a norm, three for that of attention). Bytes are those that these
kernels must read and write if caches keep nothing from one to the next, of matrices alone. The time is theirs alone,
as if products cost none. The least possible: products and attention as kernels of their own, one kernel for all that
stands between two of them, scales known before their casts, every tensor written and read once, both orders of an FP8
operand where two products read it, the next FP8 weight written by Adam.

Where O2 moves more than the least: current scaling reads what it casts twice (delayed scaling does not), each weight
gradient is written in FP32, measured and cast (13 bytes per parameter instead of 1), and each weight is measured and
cast from FP16 in every step (6 instead of 2).
"""


@dataclass
class Traffic:
    launches: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, launches: int, size: int) -> None:
        self.launches[name] += launches
        self.bytes[name] += size


def tensors(values: Any) -> list[Tensor]:
    """The plain tensors in arguments or results."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [t for value in values for t in tensors(value)]
    return []


def size(values: Any) -> int:
    """Bytes of the matrices: of more elements than rows of statistics, biases and gains have."""
    return sum(t.numel() * t.itemsize for t in tensors(values) if t.numel() >= WIDTH * WIDTH and 0 not in t.stride())


class Recorder(TorchDispatchMode):
    """Adds every op to `traffic`."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch.ops.fp8amp_emulator.reset_activity()
        before = emulated_package.activity()["products"]
        out = func(*args, **(kwargs or {}))
        done = emulated_package.activity()
        done["products"] -= before
        name = func.name()
        # launches inside an op of torch are those of a ScaledTensor that it reads: a dequantisation
        if name.startswith("fp8amp::") or done["launches"]:
            self.traffic.add(name.split(".")[0], *of_fp8amp(done, args, out))
        if not name.startswith("fp8amp::"):
            self.traffic.add(name.split(".")[0], *of_torch(func, args, out))
        return out


def of_torch(func: Any, args: Any, out: Any) -> tuple[int, int]:
    name = func.name().split(".")[0]
    free = ("aten::detach", "aten::_unsafe_view", "aten::_local_scalar_dense", "aten::empty")
    if func.is_view or name.startswith(("profiler::", *free)):
        return 0, 0
    if name == "aten::_fused_adamw_":  # parameter, gradient and moments in, all but the gradient out
        return 1, 2 * size(args[:4]) - size(args[1])
    if name in FILLS:
        return 1, size(out)
    if name.endswith("_"):
        return 1, size(args) + size(args[0])
    launches = TORCH.get(name, 1)
    again = size(args) if name == "aten::native_layer_norm_backward" else 0
    return launches, size(args) + again + size(out)


def has_full_history(args: Any) -> bool:
    """Delayed scaling: the amax kernel finds on the device that it has nothing to read."""
    return any(t.dim() == 1 and t.numel() == 1 + 2 and t[0] == 1 for t in args if isinstance(t, Tensor))


def of_fp8amp(done: dict[str, Any], args: Any, out: Any) -> tuple[int, int]:
    """By kernel: which of the op's tensors it reads and writes."""
    reads, writes, total = size(args), size(out), 0
    kernels = [call for call in done["calls"] if call.startswith("launch")]
    for place, kernel in enumerate(kernels):
        name = re.sub(r"launch \(?(\w+).*", r"\1", kernel)
        last = place == len(kernels) - 1
        if name in ("amax_kernel", "grad_amax_kernel"):
            total += 0 if has_full_history(args) else size(args[0])
        elif name in ("quantize_kernel", "quantize_transpose_kernel"):
            total += size(args[0]) + writes
        elif name == "column_sums_kernel":
            total += size(args[0])
        elif name == "dequantize_kernel":  # of a ScaledTensor that an op of torch reads
            total += size(args[0].payload) + size(args[0])
        elif name in ("fused_quantize_kernel", "fused_transpose_kernel"):  # the first one measures
            total += reads + (writes if last else 0)
        elif name in ("norm_backward_kernel", "norm_columns_kernel"):
            total += reads + (writes if name == "norm_backward_kernel" else 0)
        elif name == "adam_kernel":  # (parameters, -, gradients, -, m, -, v, ...)
            total += 2 * size([args[0], args[4], args[6]]) + size(args[2])
        elif name not in ("gemm_finish_kernel", "add_rows_kernel", "prepare_adam_kernel", "finish_quantize_kernel"):
            raise RuntimeError(f"{name}: what it reads is not written here")
    if done["products"]:
        total += reads + writes
    return done["launches"] + done["memsets"] + done["products"], total


def step_of(kind: type[Block], level: str | None, tokens: int, delayed: bool) -> Traffic:
    """The second step: the first makes states and memory that stay."""
    import fp8amp

    torch.manual_seed(0)
    block = kind(WIDTH, HEADS)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3, fused=True)
    if level is not None:
        fp8amp.initialize(block, optimizer, level, recipe=fp8amp.DelayedScaling(history=1) if delayed else None)
    x, dy = torch.randn(BATCH, tokens, WIDTH, requires_grad=True), torch.randn(BATCH, tokens, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        x.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            y = block(x)
        y.backward(dy)
        optimizer.step()

    step()
    traffic = Traffic()
    with Recorder(traffic):
        step()
    return traffic


@dataclass
class Row:
    title: str
    launches: int
    per_token: float  # bytes per token and width
    per_parameter: float

    def line(self, width: int, tokens: int) -> str:
        gigabytes = (self.per_token * width * tokens + self.per_parameter * PARAMETERS * width**2) / 1e9
        milliseconds = gigabytes * 1e9 / BANDWIDTH * 1e3
        cells = (self.title, self.launches, f"{self.per_token:.0f}", f"{self.per_parameter:.1f}",
                 f"{gigabytes:.1f}", f"{milliseconds:.1f}")  # fmt: skip
        return "| " + " | ".join(map(str, cells)) + " |"


def measure(title: str, kind: type[Block], level: str | None, delayed: bool = False) -> tuple[Row, Traffic]:
    small, large = (step_of(kind, level, tokens, delayed) for tokens in (TOKENS, 2 * TOKENS))
    assert small.launches == large.launches
    a, b = small.bytes.total(), large.bytes.total()
    parameters = PARAMETERS * WIDTH**2
    return Row(title, small.launches.total(), (b - a) / (BATCH * TOKENS * WIDTH), (2 * a - b) / parameters), small


def least() -> Row:
    """GEMM and attention as kernels of their own, one kernel for all that stands between two of them, scales known
    before their casts, every tensor read and written once. Operands in FP8, in both orders where two products read
    them; results in BF16; the sums of the residual branches in FP32. In units of width: QKV has 3, the MLP 4."""
    forward = {
        "norm 1: x in, operand out": 4 + 2,
        "QKV": 1 + 2 * 3,
        "attention": 2 * 3 + 2,
        "cast of its result": 2 + 2,
        "projection": 1 + 2,
        "residual and norm 2: x and branch in, x and operand out": 4 + 2 + 4 + 2,
        "up": 1 + 2 * 4,
        "GELU": 2 * 4 + 2 * 4,
        "down": 4 + 2,
        "residual": 4 + 2 + 4,
    }
    backward = {
        "cast of dy": 4 + 2,
        "down, dgrad and wgrad": (1 + 2 * 4) + (1 + 4),
        "GELU: its input and dy in, operand out": 2 * 4 + 2 * 4 + 2 * 4,
        "up, dgrad and wgrad": (4 + 2) + (4 + 1),
        "norm 2 and residual: branch, x and dx in, dx and operand out": 2 + 4 + 4 + 4 + 2,
        "projection, dgrad and wgrad": (1 + 2) + (1 + 1),
        "attention: q, k, v, y, dy in, three gradients out": 2 * 3 + 2 + 2 + 2 * 3,
        "cast of its gradients": 2 * 3 + 2 * 3,
        "QKV, dgrad and wgrad": (3 + 2) + (3 + 1),
        "norm 1 and residual: branch, x and dx in, dx out": 2 + 4 + 4 + 4,
    }
    # weights: read by fprop and by dgrad, gradient written by wgrad; Adam 11, and both orders of the next weight
    per_parameter = 1 + 1 + 1 + 11 + 2
    launches = len(forward) + len(backward) + 4 + 1  # wgrads are launches of their own, and Adam
    return Row("least possible", launches, sum(forward.values()) + sum(backward.values()), per_parameter)


def report(rows: list[Row], width: int, tokens: int) -> str:
    total = f"GB at width {width}, {tokens} tokens"
    header = f"| | launches | bytes per token and width | bytes per parameter | {total} | ms at 4.3 TB/s |"
    return "\n".join([header, "|---" * 6 + "|", *(row.line(width, tokens) for row in rows)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--ops", action="store_true", help="also what each op adds, in the smaller run")
    arguments = parser.parse_args()
    library = os.environ.get("FP8AMP_EMULATED_TORCH")
    if library is None:
        parser.error("FP8AMP_EMULATED_TORCH is not set")
    with tempfile.TemporaryDirectory() as folder:
        emulated_package.load(emulated_package.make(Path(folder), library))
        torch.set_num_threads(1)
        from fused_block import FusedBlock

        measured = [
            measure("BF16 PyTorch (autocast, AdamW fused, FP32 states)", Block, None),
            measure("O2", Block, "O2"),
            measure("O2, DelayedScaling", Block, "O2", delayed=True),
            measure("O2, fused layers", FusedBlock, "O2"),
        ]
    text = report([*(row for row, _ in measured), least()], arguments.width, arguments.tokens)
    print(text)
    if arguments.write:
        (ROOT / "benchmarks" / "gpu" / "traffic.md").write_text(PAGE.format(table=text))
    if arguments.ops:
        for row, traffic in measured:
            print(f"\n{row.title}")
            for name, count in traffic.launches.most_common():
                if count:
                    print(f"{count:4d} {traffic.bytes[name]:10d}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
