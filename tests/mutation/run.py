#!/usr/bin/env python3
"""Do the tests of the CUDA backend bite? Seeds the faults of faults.py one by one and runs a test on the emulator.

    run.py BUILD [--least N] [--only WORD] [--jobs N]     exit 1 if fewer than N faults (all but 2) are found

BUILD is a configured build with tests (`bash tests/run.sh mutation` makes it). The tree is left as it is: copies of its
sources hold all faults at once, `fp8amp_fault == 7 ? wrong : right`, and an environment variable chooses one. So each
source is compiled once, at -O1, and linked in front of the library. A fault is found by a test that fails, crashes or
does not end; without any fault the same programs have to pass.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 300  # for a test
VARIABLE = "FP8AMP_FAULT"
CHOICE = f"""#include <cstdlib>
int fp8amp_fault = std::getenv("{VARIABLE}") ? std::atoi(std::getenv("{VARIABLE}")) : 0;
"""
SANITIZERS = ["-fsanitize=address,alignment", "-fno-sanitize-recover=all"]
# what tells AddressSanitizer of stacks, shared memory and ends of allocations
EMULATOR = [f"tests/emulator/{name}.cpp" for name in ("fiber", "shared_arena", "fake_memory")]


class Object(NamedTuple):
    unit: str
    sanitize: bool


class Program(NamedTuple):
    object: Object
    test: str


def program_of(fault: Fault) -> Program:
    return Program(Object(fault.unit, fault.sanitize), fault.test)


def run(command: list[str], folder: Path) -> str:
    """Its output; it has to succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}{done.stderr}{shlex.join(command[:2])} ... failed")
    return done.stdout


def faulty(file: str, faults: dict[int, Fault]) -> str:
    """The file with these faults, by their numbers."""
    text = (ROOT / file).read_text()
    for number, fault in faults.items():
        before, right, wrong, behind = fault.parts
        if text.count(before + right + behind) != 1:
            raise SystemExit(f"{file}: {text.count(before + right + behind)} places read {before + right + behind!r}")
        chosen = f"fp8amp_fault == {number}"
        both = f"({chosen} ? ({wrong}) : ({right}))"
        if right.endswith(";"):
            both = f"if ({chosen}) {{ {wrong} }} else {{ {right} }}"
        text = text.replace(before + right + behind, before + both + behind)
    return "extern int fp8amp_fault;\n" + text


class Build:
    """The faulty objects and programs, made by the build's own commands with other files."""

    def __init__(self, folder: Path, place: Path, faults: dict[int, Fault]) -> None:
        self.folder, self.place = folder, place
        self.commands = cache(self._commands)
        self.files = {fault.file for fault in faults.values()}
        for file in self.files:
            copy = place / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(faulty(file, {number: fault for number, fault in faults.items() if fault.file == file}))
        (place / "choice.cpp").write_text(CHOICE)

    def _commands(self, test: str) -> list[list[str]]:
        """All that makes the test, the link last."""
        listed = run(["ninja", "-t", "commands", f"test_{test}"], self.folder)
        return [shlex.split(line.removeprefix(": && ").split(" && ")[0]) for line in listed.splitlines()]

    def output(self, unit: str, sanitize: bool) -> str:
        return str(self.place / f"{unit.replace('/', '_')}{'.sanitized' if sanitize else ''}.o")

    def compile(self, made: Object, test: str) -> None:
        unit, sanitize = made
        old = next(command for command in self.commands(test) if command[-1] == str(ROOT / unit))
        skip = {i + k for i, word in enumerate(old) for k in (0, 1) if word in ("-MT", "-MF", "-o")}
        kept = [word for i, word in enumerate(old[1:-1], 1) if i not in skip and word not in ("-MD", "-c")]
        source = self.place / unit if unit in self.files else ROOT / unit
        extra = ["-O1", "-w", *(SANITIZERS if sanitize else [])]
        out = ["-o", self.output(unit, sanitize), "-c", str(source)]
        run([old[0], f"-I{self.place}", *kept, *extra, *out], self.folder)

    def link(self, program: Program) -> str:
        """The test with the faulty object before its own, or in its place if that is the unit."""
        (unit, sanitize), test = program
        old = self.commands(test)[-1]
        objects, out = [i for i, word in enumerate(old) if word.endswith(".o")], old.index("-o")
        own = [old[i] for i in objects if not old[i].endswith(f"/{Path(unit).name}.o")]
        first = [self.output(unit, sanitize), str(self.place / "choice.cpp")]
        first += [self.output(name, True) for name in EMULATOR if sanitize]
        made = self.output(f"{unit}.{test}", sanitize).removesuffix(".o")
        flags = [*old[: objects[0]], *(SANITIZERS if sanitize else [])]
        run([*flags, *first, *own, "-o", made, *old[out + 2 :]], self.folder)
        return made


def passes(program: str, filter: str, number: int) -> bool:
    command = [program, "--gtest_brief=1", "--gtest_fail_fast", f"--gtest_filter={filter}"]
    try:
        done = subprocess.run(command, env=os.environ | {VARIABLE: str(number)}, capture_output=True, text=True,
                              errors="replace", timeout=SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    if "0 tests from 0 test" in done.stdout:
        raise SystemExit(f"{Path(program).name} has no test {filter}")
    return done.returncode == 0


def make_programs(build: Build, faults: Iterable[Fault], pool: ThreadPoolExecutor) -> dict[Program, str]:
    programs = sorted({program_of(fault) for fault in faults})
    run(["cmake", "--build", ".", "--target", *sorted({f"test_{p.test}" for p in programs})], build.folder)
    objects = {program.object: program.test for program in programs}
    if any(made.sanitize for made in objects):
        objects |= {Object(unit, True): programs[0].test for unit in EMULATOR}
    list(pool.map(build.compile, objects.keys(), objects.values()))
    return dict(zip(programs, pool.map(build.link, programs), strict=True))


def seed(build: Build, faults: dict[int, Fault], jobs: int) -> int:
    """The number of faults that are found."""
    with ThreadPoolExecutor(jobs) as pool:
        programs = make_programs(build, faults.values(), pool)
        filters = defaultdict(set)
        for fault in faults.values():
            filters[program_of(fault)].add(fault.filter)
        sound = [(programs[program], filter) for program, used in filters.items() for filter in sorted(used)]
        for (program, filter), passed in zip(sound, pool.map(lambda way: passes(*way, 0), sound), strict=True):
            if not passed:
                raise SystemExit(f"{Path(program).name} {filter} fails without any fault")

        def attempt(number: int) -> tuple[bool, float]:
            fault, start = faults[number], time.monotonic()
            return passes(programs[program_of(fault)], fault.filter, number), time.monotonic() - start

        found = 0
        for fault, (passed, seconds) in zip(faults.values(), pool.map(attempt, faults), strict=True):
            found += not passed
            change = " ".join(fault.text.split())
            print(f"{'NOT FOUND' if passed else fault.test:16} {seconds:4.0f} s  {fault.file}: {change}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--least", type=int, help="faults to be found (default: all but 2)")
    parser.add_argument("--only", default="", help="faults whose file, text or source contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    start = time.monotonic()
    faults = {i: fault for i, fault in enumerate(FAULTS, 1) if args.only in fault.file + fault.text + fault.unit}
    with tempfile.TemporaryDirectory() as place:
        found = seed(Build(args.build.resolve(), Path(place), faults), faults, args.jobs)
    print(f"{found} of {len(faults)} faults found, {(time.monotonic() - start) / 60:.1f} minutes")
    return 0 if found >= (len(faults) - 2 if args.least is None else args.least) else 1


if __name__ == "__main__":
    sys.exit(main())
