#!/usr/bin/env python3
"""Checks the CUDA kernels without a GPU: rules for their PTX, and registers and shared memory against a budget.

    kernel_lint.py            exit 1 on a broken rule, a spill, or a kernel over tests/kernel_budget.json
    kernel_lint.py --write    write the budget from what the compiler says now
    kernel_lint.py --keep F   leave the PTX and the code of every target in the folder F

The budget holds for one version of nvcc; another one is told, and only the rules are checked.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGET = ROOT / "tests" / "kernel_budget.json"
TARGETS = ("sm_89", "sm_90", "sm_100", "sm_120")
FLAGS = ["-std=c++20", "-O3", "--fmad=false", "--expt-relaxed-constexpr", f"-I{ROOT}", f"-I{ROOT}/include"]
FORBIDDEN = {
    r"\b(add|sub|mul|fma|div|sqrt|rcp)(\.ftz|\.sat)*\.f32\b": "FP32 operation without .rn: may be contracted",
    r"\.approx\b": "approximate instruction",
    r"\.ftz\b": "flushes subnormals",
    r"\b(ld|st)\.local\b": "local memory",
}
# kernels that convert in pairs and move 16 bytes at a time
CASTS = re.compile(
    r"^quantize_kernel<.*(E4M3|E5M2), \(fp8amp::Rounding\)0>|^quantize_transpose_kernel"
    r"|^fused_(quantize|transpose)_kernel"
)
REQUIRED = {
    r"cvt\.rn\.satfinite\.e[45]m[23]x2\.f32": "packed FP8 conversion",
    r"ld\.global(\.nc)?\.v4\.[bu]32": "16-byte load",
    r"st\.global\.v4\.[bu]32": "16-byte store",
}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def short_names(mangled: list[str]) -> dict[str, str]:
    """Mangled name -> name with template arguments, without namespaces and parameters."""
    lines = run("c++filt", *mangled).splitlines() if mangled else []
    return {name: re.sub(r"^void |\(fp8amp::kernels(?!::\w+\)\d).*$|fp8amp::(kernels::cuda|numerics)::", "", line)
            for name, line in zip(mangled, lines, strict=True)}  # fmt: skip


def sources() -> list[Path]:
    return sorted((ROOT / "kernels" / "cuda").glob("*.cu"))


def compile_ptx(source: Path, ptx: Path) -> str:
    """The text of the PTX, which is left in the file `ptx`."""
    run("nvcc", *FLAGS, "-arch=compute_89", "-ptx", str(source), "-o", str(ptx))
    return ptx.read_text()


def assemble(ptx: Path, target: str, cubin: Path) -> tuple[str, dict[str, list[int]]]:
    """What ptxas says, and {mangled name: [registers, bytes of shared memory]}."""
    log = run("ptxas", "-v", "-O3", "--warn-on-spills", f"-arch={target}", str(ptx), "-o", str(cubin))
    used = {}
    pattern = r"Compiling entry function '(\w+)'.*?Used (\d+) registers(.*?)\n"
    for mangled, registers, rest in re.findall(pattern, log, re.S):
        shared = re.search(r"(\d+) bytes smem", rest)
        used[mangled] = [int(registers), int(shared.group(1)) if shared else 0]
    return log, used


def check(source: Path, folder: Path) -> tuple[list[str], dict[str, dict[str, list[int]]]]:
    """Broken rules, and {kernel: {target: [registers, bytes of shared memory]}}; {stem}.ptx and {stem}.{target} stay in
    `folder`."""
    ptx = folder / f"{source.stem}.ptx"
    text = compile_ptx(source, ptx)
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)\n}", text, re.S))
    names = short_names(list(bodies))
    errors = []
    for mangled, body in bodies.items():
        for rule, why in FORBIDDEN.items():
            if found := re.search(rule, body):
                errors.append(f"{source.name}: {names[mangled]}: {why}: {found.group(0)}")
        if CASTS.search(names[mangled]):
            missing = [what for rule, what in REQUIRED.items() if not re.search(rule, body)]
            errors += [f"{source.name}: {names[mangled]}: no {what}" for what in missing]
    used: dict[str, dict[str, list[int]]] = {}
    for target in TARGETS:
        log, kernels = assemble(ptx, target, ptx.with_suffix("." + target))
        errors += [f"{source.name}: {target}: {line}" for line in log.splitlines() if "warning" in line.lower()]
        for mangled, resources in kernels.items():
            used.setdefault(names[mangled], {})[target] = resources
    return errors, used


def nvcc_version() -> str:
    return re.search(r"release ([\d.]+)", run("nvcc", "--version")).group(1)


def over_budget(used: dict[str, dict[str, list[int]]], budget: dict[str, dict[str, list[int]]]) -> list[str]:
    errors = []
    for kernel, targets in used.items():
        for target, (registers, shared) in targets.items():
            allowed = budget.get(kernel, {}).get(target)
            if allowed is None:
                errors.append(f"{kernel} {target}: not in {BUDGET.name}; kernel_lint.py --write")
            elif registers > allowed[0] or shared > allowed[1]:
                errors.append(f"{kernel} {target}: {registers} registers, {shared} bytes shared, over {allowed}")
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        kept = args.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        results = list(pool.map(lambda source: check(source, kept), sources()))
    errors = [error for found, _ in results for error in found]
    used = {kernel: targets for _, found in results for kernel, targets in found.items()}
    version = nvcc_version()
    if args.write:
        lines = [f"{json.dumps(kernel)}: {json.dumps(targets)}" for kernel, targets in sorted(used.items())]
        BUDGET.write_text(f'{{"nvcc": "{version}",\n"kernels": {{\n' + ",\n".join(lines) + "\n}}\n")
    budget = json.loads(BUDGET.read_text())
    if budget["nvcc"] == version:
        errors += over_budget(used, budget["kernels"])
    else:
        print(f"nvcc {version}: registers are not compared, {BUDGET.name} is of {budget['nvcc']}")
    print(*errors, sep="\n", end="\n" if errors else "")
    print(f"{len(used)} kernels for {len(TARGETS)} targets, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
