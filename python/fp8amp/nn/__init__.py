"""FP8 layers: Linear, Conv1D, and functional.linear."""

from . import functional
from .conv1d import Conv1D
from .linear import Linear

__all__ = ["Conv1D", "Linear", "functional"]
