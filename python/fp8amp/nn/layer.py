"""What fp8amp.nn.Linear and Conv1D share: the weight as a ScaledTensor, its gradient's format, histories, and plain
state_dicts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..policies import E4M3, FP16
from ..recipe import CurrentScaling, Recipe, check_recipe
from ..scaled_tensor import ScaledTensor, dense, scaled, scaled_weight
from ..swapping import give_hooks, swap, take_hooks
from . import functional
from .operands import Options

_HISTORIES = ("x_history", "gradient_history")


def compress_gradient(weight: Tensor) -> None:
    """Post-accumulate hook: a gradient that arrived dense (a stock op on the weight, one weight used twice) becomes
    E4M3."""
    if weight.grad is not None and not isinstance(weight.grad, ScaledTensor):
        weight.grad = scaled(weight.grad, E4M3, role="gradient")


def _hooked(weight: Tensor) -> bool:
    hooks: Any = weight._post_accumulate_grad_hooks
    return hooks is not None and compress_gradient in hooks.values()


def watch_gradient(weight: Tensor) -> None:
    """Make sure that `compress_gradient` runs for this weight; a copied, unpickled or unfrozen one has lost it."""
    if weight.requires_grad and weight.is_leaf and not _hooked(weight):
        register: Any = weight.register_post_accumulate_grad_hook
        register(compress_gradient)


class ScaledWeight(nn.Module):
    """Mixin, to the left of the stock class. Its weight is a ScaledTensor, and its state_dict holds plain tensors.

    state_dict: the dequantised weight in float32 under the stock name, exact because its scale is a power of two, so
    that stock models, safetensors and other tools read it. Loading takes any floating tensor. DelayedScaling adds its
    two histories.
    """

    recipe: Recipe
    weight: Any
    bias: Any
    x_history: Tensor | None
    gradient_history: Tensor | None
    in_out = False
    """Layout of the weight: [in, out] instead of [out, in]."""

    def adopt(
        self,
        recipe: Recipe | None = None,
        *,
        gemm: str = "fp8",
        gradient_format: torch.dtype | None = E4M3,
    ) -> None:
        """Give a module that has its weight already the attributes of an FP8 layer. The weight is left as it is."""
        self.recipe = recipe or CurrentScaling()
        self.gemm = gemm
        self.gradient_format = gradient_format
        self._mark_plain_weight()
        if gradient_format is not None:
            watch_gradient(self.weight)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "recipe":  # its histories come with it, empty
            value = check_recipe(value, f"{type(self).__name__}: recipe")
        super().__setattr__(name, value)
        if name == "recipe":
            for history in _HISTORIES:
                zeros = torch.zeros(value.window + 2, dtype=torch.float32, device=self.weight.device)
                self.register_buffer(history, zeros if value.window else None)

    def _mark_plain_weight(self) -> None:
        """A weight that is no ScaledTensor (master_format float32) is marked, so that the optimizer's formats hold
        for it; torch's deepcopy and assign=True lose the mark."""
        weight: Any = self._parameters.get("weight")
        if weight is not None and not isinstance(weight, ScaledTensor):
            weight.fp8amp_managed = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._mark_plain_weight()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]; see fp8amp.nn.functional.linear."""
        weight = self.weight
        if self.gradient_format is not None and not torch.compiler.is_compiling():
            watch_gradient(weight)
        options = Options(self.recipe, self.in_out, self.gradient_format, self.training)
        if self.gemm == "none":
            return functional.dense_linear(x, weight, self.bias, options)
        return functional.scaled_linear(x, weight, self.bias, options, self.x_history, self.gradient_history)

    def extra_repr(self) -> str:
        stored = self.weight.format if isinstance(self.weight, ScaledTensor) else self.weight.dtype
        return f"{super().extra_repr()}, weight={stored}, recipe={self.recipe}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars and prefix + "weight" in destination:
            destination[prefix + "weight"] = dense(destination[prefix + "weight"])

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = state_dict.get(prefix + "weight")
        if (
            local_metadata.get("assign_to_params_buffers")
            and isinstance(given, Tensor)
            and isinstance(self.weight, ScaledTensor)
        ):
            stored_alike = (
                isinstance(given, ScaledTensor) and given.format is self.weight.format and given.role == "weight"
            )
            if not stored_alike and given.shape == self.weight.shape:
                state_dict[prefix + "weight"] = scaled(
                    given, self.weight.format, role="weight", dtype=self.weight.dtype
                )
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        self._mark_plain_weight()
        # a checkpoint of a stock model, or of another recipe, has no histories: the warm-up starts again
        missing_keys.extend(key for key in missing if key.removeprefix(prefix) not in _HISTORIES)
        if self.x_history is None:
            for name in _HISTORIES:
                if prefix + name in unexpected_keys:
                    unexpected_keys.remove(prefix + name)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Module.to, .half, .cuda ...: torch swaps a tensor subclass, which leaves its hooks dead and casts buffers."""
        before, hooks = self.weight, take_hooks(self.weight)
        format = before.format if isinstance(before, ScaledTensor) else None
        histories = {name: getattr(self, name) for name in _HISTORIES}
        move: Any = super()._apply
        move(fn, recurse)
        if format is not None and not isinstance(self.weight, ScaledTensor):  # to_empty
            fresh = scaled_weight(self.weight.detach(), format)
            swap(self.weight, nn.Parameter(fresh, requires_grad=self.weight.requires_grad))
        give_hooks(self.weight, hooks)
        for name, kept in histories.items():
            moved = getattr(self, name)
            if moved is not None and moved.dtype is not torch.float32:
                setattr(self, name, kept.to(moved.device))  # scales and maxima are FP32 always
        return self


def make_scaled(module: nn.Module, format: torch.dtype = FP16) -> None:
    """Turn module.weight, in place, into a ScaledTensor of `format` with the same values, rounded."""
    weight: Any = module.weight
    if not isinstance(weight, ScaledTensor):
        swap(weight, nn.Parameter(scaled_weight(weight.detach(), format), requires_grad=weight.requires_grad))
