"""fp8amp.nn.Linear: torch.nn.Linear with FP8 GEMMs, a scaled FP16 weight and FP8 weight gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..recipe import Recipe, check_recipe
from .layer import ScaledWeight, make_scaled


class Linear(ScaledWeight, nn.Linear):
    """y = x @ weight.T + bias in FP8.

    Args: those of torch.nn.Linear, and `recipe` (CurrentScaling() by default).

    `weight` is a ScaledTensor parameter [out, in]: FP16 under one power-of-two scale, of the logical dtype asked for.
    Its gradient is a ScaledTensor in E4M3. `bias` is an ordinary parameter.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        recipe = check_recipe(recipe, "Linear: recipe")
        nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        make_scaled(self)
        self.adopt(recipe)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out]; see fp8amp.nn.functional.linear."""
        return super().forward(input)
