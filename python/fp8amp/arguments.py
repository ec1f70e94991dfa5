"""Reading a number that a user gave."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

_FLOAT32_MAX = torch.finfo(torch.float32).max


def number(value: Any, argument: str) -> float:
    """A real number, or a tensor of one, as a float (infinite beyond the largest); TypeError or ValueError naming
    `argument` otherwise."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{argument} must be one number, got a tensor of shape {tuple(value.shape)}")
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value >= 1 else -math.inf  # type: ignore[operator]


def finite(value: Any, argument: str, low: float) -> float:
    """As `number`, at least `low` and finite as a float32, in which kernels take it; ValueError otherwise."""
    got = number(value, argument)
    if not low <= got <= _FLOAT32_MAX:
        raise ValueError(f"{argument} must be a finite float32 number of at least {low:g}, got {got}")
    return got
