"""What streams and captures ask of the copies of FP8 weights and of ScaledTensor, as far as a CPU can tell. The rest is
in test_emulated_gpu.py (captured steps) and tests/gpu."""

from __future__ import annotations

from typing import Any

import fp8amp
import pytest
import torch
from fp8amp import _ops
from fp8amp.dispatch import _HANDLERS
from fp8amp.memory import COPIES
from twins import batch


class Machine:
    """The stream of the moment, and the casts of weights that were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.casts = 7, 0
        original = _ops.quantize

        def quantize(x: Any, x_scale_inv: Any, *args: Any, **kwargs: Any) -> Any:
            self.casts += x_scale_inv is not None  # activations are plain
            return original(x, x_scale_inv, *args, **kwargs)

        monkeypatch.setattr(_ops, "current_stream", lambda device: self.stream)
        monkeypatch.setattr(_ops, "quantize", quantize)

    def casts_of(self, function: Any) -> int:
        before = self.casts
        function()
        return self.casts - before


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def linear() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return fp8amp.initialize(model, optimizer, opt_level="O2")


def forward(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model(batch(columns=32))


def test_every_stream_casts_for_itself(machine: Machine) -> None:
    model, _ = linear()
    assert [machine.casts_of(lambda: forward(model)) for _ in range(3)] == [1, 0, 0]
    machine.stream = 8  # nothing orders it behind the cast of stream 7
    assert [machine.casts_of(lambda: forward(model)) for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("use", ["forward", "step", "write"])
def test_weight_of_a_captured_graph_is_cast_every_time(machine: Machine, use: str) -> None:
    """A replay writes weights without a word to Python: no copy of them may be kept."""
    model, optimizer = linear()
    forward(model)
    model(batch(columns=32)).sum().backward()
    machine.stream = _ops.CAPTURING
    if use == "forward":
        assert machine.casts_of(lambda: forward(model)) == 1, "the graph must hold a cast of its own"
    elif use == "step":
        optimizer.step()
    else:
        model[0].weight.data.mul_(2)
    machine.stream = 7
    assert [machine.casts_of(lambda: forward(model)) for _ in range(3)] == [1, 1, 1]
    copies = [row for row in fp8amp.memory_report(model, optimizer).rows if row.kind == COPIES]
    assert [row.allocated for row in copies] == [0]


def test_record_stream_names_the_memory_and_writes_nothing() -> None:
    x = fp8amp.quantize(batch(), "e4m3")
    version, named = x.payload._version, []
    op = torch.ops.aten.record_stream.default  # of CUDA tensors only: the rule is called with a stand-in for it
    assert _HANDLERS[op](lambda t, stream: named.append((t, stream)), x, "stream") is None
    assert [(t.data_ptr(), stream) for t, stream in named] == [
        (x.payload.data_ptr(), "stream"),
        (x.scale_inv.data_ptr(), "stream"),
    ]
    assert x.payload._version == version
