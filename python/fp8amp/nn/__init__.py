"""FP8 layers: Linear, Conv1D, functional.linear, and fused: norms and activations with the linear layer behind them."""

from . import functional, fused
from .conv1d import Conv1D
from .linear import Linear

__all__ = ["Conv1D", "Linear", "functional", "fused"]
