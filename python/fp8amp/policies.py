"""The policies that the casts and the optimizer take, as the numbers the dispatcher ops use and the names a user types.

Each is an enum. ``parse`` turns a name into a member and refuses any other with one ValueError that lists the names.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar

import torch

_Member = TypeVar("_Member", bound="_Policy")


class _Policy(enum.IntEnum):
    @classmethod
    def parse(cls: type[_Member], value: Any, argument: str) -> _Member:
        """The member called `value` (a name in lower case, or a member); ValueError naming `argument` otherwise."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__ and value == value.lower():
            return cls[value.upper()]
        names = ", ".join(repr(name.lower()) for name in cls.__members__)
        raise ValueError(f"{argument} must be one of {names}, got {value!r}")


class Rounding(_Policy):
    """How a value between two codes is placed. Stochastic rounding is counter based: equal seeds give equal bits."""

    NEAREST = 0
    STOCHASTIC = 1


class ScaleRounding(_Policy):
    """``power_of_two`` clears the mantissa of the scale (it rounds down), ``exact`` takes fmax / amax as it is."""

    POWER_OF_TWO = 0
    EXACT = 1


class Accumulation(_Policy):
    """The accumulator of the GEMM. ``hopper`` models that of an H100 bit by bit: on the CPU, slow, for studies."""

    DEFAULT = 0
    HOPPER = 1


def scale_rule(name: str) -> ScaleRounding:
    """The member called `name`, a name that has been checked; torch.compile can trace this, and not `parse`."""
    return ScaleRounding.EXACT if name == "exact" else ScaleRounding.POWER_OF_TWO


class Overflow(_Policy):
    """What an infinite input becomes: the largest finite value (weights, activations), or NaN (gradients)."""

    SATURATE = 0
    NAN = 1


E4M3, E5M2, FP16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16
FORMAT_MAX = {E4M3: 448.0, E5M2: 57344.0, FP16: 65504.0}
"""Largest finite number of each format that a ScaledTensor can hold."""

_FORMAT_NAMES = {"e4m3": E4M3, "e5m2": E5M2, "fp16": FP16, "float16": FP16}


def parse_format(value: Any, argument: str) -> torch.dtype:
    """A storage format from ``"e4m3"``, ``"e5m2"``, ``"fp16"`` or the torch dtype; ValueError naming `argument`
    otherwise."""
    found = _FORMAT_NAMES.get(value) if isinstance(value, str) else value
    if isinstance(found, torch.dtype) and found in FORMAT_MAX:
        return found
    raise ValueError(f"{argument} must be 'e4m3', 'e5m2', 'fp16' or the torch dtype of one of them, got {value!r}")
