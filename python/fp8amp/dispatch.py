"""What each torch op does with a ScaledTensor: a few rules of its own, and one generic rule read from the op's schema.

The generic rule dequantises the ScaledTensor arguments, runs the op, and re-quantises each argument that the schema
says is written. Views are found from the schema too (an alias that is not written): a view that fell through to
"dequantise" would make ``w.data[0].zero_()`` a silent no-op.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from . import _ops
from .policies import E4M3, E5M2, FORMAT_MAX, Overflow, ScaleRounding, scale_rule
from .scaled_tensor import ScaledTensor, note_stream, own_payload, plain_operand

aten = torch.ops.aten
_Handler = Callable[..., Any]
_HANDLERS: dict[Any, _Handler] = {}
_DETACHED = (aten.detach.default, aten.alias.default)
_TINY = 2.0**-126  # smallest scale_inv: anything below is subnormal and may be flushed to zero


def dispatch(func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Entry point of ``ScaledTensor.__torch_dispatch__``."""
    if any(t.__name__ == "DTensor" for t in types):
        return NotImplemented  # a DTensor wraps a ScaledTensor, never the other way round
    handler = _HANDLERS.get(func) or (_view if _is_view(func) else None)
    if handler is not None:
        result = handler(func, *args, **kwargs)
        if result is not NotImplemented:
            return result
    return _generic(func, args, kwargs)


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return func is not aten.view.dtype and any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _generic(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func.namespace in ("c10d", "_c10d_functional"):  # a dense stand-in would be reduced and thrown away
        raise NotImplementedError(f"{func}: torch's collectives cannot carry a ScaledTensor; communicate .dequantize()")
    if func in (aten.resize_.default, aten.set_.source_Tensor, aten.set_.source_Storage_storage_offset):
        raise NotImplementedError(f"{func}: the storage of a ScaledTensor cannot be replaced; use .dequantize()")
    if torch.Tag.inplace_view in func.tags:  # t_, unsqueeze_, ...
        raise NotImplementedError(f"{func}: a ScaledTensor cannot change its shape in place; use the op without _")
    arguments = func._schema.arguments
    writes = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
    written: list[tuple[ScaledTensor, Tensor]] = []

    def plain(name: str, value: Any) -> Any:
        def one(t: ScaledTensor) -> Tensor:
            values = t.dequantize()
            if name in writes:
                written.append((t, values))
            return values

        return tree_map_only(ScaledTensor, one, value)

    names = [a.name for a in arguments]
    result = func(
        *[plain(n, v) for n, v in zip(names, args, strict=False)], **{k: plain(k, v) for k, v in kwargs.items()}
    )
    if any(t._role == "weight" for t, _ in written):
        _warn_once_of_rounding(func)
    back = {id(values): assign(t, values) for t, values in written}
    return tree_map_only(Tensor, lambda out: back.get(id(out), out), result)


_UPDATES = ("add_", "sub_", "addcdiv_", "addcmul_", "lerp_", "_fused_sgd_", "_fused_adam_", "_fused_adamw_")
_warned: list[str] = []


def _warn_once_of_rounding(func: Any) -> None:
    """A stock optimizer, or an average, on a weight of few bits: it loses what is small, in silence without this."""
    name = func._schema.name.removeprefix("aten::").removeprefix("_foreach_")
    if name in _UPDATES and not _warned:
        _warned.append(name)
        warnings.warn(
            "fp8amp: a weight that is stored in FP16 was updated in place and rounded to nearest, which loses updates "
            "below 2^-11 of its values. The optimizer of fp8amp.initialize(model, optimizer) and those of fp8amp.optim "
            "round stochastically; averages of weights belong in fp8amp.to_dense(model). (Said once.)",
            stacklevel=2,
        )


# ---- writing ------------------------------------------------
def _written(t: ScaledTensor) -> ScaledTensor:
    _ops.mark_written([own_payload(t)])  # ops below autograd bump nothing by themselves
    if t._role == "weight" and not torch.compiler.is_compiling():
        note_stream(t, _ops.current_stream(t.device))
    return t


def _overflow(t: ScaledTensor) -> Overflow:
    return Overflow.NAN if t._role == "gradient" else Overflow.SATURATE


def _same_bits(payload: Tensor) -> Tensor:
    return payload if payload.dtype is torch.float16 else payload.view(torch.uint8)


def _traced(t: Tensor) -> bool:
    return torch.compiler.is_compiling() or isinstance(t, FakeTensor) or t.is_meta


def assign(t: ScaledTensor, values: Tensor) -> ScaledTensor:
    """Write `values` (any dtype, the shape of t) into t under a new scale; a piece of a larger tensor keeps the
    shared scale."""
    numbers, scale_inv = plain_operand(values)
    rule = scale_rule(t._scale_rounding)
    if t._part:
        return _assign_part(t, numbers, scale_inv, rule)
    if t._payload.is_contiguous():
        _ops.quantize_(t._payload, t._scale_inv, numbers, scale_inv, scale_rounding=rule, overflow=_overflow(t))
    else:
        payload, new_scale_inv, _ = _ops.quantize(
            numbers, scale_inv, t.format, scale_rounding=rule, overflow=_overflow(t)
        )
        _same_bits(t._payload).copy_(_same_bits(payload))
        t._scale_inv.copy_(new_scale_inv)
    return _written(t)


def _assign_part(t: ScaledTensor, numbers: Tensor, scale_inv: Tensor | None, rule: ScaleRounding) -> ScaledTensor:
    if t._owner is not None and not _traced(t._payload) and _base_needs_new_scale(t, numbers, scale_inv):
        _rescale_base(t, numbers, scale_inv, rule)
        return _written(t)
    payload, _, _ = _ops.quantize(numbers, scale_inv, t.format, scale=t._scale_inv.reciprocal(), overflow=_overflow(t))
    _same_bits(t._payload).copy_(_same_bits(payload))
    return _written(t)


def _stored_amax(t: ScaledTensor) -> float:
    return float(_ops.amax(plain_operand(t)[0]))


def _base_needs_new_scale(t: ScaledTensor, numbers: Tensor, scale_inv: Tensor | None) -> bool:
    """Whether new values would saturate under the shared scale, or be far below a scale that nothing else in the base
    needs."""
    largest = float(_ops.amax(numbers)) * (1.0 if scale_inv is None else float(scale_inv)) / float(t._scale_inv)
    if not math.isfinite(largest) or largest == 0.0:
        return False
    limit = FORMAT_MAX[t.format]
    assert t._owner is not None
    return largest > limit or (largest < limit / 1024 and _stored_amax(t._owner) < limit / 1024)


def _rescale_base(t: ScaledTensor, numbers: Tensor, scale_inv: Tensor | None, rule: ScaleRounding) -> None:
    base = t._owner
    assert base is not None
    whole = torch.empty_strided(base._payload.shape, base._payload.stride(), dtype=torch.float32, device=base.device)
    whole.copy_(base.dequantize(torch.float32))
    offset = t._payload.storage_offset() - base._payload.storage_offset()
    piece = whole.as_strided(t._payload.shape, t._payload.stride(), offset)
    piece.copy_(numbers if scale_inv is None else numbers.float() * scale_inv)
    payload, new_scale_inv, _ = _ops.quantize(
        whole.contiguous(), None, base.format, scale_rounding=rule, overflow=_overflow(t)
    )
    _same_bits(base._payload).copy_(_same_bits(payload))
    base._scale_inv.copy_(new_scale_inv)


# ---- rules ------------------------------------------------
def _rule(*ops: Any) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        _HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return register


def _view(func: Any, t: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(t, ScaledTensor):
        return NotImplemented
    if torch.is_inference_mode_enabled() and not t.is_inference():  # torch gives a view the version of its base
        with torch.inference_mode(False):
            return _view(func, t, *args, **kwargs)
    base = t if t._owner is None else t._owner
    if func in _DETACHED:  # around the same payload object, so that both see one version counter
        return ScaledTensor(
            t._payload,
            t._scale_inv,
            t.dtype,
            role=t._role,
            scale_rounding=t._scale_rounding,
            part=t._part,
            base=t._owner,
            checked=False,
        )

    def wrap(payload: Tensor) -> ScaledTensor:
        part = t._part or payload.numel() != t.numel()
        return ScaledTensor(
            payload,
            t._scale_inv,
            t.dtype,
            role=t._role,
            scale_rounding=t._scale_rounding,
            part=part,
            base=base,
            checked=False,
        )

    return tree_map_only(Tensor, wrap, func(t._payload, *args, **kwargs))


@_rule(aten.record_stream.default)
def _record_stream(func: Any, t: ScaledTensor, stream: Any) -> None:
    """The memory of the stored numbers is what the stream uses; nothing is written, whatever the op's schema says."""
    for part in (t._payload, t._scale_inv):
        func(part, stream)


@_rule(aten.clone.default)
def _clone(func: Any, t: ScaledTensor, *, memory_format: Any = None) -> ScaledTensor:
    payload = t._payload.clone(memory_format=memory_format)
    return ScaledTensor(
        payload, t._scale_inv.clone(), t.dtype, role=t._role, scale_rounding=t._scale_rounding, checked=False
    )


@_rule(aten._to_copy.default)
def _to_copy(
    func: Any,
    t: ScaledTensor,
    *,
    dtype: Any = None,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
    **kwargs: Any,
) -> Any:
    if dtype is not None and not (dtype.is_floating_point and dtype.itemsize > 1):
        return NotImplemented
    payload = func(t._payload, device=device, non_blocking=non_blocking, memory_format=memory_format)
    scale_inv = func(t._scale_inv, device=device, non_blocking=non_blocking)
    return ScaledTensor(
        payload, scale_inv, dtype or t.dtype, role=t._role, scale_rounding=t._scale_rounding, checked=False
    )


@_rule(
    aten.zeros_like.default,
    aten.empty_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.new_empty.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty_strided.default,
)
def _factory(func: Any, t: ScaledTensor, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    return func(t._payload, *args, dtype=dtype or t.dtype, **kwargs)


@_rule(aten.copy_.default)
def _copy(func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if not isinstance(target, ScaledTensor):
        assert isinstance(source, ScaledTensor)
        return target.copy_(source.dequantize(), non_blocking)
    if (
        isinstance(source, ScaledTensor)
        and not target._part
        and source.format == target.format
        and source.shape == target.shape
        and source._role == target._role
        and source._scale_rounding == target._scale_rounding
    ):
        _same_bits(target._payload).copy_(_same_bits(source._payload), non_blocking)
        target._scale_inv.copy_(source._scale_inv, non_blocking)
        return _written(target)
    moved = source.to(target.device, non_blocking=non_blocking)
    return assign(target, moved.expand(target.shape) if moved.shape != target.shape else moved)


@_rule(aten.zero_.default)
def _zero(func: Any, t: ScaledTensor) -> ScaledTensor:
    _same_bits(t._payload).zero_()
    if not t._part:
        t._scale_inv.fill_(1.0)
    return _written(t)


def _move_scales(tensors: Sequence[Tensor], other: Any, multiply: bool) -> list[Tensor]:
    """Multiplies or divides by one number: clipping, unscaling and averaging of gradients, where only scales move.
    Returns the tensors for which that would not do, as they were."""
    if isinstance(other, (ScaledTensor, complex)):
        return list(tensors)
    if isinstance(other, Tensor):
        if other.numel() != 1 or other.is_complex():
            return list(tensors)
        other = other.reshape(())
    left: list[Tensor] = []
    moving: list[ScaledTensor] = []
    for t in tensors:
        if isinstance(t, ScaledTensor) and not t._part and t._role != "weight":
            moving.append(t)
        else:
            left.append(t)
    if not moving:
        return left
    moved = (torch._foreach_mul if multiply else torch._foreach_div)([t._scale_inv for t in moving], other)
    scales: list[Tensor] = []
    values: list[Tensor] = []
    # A factor of 0, Inf or NaN, or below 0, must not get stuck in the scale. On a GPU reading it would stall the
    # stream: there it may, and the values it stands for are right; Adam and clipping take the magnitude.
    for t, value in zip(moving, moved, strict=True):
        if not _traced(value) and value.device.type == "cpu" and not _TINY <= float(value) < math.inf:
            left.append(t)
            continue
        scales.append(t._scale_inv)
        values.append(value)
        _written(t)
    if scales:
        torch._foreach_copy_(scales, values)
    return left


@_rule(aten.mul_.Tensor, aten.div_.Tensor, aten.mul_.Scalar, aten.div_.Scalar)
def _multiply(func: Any, t: Any, other: Any, **kwargs: Any) -> Any:
    if kwargs or _move_scales([t], other, func in (aten.mul_.Tensor, aten.mul_.Scalar)):
        return NotImplemented
    return t


@_rule(aten.add_.Tensor)
def _accumulate(func: Any, t: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Accumulating onto a gradient: one FP32 addition and one stochastic rounding, without an FP32 copy of the sum."""
    if not isinstance(t, ScaledTensor) or t._role != "gradient" or t._part or alpha != 1:
        return NotImplemented
    if t.format not in (E4M3, E5M2) or not isinstance(other, Tensor) or other.shape != t.shape:
        return NotImplemented
    if not t._payload.is_contiguous() or not other.is_floating_point():
        return NotImplemented
    _ops.accumulate_(t._payload, t._scale_inv, *plain_operand(other))
    return _written(t)


@_rule(aten.linalg_vector_norm.default)
def _norm(
    func: Any, t: ScaledTensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if ord != 2 or dim is not None or keepdim:
        return NotImplemented
    return _ops.grad_norm([plain_operand(t)[0]], [t._scale_inv]).to(dtype or t.dtype)


@_rule(aten._foreach_norm.Scalar)
def _foreach_norm(func: Any, tensors: Sequence[Tensor], ord: Any = 2, dtype: Any = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in tensors]


@_rule(aten._foreach_mul_.Scalar, aten._foreach_mul_.Tensor, aten._foreach_div_.Scalar, aten._foreach_div_.Tensor)
def _foreach_multiply(func: Any, tensors: Sequence[Tensor], other: Any) -> None:
    multiply = func in (aten._foreach_mul_.Scalar, aten._foreach_mul_.Tensor)
    # one at a time: the generic rule would hold dense copies of all at once
    for t in _move_scales(tensors, other, multiply):
        if multiply:
            t.mul_(other)
        else:
            t.div_(other)


@_rule(aten._foreach_zero_.default)
def _foreach_zero(func: Any, tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        t.zero_()


@_rule(aten._amp_foreach_non_finite_check_and_unscale_.default)
def _unscale(func: Any, grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """GradScaler.unscale_: NaN codes set found_inf, and the scale moves."""
    plain = [g for g in grads if not isinstance(g, ScaledTensor)]
    if plain:
        func(plain, found_inf, inv_scale)
    packed = [g for g in grads if isinstance(g, ScaledTensor)]
    amax = [torch.empty(4, dtype=torch.float32, device=g.device) for g in packed]
    bad = _ops.grad_amax_([plain_operand(g)[0] for g in packed], [g._scale_inv for g in packed], amax)
    found_inf.copy_(torch.maximum(found_inf, bad.to(found_inf.dtype)))
    torch._foreach_mul_([g._scale_inv for g in packed], inv_scale.reshape(()))
    for g in packed:
        _written(g)
