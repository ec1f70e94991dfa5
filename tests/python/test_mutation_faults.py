"""The mutation test itself takes minutes; that its faults still name code that is there shows here."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutation"))
from faults import FAULTS  # noqa: E402


def test_every_fault_stands_in_one_place() -> None:
    found = {
        fault.text: (ROOT / fault.file).read_text().count("".join(fault.parts[i] for i in (0, 1, 3)))
        for fault in FAULTS
    }
    assert {text: count for text, count in found.items() if count != 1} == {}
