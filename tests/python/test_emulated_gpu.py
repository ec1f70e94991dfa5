"""The Python package on the CUDA backend, without a GPU: kernels on the emulator, a CUDA runtime that counts, and a
cuBLASLt that multiplies on the CPU. FP8AMP_EMULATED_TORCH is the path of fp8amp_torch_emulated.so; `bash tests/run.sh
python` builds it and sets the variable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import emulated_package
import pytest
import torch

TRAFFIC = Path(__file__).resolve().parents[2] / "benchmarks" / "traffic.py"
PROGRAM = Path(__file__).with_name("emulated_gpu.py")
RUNS = ("current", "delayed", "constant", "rowwise", "block", "fused")


def run(out: Path, *package: Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, PROGRAM, out, *package], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(torch.load(out, weights_only=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same program on the CPU backend and on the emulated GPU."""
    library = os.environ.get("FP8AMP_EMULATED_TORCH")
    if library is None:
        pytest.skip("FP8AMP_EMULATED_TORCH is not set")
    folder = tmp_path_factory.mktemp("emulated")
    package = emulated_package.make(folder, library)
    cpu, gpu = run(folder / "cpu.pt"), run(folder / "gpu.pt", package)
    assert all(gpu[name]["activity"] and not cpu[name]["activity"] for name in gpu)
    return cpu, gpu


def differing(a: Any, b: Any, name: str = "") -> list[str]:
    """Names of what is not equal bit for bit."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return [found for key in a for found in differing(a[key], b[key], f"{name} {key}")]
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        return [found for i, pair in enumerate(zip(a, b, strict=True)) for found in differing(*pair, f"{name}[{i}]")]
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape
        return [] if torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)) else [name]
    return [] if a == b else [name]


@pytest.mark.parametrize("name", RUNS)
def test_training_gives_the_bits_of_the_cpu_backend(runs: Any, name: str) -> None:
    cpu, gpu = (run[name] for run in runs)
    for part in ("losses", "gradients", "state"):
        assert differing(cpu[part], gpu[part], part) == []
    assert len({float(loss) for loss in gpu["losses"]}) == len(gpu["losses"])  # it did train


@pytest.mark.parametrize("name", RUNS)
def test_a_step_neither_allocates_nor_waits(runs: Any, name: str) -> None:
    for step in runs[1][name]["activity"]:  # nor the first one: temporary memory is of torch's allocator
        assert step["launches"] > 0
        for forbidden in ("allocations", "frees", "synchronizations", "copies"):
            assert step[forbidden] == 0, forbidden


def test_operands_are_transposed_while_they_are_cast(runs: Any) -> None:
    calls = Counter(runs[1]["current"]["activity"][1]["calls"])
    casts = sum(n for name, n in calls.items() if "quantize_transpose_kernel" in name)
    assert casts == 8 * 3  # X, W and dY of 8 layers
    sums = sum(n for name, n in calls.items() if re.search("quantize_transpose_kernel<.*, true>", name))
    assert sums == 6  # dY of the layers with a bias, whose gradient it gives
    # the GEMM itself copies only what is no multiple of 16: the operands of the two layers with a side of 100
    assert sum(n for name, n in calls.items() if "pad_kernel" in name) <= 2 * 2 * 4


def test_a_captured_step_is_replayed(runs: Any) -> None:
    cpu, gpu = (run["graph"] for run in runs)
    for part in ("state", "outputs"):  # what is evaluated between replays has the weights of now
        assert differing(cpu[part], gpu[part], part) == []
    activity = gpu["activity"][0]
    assert activity["graph_launches"] == 3 and activity["allocations"] == activity["synchronizations"] == 0


@pytest.mark.skipif("FP8AMP_EMULATED_TORCH" not in os.environ, reason="FP8AMP_EMULATED_TORCH is not set")
def test_launches_and_bytes_of_a_step_do_not_grow() -> None:
    done = subprocess.run([sys.executable, TRAFFIC], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {
        cells[1]: [float(x) for x in cells[2:5]]
        for cells in (re.split(r" *\| *", line) for line in done.stdout.splitlines()[2:])
    }
    bf16 = rows["BF16 PyTorch (autocast, AdamW fused, FP32 states)"]
    for title, most in (("O2", (95, 372)), ("O2, DelayedScaling", (103, 336)), ("O2, fused layers", (101, 344))):
        launches, per_token, per_parameter = rows[title]
        assert launches <= most[0] and per_token <= most[1]
        assert per_parameter <= 33.0 < bf16[2]
        assert per_token > rows["least possible"][1]
