"""Fails on a file that breaks the rules for every text here: at most 400 lines, no catch-all names, no
unfinished work, no path of one particular machine.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
CODE = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
CATCH_ALL = re.compile(r"(^|_)(utils?|commons?|helpers?|misc)(_|\.|$)")
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.*/-])/(work|farm|root|home/\w+)/")


def problems(path: Path) -> list[str]:
    """One line for each rule that this file breaks."""
    found = []
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    if path.suffix in CODE:
        if len(lines) > MAX_LINES:
            found.append(f"{path}: {len(lines)} lines, at most {MAX_LINES}")
        if CATCH_ALL.search(path.name):
            found.append(f"{path}: a name that says nothing of its content")
    for number, line in enumerate(lines, 1):
        if path.suffix in CODE and LEFTOVER.search(line):
            found.append(f"{path}:{number}: unfinished work: {line.strip()}")
        if MACHINE_PATH.search(line):
            found.append(f"{path}:{number}: path of one machine: {line.strip()}")
    return found


def main() -> int:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = [Path(name) for name in names if name and (ROOT / name).is_file()]
    binary = {".png", ".gz", ".npz", ".bin", ".safetensors", ".pdf"}
    found = [line for path in paths if path.suffix not in binary for line in problems(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
