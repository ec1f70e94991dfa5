#!/usr/bin/env python3
"""Do the tests of the CUDA backend bite? Seeds the faults of faults.py one by one and runs the tests on the emulator.

    run.py [--least N] [--only WORD]     exit 1 if fewer than N faults (all but 2) are found; half an hour

Works on a copy of the tree in build/mutation, built with AddressSanitizer and UBSan. A fault is found by a test that
fails, crashes or does not end.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent.parent
TREE, BUILD = ROOT / "build" / "mutation" / "tree", ROOT / "build" / "mutation" / "cpp"
SECONDS = 300  # for a test, which takes a tenth of it


def copy_tree() -> None:
    """Every file of the repository that differs from its copy; what git ignores stays behind."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout  # fmt: skip
    for name in listed.split("\0"):
        source, copy = ROOT / name, TREE / name
        if name and source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())


def configure() -> None:
    names = sorted({test for fault in FAULTS for test in fault.tests})
    subprocess.run(["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}",
                    "-DCMAKE_BUILD_TYPE=Debug", "-DFP8AMP_SANITIZE=address,undefined", "-DFP8AMP_TESTS=ON",
                    f"-DFP8AMP_TEST_FILTER=({'|'.join(names)})$"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip


def builds(test: str) -> bool:
    command = ["cmake", "--build", str(BUILD), "--target", f"test_{test}"]
    return subprocess.run(command, capture_output=True).returncode == 0


def passes(test: str) -> bool:
    command = [str(BUILD / "tests" / "emulator" / f"test_{test}"), "--gtest_brief=1", "--gtest_fail_fast"]
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def killer(fault: Fault) -> str:
    """The test that finds the fault; "" if none does."""
    path = TREE / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        sys.exit(f"{fault.file}: {text.count(fault.old)} places read {fault.old!r}")
    try:
        path.write_text(text.replace(fault.old, fault.new))
        for test in fault.tests:
            if not builds(test):
                sys.exit(f"{fault.file}: does not compile with {fault.new!r}")
            if not passes(test):
                return test
        return ""
    finally:
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=int, help="faults to be found (default: all but 2)")
    parser.add_argument("--only", default="", help="faults whose file or text contains this")
    args = parser.parse_args()
    faults = [fault for fault in FAULTS if args.only in fault.file + fault.old]
    copy_tree()
    configure()
    for test in sorted({test for fault in faults for test in fault.tests}):
        if not builds(test) or not passes(test):
            sys.exit(f"test_{test} fails without any fault")
    found = 0
    for fault in faults:
        start = time.monotonic()
        test = killer(fault)
        found += bool(test)
        change = " ".join(f"{fault.old}  ->  {fault.new}".split())
        print(f"{test or 'NOT FOUND':15} {time.monotonic() - start:4.0f} s  {fault.file}: {change}", flush=True)
    print(f"{found} of {len(faults)} faults found")
    return 0 if found >= (len(faults) - 2 if args.least is None else args.least) else 1


if __name__ == "__main__":
    sys.exit(main())
