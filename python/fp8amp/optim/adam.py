"""Adam and AdamW whose states, gradients and weights are in low precision: torch's arguments and group keys, one
fused pass.

    O1   exp_avg FP32, exp_avg_sq FP32                            11 bytes per parameter with weight (FP16) and
    gradient (E4M3)
    O2   exp_avg E4M3, exp_avg_sq FP16, both with exact scales     6 bytes per parameter

A gradient with an infinite or NaN element anywhere skips the step of every parameter: weights, states and step counts
stay as they are bit for bit. Stochastic rounding is keyed by (seed, step, index of the parameter, element), so equal
seeds give equal bits and an interrupted run resumes exactly.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import _ops
from ..nn.weight_cache import drop_fp8_weight
from ..policies import E4M3, FP16
from ..scaled_tensor import ScaledTensor, plain_operand, versions
from .groups import check_group, check_memory, check_parameter
from .loading import load_state_dict
from .state import StatePolicy, convert_state, make_state, parse_policy, stored_amax

_SKIPS_WORTH_A_WARNING = 20  # in a row: a GradScaler that looks for its scale skips fewer, and without this optimizer


class _Entry(NamedTuple):
    """One parameter of a step."""

    parameter: Tensor
    grad: Tensor
    state: dict[str, Any]
    tensor_id: int


class Adam(Optimizer):
    """torch.optim.Adam for FP8 layers and for ordinary parameters alike.

    Args:
        params, lr, betas, eps, weight_decay, maximize, decoupled_weight_decay: as in torch.optim.Adam. An lr that is
            a tensor on the parameters' GPU is read there: a captured CUDA graph follows what is written to it.
        foreach, fused, capturable: accepted and without effect: every step is fused.
        amsgrad, differentiable: must be False.
        exp_avg_format: float8_e4m3fn (O2, the default) or float32 (O1), for the weights of FP8 layers.
        exp_avg_sq_format: float16 (O2, the default), float32 (O1), or a float8 dtype, which diverges in long runs
            (for studies).
        master_rounding: of the FP16 weight, ``"stochastic"``, which keeps small updates on average, or ``"nearest"``.
        moment_rounding: of exp_avg. With ``"nearest"`` its smallest codes never decay.
        second_moment_rounding: of exp_avg_sq.
        seed: of stochastic rounding.

    Raises: ValueError or TypeError that names the argument. RuntimeError from `step` for sparse gradients.
    Sources: arXiv 1412.6980 (Adam), 1711.05101 (AdamW), 2310.18313 (precision-decoupled Adam).
    """

    _decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        exp_avg_format: torch.dtype = E4M3,
        exp_avg_sq_format: torch.dtype = FP16,
        master_rounding: str = "stochastic",
        moment_rounding: str = "stochastic",
        second_moment_rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        policy = parse_policy(
            type(self).__name__,
            exp_avg_format,
            exp_avg_sq_format,
            master_rounding,
            moment_rounding,
            second_moment_rounding,
            seed,
        )
        defaults = dict(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=decoupled_weight_decay,
        )
        check_group(type(self).__name__, defaults)
        self.policy = policy
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the group's hyper-parameters and dtypes are checked."""
        caller = type(self).__name__
        if isinstance(param_group, dict):
            check_group(caller, {**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            for parameter in self.param_groups[-1]["params"]:
                check_parameter(caller, parameter)
        except TypeError:
            self.param_groups.pop()
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "policy": self.policy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("policy", StatePolicy())
        for group in self.param_groups:
            for name, value in (("maximize", False), ("decoupled_weight_decay", self._decoupled), ("amsgrad", False)):
                group.setdefault(name, value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of this class, of another level, or of torch's Adam.

        States that are in the format asked for keep every bit; others are converted by value. (torch's own would cast
        each to the dtype of its parameter.) The policies - formats, roundings, seed - stay those of this optimizer.
        """
        load_state_dict(self, state_dict)

    @property
    def skipped_steps(self) -> int:
        """Number of steps that were skipped for a non-finite gradient. Reading it waits for the device."""
        counts: dict[torch.device, Tensor] = self.__dict__.get("_skipped", {})
        return int(max((float(count) for count in counts.values()), default=0.0))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. Returns what `closure` returned, if there is one.

        Raises RuntimeError if a gradient is sparse, TypeError if a parameter has a dtype that is not supported,
        TypeError or ValueError if a hyper-parameter of any group is bad; nothing has changed then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self._entries()
        entries = [entry for _, group in groups for entry in group]
        if not entries:
            return loss
        for entry in entries:
            self._refresh_amax(entry)
        devices = dict.fromkeys(entry.parameter.device for entry in entries)
        # the scale_inv of all that have none of their own: one fill, not one for each of them
        ones = {device: torch.ones((), dtype=torch.float32, device=device) for device in devices}
        found_inf = self._found_inf(entries, ones)
        self._warn_of_skips(found_inf)
        for group, members in groups:
            for device in dict.fromkeys(entry.parameter.device for entry in members):
                local = [entry for entry in members if entry.parameter.device == device]
                self._update(group, local, found_inf[device], ones[device])
        streams = {device: _ops.current_stream(device) for device in devices}
        for entry in entries:
            self._remember(entry)
            drop_fp8_weight(entry.parameter, streams[entry.parameter.device])
        return loss

    def _entries(self) -> list[tuple[dict[str, Any], list[_Entry]]]:
        """The parameters with a gradient by group; everything that can be wrong is found here, before anything
        changes."""
        found: list[tuple[dict[str, Any], list[tuple[Tensor, Tensor, int]]]] = []
        index = 0
        caller = f"{type(self).__name__}.step"
        for group in self.param_groups:
            check_group(caller, group)
            members = []
            for p in group["params"]:
                if p.grad is not None:
                    _check_gradient(caller, p, p.grad)
                    members.append((p, p.grad.detach(), index))
                index += 1
            found.append((group, members))
        if any("exp_avg" not in self.state.get(p, {}) for _, members in found for p, _, _ in members):
            check_memory(caller, [p for group in self.param_groups for p in group["params"]])
        result = []
        for group, members in found:
            entries = []
            for p, grad, tensor_id in members:
                state = self.state[p]
                if "exp_avg" not in state:
                    state.update(make_state(p, self.policy))
                elif "amax" not in state:  # somebody put stock states here
                    self.state[p] = state = convert_state(p, state, self.policy)
                entries.append(_Entry(p, grad, state, tensor_id))
            result.append((group, entries))
        return result

    def _found_inf(self, entries: list[_Entry], ones: dict[torch.device, Tensor]) -> dict[torch.device, Tensor]:
        """1.0 on every device if any gradient anywhere is non-finite. Writes amax[3] of each state."""
        devices = list(ones)
        flags = []
        for device in devices:
            local = [entry for entry in entries if entry.parameter.device == device]
            grads = [_operand(entry.grad, ones[device]) for entry in local]
            flags.append(
                _ops.grad_amax_([g for g, _ in grads], [s for _, s in grads], [e.state["amax"] for e in local])
            )
        total = flags[0] if len(flags) == 1 else torch.stack([flag.to(devices[0]) for flag in flags]).amax()
        skipped = self.__dict__.setdefault("_skipped", {})
        found = {device: total.to(device) for device in devices}
        for device in devices:  # in place: every replay of a captured step adds to it
            if device in skipped:
                skipped[device].add_(found[device])
            else:
                skipped[device] = found[device].clone()
        return found

    def _warn_of_skips(self, found_inf: dict[torch.device, Tensor]) -> None:
        """One warning where step after step is skipped. Not on a GPU: reading the flag would wait for it."""
        if all(device.type == "cpu" for device in found_inf):
            row = self.__dict__.get("_skipped_in_a_row", 0) + 1 if any(map(bool, found_inf.values())) else 0
            self.__dict__["_skipped_in_a_row"] = row
            if row == _SKIPS_WORTH_A_WARNING:
                name = type(self).__name__
                warnings.warn(f"fp8amp: {name} skipped the last {row} steps: a gradient is NaN or Inf", stacklevel=3)

    def _update(self, group: dict[str, Any], entries: list[_Entry], found_inf: Tensor, one: Tensor) -> None:
        device = entries[0].parameter.device
        targets = [_target(entry.parameter, one) for entry in entries]
        grads = [_operand(entry.grad, one) for entry in entries]
        first = [_operand(entry.state["exp_avg"], one) for entry in entries]
        second = [_operand(entry.state["exp_avg_sq"], one) for entry in entries]
        beta1, beta2 = (float(beta) for beta in group["betas"])
        policy = self.policy
        _ops.adam_(
            [t.numbers for t in targets],
            [t.scale_inv for t in targets],
            [g for g, _ in grads],
            [s for _, s in grads],
            [m for m, _ in first],
            [s for _, s in first],
            [v for v, _ in second],
            [s for _, s in second],
            [entry.state["amax"] for entry in entries],
            [entry.state["step"] for entry in entries],
            [entry.tensor_id for entry in entries],
            lr=_scalar(group["lr"], device),
            betas=(beta1, beta2),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            decoupled=bool(group.get("decoupled_weight_decay", self._decoupled)),
            maximize=bool(group.get("maximize", False)),
            master_rounding=policy.master_rounding,
            moment_rounding=policy.moment_rounding,
            second_moment_rounding=policy.second_moment_rounding,
            seed=policy.seed,
            grad_scale=None,
            found_inf=found_inf,
        )
        for entry, target in zip(entries, targets, strict=True):
            if target.is_copy:
                entry.parameter.copy_(target.numbers)

    def _refresh_amax(self, entry: _Entry) -> None:
        """amax is of what was stored at the last step: take it anew for whatever somebody else has written since."""
        before = _seen(self).get(id(entry.parameter), {})
        for place, stamp in _stamps(entry).items():
            if place not in before or not before[place].same(stamp):
                name = (None, "exp_avg", "exp_avg_sq")[place]
                entry.state["amax"][place] = stored_amax(entry.parameter if name is None else entry.state[name])

    def _remember(self, entry: _Entry) -> None:
        _seen(self)[id(entry.parameter)] = _stamps(entry)


class AdamW(Adam):
    """torch.optim.AdamW: Adam with decoupled weight decay (default 0.01). See `Adam`."""

    _decoupled = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True  # as torch's, whatever a checkpoint of Adam says

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        exp_avg_format: torch.dtype = E4M3,
        exp_avg_sq_format: torch.dtype = FP16,
        master_rounding: str = "stochastic",
        moment_rounding: str = "stochastic",
        second_moment_rounding: str = "nearest",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            exp_avg_format=exp_avg_format,
            exp_avg_sq_format=exp_avg_sq_format,
            master_rounding=master_rounding,
            moment_rounding=moment_rounding,
            second_moment_rounding=second_moment_rounding,
            seed=seed,
        )


class _Stamp:
    """Which payload was seen, at which versions."""

    def __init__(self, tensor: ScaledTensor) -> None:
        self.payload = weakref.ref(tensor._payload)
        self.versions = versions(tensor)

    def same(self, other: _Stamp) -> bool:
        counted = self.versions == other.versions and min(self.versions) >= 0
        return counted and self.payload() is not None and self.payload() is other.payload()


def _stamps(entry: _Entry) -> dict[int, _Stamp]:
    """By place in amax: of the parameter, exp_avg and exp_avg_sq, where they have a scale."""
    tensors = (entry.parameter, entry.state["exp_avg"], entry.state["exp_avg_sq"])
    return {place: _Stamp(tensor) for place, tensor in enumerate(tensors) if isinstance(tensor, ScaledTensor)}


def _seen(optimizer: Optimizer) -> dict[int, dict[int, _Stamp]]:
    found: dict[int, dict[int, _Stamp]] = optimizer.__dict__.setdefault("_seen_versions", {})
    return found


class _Target(NamedTuple):
    numbers: Tensor
    scale_inv: Tensor
    is_copy: bool


def _target(parameter: Tensor, one: Tensor) -> _Target:
    """The tensor that the op updates: the parameter's own memory, or an FP32 copy of a plain 16-bit or strided one."""
    local = parameter.detach()
    if isinstance(local, ScaledTensor):
        return _Target(local._payload, local._scale_inv, False)
    if local.dtype is torch.float32 and local.is_contiguous():
        return _Target(local, one, False)
    return _Target(local.to(torch.float32).contiguous(), one, True)


def _operand(x: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
    numbers, scale_inv = plain_operand(x)
    return numbers, one if scale_inv is None else scale_inv


def _scalar(value: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(device=device, dtype=torch.float32).reshape(())
    return torch.full((), float(value), dtype=torch.float32, device=device)


def _check_gradient(caller: str, parameter: Tensor, grad: Tensor) -> None:
    check_parameter(caller, parameter)
    if grad.layout is not torch.strided:
        raise RuntimeError(f"{caller}: sparse gradients are not supported, got layout {grad.layout}")
    if isinstance(parameter, ScaledTensor) and not parameter.payload.is_contiguous():
        raise TypeError(f"{caller}: the payload of a ScaledTensor parameter must be contiguous")
