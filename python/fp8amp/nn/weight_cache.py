"""The E4M3 copy of a weight that the GEMMs read: made once per version of the weight, dropped after the optimizer's
step.

The key are the versions of payload and scale, which every write bumps (`scaled_tensor.versions`), so an update by
anybody is seen; and the stream, since nothing orders another one behind the cast. The replay of a CUDA graph bumps no
version: a weight that was ever used or written inside a capture is cast in every forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import _ops
from ..policies import E4M3, Overflow
from ..recipe import Operand, Recipe
from ..scaled_tensor import ScaledTensor, in_graph, note_stream, plain_operand, versions

_T = TypeVar("_T")


def _always(_: Any) -> bool:
    return True


class _Copy(NamedTuple):
    source: Tensor
    versions: tuple[int, int]
    stream: int
    recipe: Recipe
    made: Any


def cached_weight(weight: Tensor, recipe: Recipe, make: Callable[[], _T], enough: Callable[[_T], bool] = _always) -> _T:
    """make(), kept for as long as neither the weight nor the recipe nor the stream changes, and it is `enough`."""
    if not isinstance(weight, ScaledTensor) or torch.compiler.is_compiling():
        return make()
    stream = _ops.current_stream(weight.device)
    note_stream(weight, stream)
    if in_graph(weight):
        weight._fp8_copy = None
        return make()
    now, kept = versions(weight), weight._fp8_copy
    if (
        kept is not None
        and kept.source is weight._payload
        and kept.versions == now
        and min(now) >= 0
        and kept.stream == stream
        and kept.recipe == recipe
        and enough(kept.made)
    ):
        found: _T = kept.made
        return found
    with torch.inference_mode(False):  # the next training step saves the copy for backward
        made = make()
    weight._fp8_copy = _Copy(weight._payload, now, stream, recipe, made) if min(now) >= 0 else None
    return made


def fp8_weight(weight: Tensor, recipe: Recipe, transposed: bool = False) -> Operand:
    """A weight in E4M3, with its transpose if asked for. A weight that is stored in E4M3 is its own copy; plain weights
    are cast each time."""
    if isinstance(weight, ScaledTensor) and weight.format is E4M3:
        payload = plain_operand(weight)[0]
        return Operand(payload, weight.scale_inv, payload.t().contiguous() if transposed else None)
    return cached_weight(
        weight,
        recipe,
        lambda: recipe.cast(*plain_operand(weight), E4M3, Overflow.SATURATE, transposed=transposed),
        lambda operand: operand.transposed is not None or not transposed,
    )


def drop_fp8_weight(weight: Tensor, stream: int) -> None:
    """Free the copy, if there is one: the weight has been written on `stream` (`_ops.current_stream`)."""
    if isinstance(weight, ScaledTensor):
        note_stream(weight, stream)
        weight._fp8_copy = None


def fp8_weight_bytes(weight: Tensor) -> int:
    """Bytes that the copy takes now."""
    kept = weight._fp8_copy if isinstance(weight, ScaledTensor) else None
    return 0 if kept is None else bytes_of(kept.made)


def bytes_of(made: Any) -> int:
    """Of all tensors in nested tuples."""
    if isinstance(made, tuple):
        return sum(map(bytes_of, made))
    return made.nbytes if isinstance(made, Tensor) else 0
