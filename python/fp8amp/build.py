"""What this build is and what it found: fp8amp.build_info() and the report of ``python -m fp8amp``."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

import torch

from . import _ops


def version() -> str:
    """The version of the installed package."""
    try:
        return metadata.version("fp8amp")
    except metadata.PackageNotFoundError:  # sources on the path, not installed
        return str(build_info()["version"])


def build_info() -> dict[str, Any]:
    """Version, build options, compiler, instruction set in use, and the state of CUDA, cuBLASLt and NCCL, as plain
    values."""
    info: dict[str, Any] = json.loads(_ops.build_info())
    return info


def report() -> str:
    """build_info and the versions of torch and Python, a line each."""
    info = build_info()
    lines = [f"fp8amp {info.pop('version')}"]
    for name, value in info.items():
        lines.append(f"  {name.replace('_', ' '):18s} {_text(value)}")
    lines.append(f"  {'torch':18s} {torch.__version__}, {torch.get_num_threads()} threads")
    lines.append(f"  {'python':18s} {platform.python_version()} on {platform.machine()}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
