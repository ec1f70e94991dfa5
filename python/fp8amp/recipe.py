"""Scaling recipes: how the scales of a linear layer's FP8 operands are chosen.

``scale`` multiplies into the format; scale = fmax / (amax * 2^margin), rounded down to a power of two or kept exact.

- current: the amax of the tensor being cast (FP8-AMAX, arXiv 2309.17224; the in-time scaling of MS-AMP);
- delayed: the largest amax of the last casts (as Transformer Engine does);
- constant: one bias for all, scale = 2^bias (FP8-CSCALE, arXiv 2309.17224);
- rowwise, block: the amax of each row, or of each 1x128 piece and 128x128 block (DeepSeek-V3, arXiv 2412.19437). A
  tensor that is summed along both its sides (in the forward and in the backward) is cast along each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _ops
from .policies import Overflow, ScaleRounding, scale_rule


class Operand(NamedTuple):
    """A GEMM operand: numbers = payload * scale_inv. Where asked for, `transposed`: the payload transposed, and
    `column_sums`: the sums over the rows of what was cast, float32."""

    payload: Tensor
    scale_inv: Tensor
    transposed: Tensor | None = None
    column_sums: Tensor | None = None


class Recipe:
    """Base of the recipes. `cast` turns one operand of a GEMM into FP8."""

    window = 0
    """Length of the amax history that `cast` needs; 0: none."""

    def cast(
        self,
        x: Tensor,
        x_scale_inv: Tensor | None,
        format: torch.dtype,
        overflow: Overflow,
        history: Tensor | None = None,
        update: bool = False,
        transposed: bool = False,
        column_sums: bool = False,
    ) -> Operand:
        """x * x_scale_inv as an operand, x contiguous; 2-D if `transposed` or `column_sums` is to be made.

        `history`: float32 [window + 2], where the recipe keeps one. `update`: this cast counts (training, not a
        recomputation).
        """
        raise NotImplementedError


def _check(recipe: str, name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{recipe}: {name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{recipe}: {name} must be from {low} to {high}, got {value}")


def _check_rounding(recipe: CurrentScaling | DelayedScaling | FineScaling) -> None:
    name = type(recipe).__name__
    _check(name, "margin", recipe.margin, -16, 16)
    ScaleRounding.parse(recipe.scale_rounding, f"{name}: scale_rounding")


def _operand(transposed: bool, x: Tensor, x_scale_inv: Tensor | None, format: torch.dtype, **options: Any) -> Operand:
    """By the ops' own names: with the transpose, by a history, or neither."""
    if transposed:
        payload, payload_t, scale_inv, _, *sums = _ops.quantize_transpose(x, x_scale_inv, format, **options)
        return Operand(payload, scale_inv, payload_t, *sums)
    quantize = _ops.quantize_delayed if "history" in options else _ops.quantize
    payload, scale_inv, _, *sums = quantize(x, x_scale_inv, format, **options)
    return Operand(payload, scale_inv, None, *sums)


def _scale_rule(recipe: CurrentScaling | DelayedScaling) -> dict[str, Any]:
    """How amax becomes the scale, by the ops' own names."""
    return {"scale_rounding": scale_rule(recipe.scale_rounding), "margin": recipe.margin}


@dataclass(frozen=True)
class CurrentScaling(Recipe):
    """The scale of each cast comes from the amax of the very tensor. The default.

    Args:
        margin: leaves 2^margin of head-room; -16 to 16.
        scale_rounding: ``"power_of_two"`` or ``"exact"``.
    """

    margin: int = 0
    scale_rounding: str = "power_of_two"

    def __post_init__(self) -> None:
        _check_rounding(self)

    def cast(
        self,
        x: Tensor,
        x_scale_inv: Tensor | None,
        format: torch.dtype,
        overflow: Overflow,
        history: Tensor | None = None,
        update: bool = False,
        transposed: bool = False,
        column_sums: bool = False,
    ) -> Operand:
        options = {"overflow": overflow, "column_sums": column_sums, **_scale_rule(self)}
        return _operand(transposed, x, x_scale_inv, format, **options)


@dataclass(frozen=True)
class DelayedScaling(Recipe):
    """Activations and output gradients are scaled by the largest amax of their last `history` casts.

    Until the history is full, and after a non-finite amax, the scale is the current one. Weights, which are cast once
    a step, always take the current scale. Evaluation and recomputation inside a backward pass leave the histories
    alone; a forward in training mode under ``no_grad`` counts, since reentrant checkpointing runs its forward in that
    way: use ``eval()`` to validate.

    Args:
        history: number of casts, 1 to 4096.
        margin: leaves 2^margin of head-room; -16 to 16.
        scale_rounding: ``"power_of_two"`` or ``"exact"``.
    """

    history: int = 16
    margin: int = 0
    scale_rounding: str = "power_of_two"

    def __post_init__(self) -> None:
        _check("DelayedScaling", "history", self.history, 1, 4096)
        _check_rounding(self)

    @property
    def window(self) -> int:  # type: ignore[override]
        """Length of the amax history."""
        return self.history

    def cast(
        self,
        x: Tensor,
        x_scale_inv: Tensor | None,
        format: torch.dtype,
        overflow: Overflow,
        history: Tensor | None = None,
        update: bool = False,
        transposed: bool = False,
        column_sums: bool = False,
    ) -> Operand:
        options = {"overflow": overflow, "column_sums": column_sums, **_scale_rule(self)}
        if history is not None:
            options |= {"history": history, "update": update}
        return _operand(transposed, x, x_scale_inv, format, **options)


@dataclass(frozen=True)
class ConstantScaling(Recipe):
    """scale = 2^bias for every activation and weight, 2^gradient_bias for every output gradient; no amax is taken.

    Args:
        bias: -31 to 31.
        gradient_bias: -31 to 31; by default the same as `bias`.
    """

    bias: int
    gradient_bias: int | None = None

    def __post_init__(self) -> None:
        _check("ConstantScaling", "bias", self.bias, -31, 31)
        if self.gradient_bias is not None:
            _check("ConstantScaling", "gradient_bias", self.gradient_bias, -31, 31)

    def cast(
        self,
        x: Tensor,
        x_scale_inv: Tensor | None,
        format: torch.dtype,
        overflow: Overflow,
        history: Tensor | None = None,
        update: bool = False,
        transposed: bool = False,
        column_sums: bool = False,
    ) -> Operand:
        scale = self.scale(x.device, gradient=overflow == Overflow.NAN)
        return _operand(transposed, x, x_scale_inv, format, scale=scale, overflow=overflow, column_sums=column_sums)

    def scale(self, device: torch.device, gradient: bool = False) -> Tensor:
        """2^bias, or 2^gradient_bias for output gradients: 0-d float32."""
        bias = self.gradient_bias if gradient and self.gradient_bias is not None else self.bias
        return torch.full((), 2.0**bias, dtype=torch.float32, device=device)


class FineScaling(Recipe):
    """Base of the recipes with many scales for a tensor, whose layers are in `nn.block_linear`: operands are E4M3,
    those of the backward too."""

    margin: int
    scale_rounding: str


@dataclass(frozen=True)
class RowwiseScaling(FineScaling):
    """A scale for each row of both operands of each of the three products, from the amax of that row.

    A row runs along the contraction: input and weight are cast once more, along their columns, for the backward. Output
    gradients are E4M3. On GPUs of compute capability 9.0 with cuBLASLt 12.9 or later the scales are cuBLASLt's own;
    elsewhere they multiply the sums of the same FP8 product.

    Args:
        margin: leaves 2^margin of head-room; -16 to 16.
        scale_rounding: ``"power_of_two"`` or ``"exact"``.
    """

    margin: int = 0
    scale_rounding: str = "power_of_two"

    def __post_init__(self) -> None:
        _check_rounding(self)


@dataclass(frozen=True)
class BlockScaling(FineScaling):
    """A scale for each 128x128 block of weights, and for each 1x128 piece, along the contraction, of inputs and output
    gradients, from its own amax. All operands are E4M3.

    On GPUs other than compute capability 9.0 with cuBLASLt 12.9 or later, and for products whose number of rows is no
    multiple of 8, operands are decoded to bfloat16 first, with one warning.

    Args:
        margin: leaves 2^margin of head-room; -16 to 16.
        scale_rounding: ``"power_of_two"`` or ``"exact"``.
    """

    margin: int = 0
    scale_rounding: str = "power_of_two"

    def __post_init__(self) -> None:
        _check_rounding(self)


_DEFAULT = CurrentScaling()  # made here: torch.compile cannot trace its checks


def check_recipe(recipe: object, argument: str) -> Recipe:
    """`recipe` itself, or CurrentScaling() for None; TypeError naming `argument` for anything else."""
    if recipe is None:
        return _DEFAULT
    if not isinstance(recipe, Recipe) or type(recipe) in (Recipe, FineScaling):
        raise TypeError(
            f"{argument} must be CurrentScaling(...), DelayedScaling(...), ConstantScaling(...), RowwiseScaling(...) "
            f"or BlockScaling(...), got {recipe!r}"
        )
    return recipe
