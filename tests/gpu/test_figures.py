"""The programs that measure the CUDA backend run, at small sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.parametrize("section", ("kernels", "products", "linear", "block", "graph"))
def test_figures(device: torch.device, section: str, tmp_path: Path) -> None:
    command = [sys.executable, PROGRAM, section, "--small", "--device", device.type, "--json", tmp_path / "rows.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if device.type == "cpu" and section == "graph":
        assert done.returncode == 77 and "no CUDA device" in done.stdout
        pytest.skip("graphs are CUDA's")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows and all(row["value"] > 0 for row in rows)
