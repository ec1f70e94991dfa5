"""Interleaved timing: ours and the baseline in turn, in one run, so that a drifting machine meets both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One comparison: medians, and ratio = ours / baseline as the median over the rounds. goal and floor are ratios."""

    name: str
    threads: int
    ours_s: float
    baseline_s: float
    ratio: float
    goal: float | None
    floor: float | None
    baseline: str

    @property
    def verdict(self) -> str:
        if self.goal is None or self.floor is None:
            return ""
        return "goal" if self.ratio <= self.goal else "floor" if self.ratio <= self.floor else "MISSED"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(
    name: str,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    *,
    baseline_name: str,
    threads: int,
    goal: float | None = None,
    floor: float | None = None,
    rounds: int = 9,
    minimum_s: float = 0.05,
) -> Row:
    """Time both in turn: `rounds` pairs after one warm-up, each side repeated until it takes minimum_s; medians."""
    repeats = []
    for function in (ours, baseline):
        function()
        repeats.append(max(1, int(minimum_s / max(seconds(function), 1e-7))))
    pairs = []
    for _ in range(rounds):
        a = seconds(lambda: [ours() for _ in range(repeats[0])]) / repeats[0]
        b = seconds(lambda: [baseline() for _ in range(repeats[1])]) / repeats[1]
        pairs.append((a, b))
    return Row(
        name=name,
        threads=threads,
        ours_s=statistics.median(a for a, _ in pairs),
        baseline_s=statistics.median(b for _, b in pairs),
        ratio=statistics.median(a / b for a, b in pairs),
        goal=goal,
        floor=floor,
        baseline=baseline_name,
    )
