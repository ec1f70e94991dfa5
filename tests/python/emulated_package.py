"""fp8amp with fp8amp_torch_emulated.so in the place of fp8amp_torch.so: the package on the emulated GPU. A process
loads one library of ops, so this is for programs of their own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch


def make(folder: Path, library: str) -> Path:
    """A package of links in `folder`: to the sources of the fp8amp that Python finds, and to `library`."""
    package = folder / "fp8amp"
    package.mkdir()
    found = importlib.util.find_spec("fp8amp")
    assert found is not None and found.submodule_search_locations is not None
    for place in map(Path, found.submodule_search_locations):  # sources, and binaries where those are elsewhere
        for file in place.iterdir():
            link = package / file.name
            if file.name != "fp8amp_torch.so" and not link.exists():
                link.symlink_to(file)
    (package / "fp8amp_torch.so").symlink_to(Path(library).resolve())
    return package


def load(package: Path) -> None:
    """Makes `package` the fp8amp of this process. By its place: an editable install is found before all of sys.path."""
    spec = importlib.util.spec_from_file_location("fp8amp", package / "__init__.py")
    assert spec is not None and spec.loader is not None
    sys.modules["fp8amp"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["fp8amp"])


def activity() -> dict[str, Any]:
    """What the CUDA runtime was asked to do since reset_activity(). Its products are those of the whole process."""
    return dict(json.loads(torch.ops.fp8amp_emulator.activity()))
