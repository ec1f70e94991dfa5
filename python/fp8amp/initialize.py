"""fp8amp.initialize: turn a model and its optimizer, in place, into their FP8 form.

Every object the user holds stays that object: modules (their class changes), parameters (their contents are swapped),
the optimizer (its class changes), learning-rate schedulers, hooks, param groups. Everything is checked before
anything changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import optim
from .module_filter import Names, Predicate, Selection, fp8_class, fp8_layers, logger, select, summary
from .nn.layer import ScaledWeight, make_scaled
from .optim.groups import check_group, check_parameter
from .optim.state import StatePolicy, check_state, convert_state, parse_policy
from .policies import E4M3, FP16, Rounding
from .recipe import Recipe, check_recipe
from .swapping import check_swappable

_Model = TypeVar("_Model", bound=nn.Module)
_Optim = TypeVar("_Optim", bound=Optimizer)

LEVELS = {"O1": (torch.float32, torch.float32), "O2": (E4M3, FP16)}
"""Formats of (exp_avg, exp_avg_sq) at each level; weights are FP16 with a scale and gradients E4M3 at both."""

_MASTERS = (FP16, torch.float32, E4M3)
_OPTIMIZERS: dict[type[Optimizer], type[optim.Adam]] = {
    torch.optim.AdamW: optim.AdamW,
    torch.optim.Adam: optim.Adam,
    optim.AdamW: optim.AdamW,
    optim.Adam: optim.Adam,
}
_MARK = "_fp8amp_opt_level"


@overload
def initialize(
    model: _Model,
    optimizer: None = None,
    opt_level: str = "O1",
    *,
    recipe: Recipe | None = None,
    include: Names | Predicate | None = None,
    exclude: Names | Predicate | None = None,
    master_rounding: str = "stochastic",
    moment_rounding: str = "stochastic",
    seed: int = 0,
    gemm: str = "fp8",
    grad_format: torch.dtype | None = E4M3,
    exp_avg_format: torch.dtype | None = None,
    exp_avg_sq_format: torch.dtype | None = None,
    master_format: torch.dtype = FP16,
    second_moment_rounding: str = "nearest",
) -> _Model: ...


@overload
def initialize(
    model: _Model,
    optimizer: _Optim,
    opt_level: str = "O1",
    *,
    recipe: Recipe | None = None,
    include: Names | Predicate | None = None,
    exclude: Names | Predicate | None = None,
    master_rounding: str = "stochastic",
    moment_rounding: str = "stochastic",
    seed: int = 0,
    gemm: str = "fp8",
    grad_format: torch.dtype | None = E4M3,
    exp_avg_format: torch.dtype | None = None,
    exp_avg_sq_format: torch.dtype | None = None,
    master_format: torch.dtype = FP16,
    second_moment_rounding: str = "nearest",
) -> tuple[_Model, _Optim]: ...


def initialize(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    opt_level: str = "O1",
    *,
    recipe: Recipe | None = None,
    include: Names | Predicate | None = None,
    exclude: Names | Predicate | None = None,
    master_rounding: str = "stochastic",
    moment_rounding: str = "stochastic",
    seed: int = 0,
    gemm: str = "fp8",
    grad_format: torch.dtype | None = E4M3,
    exp_avg_format: torch.dtype | None = None,
    exp_avg_sq_format: torch.dtype | None = None,
    master_format: torch.dtype = FP16,
    second_moment_rounding: str = "nearest",
) -> Any:
    """Convert a model, and its Adam or AdamW, for FP8 training; both in place.

    Args:
        model: its nn.Linear layers, and the Conv1D of transformers, become FP8 layers; biases, norms and embeddings
            stay. Layers of fp8amp.nn that it has already keep their own recipe, gemm and formats.
        optimizer: torch.optim.Adam or AdamW (exactly), or those of fp8amp, whose formats, roundings and seed must be
            the ones asked for here; its states are converted with it. None: the model alone.
        opt_level: ``"O1"`` (FP8 GEMMs, FP8 gradients, FP16 weights, FP32 states: 11 bytes per parameter) or ``"O2"``
            (and states in E4M3 and FP16: 6 bytes).
        recipe: CurrentScaling() (default), DelayedScaling(...), ConstantScaling(...), RowwiseScaling(...) or
            BlockScaling(...).
        include: which layers: names (fnmatch patterns: ``"blocks.*.mlp.*"``), each of which must match a layer, or a
            predicate (name, module) -> bool. Default: all with both sides of 16 or more. Layers whose
            weight is tied to another module never convert.
        exclude: which of those not; names or a predicate.
        master_rounding: of the FP16 weight after the optimizer's update. With ``"nearest"`` updates below half a step
            of FP16, 2.4e-4 to 4.9e-4 of the weight, are lost: at learning rates of 1e-5 most are.
        moment_rounding: of an FP8 exp_avg. With ``"nearest"`` its smallest codes never decay.
        seed: of stochastic rounding; equal seeds give equal bits.

    The remaining arguments override what the level sets, for ablations, one factor at a time:
        gemm: ``"fp8"``, or ``"none"`` for full-precision GEMMs on the dequantised weight.
        grad_format: float8_e4m3fn, or None for dense gradients.
        exp_avg_format, exp_avg_sq_format: see fp8amp.optim.Adam; None: those of the level.
        master_format: float16, float32 (a plain parameter) or float8_e4m3fn.
        second_moment_rounding: of a low-precision exp_avg_sq.

    Returns: (model, optimizer), the very objects given; the model alone if `optimizer` is None.

    Raises:
        TypeError: model, optimizer or a filter is of another kind, or a trainable parameter that the optimizer holds
            is neither float32, float16 nor bfloat16.
        ValueError: a name or number is none of the above, no layer can be converted, the model is converted, wrapped
            or sharded already, or the optimizer holds none of its parameters or has another policy.
        RuntimeError: a view or a live graph still holds a weight. In all cases nothing has changed.
    """
    if not isinstance(opt_level, str) or opt_level not in LEVELS:
        raise ValueError(f"initialize: opt_level must be one of {', '.join(map(repr, LEVELS))}, got {opt_level!r}")
    recipe = check_recipe(recipe, "initialize: recipe")
    first, second = LEVELS[opt_level]
    policy = parse_policy(
        "initialize",
        first if exp_avg_format is None else exp_avg_format,
        exp_avg_sq_format or second,
        master_rounding,
        moment_rounding,
        second_moment_rounding,
        seed,
    )
    if gemm not in ("fp8", "none"):
        raise ValueError(f"initialize: gemm must be 'fp8' or 'none', got {gemm!r}")
    if grad_format not in (E4M3, None):
        raise ValueError(f"initialize: grad_format must be {E4M3} or None, got {grad_format!r}")
    if master_format not in _MASTERS:
        raise ValueError(
            f"initialize: master_format must be one of {', '.join(map(str, _MASTERS))}, got {master_format!r}"
        )
    _check_model(model)
    selection = select(model, include, exclude)
    _check_selection(selection, model)
    if optimizer is not None:
        _check_optimizer(optimizer, model, policy)
    _check_swaps(selection, master_format)

    for module in selection.chosen.values():
        _convert_layer(module, recipe, gemm, grad_format, master_format)
    model.__dict__[_MARK] = opt_level
    if optimizer is not None:
        _convert_optimizer(optimizer, policy)
    logger.info(summary(opt_level, model, selection.left))
    return model if optimizer is None else (model, optimizer)


# ---- checks: nothing changes here ------------------------------------------------
def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"initialize: model must be a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        place = f"module {name!r}" if name else "the model"
        if _MARK in module.__dict__:
            raise ValueError(
                f"initialize: {place} is initialized already (opt_level {module.__dict__[_MARK]}); for an optimizer "
                "made later, take fp8amp.optim.AdamW(model.parameters())"
            )
        kind = _wrapper_kind(module)
        if kind is not None:
            raise ValueError(f"initialize: {place} is wrapped in {kind}; initialize the bare model first, then wrap it")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "placements"):
            raise ValueError(f"initialize: parameter {name!r} is a DTensor; initialize before sharding the model")


def _wrapper_kind(module: nn.Module) -> str | None:
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.jit.ScriptModule)):
        return type(module).__name__
    if isinstance(module, torch._dynamo.OptimizedModule):
        return "torch.compile"
    names = {kind.__name__ for kind in type(module).__mro__}
    return next((name for name in ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine") if name in names), None)


def _check_selection(selection: Selection, model: nn.Module) -> None:
    if selection.chosen or fp8_layers(model):
        return
    if not selection.left:
        raise ValueError(
            f"initialize: model {type(model).__name__} has no nn.Linear (or transformers Conv1D) layer to convert"
        )
    listed = ", ".join(f"{name or 'the model'} ({why})" for name, why in list(selection.left.items())[:4])
    raise ValueError(f"initialize: no layer of {type(model).__name__} can be converted; left alone: {listed}")


def _check_optimizer(optimizer: Any, model: nn.Module, policy: StatePolicy) -> None:
    if type(optimizer) not in _OPTIMIZERS:
        raise TypeError(
            "initialize: optimizer must be a torch.optim.Adam or AdamW (no subclass) or one of fp8amp.optim, got "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        )
    if isinstance(optimizer, optim.Adam) and optimizer.policy != policy:
        raise ValueError(
            f"initialize: optimizer must have the policy of the other arguments, {_told(policy)}, got "
            f"{_told(optimizer.policy)}; give both the same"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if held.isdisjoint(id(p) for p in model.parameters()):
        raise ValueError("initialize: optimizer holds no parameter of model; build it from model.parameters()")
    step = optimizer.__dict__.get("step")
    if step is not None and not getattr(step, "_wrapped_by_lr_sched", False):
        raise ValueError(
            f"initialize: optimizer.step has been replaced by {step!r}; initialize before wrapping the optimizer"
        )
    for group in optimizer.param_groups:
        check_group("initialize: optimizer", group)
        for parameter in group["params"]:
            check_parameter("initialize: optimizer", parameter)
            check_state("initialize: optimizer", parameter, optimizer.state.get(parameter, {}))
            if "max_exp_avg_sq" in optimizer.state.get(parameter, {}):
                raise ValueError("initialize: optimizer holds amsgrad states, which have no low-precision form here")


def _told(policy: StatePolicy) -> str:
    values = {k: v.name.lower() if isinstance(v, Rounding) else v for k, v in asdict(policy).items()}
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _check_swaps(selection: Selection, master_format: torch.dtype) -> None:
    if master_format is torch.float32:
        return
    for name, module in selection.chosen.items():
        try:
            check_swappable(_weight(module))
        except RuntimeError as error:
            raise RuntimeError(f"initialize: {name or 'model'}.weight cannot be converted: {error}") from None


# ---- changes: nothing fails here ------------------------------------------------
def _weight(module: nn.Module) -> Tensor:
    weight: Tensor = module._parameters["weight"]  # type: ignore[assignment]
    return weight


def _convert_layer(
    module: nn.Module,
    recipe: Recipe,
    gemm: str,
    grad_format: torch.dtype | None,
    master_format: torch.dtype,
) -> None:
    module.__class__ = fp8_class(module)
    if master_format is not torch.float32:
        make_scaled(module, master_format)
    assert isinstance(module, ScaledWeight)
    module.adopt(recipe, gemm=gemm, gradient_format=grad_format)


def _convert_optimizer(optimizer: Any, policy: StatePolicy) -> None:
    """The same object with our class. A scheduler may have left a wrapper of `step` that is bound to the old class."""
    scheduled = optimizer.__dict__.pop("step", None)
    optimizer.__class__ = _OPTIMIZERS[type(optimizer)]
    optimizer.policy = policy
    for parameter, state in list(optimizer.state.items()):
        if isinstance(parameter, Tensor) and isinstance(state, Mapping) and state:
            optimizer.state[parameter] = convert_state(parameter, state, policy)
    optimizer.__setstate__({})
    if scheduled is None:
        return

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step
