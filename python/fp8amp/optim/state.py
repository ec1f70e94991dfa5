"""The optimizer state of one parameter: its precision, making it, and converting what stock Adam or another level left.

state = step (0-d float32), exp_avg, exp_avg_sq (both of the parameter's shape) and amax (float32 [4]: the largest
stored |parameter|,
|exp_avg|, exp_avg_sq and |gradient|, from which the next scales are bounded before the step's single pass).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import _ops
from ..arguments import number
from ..policies import E4M3, E5M2, FP16, Rounding
from ..scaled_tensor import ScaledTensor, plain_operand, scaled, scaled_zeros

State = dict[str, Any]
_FIRST = (torch.float32, E4M3)
_SECOND = (torch.float32, FP16, E4M3, E5M2)
MAX_SEED = 2**63


@dataclass(frozen=True)
class StatePolicy:
    """Precision and rounding of the optimizer. The formats are those of FP8-managed parameters; all others have
    float32 states."""

    exp_avg_format: torch.dtype = E4M3
    exp_avg_sq_format: torch.dtype = FP16
    master_rounding: Rounding = Rounding.STOCHASTIC
    moment_rounding: Rounding = Rounding.STOCHASTIC
    second_moment_rounding: Rounding = Rounding.NEAREST
    seed: int = 0


def parse_policy(
    caller: str,
    exp_avg_format: Any,
    exp_avg_sq_format: Any,
    master_rounding: Any,
    moment_rounding: Any,
    second_moment_rounding: Any,
    seed: Any,
) -> StatePolicy:
    """A StatePolicy of what a user typed; ValueError naming the argument otherwise."""
    for name, value, allowed in (
        ("exp_avg_format", exp_avg_format, _FIRST),
        ("exp_avg_sq_format", exp_avg_sq_format, _SECOND),
    ):
        if value not in allowed:
            raise ValueError(f"{caller}: {name} must be one of {', '.join(map(str, allowed))}, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MAX_SEED:
        raise ValueError(f"{caller}: seed must be an integer from 0 to 2^63 - 1, got {seed!r}")
    return StatePolicy(
        exp_avg_format,
        exp_avg_sq_format,
        Rounding.parse(master_rounding, f"{caller}: master_rounding"),
        Rounding.parse(moment_rounding, f"{caller}: moment_rounding"),
        Rounding.parse(second_moment_rounding, f"{caller}: second_moment_rounding"),
        seed,
    )


def is_managed(parameter: Tensor) -> bool:
    """Whether the weight is one of an FP8 layer, so that the policy's formats hold for it."""
    return isinstance(parameter, ScaledTensor) or getattr(parameter, "fp8amp_managed", False)


def _formats(parameter: Tensor, policy: StatePolicy) -> tuple[torch.dtype, torch.dtype]:
    return (
        (policy.exp_avg_format, policy.exp_avg_sq_format) if is_managed(parameter) else (torch.float32, torch.float32)
    )


def _zeros(parameter: Tensor, format: torch.dtype) -> Tensor:
    if format is torch.float32:
        return torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
    return scaled_zeros(parameter.detach(), format)


def make_state(parameter: Tensor, policy: StatePolicy) -> State:
    """Fresh states: zeros."""
    first, second = _formats(parameter, policy)
    device = parameter.device
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        "exp_avg": _zeros(parameter, first),
        "exp_avg_sq": _zeros(parameter, second),
        "amax": torch.zeros(4, dtype=torch.float32, device=device),
    }


def state_bytes(parameter: Tensor, policy: StatePolicy) -> dict[str, int]:
    """The bytes of each entry that `make_state` makes."""
    moments = [
        parameter.numel() * format.itemsize + (0 if format is torch.float32 else 4)
        for format in _formats(parameter, policy)
    ]
    return {"step": 4, "exp_avg": moments[0], "exp_avg_sq": moments[1], "amax": 16}


def stored_amax(x: Tensor) -> Tensor:
    """max |x| of the stored values of a plain or scaled tensor, 0-d float32."""
    numbers, scale_inv = plain_operand(x)
    raw = _ops.amax(numbers)
    return raw if scale_inv is None else raw * scale_inv


def check_state(caller: str, parameter: Tensor, state: Mapping[str, Any]) -> None:
    """ValueError if `state` is no Adam state of this parameter. An empty one is fine."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{caller}: the state of a parameter must be a dict, got {type(state).__name__}")
    if not state:
        return
    for name in ("step", "exp_avg", "exp_avg_sq"):
        if name not in state:
            raise ValueError(f"{caller}: the state of a parameter must hold {name!r}, got {sorted(map(str, state))}")
    if number(state["step"], f"{caller}: step") not in range(2**24):
        raise ValueError(f"{caller}: step must be a whole number from 0 to below 2^24, got {state['step']}")
    for name in ("exp_avg", "exp_avg_sq"):
        value = state[name]
        if not isinstance(value, Tensor) or value.shape != parameter.shape:
            seen = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{caller}: {name} must have the parameter's shape {tuple(parameter.shape)}, got {seen}")


def convert_state(parameter: Tensor, state: Mapping[str, Any], policy: StatePolicy) -> State:
    """`state` in the precision that the policy asks for: the same bits where it has it already, else converted by
    value.

    The result shares no memory with `state`; entries that Adam does not know are kept.
    """
    first, second = _formats(parameter, policy)
    device = parameter.device
    exp_avg = _convert(parameter, state["exp_avg"], first, policy.moment_rounding, policy.seed)
    exp_avg_sq = _convert(parameter, state["exp_avg_sq"], second, policy.second_moment_rounding, policy.seed)
    known = {
        "step": torch.as_tensor(state["step"], dtype=torch.float32).detach().clone().reshape(()).to(device),
        "exp_avg": exp_avg,
        "exp_avg_sq": exp_avg_sq,
        "amax": torch.zeros(4, dtype=torch.float32, device=device),  # taken by the next step
    }
    return known | {name: value for name, value in state.items() if name not in known}


def _convert(parameter: Tensor, value: Tensor, format: torch.dtype, rounding: Rounding, seed: int) -> Tensor:
    value = value.detach().to(parameter.device)
    if format is torch.float32:
        plain = value.dequantize(torch.float32) if isinstance(value, ScaledTensor) else value.to(torch.float32)
        return plain.contiguous().clone()
    if isinstance(value, ScaledTensor) and value.format is format and value.payload.is_contiguous():
        return ScaledTensor(value.payload.clone(), value.scale_inv.clone(), parameter.dtype, scale_rounding="exact")
    made = scaled(value, format, scale_rounding="exact", rounding=rounding, seed=seed, dtype=parameter.dtype)
    if format is FP16:  # v > 0 must not become 0 while m is not: the step would be m / eps
        lost = (made.payload == 0) & (value.dequantize() if isinstance(value, ScaledTensor) else value).gt(0)
        made.payload.masked_fill_(lost, 2.0**-24)
    return made
