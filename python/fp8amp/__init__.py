"""fp8amp: FP8 mixed precision training for PyTorch.

    model, optimizer = fp8amp.initialize(model, optimizer, opt_level="O2")

is the whole change to a training script. See `initialize` for the levels; `ScaledTensor` for how weights, gradients
and optimizer states are stored; `memory_report` for what they take.
"""

from typing import TYPE_CHECKING, Any

from . import nn, optim
from .build import build_info, version
from .clip import clip_grad_norm_
from .dense import to_dense
from .errors import Error
from .initialize import initialize
from .memory import MemoryReport, memory_bytes, memory_report
from .module_filter import fp8_layers
from .quantize import quantize
from .recipe import BlockScaling, ConstantScaling, CurrentScaling, DelayedScaling, RowwiseScaling
from .scaled_tensor import ScaledTensor

if TYPE_CHECKING:
    from . import core as core

__version__ = version()

__all__ = [
    "BlockScaling",
    "ConstantScaling",
    "CurrentScaling",
    "DelayedScaling",
    "Error",
    "MemoryReport",
    "RowwiseScaling",
    "ScaledTensor",
    "build_info",
    "clip_grad_norm_",
    "core",
    "fp8_layers",
    "initialize",
    "memory_bytes",
    "memory_report",
    "nn",
    "optim",
    "quantize",
    "to_dense",
]


def __getattr__(name: str) -> Any:
    if name == "core":  # NumPy entry points: loaded when asked for
        import importlib

        return importlib.import_module(f"{__name__}.core")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
