"""Exchanging the contents of a parameter while it stays the very object that modules, optimizers and users hold.

torch.utils.swap_tensors does the exchange; here is what it loses: hooks, `.grad` and attributes.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .policies import E4M3
from .scaled_tensor import FIELDS, ScaledTensor, scaled


class Hooks(NamedTuple):
    """The hook dicts of one parameter. They stay the same objects, so that the handles users hold go on to work."""

    gradient: Any
    accumulated: Any


def take_hooks(parameter: Tensor) -> Hooks:
    """Take the hooks off: a swap would leave their dicts behind, dead, and hooks registered later would never run."""
    state: Any = parameter
    hooks = Hooks(state._backward_hooks, state._post_accumulate_grad_hooks)
    if hooks.gradient is not None:
        state._backward_hooks = None
    if hooks.accumulated is not None:
        state._post_accumulate_grad_hooks = None
    return hooks


def give_hooks(parameter: Tensor, hooks: Hooks) -> None:
    """Put hooks back on."""
    state: Any = parameter
    if hooks.gradient is not None:
        state._backward_hooks = hooks.gradient
    if hooks.accumulated is not None:
        state._post_accumulate_grad_hooks = hooks.accumulated


def swap(parameter: Tensor, other: Tensor) -> None:
    """Exchange the contents of two parameters: `parameter` stays the object that everybody holds. Hooks and
    attributes stay with it.

    Raises RuntimeError if a view, a weak reference or a live graph holds its old content; nothing has changed then.
    """
    hooks, grad = take_hooks(parameter), parameter.grad
    attributes = {k: v for k, v in parameter.__dict__.items() if k not in other.__dict__ and k not in FIELDS}
    parameter.grad = None
    try:
        _exchange(parameter, other)
        parameter.__dict__.update(attributes)
        for name in attributes:
            other.__dict__.pop(name, None)
    finally:
        parameter.grad = _like(grad, parameter)
        give_hooks(parameter, hooks)


def _like(grad: Tensor | None, parameter: Tensor) -> Tensor | None:
    if grad is None or not isinstance(parameter, ScaledTensor) or isinstance(grad, ScaledTensor):
        return grad
    return scaled(grad, E4M3, role="gradient", dtype=parameter.dtype)


def check_swappable(parameter: Tensor) -> None:
    """RuntimeError if something still holds the content of `parameter`: a view, a weak reference, or a graph before
    its backward.

    torch would let one case pass, a graph that holds the gradient accumulator alone, and fail in that graph's backward.
    """
    if weakref.getweakrefs(parameter):
        raise RuntimeError("a weak reference still holds it")
    if parameter._use_count() > 1:  # type: ignore[attr-defined]
        raise RuntimeError("a view or a graph before its backward still holds it")


def _exchange(parameter: Tensor, other: Tensor) -> None:
    swap_tensors: Any = torch.utils.swap_tensors
    try:
        swap_tensors(parameter, other)
    except RuntimeError as error:
        raise RuntimeError(f"a view, a weak reference or a live graph still holds it ({error})") from None
