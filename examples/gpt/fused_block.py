"""The same transformer block with fp8amp's fused layers: norms and GELU write the FP8 operand of the layer behind them,
so that no 16- or 32-bit copy of it is written or kept for backward. For models that fp8amp.initialize has converted."""

from __future__ import annotations

import fp8amp.nn.fused as fused
from torch import Tensor, nn

from model import Block


class FusedBlock(Block):
    """Block with its own parameters and results, but for the rounding of what lies between its layers."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention.attend(_norm_linear(x, self.norm1, self.attention.qkv))
        mlp = self.mlp
        hidden = _norm_linear(x, self.norm2, mlp.up)
        return x + fused.gelu_linear(hidden, mlp.down.weight, mlp.down.bias, approximate="tanh", fp8_gradient=True)


def _norm_linear(x: Tensor, norm: nn.LayerNorm, linear: nn.Linear) -> Tensor:
    return fused.layer_norm_linear(x, norm.weight, norm.bias, linear.weight, linear.bias, norm.eps)
