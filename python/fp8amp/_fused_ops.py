"""Norms and activations with a cast, ``torch.ops.fp8amp.*``: fake kernels and typed functions, as `_ops` has them.

Matrices are [rows, columns], contiguous, float32, float16 or bfloat16; weights and biases of norms are float32. With
``transpose=True`` the second tensor returned is the payload transposed, [columns, rows]; else it is empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._ops import _call, _fake, _ops, _scalar
from .policies import ScaleRounding


class CastRule(NamedTuple):
    """How the scale of a cast is chosen: `scale`, or by the amax of the result."""

    scale: Tensor | None = None
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO
    margin: int = 0

    def _arguments(self, format: torch.dtype, transpose: bool) -> tuple[Any, ...]:
        return format, self.scale, int(self.scale_rounding), self.margin, transpose


_CURRENT = CastRule()
Quantized = tuple[Tensor, Tensor, Tensor, Tensor]
"""(payload, payload transposed, scale_inv, amax)"""


def layer_norm_quantize(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    format: torch.dtype,
    rule: CastRule = _CURRENT,
    *,
    transpose: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The cast of (x - mean) * rstd * weight + bias over the rows of x, and mean and rstd, float32 [rows]."""
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor] = _call(
        _ops.layer_norm_quantize, x, weight, bias, eps, *rule._arguments(format, transpose)
    )
    return result


def rms_norm_quantize(
    x: Tensor, weight: Tensor, eps: float, format: torch.dtype, rule: CastRule = _CURRENT, *, transpose: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The cast of x * rstd * weight, rstd = 1 / sqrt(mean of x^2 + eps) over the rows of x, and rstd."""
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _call(
        _ops.rms_norm_quantize, x, weight, eps, *rule._arguments(format, transpose)
    )
    return result


def gelu_quantize(
    x: Tensor, tanh: bool, format: torch.dtype, rule: CastRule = _CURRENT, *, transpose: bool = False
) -> Quantized:
    """The cast of gelu(x), in its erf or its tanh form."""
    result: Quantized = _call(_ops.gelu_quantize, x, tanh, *rule._arguments(format, transpose))
    return result


def swiglu_quantize(x: Tensor, format: torch.dtype, rule: CastRule = _CURRENT, *, transpose: bool = False) -> Quantized:
    """The cast of silu(gate) * up, x = gate and up side by side."""
    result: Quantized = _call(_ops.swiglu_quantize, x, *rule._arguments(format, transpose))
    return result


def gelu_backward_quantize(
    dy: Tensor, x: Tensor, tanh: bool, format: torch.dtype, rule: CastRule = _CURRENT, *, transpose: bool = False
) -> Quantized:
    """The cast of dy * gelu'(x); infinities become NaN."""
    result: Quantized = _call(_ops.gelu_backward_quantize, dy, x, tanh, *rule._arguments(format, transpose))
    return result


def swiglu_backward_quantize(
    dy: Tensor, x: Tensor, format: torch.dtype, rule: CastRule = _CURRENT, *, transpose: bool = False
) -> Quantized:
    """The cast of the gradient of gate and up, side by side; infinities become NaN."""
    result: Quantized = _call(_ops.swiglu_backward_quantize, dy, x, *rule._arguments(format, transpose))
    return result


def layer_norm_backward(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx in the dtype of x and dy, dweight, dbias in float32)."""
    result: tuple[Tensor, Tensor, Tensor] = _call(_ops.layer_norm_backward, dy, x, mean, rstd, weight)
    return result


def rms_norm_backward(dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(dx in the dtype of x and dy, dweight in float32)."""
    result: tuple[Tensor, Tensor] = _call(_ops.rms_norm_backward, dy, x, rstd, weight)
    return result


def _cast(x: Tensor, columns: Any, format: torch.dtype, transpose: bool) -> Quantized:
    transposed = x.new_empty((columns, x.shape[0]) if transpose else (0,), dtype=format)
    return x.new_empty((x.shape[0], columns), dtype=format), transposed, _scalar(x), _scalar(x)


def _rows(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0],), dtype=torch.float32)


def _columns(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[1],), dtype=torch.float32)


_fake("layer_norm_quantize")(
    lambda x, w, b, eps, format, scale, sr, margin, t: (*_cast(x, x.shape[1], format, t), _rows(x), _rows(x))
)
_fake("rms_norm_quantize")(lambda x, w, eps, format, scale, sr, margin, t: (*_cast(x, x.shape[1], format, t), _rows(x)))
_fake("gelu_quantize")(lambda x, tanh, format, scale, sr, margin, t: _cast(x, x.shape[1], format, t))
_fake("swiglu_quantize")(lambda x, format, scale, sr, margin, t: _cast(x, x.shape[1] // 2, format, t))
_fake("gelu_backward_quantize")(lambda dy, x, tanh, format, scale, sr, margin, t: _cast(x, x.shape[1], format, t))
_fake("swiglu_backward_quantize")(lambda dy, x, format, scale, sr, margin, t: _cast(x, x.shape[1], format, t))
_fake("layer_norm_backward")(lambda dy, x, mean, rstd, w: (torch.empty_like(x), _columns(x), _columns(x)))
_fake("rms_norm_backward")(lambda dy, x, rstd, w: (torch.empty_like(x), _columns(x)))
