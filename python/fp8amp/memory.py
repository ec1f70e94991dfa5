"""fp8amp.memory_report: what a training run holds, in bytes by kind of tensor, and per parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _ops
from .module_filter import fp8_layers
from .nn.block_linear import weight_copy_bytes
from .nn.weight_cache import fp8_weight_bytes
from .optim import Adam
from .optim.state import is_managed, state_bytes
from .recipe import FineScaling, Recipe
from .scaled_tensor import ScaledTensor

COPIES = "FP8 copies of weights"


def memory_bytes(x: Tensor) -> int:
    """Bytes that the elements of x take: of payload and scale for a ScaledTensor, whose `nbytes` tells of its logical
    dtype. Raises TypeError if x is no tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"memory_bytes: x must be a torch.Tensor, got {type(x).__name__}")
    if isinstance(x, ScaledTensor):
        return x.payload.nbytes + x.scale_inv.nbytes
    return x.nbytes


@dataclass
class MemoryRow:
    """One kind of tensor. `bytes` is what a training step holds of it, `allocated` what exists now, `when` at which
    moment it exists."""

    kind: str
    when: str
    tensors: int = 0
    bytes: int = 0
    allocated: int = 0

    def add(self, held: int, allocated: int) -> None:
        """Count one tensor."""
        self.tensors, self.bytes, self.allocated = self.tensors + 1, self.bytes + held, self.allocated + allocated


@dataclass
class MemoryReport:
    """The table of `memory_report`. str() is the table.

    Attributes:
        rows: by kind of tensor; the copies of FP8 weights are a row of their own.
        fp8_parameters, plain_parameters: numbers of elements in FP8 layers' weights and in all other parameters.
        total_bytes: weights, gradients and states of all parameters.
        bytes_per_parameter: weight + gradient + states of the FP8-managed parameters (of all, in a model without),
            per element.
        peak_bytes: total_bytes and the FP8 copies, between forward and optimizer step; activations come on top.
        uncounted: number of trainable parameters without optimizer states, which are therefore missing from the sums.
    """

    rows: list[MemoryRow]
    fp8_parameters: int
    plain_parameters: int
    managed_bytes: int = field(repr=False)
    uncounted: int = 0

    @property
    def total_bytes(self) -> int:
        """Weights, gradients and states of all parameters."""
        return sum(row.bytes for row in self.rows if row.kind != COPIES)

    @property
    def peak_bytes(self) -> int:
        """total_bytes and the FP8 copies of weights."""
        return sum(row.bytes for row in self.rows)

    @property
    def bytes_per_parameter(self) -> float:
        """See the class."""
        if self.fp8_parameters:
            return self.managed_bytes / self.fp8_parameters
        return self.total_bytes / max(self.plain_parameters, 1)

    def __str__(self) -> str:
        numbers = {"FP8": self.fp8_parameters, "plain": self.plain_parameters}
        lines = [f"{'kind':26s} {'tensors':>7s} {'bytes':>15s} {'B/param':>8s} {'now':>15s}  exists"]
        for row in self.rows:
            count = numbers["plain" if row.kind.startswith("plain") else "FP8"]
            lines.append(
                f"{row.kind:26s} {row.tensors:7d} {row.bytes:15,d} {row.bytes / max(count, 1):8.3f} "
                f"{row.allocated:15,d}  {row.when}"
            )
        lines.append(f"{'total without copies':26s} {'':7s} {self.total_bytes:15,d}")
        lines.append(
            f"{self.fp8_parameters:,d} parameters in FP8 layers, {self.plain_parameters:,d} others; "
            f"{self.bytes_per_parameter:.3f} bytes per {'FP8-managed ' if self.fp8_parameters else ''}parameter "
            "(weight + gradient + states)"
        )
        if self.uncounted:
            lines.append(f"without optimizer states of {self.uncounted:,d} trainable tensors, which do not exist (yet)")
        return "\n".join(lines)


_ALWAYS = "always"
_AFTER_BACKWARD = "from backward to zero_grad"
_AFTER_STEP = "from the first step on"


def memory_report(model: nn.Module, optimizer: Optimizer | None = None) -> MemoryReport:
    """Count what model and optimizer hold.

    A gradient that does not exist at the moment is counted with the bytes it will have (E4M3 and a scale for an FP8
    layer's weight), and so are the FP8 copies and the states of an optimizer of fp8amp; the column `now` has what is
    allocated. States of any other optimizer count once they exist, after its first step; the table says so where they
    are missing. Shared parameters count once.

    Raises TypeError if model or optimizer is of another kind.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"memory_report: model must be a torch.nn.Module, got {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"memory_report: optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    table = _Table()
    held = {id(p) for group in optimizer.param_groups for p in group["params"]} if optimizer is not None else set()
    uncounted = 0
    layers = {id(layer.weight): layer for layer in fp8_layers(model).values()}
    for parameter in model.parameters():
        layer = layers.get(id(parameter))
        dense_gradient = layer is None or layer.gradient_format is None
        recipe = layer.recipe if layer is not None and layer.gemm == "fp8" else None
        table.count_parameter(parameter, dense_gradient, recipe)
        state = None if optimizer is None else optimizer.state.get(parameter)
        if state:
            table.count_states(parameter, {k: memory_bytes(v) for k, v in state.items() if isinstance(v, Tensor)})
        elif parameter.requires_grad and (optimizer is None or id(parameter) in held):
            if isinstance(optimizer, Adam):
                table.count_states(parameter, state_bytes(parameter, optimizer.policy), exist=False)
            else:
                uncounted += 1
    return MemoryReport(
        list(table.rows.values()), table.managed_elements, table.plain_elements, table.managed_bytes, uncounted
    )


class _Table:
    """The rows while they are counted."""

    def __init__(self) -> None:
        self.rows: dict[str, MemoryRow] = {}
        self.managed_elements = self.plain_elements = self.managed_bytes = 0

    def _add(self, managed: bool, kind: str, when: str, held: int, allocated: int) -> None:
        name = kind if managed else f"plain {kind}"
        self.rows.setdefault(name, MemoryRow(name, when)).add(held, allocated)
        if managed and kind != COPIES:
            self.managed_bytes += held

    def count_parameter(self, parameter: Tensor, dense_gradient: bool, recipe: Recipe | None) -> None:
        """`recipe`: of the layer that makes FP8 copies of it, if one does."""
        managed = is_managed(parameter)
        if managed:
            self.managed_elements += parameter.numel()
        else:
            self.plain_elements += parameter.numel()
        if isinstance(parameter, ScaledTensor):
            self._add(managed, "weight payload", _ALWAYS, parameter.payload.nbytes, parameter.payload.nbytes)
            self._add(managed, "weight scale", _ALWAYS, parameter.scale_inv.nbytes, parameter.scale_inv.nbytes)
        else:
            self._add(
                managed, "weight payload" if managed else "parameter", _ALWAYS, parameter.nbytes, parameter.nbytes
            )
        if parameter.requires_grad:
            expected = parameter.numel() * (parameter.dtype.itemsize if dense_gradient else 1) + (
                0 if dense_gradient else 4
            )
            now = 0 if parameter.grad is None else memory_bytes(parameter.grad)
            self._add(managed, "gradient", _AFTER_BACKWARD, now or expected, now)
        if recipe is not None:
            copies = _copy_bytes(parameter, recipe)
            if copies:
                self._add(True, COPIES, "from forward to optimizer step", copies, fp8_weight_bytes(parameter))

    def count_states(self, parameter: Tensor, state: dict[str, int], exist: bool = True) -> None:
        for name, size in state.items():
            kind = "step, amax" if name in ("step", "amax") else name
            self._add(is_managed(parameter), kind, _AFTER_STEP, size, size if exist else 0)


def _copy_bytes(weight: Tensor, recipe: Recipe) -> int:
    if isinstance(recipe, FineScaling):
        return weight_copy_bytes(weight, recipe)
    if isinstance(weight, ScaledTensor) and weight.format is torch.float8_e4m3fn:
        return 0  # it is its own
    copies = 2 if _ops.gemm_prefers_k_contiguous(weight.device) else 1  # plain and transposed
    return copies * weight.numel() + 4
