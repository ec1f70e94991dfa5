"""Fails on an #include that points up the layers, and on a foreign header outside its place.

The layers, low to high; a file may include its own layer and those below:
numerics <- include/fp8amp <- kernels <- kernels/cpu, kernels/cuda <- src <- src/cuda <- python/bindings
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = [  # (folder, rank): the longest folder that matches a file decides
    ("include/fp8amp/numerics", 0),
    ("include/fp8amp", 1),
    ("kernels", 2),
    ("kernels/cpu", 3),
    ("kernels/cuda", 3),
    ("src", 4),
    ("src/cuda", 5),
    ("python/bindings", 6),
]
FOREIGN = [  # (what, header pattern, paths where it is allowed)
    ("CUDA", r"(cuda|cublas|driver_types|vector_types|nvtx|cub/)", r"(kernels|src)/cuda/"),
    ("NCCL", r"nccl", r"src/cuda/.*(communicator|nccl)"),
    ("torch", r"(torch|ATen|c10)/", r"python/bindings/|include/fp8amp/torch\.h"),
    ("Python", r"(pybind11/|Python\.h)", r"python/bindings/core"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def layer(path: str) -> tuple[str, int] | None:
    """The folder and rank of a file, or None for one outside the layers."""
    matches = [entry for entry in LAYERS if path.startswith(entry[0] + "/")]
    return max(matches, key=lambda entry: len(entry[0])) if matches else None


def repository_path(header: str, including: Path) -> str | None:
    """The file of this repository that a header names, or None for a foreign one."""
    for base in (ROOT / "include", ROOT, including.parent):
        file = (base / header).resolve()
        if file.is_file() and file.is_relative_to(ROOT):
            return file.relative_to(ROOT).as_posix()
    return None


def problem(path: str, header: str) -> str | None:
    """What is wrong with this include, or None."""
    for what, pattern, allowed in FOREIGN:
        if re.match(pattern, header) and not re.match(allowed, path):
            return f"{what} header not allowed here"
    included = repository_path(header, ROOT / path)
    if path.startswith("examples/") and included and not header.startswith("fp8amp/"):
        return "examples use the installed headers only"
    here, there = layer(path), layer(included) if included else None
    if here is None or there is None:
        return None
    if {here[0], there[0]} == {"kernels/cpu", "kernels/cuda"}:
        return "kernels/cpu and kernels/cuda do not see each other"
    if there[1] > here[1]:
        return f"{here[0]} may not include from {there[0]}"
    return None


def sources(folder: str) -> list[str]:
    """The C++ and CUDA files under a folder."""
    suffixes = {".h", ".cpp", ".cu", ".cuh"}
    files = [file for file in (ROOT / folder).rglob("*") if file.suffix in suffixes]
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


def main() -> int:
    found = []
    for folder in ("include", "kernels", "src", "python/bindings", "examples/cpp"):
        for path in sources(folder):
            for header in INCLUDE.findall((ROOT / path).read_text(encoding="utf-8")):
                if message := problem(path, header):
                    found.append(f"{path}: #include {header}: {message}")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
