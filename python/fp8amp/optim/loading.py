"""Optimizer.load_state_dict without torch's cast of every state to its parameter's dtype, which would turn FP8 bytes
into numbers."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

from torch.optim import Optimizer

from .groups import check_group
from .state import check_state, convert_state


def load_state_dict(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """torch's contract - hooks, group checks, deep copy - with states that keep their bits, or are converted by
    value."""
    caller = f"{type(optimizer).__name__}.load_state_dict"
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(f"{caller}: state_dict must hold 'state' and 'param_groups', got {_described(state_dict)}")
    state_dict = state_dict.copy()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        replaced = hook(optimizer, state_dict)
        if replaced is not None:
            state_dict = replaced
    saved, groups = state_dict["param_groups"], optimizer.param_groups
    if not isinstance(saved, (list, tuple)) or not isinstance(state_dict["state"], dict):
        seen = f"{type(saved).__name__} and {type(state_dict['state']).__name__}"
        raise ValueError(f"{caller}: 'param_groups' must be a list and 'state' a dict, got {seen}")
    if len(saved) != len(groups):
        raise ValueError(f"{caller}: state_dict has {len(saved)} parameter groups, the optimizer {len(groups)}")
    for index, (theirs, ours) in enumerate(zip(saved, groups, strict=True)):
        if not isinstance(theirs, dict) or not isinstance(theirs.get("params"), (list, tuple)):
            raise ValueError(f"{caller}: group {index} must be a dict with a list 'params', got {_described(theirs)}")
        check_group(f"{caller}: group {index}", theirs)
        if len(theirs["params"]) != len(ours["params"]):
            raise ValueError(
                f"{caller}: group {index} has {len(theirs['params'])} parameters in state_dict, "
                f"{len(ours['params'])} in the optimizer"
            )
    parameters = dict(
        zip(
            chain.from_iterable(g["params"] for g in saved),
            chain.from_iterable(g["params"] for g in groups),
            strict=True,
        )
    )
    states: dict[Any, Any] = {}
    for key, state in state_dict["state"].items():
        if key in parameters:
            check_state(caller, parameters[key], state)
            states[parameters[key]] = convert_state(parameters[key], state, optimizer.policy) if state else {}
        else:
            states[key] = copy.deepcopy(state)
    new_groups = []
    for theirs, ours in zip(saved, groups, strict=True):
        group = {name: copy.deepcopy(value) for name, value in theirs.items() if name != "params"}
        if "param_names" in ours and "param_names" not in group:
            group["param_names"] = ours["param_names"]
        new_groups.append({**group, "params": ours["params"]})
    new_state: Any = optimizer.state.__class__(dict)
    new_state.update(states)
    Optimizer.__setstate__(optimizer, {"state": new_state, "param_groups": new_groups})
    optimizer.__setstate__({})
    optimizer.__dict__.pop("_seen_versions", None)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _described(value: Any) -> str:
    return f"keys {sorted(map(str, value))}" if isinstance(value, dict) else type(value).__name__
