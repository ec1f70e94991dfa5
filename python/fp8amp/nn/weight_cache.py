"""The E4M3 copy of a weight that the GEMMs read: made once per version of the weight, dropped after the optimizer's
step.

The key is the version of the payload, which every write bumps (`scaled_tensor.version`), so an update by anybody is
seen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..policies import E4M3, Overflow
from ..recipe import Recipe
from ..scaled_tensor import ScaledTensor, plain_operand, version


class _Copy(NamedTuple):
    source: Tensor
    version: int
    recipe: Recipe
    payload: Tensor
    scale_inv: Tensor


def fp8_weight(weight: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """(E4M3 payload, scale_inv) of a weight. A weight that is stored in E4M3 is its own copy; plain weights are cast
    each time."""
    if isinstance(weight, ScaledTensor) and weight.format is E4M3:
        return plain_operand(weight)[0], weight.scale_inv
    if not isinstance(weight, ScaledTensor) or torch.compiler.is_compiling():
        return recipe.cast(*plain_operand(weight), E4M3, Overflow.SATURATE)
    now, kept = version(weight), weight._fp8_copy
    if (
        kept is not None
        and kept.source is weight._payload
        and kept.version == now
        and now >= 0
        and kept.recipe == recipe
    ):
        return kept.payload, kept.scale_inv
    with torch.inference_mode(False):  # the next training step saves the copy for backward
        payload, scale_inv = recipe.cast(*plain_operand(weight), E4M3, Overflow.SATURATE)
    weight._fp8_copy = _Copy(weight._payload, now, recipe, payload, scale_inv) if now >= 0 else None
    return payload, scale_inv


def drop_fp8_weight(weight: Tensor) -> None:
    """Free the copy, if there is one."""
    if isinstance(weight, ScaledTensor):
        weight._fp8_copy = None


def fp8_weight_bytes(weight: Tensor) -> int:
    """Bytes that the copy takes now."""
    kept = weight._fp8_copy if isinstance(weight, ScaledTensor) else None
    return 0 if kept is None else kept.payload.nbytes + kept.scale_inv.nbytes
