"""ScaledTensor: a torch.Tensor stored as payload (E4M3, E5M2 or FP16) times one FP32 scale_inv.

It reports the logical dtype of the tensor it stands for (usually float32), so parameters, gradients and optimizer
states made of it are ordinary tensors to autograd, optimizers and modules. Guarantees, kept by `dispatch.py`:

- an op without a rule of its own reads the dequantised values and returns plain tensors;
- an op that writes to a ScaledTensor (in-place, ``out=``, foreach) re-quantises into it, once;
- a view aliases payload and scale, so writes through views reach their base;
- every write bumps the version of the payload, also through ``.data``, so `version` is a safe key for anything
  derived from it.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from . import _ops
from .policies import FORMAT_MAX, FP16, Overflow, Rounding, ScaleRounding, scale_rule

Role = Literal["tensor", "weight", "gradient"]


class ScaledTensor(torch.Tensor):
    """value = payload * scale_inv, reporting `dtype`.

    Args:
        payload: the stored numbers, float8_e4m3fn, float8_e5m2 or float16, any shape.
        scale_inv: 0-d float32 on the device of payload; finite and not 0.
        dtype: the logical dtype, any floating dtype. Casting a ScaledTensor to another floating dtype changes this
            label alone.
        role: ``"weight"``: multiplying re-quantises, so that the scale stays a power of two; ``"gradient"``: adding
            accumulates with stochastic rounding, infinities become NaN, and multiplying moves the scale alone;
            ``"tensor"``: multiplying moves the scale alone.
        scale_rounding: how a new scale is chosen when the tensor is written to, ``"power_of_two"`` or ``"exact"``.

    `part`, `base` and `checked` are for this package alone.

    Raises TypeError or ValueError that names the argument.
    """

    _payload: Tensor
    _scale_inv: Tensor
    _role: Role
    _scale_rounding: str
    _part: bool
    _owner: ScaledTensor | None
    _fp8_copy: Any

    @staticmethod
    def __new__(
        cls,
        payload: Tensor,
        scale_inv: Tensor,
        dtype: torch.dtype,
        *,
        role: Role = "tensor",
        scale_rounding: str = "power_of_two",
        part: bool = False,
        base: ScaledTensor | None = None,
        checked: bool = True,
    ) -> ScaledTensor:
        if checked and not torch.compiler.is_compiling():
            _check(payload, scale_inv, dtype, role, scale_rounding)
        made: ScaledTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            payload.shape,
            strides=payload.stride(),
            storage_offset=payload.storage_offset(),
            dtype=dtype,
            device=payload.device,
        )
        return made

    def __init__(
        self,
        payload: Tensor,
        scale_inv: Tensor,
        dtype: torch.dtype,
        *,
        role: Role = "tensor",
        scale_rounding: str = "power_of_two",
        part: bool = False,
        base: ScaledTensor | None = None,
        checked: bool = True,
    ) -> None:
        self._payload, self._scale_inv = payload, scale_inv
        self._role, self._scale_rounding = role, scale_rounding
        self._part = part  # a piece of `base`, whose scale it shares
        self._owner = base  # the tensor this is a view of; None for one that owns its payload
        self._fp8_copy = None  # nn.weight_cache: the E4M3 copy of a weight

    @property
    def payload(self) -> Tensor:
        """The stored numbers, a plain tensor in `format`. Writing to it changes the values and is seen by the cache
        of FP8 weights."""
        return self._payload

    @property
    def scale_inv(self) -> Tensor:
        """The factor from stored numbers to values, 0-d float32."""
        return self._scale_inv

    @property
    def scale(self) -> Tensor:
        """The factor from values to stored numbers, 1 / scale_inv, 0-d float32."""
        return self._scale_inv.reciprocal()

    @property
    def format(self) -> torch.dtype:
        """The dtype of the stored numbers."""
        return self._payload.dtype

    @property
    def role(self) -> Role:
        """``"weight"``, ``"gradient"`` or ``"tensor"``: see the class."""
        return self._role

    @property
    def scale_rounding(self) -> str:
        """``"power_of_two"`` or ``"exact"``: how a new scale is chosen when the tensor is written to."""
        return self._scale_rounding

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values as a plain tensor of the same shape, in `dtype` (floating) or the logical dtype. No gradient flows
        through it. Raises TypeError for any other dtype."""
        target = self.dtype if dtype is None else dtype
        if not isinstance(target, torch.dtype) or not target.is_floating_point:
            raise TypeError(f"dequantize: dtype must be a floating torch.dtype, got {target!r}")
        wide = target if target in (torch.float32, torch.float16, torch.bfloat16) else torch.float32
        return _ops.dequantize(_dense_layout(self._payload), self._scale_inv, wide).to(target)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        values = repr(self.detach().dequantize()).partition("(")[2].removesuffix(")").replace("\n", "\n      ")
        requires_grad = ", requires_grad=True" if self.requires_grad else ""
        return f"ScaledTensor({values}, format={self.format}, scale_inv={self._scale_inv}{requires_grad})"

    def __format__(self, spec: str) -> str:
        return format(self.detach().dequantize(), spec)

    # ---- tracing ----
    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_payload", "_scale_inv"], (self.dtype, self._role, self._scale_rounding, self._part)

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: Any, outer_size: Any, outer_stride: Any
    ) -> ScaledTensor:
        dtype, role, scale_rounding, part = context
        return ScaledTensor(
            inner["_payload"],
            inner["_scale_inv"],
            dtype,
            role=role,
            scale_rounding=scale_rounding,
            part=part,
            checked=False,
        )

    # ---- copies ----
    def __reduce_ex__(self, protocol: Any) -> Any:
        whole: Any = self.detach().clone() if self._part else self  # a piece is saved by itself, not with its base
        hidden = set(FIELDS)
        attributes = {name: value for name, value in self.__dict__.items() if name not in hidden}
        payload = whole._payload.detach()  # float8 as bytes: not every torch can pickle a float8 storage
        state = (
            payload.view(torch.uint8) if self.format.itemsize == 1 else payload,
            whole._scale_inv.detach(),
            self.format,
            self.dtype,
            self._role,
            self._scale_rounding,
            self.requires_grad and self.is_leaf,
            attributes,
        )
        return _rebuild, state

    def __deepcopy__(self, memo: dict[int, Any]) -> ScaledTensor:
        if id(self) in memo:
            found: ScaledTensor = memo[id(self)]
            return found
        if not self.is_leaf:
            raise RuntimeError("deepcopy: only leaf ScaledTensors can be copied; detach() this one first")
        result: Any = self.detach().clone()
        memo[id(self)] = result
        for name, value in self.__dict__.items():
            if name not in FIELDS:
                setattr(result, name, copy.deepcopy(value, memo))
        result.requires_grad_(self.requires_grad)
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        copied: ScaledTensor = result
        return copied

    # ---- what a tensor without storage of its own cannot do by itself ----
    @property
    def data(self) -> Any:
        """A view outside autograd. Assigning re-quantises the values in place; the shape cannot change."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor) or value.shape != self.shape:
            seen = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"data: a ScaledTensor of shape {tuple(self.shape)} can be given values of that shape only, got {seen}"
            )
        with torch.no_grad():
            self.detach().copy_(value.detach())

    def share_memory_(self) -> ScaledTensor:
        """Move payload and scale to shared memory."""
        inner: tuple[Any, Any] = (self._payload, self._scale_inv)
        for tensor in inner:
            tensor.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Whether the payload is in shared memory."""
        payload: Any = self._payload
        return bool(payload.is_shared())

    def numpy(self, *, force: bool = False) -> Any:
        """The dequantised values as a NumPy array; no memory is shared."""
        return self.dequantize().numpy(force=force)

    def tolist(self) -> Any:
        """The dequantised values as (nested lists of) Python numbers."""
        return self.dequantize().tolist()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.dequantize().__dlpack__(**kwargs)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch.dispatch(func, types, args, kwargs or {})


def _check(payload: Any, scale_inv: Any, dtype: Any, role: Any, scale_rounding: Any) -> None:
    """What the constructor of a ScaledTensor was given."""
    for name, value in (("payload", payload), ("scale_inv", scale_inv)):
        if not isinstance(value, Tensor) or isinstance(value, ScaledTensor) or value.layout is not torch.strided:
            raise TypeError(f"ScaledTensor: {name} must be a plain dense tensor, got {value!r}")
    if payload.dtype not in FORMAT_MAX:
        raise TypeError(f"ScaledTensor: payload must be float8_e4m3fn, float8_e5m2 or float16, got {payload.dtype}")
    if scale_inv.dtype is not torch.float32 or scale_inv.dim() != 0 or scale_inv.device != payload.device:
        raise ValueError(
            f"ScaledTensor: scale_inv must be 0-d float32 on {payload.device}, got {scale_inv.dtype} of shape "
            f"{tuple(scale_inv.shape)} on {scale_inv.device}"
        )
    if type(scale_inv) is Tensor and scale_inv.device.type == "cpu":  # elsewhere, reading it would stall the stream
        value = scale_inv.item()
        if not math.isfinite(value) or value == 0.0:
            raise ValueError(f"ScaledTensor: scale_inv must be finite and not 0, got {value}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize == 1:
        raise TypeError(f"ScaledTensor: dtype must be a floating dtype of 16 bits or more, got {dtype!r}")
    if role not in get_args(Role):
        raise ValueError(f"ScaledTensor: role must be one of {', '.join(map(repr, get_args(Role)))}, got {role!r}")
    ScaleRounding.parse(scale_rounding, "ScaledTensor: scale_rounding")


FIELDS = ("_payload", "_scale_inv", "_role", "_scale_rounding", "_part", "_owner", "_fp8_copy")


def _rebuild(
    payload: Tensor,
    scale_inv: Tensor,
    format: torch.dtype,
    dtype: torch.dtype,
    role: Role,
    scale_rounding: str,
    requires_grad: bool,
    attributes: dict[str, Any],
) -> ScaledTensor:
    """What pickle and torch.load call; registered as safe for ``weights_only=True``."""
    made = ScaledTensor(payload.view(format), scale_inv, dtype, role=role, scale_rounding=scale_rounding, checked=False)
    made.requires_grad_(requires_grad)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _dense_layout(x: Tensor) -> Tensor:
    """x if it is contiguous, else a contiguous copy: the ops walk memory in order."""
    return x if x.is_contiguous() else x.contiguous()


def plain_operand(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """(numbers, scale_inv or None) of x as the casting ops take them: contiguous, float32, float16, bfloat16 or
    float8."""
    if isinstance(x, ScaledTensor):
        return _dense_layout(x._payload), x._scale_inv
    x = x.detach()
    return _dense_layout(x if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x.float()), None


def scaled(
    x: Tensor,
    format: torch.dtype,
    *,
    role: Role = "tensor",
    scale: Tensor | None = None,
    scale_rounding: str = "power_of_two",
    rounding: Rounding = Rounding.NEAREST,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> ScaledTensor:
    """Cast x (plain or ScaledTensor, any shape) to a new ScaledTensor under one scale. The logical dtype is `dtype`
    or that of x."""
    numbers, x_scale_inv = plain_operand(x)
    overflow = Overflow.NAN if role == "gradient" else Overflow.SATURATE
    payload, scale_inv, _ = _ops.quantize(
        numbers,
        x_scale_inv,
        format,
        scale=scale,
        scale_rounding=scale_rule(scale_rounding),
        rounding=rounding,
        overflow=overflow,
        seed=seed,
    )
    # not checked: the op has made the scale, and while a stream captures it is not there yet
    return ScaledTensor(payload, scale_inv, dtype or x.dtype, role=role, scale_rounding=scale_rounding, checked=False)


def scaled_weight(x: Tensor, format: torch.dtype = FP16) -> ScaledTensor:
    """x as a master weight: `format` under a power-of-two scale, so that its dense FP32 values are exact."""
    return scaled(x, format, role="weight")


def scaled_zeros(x: Tensor, format: torch.dtype, *, scale_rounding: str = "exact") -> ScaledTensor:
    """A state of zeros, shaped and labelled as x."""
    stored_as = (
        torch.uint8 if format.itemsize == 1 else format
    )  # not every torch can fill a float8 tensor; zero is 0x00
    payload = torch.zeros(x.shape, dtype=stored_as, device=x.device).view(format)
    scale_inv = torch.ones((), dtype=torch.float32, device=x.device)
    return ScaledTensor(payload, scale_inv, x.dtype, scale_rounding=scale_rounding)


def dense(x: Tensor) -> Tensor:
    """A plain FP32 tensor with the values of a ScaledTensor; any other tensor as it is."""
    return x.dequantize(torch.float32) if isinstance(x, ScaledTensor) else x


def own_payload(x: ScaledTensor) -> Tensor:
    """The payload of x, or of the tensor that x is a view of."""
    return x._payload if x._owner is None else x._owner._payload


def version(x: Tensor) -> int:
    """Counts the writes to x, its views and its `.data` alike; -1 where nobody counts them all: for an inference
    tensor, and for memory that other processes write to."""
    owner = own_payload(x) if isinstance(x, ScaledTensor) else x
    uncounted = owner.is_inference() or (owner.device.type == "cpu" and owner.untyped_storage().is_shared())
    return -1 if uncounted else owner._version


def versions(x: Tensor) -> tuple[int, int]:
    """Those of the payload and of the scale of x: what is derived from its values is good while neither moves, and
    not at all where one is -1."""
    return version(x), version(x._scale_inv) if isinstance(x, ScaledTensor) else 0


def note_stream(x: ScaledTensor, stream: int) -> None:
    """Remembers that x was used or written inside the capture of a CUDA graph, if `stream` (`_ops.current_stream`)
    captures: in the payload, which all aliases of x share."""
    if stream == _ops.CAPTURING:
        payload: Any = own_payload(x)
        payload._fp8amp_in_graph = True


def in_graph(x: ScaledTensor) -> bool:
    """Whether a replay may write x, of which no version counter tells."""
    return hasattr(own_payload(x), "_fp8amp_in_graph")


torch.serialization.add_safe_globals([_rebuild, ScaledTensor])

from . import dispatch as _dispatch  # noqa: E402  (the handlers need the class above)
