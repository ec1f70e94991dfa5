"""fp8amp.nn.Conv1D: the linear layer of GPT-2 in Hugging Face's transformers, whose weight is [in, out], in FP8.

``TransformersConv1D`` is its child that is a transformers Conv1D too, so that peft and others recognise a converted
layer. It is made when it is first asked for, as transformers is never imported from here before somebody else needs it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import nn

from ..recipe import Recipe, check_recipe
from .layer import ScaledWeight, make_scaled

_ORIGIN = "transformers.pytorch_utils"


class Conv1D(ScaledWeight):
    """y = x @ weight + bias in FP8.

    Args:
        nf: number of output features.
        nx: number of input features.
        recipe: CurrentScaling() by default.

    `weight` is a ScaledTensor parameter [nx, nf], `bias` an ordinary one [nf]; initialised as transformers does
    (normal, 0.02).
    """

    in_out = True

    def __init__(
        self, nf: int, nx: int, *, device: Any = None, dtype: Any = None, recipe: Recipe | None = None
    ) -> None:
        recipe = check_recipe(recipe, "Conv1D: recipe")
        nn.Module.__init__(self)
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(nf, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)
        make_scaled(self)
        self.adopt(recipe)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nf={self.nf}, nx={self.nx}, recipe={self.recipe})"


def transformers_class() -> type[nn.Module] | None:
    """transformers' own Conv1D, if transformers has been imported."""
    module = sys.modules.get(_ORIGIN)
    found: type[nn.Module] | None = getattr(module, "Conv1D", None)
    return found


def __getattr__(name: str) -> Any:
    if name != "TransformersConv1D":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    original = importlib.import_module(_ORIGIN).Conv1D
    made = type(name, (Conv1D, original), {"__module__": __name__, "__doc__": "A converted transformers Conv1D."})
    globals()[name] = made
    return made
