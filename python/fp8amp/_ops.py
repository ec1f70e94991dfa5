"""The dispatcher ops ``torch.ops.fp8amp.*``: loading, shapes for tracing (fake kernels), and thin typed functions.

The ops are C++ behind the LibTorch stable ABI. Every function here takes plain contiguous tensors and returns plain
tensors; it adds
only what the ops cannot do themselves: a mutating op bumps no version counter, so each payload written to is
announced to autograd,
and a RuntimeError of the library arrives as :class:`fp8amp.Error`.

Conventions: value = payload * scale_inv; ``scale_inv``, ``scale`` and ``amax`` are 0-d float32 tensors. `x_scale_inv`
reads `x` as x * x_scale_inv, so that a ScaledTensor is cast again without an FP32 copy of it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import Error
from .policies import Accumulation, Overflow, Rounding, ScaleRounding


def _library() -> str:
    folders = importlib.import_module(__package__ or "fp8amp").__path__
    for folder in folders:  # an editable install keeps the library in site-packages, away from these sources
        file = Path(folder) / "fp8amp_torch.so"
        if file.exists():
            return str(file)
    raise ImportError(f"fp8amp: fp8amp_torch.so is in none of {list(folders)}: build and install the package first")


_torch_ops: Any = torch.ops
_torch_ops.load_library(_library())
_ops: Any = _torch_ops.fp8amp


def _call(op: Any, *args: Any) -> Any:
    if torch.compiler.is_compiling():
        return op(*args)
    try:
        return op(*args)
    except RuntimeError as error:
        raise Error(str(error)) from None


def mark_written(tensors: Sequence[Tensor]) -> None:
    """Bump the version counters of `tensors`: autograd and the cache of FP8 weights see that they changed."""
    if torch.compiler.is_compiling():
        return  # inside a graph the mutation is an input mutation that torch replays, with its version
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


CAPTURING = -1  # current_stream() while a CUDA graph is captured


def current_stream(device: torch.device) -> int:
    """A number for torch's current stream on the device, 0 on the CPU, CAPTURING during a capture."""
    return int(_call(_ops.current_stream, device.type, device.index or 0))


def quantize(
    x: Tensor,
    x_scale_inv: Tensor | None,
    format: torch.dtype,
    *,
    scale: Tensor | None = None,
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO,
    margin: int = 0,
    rounding: Rounding = Rounding.NEAREST,
    overflow: Overflow = Overflow.SATURATE,
    seed: int = 0,
    column_sums: bool = False,
) -> tuple[Tensor, ...]:
    """(payload in `format`, scale_inv, amax) of x, with `scale` or, if it is None, the scale that the amax of x asks
    for. With `column_sums` also what the function of that name gives, of the same read of x [M, N]."""
    rules = int(scale_rounding), margin, int(rounding), int(overflow), seed
    result: tuple[Tensor, ...] = _call(_ops.quantize, x, x_scale_inv, format, scale, *rules, column_sums)
    return result if column_sums else result[:-1]


def quantize_(
    payload: Tensor,
    scale_inv: Tensor,
    x: Tensor,
    x_scale_inv: Tensor | None,
    *,
    keep_scale: bool = False,
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO,
    margin: int = 0,
    rounding: Rounding = Rounding.NEAREST,
    overflow: Overflow = Overflow.SATURATE,
    seed: int = 0,
) -> Tensor:
    """Write x into payload (and, unless `keep_scale`, its new scale into scale_inv). Returns the amax of x."""
    rules = int(scale_rounding), margin, int(rounding), int(overflow), seed
    amax: Tensor = _call(_ops.quantize_, payload, scale_inv, x, x_scale_inv, keep_scale, *rules)
    mark_written([payload, scale_inv])
    return amax


def quantize_transpose(
    x: Tensor,
    x_scale_inv: Tensor | None,
    format: torch.dtype,
    *,
    scale: Tensor | None = None,
    history: Tensor | None = None,
    update: bool = False,
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO,
    margin: int = 0,
    overflow: Overflow = Overflow.SATURATE,
    column_sums: bool = False,
) -> tuple[Tensor, ...]:
    """(payload [M, N], payload transposed [N, M], scale_inv, amax) of x [M, N] in one pass. `history`, `update`: as
    in `quantize_delayed`; `column_sums`: as in `quantize`."""
    rules = int(scale_rounding), margin, int(overflow), update
    result: tuple[Tensor, ...] = _call(
        _ops.quantize_transpose, x, x_scale_inv, format, scale, history, *rules, column_sums
    )
    if history is not None and update:
        mark_written([history])
    return result if column_sums else result[:-1]


def quantize_delayed(
    x: Tensor,
    x_scale_inv: Tensor | None,
    format: torch.dtype,
    history: Tensor,
    *,
    update: bool,
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO,
    margin: int = 0,
    overflow: Overflow = Overflow.SATURATE,
    column_sums: bool = False,
) -> tuple[Tensor, ...]:
    """Like `quantize` with the scale from an amax history, float32 [window + 2] = [valid entries, last scale, amaxes
    newest first].

    ``update=False`` leaves the history alone and takes the last scale (evaluation, recomputation).
    """
    rules = int(scale_rounding), margin, int(overflow), update
    result: tuple[Tensor, ...] = _call(_ops.quantize_delayed, x, x_scale_inv, format, history, *rules, column_sums)
    if update:
        mark_written([history])
    return result if column_sums else result[:-1]


def column_sums(x: Tensor, x_scale_inv: Tensor | None) -> Tensor:
    """The sums over the rows of x [M, N], float32 [N], in FP32 and in one order everywhere."""
    result: Tensor = _call(_ops.column_sums, x, x_scale_inv)
    return result


def dequantize(payload: Tensor, scale_inv: Tensor, dtype: torch.dtype) -> Tensor:
    """payload * scale_inv in `dtype` (float32, float16, bfloat16), rounded once from FP32."""
    result: Tensor = _call(_ops.dequantize, payload, scale_inv, dtype)
    return result


def gemm(
    a: Tensor,
    a_scale_inv: Tensor,
    b: Tensor,
    b_scale_inv: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
    fast_accumulation: bool = False,
    accumulation: Accumulation = Accumulation.DEFAULT,
) -> Tensor:
    """op(a) [M, K] @ op(b) [K, N] * a_scale_inv * b_scale_inv + bias [N] in `dtype`; a, b float8, accumulated in
    FP32, or on the CPU as an H100 does."""
    result: Tensor = _call(
        _ops.gemm,
        a,
        a_scale_inv,
        b,
        b_scale_inv,
        transpose_a,
        transpose_b,
        dtype,
        bias,
        fast_accumulation,
        int(accumulation),
    )
    return result


def gemm_(
    out: Tensor,
    a: Tensor,
    a_scale_inv: Tensor,
    b: Tensor,
    b_scale_inv: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    bias: Tensor | None = None,
    accumulate: bool = False,
    fast_accumulation: bool = False,
) -> None:
    """`gemm` into an existing tensor, added to what it holds if `accumulate`."""
    _call(
        _ops.gemm_, out, a, a_scale_inv, b, b_scale_inv, transpose_a, transpose_b, bias, accumulate, fast_accumulation
    )
    mark_written([out])


@functools.cache
def _prefers_k_contiguous(device: torch.device) -> bool:
    return bool(_call(_ops.gemm_prefers_k_contiguous, device.type, device.index or 0))


def gemm_prefers_k_contiguous(device: torch.device) -> bool:
    """Whether `gemm` on this device copies operands whose k is not contiguous: then `quantize_transpose` pays."""
    return _prefers_k_contiguous(device)


# What torch.compiler.assume_constant_result sets; calling that imports torch._dynamo: seconds, and torch.manual_seed is
# another function afterwards.
gemm_prefers_k_contiguous._dynamo_marked_constant = True  # type: ignore[attr-defined]


def accumulate_(payload: Tensor, scale_inv: Tensor, x: Tensor, x_scale_inv: Tensor | None) -> None:
    """payload * scale_inv += x: added in FP32 and cast once, stochastically, under a new power-of-two scale;
    infinities become NaN."""
    _call(_ops.accumulate_, payload, scale_inv, x, x_scale_inv)
    mark_written([payload, scale_inv])


def sum_shards(
    shards: Sequence[Tensor],
    scale_inv: Sequence[Tensor],
    format: torch.dtype,
    *,
    factor: float = 1.0,
    scale: Tensor | None = None,
    bound: Tensor | None = None,
    scale_rounding: ScaleRounding = ScaleRounding.POWER_OF_TWO,
) -> tuple[Tensor, Tensor, Tensor]:
    """(payload in `format`, scale_inv, amax) of factor * sum_i shards[i] * scale_inv[i], added in FP32 in this order
    and cast once; infinities become NaN. The scale is `scale`, or from `bound` on the largest value, or from it."""
    if not shards:  # the dispatcher finds no device
        raise ValueError("sum_shards: shards must not be empty, got 0 tensors")
    result: tuple[Tensor, Tensor, Tensor] = _call(
        _ops.sum_shards, list(shards), list(scale_inv), format, factor, scale, bound, int(scale_rounding)
    )
    return result


def grad_norm(grads: list[Tensor], scale_inv: list[Tensor]) -> Tensor:
    """The 2-norm over all values grads[i] * scale_inv[i], as a 0-d float32 tensor."""
    result: Tensor = _call(_ops.grad_norm, grads, scale_inv)
    return result


def grad_amax_(grads: list[Tensor], scale_inv: list[Tensor], amax: list[Tensor]) -> Tensor:
    """Write max |grads[i]| into amax[i][3] (float32 [4]); returns 1.0 (0-d float32) if any gradient is non-finite,
    else 0.0."""
    result: Tensor = _call(_ops.grad_amax_, grads, scale_inv, amax)
    return result


def amax(x: Tensor) -> Tensor:
    """max |x| of the raw numbers in x, as a 0-d float32 tensor; 0 for an empty one, non-finite if any element is."""
    result: Tensor = _call(_ops.amax, x)
    return result


def adam_(
    params: list[Tensor],
    param_scale_inv: list[Tensor],
    grads: list[Tensor],
    grad_scale_inv: list[Tensor],
    exp_avg: list[Tensor],
    exp_avg_scale_inv: list[Tensor],
    exp_avg_sq: list[Tensor],
    exp_avg_sq_scale_inv: list[Tensor],
    amax: list[Tensor],
    steps: list[Tensor],
    tensor_ids: list[int],
    *,
    lr: Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    master_rounding: Rounding,
    moment_rounding: Rounding,
    second_moment_rounding: Rounding,
    seed: int,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    compute_weights: Mapping[int, tuple[Tensor, Tensor]] | None = None,
) -> None:
    """One Adam or AdamW (`decoupled`) step over a list of parameters in one pass; nothing changes where found_inf is
    not 0. compute_weights[i], (float8_e4m3 or float16 payload, scale_inv), becomes the cast of the new params[i]."""
    weights = compute_weights or {}
    _call(
        _ops.adam_,
        params,
        param_scale_inv,
        grads,
        grad_scale_inv,
        exp_avg,
        exp_avg_scale_inv,
        exp_avg_sq,
        exp_avg_sq_scale_inv,
        amax,
        steps,
        tensor_ids,
        lr,
        betas[0],
        betas[1],
        eps,
        weight_decay,
        decoupled,
        maximize,
        int(master_rounding),
        int(moment_rounding),
        int(second_moment_rounding),
        seed,
        grad_scale,
        found_inf,
        [payload for payload, _ in weights.values()],
        [scale_inv for _, scale_inv in weights.values()],
        list(weights),
    )
    mark_written([*params, *exp_avg, *exp_avg_sq, *(payload for payload, _ in weights.values())])


def build_info() -> str:
    """The build description of the library, as JSON."""
    return str(_call(_ops.build_info))


def isa_level() -> str:
    """The instruction set the CPU loops run at: ``v2``, ``v3``, ``v4`` or ``baseline``."""
    return str(_call(_ops.isa_level))


def _fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    decorator: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.library.register_fake(f"fp8amp::{name}")
    return decorator


def _scalar(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=torch.float32)


def _quantized(x: Tensor, format: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=format), _scalar(x), _scalar(x)


def _sums(x: Tensor, wanted: bool = True) -> Tensor:
    return x.new_empty((x.shape[1] if wanted else 0,), dtype=torch.float32)


def _product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool, dtype: torch.dtype) -> Tensor:
    return a.new_empty((a.shape[1 if transpose_a else 0], b.shape[0 if transpose_b else 1]), dtype=dtype)


_fake("quantize")(lambda x, xs, format, scale, sr, margin, r, o, seed, sums: (*_quantized(x, format), _sums(x, sums)))
_fake("quantize_")(lambda payload, scale_inv, x, xs, keep, sr, margin, r, o, seed: _scalar(x))
_fake("quantize_transpose")(
    lambda x, xs, format, scale, history, sr, margin, o, update, sums: (
        x.new_empty(x.shape, dtype=format),
        x.new_empty((x.shape[1], x.shape[0]), dtype=format),
        _scalar(x),
        _scalar(x),
        _sums(x, sums),
    )
)
_fake("quantize_delayed")(
    lambda x, xs, format, history, sr, margin, o, update, sums: (*_quantized(x, format), _sums(x, sums))
)
_fake("column_sums")(lambda x, xs: _sums(x))
_fake("dequantize")(lambda payload, scale_inv, dtype: payload.new_empty(payload.shape, dtype=dtype))
_fake("gemm")(lambda a, sa, b, sb, ta, tb, dtype, bias, fast, accumulation: _product(a, b, ta, tb, dtype))
_fake("gemm_")(lambda *args: None)
_fake("accumulate_")(lambda payload, scale_inv, x, xs: None)
_fake("grad_norm")(lambda grads, scale_inv: grads[0].new_empty((), dtype=torch.float32) if grads else torch.empty(()))
_fake("grad_amax_")(
    lambda grads, scale_inv, amax: grads[0].new_empty((), dtype=torch.float32) if grads else torch.empty(())
)
_fake("amax")(lambda x: _scalar(x))
_fake("sum_shards")(lambda shards, scale_inv, format, *_: _quantized(shards[0], format))
_fake("adam_")(lambda *args: None)
