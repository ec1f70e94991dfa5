"""The small models that the tests train, and how two results are compared."""

from __future__ import annotations

from typing import Any

import fp8amp
import torch
from fp8amp import ScaledTensor
from torch import Tensor, nn

E4M3, E5M2, FP16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16
MAX = {E4M3: 448.0, E5M2: 57344.0, FP16: 65504.0}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))


def batch(seed: int = 1, rows: int = 8, columns: int = 16) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def trainer(level: str = "O2", net_seed: int = 0, lr: float = 1e-2, **options: Any) -> tuple[nn.Sequential, Any]:
    model = net(net_seed)
    return fp8amp.initialize(model, torch.optim.AdamW(model.parameters(), lr=lr), level, **options)


def train(model: nn.Module, optimizer: Any, steps: int, first: int = 0) -> list[float]:
    """Regression on fresh data each step; the losses."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = (model(batch(step)) - batch(step + 1000)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def dense(x: Tensor) -> Tensor:
    x = x.detach()
    return x.dequantize(torch.float32) if isinstance(x, ScaledTensor) else x.float()


def code(x: Tensor) -> Tensor:
    """The stored bits."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x.view(torch.int16)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit: payload, scale, format, and NaN to NaN."""
    a, b = a.detach(), b.detach()
    if isinstance(a, ScaledTensor) or isinstance(b, ScaledTensor):
        return (
            type(a) is type(b)
            and a.format is b.format
            and torch.equal(code(a.payload), code(b.payload))
            and torch.equal(a.scale_inv, b.scale_inv)
        )
    return a.dtype is b.dtype and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def same_training_state(a: tuple[nn.Module, Any], b: tuple[nn.Module, Any]) -> bool:
    (model_a, opt_a), (model_b, opt_b) = a, b
    pairs = list(zip(model_a.parameters(), model_b.parameters(), strict=True))
    for p, q in pairs:
        if not same(p, q) or opt_a.state[p].keys() != opt_b.state[q].keys():
            return False
        if not all(
            same(opt_a.state[p][k], opt_b.state[q][k]) for k in ("step", "exp_avg", "exp_avg_sq") if k in opt_a.state[p]
        ):
            return False
    return True


def snapshot(model: nn.Module, optimizer: Any = None) -> list[Tensor]:
    tensors = list(model.parameters()) + list(model.buffers())
    if optimizer is not None:
        tensors += [v for state in optimizer.state.values() for k, v in state.items() if k != "amax"]
    return [t.detach().clone() for t in tensors]


def unchanged(before: list[Tensor], model: nn.Module, optimizer: Any = None) -> bool:
    after = snapshot(model, optimizer)
    return len(before) == len(after) and all(same(a, b) for a, b in zip(before, after, strict=True))


def is_fp8(grad: Tensor | None) -> bool:
    return isinstance(grad, ScaledTensor) and grad.format is E4M3
