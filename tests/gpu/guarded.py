"""Tensors on the device between two zones of known bytes, and comparison of bits."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PLAIN = (torch.float32, torch.float16, torch.bfloat16)
ZONE, BYTE = 256, 0xA5


class Guards:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory: list[tuple[Tensor, int, int]] = []

    def copy(self, x: Tensor, offset: int = 0) -> Tensor:
        """x on the device, `offset` elements behind an address aligned to 256."""
        size, begin = x.numel() * x.itemsize, ZONE + offset * x.itemsize
        memory = torch.full((begin + size + ZONE,), BYTE, dtype=torch.uint8, device=self.device)
        self._memory.append((memory, begin, begin + size))
        inside = memory[begin : begin + size].view(x.dtype).view(x.shape)
        inside.copy_(x)
        return inside

    def check(self) -> None:
        for memory, begin, end in self._memory:
            assert bool((memory[:begin] == BYTE).all()), "written before a tensor"
            assert bool((memory[end:] == BYTE).all()), "written behind a tensor"


def bits(x: Tensor) -> Tensor:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def assert_same(host: tuple[Tensor, ...], device: tuple[Tensor, ...]) -> None:
    """Payloads bit for bit; of FP32 scalars any NaN equals any other."""
    for i, (a, b) in enumerate(zip(host, device, strict=True)):
        if a.dtype == torch.float32:
            torch.testing.assert_close(b.cpu(), a, rtol=0, atol=0, equal_nan=True, msg=f"result {i}")
        else:
            assert same_bits(a, b), f"result {i}: {int((bits(a) != bits(b)).sum())} bytes differ"


def numbers(n: int, dtype: torch.dtype, seed: int, size: float = 1.0, specials: bool = False) -> Tensor:
    """Values over many binades, both signs and zeros, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator) * torch.exp2(-14 * torch.rand(n, generator=generator)) * size
    x[torch.rand(n, generator=generator) < 0.05] = 0.0
    if specials:
        x[3::37], x[5::41], x[7::43] = float("nan"), float("inf"), -float("inf")
    if dtype.itemsize == 1:
        scaled = (x * 16).clamp(-440, 440) if dtype == torch.float8_e4m3fn else x * 16
        return scaled.to(dtype)
    return x.to(dtype)
