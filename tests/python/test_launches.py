"""What a step asks the device to do: on a GPU every op that computes something is a launch, and launches take time."""

from __future__ import annotations

import fp8amp
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from twins import batch


class _Computing(TorchDispatchMode):
    """The ops that compute something: on a GPU each is a launch at least. Without the flag of a skipped step, which is
    read on a CPU alone."""

    def __enter__(self):
        self.ops = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        free = func.is_view or func.name() in ("aten::detach", "aten::is_nonzero", "aten::_local_scalar_dense")
        if not free and func.namespace != "profiler":
            self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_step_and_clipping_launch_nothing_for_each_parameter():
    ops = []
    for size in (1, 9):
        model = nn.Sequential(*(layer for _ in range(size) for layer in (nn.Linear(16, 16), nn.LayerNorm(16))))
        _, optimizer = fp8amp.initialize(model, torch.optim.AdamW(model.parameters()), "O2")
        for _ in range(2):  # the first step makes the states
            optimizer.zero_grad()
            model(batch()).square().mean().backward()
            with _Computing() as computing:
                fp8amp.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        ops.append(computing.ops)
    assert "fp8amp::adam_" in ops[0]
    assert ops[0] == ops[1]
    assert len(ops[0]) <= 20
