"""fp8amp.quantize: cast one tensor to FP8 or to scaled FP16."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import number
from .policies import Rounding, ScaleRounding, parse_format
from .scaled_tensor import ScaledTensor, scaled

_SOURCES = (torch.float32, torch.float16, torch.bfloat16)


def quantize(
    x: Tensor,
    format: str | torch.dtype = "e4m3",
    *,
    scale: float | Tensor | None = None,
    scale_rounding: str = "power_of_two",
    rounding: str = "nearest",
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> ScaledTensor:
    """Cast x to `format` under one scale, rounding once from FP32 and saturating at the largest finite value.

    Args:
        x: float32, float16, bfloat16 or ScaledTensor, any shape and strides; the result is contiguous. No gradient
            flows through.
        format: ``"e4m3"``, ``"e5m2"``, ``"fp16"``, or the torch dtype of one of them.
        scale: multiplies into the format: a positive finite number or 0-d tensor. None: from the amax of x (current
            scaling); 1 for a tensor of zeros, and never above 2^126.
        scale_rounding: ``"power_of_two"`` rounds that scale down to a power of two, ``"exact"`` keeps it.
        rounding: ``"nearest"`` (ties to even), or ``"stochastic"``: equal seeds give equal bits.
        seed: of stochastic rounding, 0 to 2^63 - 1.
        dtype: logical dtype of the result, by default that of x.

    Infinities become the largest finite value, NaN stays NaN. Formats: OCP 8-bit floating point specification, rev.
    1.0.

    Raises:
        TypeError: x is no tensor of these dtypes, or dtype is no floating dtype.
        ValueError: a name, scale or seed is none of the above.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"quantize: x must be a torch.Tensor, got {type(x).__name__}")
    if x.is_sparse or x.layout is not torch.strided:
        raise TypeError(f"quantize: x must be dense, got layout {x.layout}")
    if not isinstance(x, ScaledTensor) and x.dtype not in _SOURCES:
        raise TypeError(f"quantize: x must be float32, float16, bfloat16 or a ScaledTensor, got {x.dtype}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1):
        raise TypeError(f"quantize: dtype must be a floating dtype of 16 bits or more, got {dtype}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"quantize: seed must be an integer from 0 to 2^63 - 1, got {seed!r}")
    ScaleRounding.parse(scale_rounding, "quantize: scale_rounding")
    return scaled(
        x,
        parse_format(format, "quantize: format"),
        scale=None if scale is None else _scale(scale, x.device),
        scale_rounding=scale_rounding,
        rounding=Rounding.parse(rounding, "quantize: rounding"),
        seed=seed,
        dtype=dtype,
    )


def _scale(scale: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(scale, Tensor):
        if scale.numel() != 1 or not scale.is_floating_point():
            raise ValueError(
                f"quantize: scale must be one floating number, got a {scale.dtype} tensor of shape {tuple(scale.shape)}"
            )
        if scale.device.type == "cpu":
            _scale(scale.item(), device)
        return scale.detach().reshape(()).to(device=device, dtype=torch.float32)
    scale = number(scale, "quantize: scale")
    if not 2.0**-126 <= scale <= 2.0**126:
        raise ValueError(f"quantize: scale must be from 2^-126 to 2^126, got {scale}")
    return torch.full((), scale, dtype=torch.float32, device=device)
