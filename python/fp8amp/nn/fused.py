"""A norm or an activation and the FP8 linear layer behind it, as one function: its result is cast to FP8 as it is
computed, so that no 16- or 32-bit copy of the GEMM's operand is written. Kept for backward: x itself, mean and rstd of
its rows, and the linear layer's FP8 operands.

The gradient of x is plain, or, with ``fp8_gradient``, an E5M2 ScaledTensor where it is the output gradient of another
FP8 layer, which then reads it in 8 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _fused_ops, _ops
from .._fused_ops import CastRule
from ..policies import E4M3, E5M2, scale_rule
from ..recipe import ConstantScaling, CurrentScaling, Operand, Recipe, check_recipe
from ..scaled_tensor import ScaledTensor, dense, plain_operand
from .functional import linear_of_operand
from .operands import FLOATS, Options, as_rows, check_operand, checked, differentiable_once, output_dtype

_APPROXIMATIONS = ("none", "tanh")


def layer_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: Recipe | None = None,
) -> Tensor:
    """FP8 layer_norm(x) @ weight.T + bias, over the last side of x.

    Args:
        x: [..., in], float32, float16, bfloat16 or float64, as `functional.linear` takes it.
        norm_weight, norm_bias: [in], of these dtypes; norm_bias may be None. They are read in FP32.
        weight, bias: as in `functional.linear`.
        eps: added to the variance, 0 or more.
        recipe: CurrentScaling() by default, or ConstantScaling(...).

    Raises: TypeError or ValueError that names the argument.
    """
    _check_norm("layer_norm_linear", x, norm_weight, norm_bias, eps)
    return _norm_linear("layer_norm_linear", x, norm_weight, norm_bias, weight, bias, eps, recipe, True)


def rms_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    recipe: Recipe | None = None,
) -> Tensor:
    """FP8 rms_norm(x) @ weight.T + bias; arguments as in `layer_norm_linear`."""
    _check_norm("rms_norm_linear", x, norm_weight, None, eps)
    return _norm_linear("rms_norm_linear", x, norm_weight, None, weight, bias, eps, recipe, False)


def gelu_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    recipe: Recipe | None = None,
    fp8_gradient: bool = False,
) -> Tensor:
    """FP8 gelu(x) @ weight.T + bias.

    Args:
        x: [..., in], as `functional.linear` takes it.
        weight, bias: as in `functional.linear`.
        approximate: ``"none"`` (erf) or ``"tanh"``.
        recipe: CurrentScaling() by default, or ConstantScaling(...).
        fp8_gradient: the gradient of x is an E5M2 ScaledTensor. For an x that an FP8 linear layer has computed.

    Raises: TypeError or ValueError that names the argument.
    """
    if approximate not in _APPROXIMATIONS:
        raise ValueError(f"gelu_linear: approximate must be 'none' or 'tanh', got {approximate!r}")
    recipe = _check("gelu_linear", recipe)
    x = checked(x, weight, bias, False)
    return _activation_linear(x, weight, bias, recipe, approximate, fp8_gradient)


def swiglu_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: Recipe | None = None,
    fp8_gradient: bool = False,
) -> Tensor:
    """FP8 (silu(gate) * up) @ weight.T + bias, x [..., 2 * in] = gate and up side by side; arguments as in
    `gelu_linear`."""
    recipe = _check("swiglu_linear", recipe)
    check_operand("x", x)
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"swiglu_linear: the last side of x must be even, got shape {tuple(x.shape)}")
    x = x.dequantize() if isinstance(x, ScaledTensor) else x
    checked(x[..., : x.shape[-1] // 2], weight, bias, False)
    return _activation_linear(x, weight, bias, recipe, None, fp8_gradient)


def _check(op: str, recipe: Recipe | None) -> Recipe:
    recipe = check_recipe(recipe, f"{op}: recipe")
    if not isinstance(recipe, (CurrentScaling, ConstantScaling)):
        raise ValueError(f"{op}: recipe must be CurrentScaling or ConstantScaling, got {recipe!r}")
    return recipe


def _check_norm(op: str, x: Any, norm_weight: Any, norm_bias: Any, eps: float) -> None:
    check_operand("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"{op}: x must have columns, got shape {tuple(x.shape)}")
    for name, value in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        if value is None and name == "norm_bias":
            continue
        check_operand(name, value)
        if value.shape != (x.shape[-1],):
            raise ValueError(f"{op}: {name} must have shape ({x.shape[-1]},), got {tuple(value.shape)}")
        if value.device != x.device:
            raise ValueError(f"{op}: x is on {x.device} and {name} on {value.device}")
    if not eps >= 0:
        raise ValueError(f"{op}: eps must be 0 or more, got {eps}")


def _rule(recipe: Recipe, device: torch.device, gradient: bool = False) -> CastRule:
    if isinstance(recipe, ConstantScaling):
        return CastRule(recipe.scale(device, gradient))
    assert isinstance(recipe, CurrentScaling)
    return CastRule(None, scale_rule(recipe.scale_rounding), recipe.margin)


def _input(x: Tensor) -> tuple[Tensor, torch.dtype]:
    """x as [rows, in] of a dtype that the ops take, and the dtype of the layer's output."""
    out_dtype = output_dtype(x)
    return as_rows(x if x.dtype in FLOATS else x.float()), out_dtype


def _transposes(x: Tensor, weight: Tensor) -> bool:
    return _ops.gemm_prefers_k_contiguous(x.device) and torch.is_grad_enabled() and weight.requires_grad


def _finish(
    x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Recipe, result: tuple[Tensor, ...], out_dtype: torch.dtype
) -> Tensor:
    proxy, payload, payload_t, scale_inv = result[:4]
    operand = Operand(payload, scale_inv, payload_t if payload_t.dim() == 2 else None)
    y = linear_of_operand(proxy, weight, bias, operand, Options(recipe), None, out_dtype)
    return y.reshape(*x.shape[:-1], y.shape[-1]).to(out_dtype)


def _norm_linear(
    op: str,
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    recipe: Recipe | None,
    centered: bool,
) -> Tensor:
    recipe = _check(op, recipe)
    x = checked(x, weight, bias, False)
    rows, out_dtype = _input(x)
    rule = _rule(recipe, x.device)
    result = _NormCast.apply(  # type: ignore[no-untyped-call]
        rows, norm_weight, norm_bias, eps, rule, _transposes(x, weight), centered
    )
    return _finish(x, weight, bias, recipe, result, out_dtype)


def _activation_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Recipe, approximate: str | None, fp8_gradient: bool
) -> Tensor:
    rows, out_dtype = _input(x)
    rules = _rule(recipe, x.device), _rule(recipe, x.device, gradient=True)
    result = _ActivationCast.apply(  # type: ignore[no-untyped-call]
        rows, approximate, *rules, _transposes(x, weight), fp8_gradient
    )
    return _finish(x, weight, bias, recipe, result, out_dtype)


def _proxy(x: Tensor, columns: int) -> Tensor:
    """What stands for the result in autograd: one element, seen as [rows, columns]."""
    return x.new_zeros(()).expand(x.shape[0], columns)


def _vector(x: Tensor) -> Tensor:
    """The weight or bias of a norm as the ops take it."""
    return dense(x).detach().float().contiguous()


class _NormCast(torch.autograd.Function):
    """x -> (proxy, payload, payload transposed, scale_inv, mean if centered, rstd)."""

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        rule: CastRule,
        transpose: bool,
        centered: bool,
    ) -> tuple[Any, ...]:
        numbers, gamma = plain_operand(x)[0], _vector(weight)
        proxy = _proxy(numbers, numbers.shape[1])
        if not centered:
            q, q_t, s, _, rstd = _fused_ops.rms_norm_quantize(numbers, gamma, eps, E4M3, rule, transpose=transpose)
            return proxy, q, q_t, s, rstd
        beta = None if bias is None else _vector(bias)
        q, q_t, s, _, mean, rstd = _fused_ops.layer_norm_quantize(
            numbers, gamma, beta, eps, E4M3, rule, transpose=transpose
        )
        return proxy, q, q_t, s, mean, rstd

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias = inputs[:3]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        ctx.save_for_backward(x, weight, *output[4:])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if dy is None:
            return (None,) * 7
        x, weight, *statistics = ctx.saved_tensors
        numbers, gamma = plain_operand(x)[0], _vector(weight)
        if len(statistics) == 1:
            dx, dweight = _fused_ops.rms_norm_backward(dy.contiguous(), numbers, statistics[0], gamma)
            return dx, dweight.to(ctx.weight_dtype), *(None,) * 5
        mean, rstd = statistics
        dx, dweight, dbias = _fused_ops.layer_norm_backward(dy.contiguous(), numbers, mean, rstd, gamma)
        db = None if ctx.bias_dtype is None else dbias.to(ctx.bias_dtype)
        return dx, dweight.to(ctx.weight_dtype), db, *(None,) * 4


class _ActivationCast(torch.autograd.Function):
    """x -> (proxy, payload, payload transposed, scale_inv); `approximate`: of GELU, None for SwiGLU."""

    @staticmethod
    def forward(
        x: Tensor,
        approximate: str | None,
        rule: CastRule,
        gradient_rule: CastRule,
        transpose: bool,
        fp8_gradient: bool,
    ) -> tuple[Any, ...]:
        numbers = plain_operand(x)[0]
        if approximate is None:
            q, q_t, s, _ = _fused_ops.swiglu_quantize(numbers, E4M3, rule, transpose=transpose)
        else:
            q, q_t, s, _ = _fused_ops.gelu_quantize(numbers, approximate == "tanh", E4M3, rule, transpose=transpose)
        return _proxy(numbers, q.shape[1]), q, q_t, s

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.approximate, _, ctx.gradient_rule, _, ctx.fp8_gradient = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if dy is None:
            return (None,) * 6
        x = plain_operand(ctx.saved_tensors[0])[0]
        make = _fp8_gradient if ctx.fp8_gradient else _plain_gradient
        return make(dy.contiguous(), x, ctx.approximate, ctx.gradient_rule), *(None,) * 5


def _fp8_gradient(dy: Tensor, x: Tensor, approximate: str | None, rule: CastRule) -> Tensor:
    if approximate is None:
        q, _, s, _ = _fused_ops.swiglu_backward_quantize(dy, x, E5M2, rule)
    else:
        q, _, s, _ = _fused_ops.gelu_backward_quantize(dy, x, approximate == "tanh", E5M2, rule)
    return ScaledTensor(q, s, x.dtype, checked=False)


def _plain_gradient(dy: Tensor, x: Tensor, approximate: str | None, _: CastRule) -> Tensor:
    if approximate is not None:
        dx: Tensor = torch.ops.aten.gelu_backward(dy, x, approximate=approximate)
        return dx
    gate, up = x.chunk(2, -1)
    of_gate: Tensor = torch.ops.aten.silu_backward(dy * up, gate)
    return torch.cat([of_gate, dy * torch.nn.functional.silu(gate)], -1)
