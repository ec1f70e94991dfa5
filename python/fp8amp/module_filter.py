"""Which layers of a model become FP8, and why the others do not."""

from __future__ import annotations

import fnmatch
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .nn.conv1d import Conv1D, transformers_class
from .nn.layer import ScaledWeight
from .nn.linear import Linear

logger = logging.getLogger("fp8amp")

Names = str | Iterable[str]
Predicate = Callable[[str, nn.Module], bool]
SMALLEST_SIDE = 16
"""Layers with a smaller side are left alone by default: nothing to gain, and adapters of low rank are among them."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Selection:
    """The layers to convert, by name, and the ones left alone with the reason."""

    chosen: dict[str, nn.Module] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def is_candidate(module: nn.Module) -> bool:
    """An exact nn.Linear, or an exact Conv1D of transformers. A subclass may have a forward of its own."""
    return type(module) is nn.Linear or (transformers_class() is not None and type(module) is transformers_class())


def fp8_class(module: nn.Module) -> type[nn.Module]:
    """The class that a candidate becomes."""
    if type(module) is nn.Linear:
        return Linear
    from .nn import conv1d

    made: type[nn.Module] = conv1d.TransformersConv1D
    return made


def fp8_layers(model: nn.Module) -> dict[str, ScaledWeight]:
    """The FP8 layers of a model by name. Raises TypeError if model is no nn.Module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"fp8_layers: model must be a torch.nn.Module, got {type(model).__name__}")
    return {name: module for name, module in model.named_modules() if isinstance(module, (Linear, Conv1D))}


def parse_filter(
    value: Names | Predicate | None, argument: str, layers: Iterable[str]
) -> tuple[Predicate | None, list[str]]:
    """A predicate from fnmatch patterns of module names or from one pattern, and the patterns that match none of
    `layers`; TypeError naming `argument` otherwise."""
    if value is None:
        return None, []
    if callable(value) and not isinstance(value, type):
        _check_predicate(value, argument)
        return value, []
    patterns: Any = [value] if isinstance(value, str) else value
    if not isinstance(patterns, Iterable):
        raise TypeError(f"{argument} must be names or a predicate (name, module) -> bool, got {value!r}")
    patterns = list(patterns)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{argument} must hold names only, got {patterns!r}")

    def matches(name: str, module: nn.Module) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return matches, [p for p in patterns if not any(fnmatch.fnmatchcase(name, p) for name in layers)]


def _check_predicate(value: Any, argument: str) -> None:
    try:
        signature = inspect.signature(value)
    except ValueError:  # some builtins have none
        return
    try:
        signature.bind("", None)
    except TypeError:
        raise TypeError(f"{argument} must be a predicate of two arguments (name, module), got {value!r}") from None


def select(model: nn.Module, include: Names | Predicate | None, exclude: Names | Predicate | None) -> Selection:
    """Sort the candidates of a model.

    Left alone always: a subclass of nn.Linear, a weight that another module holds too, that is no parameter of its
    module, or that is neither float32, float16 nor bfloat16. By default also a layer with a side under 16; `include`
    decides in place of that rule.
    """
    candidates = {name: module for name, module in model.named_modules() if is_candidate(module)}
    others = {
        name: f"is a {type(module).__name__}"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not isinstance(module, Linear) and name not in candidates
    }
    layers = [*candidates, *fp8_layers(model)]
    wanted, unknown = parse_filter(include, "initialize: include", layers)
    if unknown and layers:
        raise ValueError(f"initialize: include must match layers of the model, got {unknown!r}, which match none")
    unwanted, unknown = parse_filter(exclude, "initialize: exclude", layers)
    if unknown and layers:
        logger.warning("fp8amp: exclude=%r matches no layer of the model", unknown)
    owners = _owners(model)
    selection = Selection(left=others)
    for name, module in candidates.items():
        reason = _reason(name, module, wanted, unwanted, owners)
        if reason is None:
            selection.chosen[name] = module
        else:
            selection.left[name] = reason
    return selection


def _reason(
    name: str,
    module: nn.Module,
    wanted: Predicate | None,
    unwanted: Predicate | None,
    owners: dict[int, list[str]],
) -> str | None:
    weight: Any = module._parameters.get("weight")
    if unwanted is not None and unwanted(name, module):
        return "excluded"
    if wanted is not None and not wanted(name, module):
        return "not included"
    if weight is None:
        return "its weight is no parameter"
    if weight.dtype not in _DTYPES:
        return str(weight.dtype).removeprefix("torch.")
    others = [owner for owner in owners[_memory(weight)] if owner != name]
    if others:
        return f"tied to {others[0] or 'the model itself'}"
    rows, columns = weight.shape if not isinstance(module, nn.Linear) else weight.shape[::-1]
    if wanted is None and min(rows, columns) < SMALLEST_SIDE:
        side, word = (columns, "columns") if columns < SMALLEST_SIDE else (rows, "rows")
        return f"{side} {word}"
    return None


def _owners(model: nn.Module) -> dict[int, list[str]]:
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(_memory(parameter), []).append(name)
    return owners


def _memory(parameter: Tensor) -> int:
    """Equal for parameters that are one, or lie in one piece of memory, as `nn.Parameter(other.data)` does: a
    converted weight has memory of its own."""
    if type(parameter) is not nn.Parameter or parameter.is_meta or parameter.numel() == 0:
        return id(parameter)
    return parameter.untyped_storage().data_ptr() or id(parameter)


def summary(level: str, model: nn.Module, left: dict[str, str]) -> str:
    """The line that initialize logs: ``fp8amp O2: 48 of 50 layers, 98.1 % of 124.4 M parameters in FP8; left alone:
    ...``."""
    converted = fp8_layers(model)
    managed = {id(m.weight): m.weight.numel() for m in converted.values()}
    total = sum(p.numel() for p in model.parameters() if not isinstance(p, nn.UninitializedParameter))
    share = 100.0 * sum(managed.values()) / max(total, 1)
    text = (
        f"fp8amp {level}: {len(converted)} of {len(converted) + len(left)} layers, {share:.1f} % of {_count(total)} "
        "parameters in FP8"
    )
    if left:
        listed = [f"{name} ({reason})" for name, reason in list(left.items())[:8]]
        more = [f"{len(left) - 8} more"] if len(left) > 8 else []
        text += "; left alone: " + ", ".join(listed + more)
    return text


def _count(number: int) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f} {unit}"
    return str(number)
