"""A few O2 steps of a small GPT, and what the CUDA runtime was asked to do meanwhile. A program of its own, because a
process loads one library of ops. PACKAGE is a folder with fp8amp's modules and fp8amp_torch_emulated.so in the place
of fp8amp_torch.so; without it, this is the package that is installed.

    python tests/python/emulated_gpu.py OUT.pt [PACKAGE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import emulated_package
import torch

if len(sys.argv) > 2:
    emulated_package.load(Path(sys.argv[2]))

import fp8amp
from fp8amp.scaled_tensor import ScaledTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
from fused_block import FusedBlock
from model import GPT, Block, Size

VOCABULARY, BATCH, STEPS = 48, 2, 4


def emulated() -> bool:
    return hasattr(torch.ops.fp8amp_emulator, "activity")


def plain(value: Any) -> Any:
    """Bytes that can be compared: a ScaledTensor as its two tensors."""
    if isinstance(value, ScaledTensor):
        payload = value.payload
        return (payload.view(torch.uint8) if payload.itemsize == 1 else payload).clone(), value.scale_inv.clone()
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names = {id(p): name for name, p in model.named_parameters()}
    found = {f"parameter {name}": plain(p.detach()) for name, p in model.named_parameters()}
    for p, state in optimizer.state.items():
        found |= {f"{key} {names[id(p)]}": plain(value) for key, value in state.items()}
    return found


def train(recipe: fp8amp.Recipe, block: type[Block] = Block, autocast: bool = False) -> dict[str, Any]:
    """With autocast the FP8 layers have no bias: a GPU rounds it to the output's type first."""
    torch.manual_seed(0)
    size = Size(layers=2, heads=2, width=32, block_size=24)  # 48 tokens in a batch
    model = GPT(size, VOCABULARY, block=block)
    for layer in model.blocks:  # a layer without bias, and one whose sides are no multiples of 16
        layer.attention.proj = torch.nn.Linear(32, 32, bias=False)
        layer.mlp.up, layer.mlp.down = torch.nn.Linear(32, 100), torch.nn.Linear(100, 32)
        if autocast:
            for linear in (layer.attention.qkv, layer.mlp.up, layer.mlp.down):
                linear.bias = None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    fp8amp.initialize(model, optimizer, opt_level="O2", recipe=recipe, include=lambda name, _: "blocks" in name)
    tokens = torch.randint(VOCABULARY, (STEPS, BATCH, size.block_size + 1))
    losses, gradients, activity = [], [], []
    for step in range(STEPS):
        if emulated():
            torch.ops.fp8amp_emulator.reset_activity()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(tokens[step, :, :-1], tokens[step, :, 1:])
        loss.backward()
        gradients.append({name: plain(p.grad) for name, p in model.named_parameters()})
        fp8amp.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.detach())
        if emulated():
            activity.append(emulated_package.activity())
    return {"losses": losses, "gradients": gradients, "state": state_of(model, optimizer), "activity": activity}


def train_by_graph() -> dict[str, Any]:
    """Steps of two FP8 layers, of fp8amp's ops alone: torch's own run on the CPU and are in no graph. On the emulated
    GPU all steps but the first are replays of one captured graph; inputs and learning rate are written between them,
    and the model is evaluated outside of the graph.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 48, bias=False), torch.nn.Linear(48, 32, bias=False))
    rate = torch.tensor(1e-2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    fp8amp.initialize(model, optimizer, opt_level="O2")
    x, dy = torch.empty(64, 32), torch.empty(64, 32)

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward(dy)
        optimizer.step()

    graph = None
    outputs = []
    for number in range(STEPS):
        x.copy_(torch.randn(64, 32))
        dy.copy_(torch.randn(64, 32))
        rate.fill_(1e-2 / (1 + number))
        if number == 1 and emulated():
            torch.ops.fp8amp_emulator.reset_activity()
            graph = torch.ops.fp8amp_emulator.begin_capture()
            step()
            torch.ops.fp8amp_emulator.end_capture()
        if graph is None:
            step()
        else:
            torch.ops.fp8amp_emulator.replay(graph)
        with torch.no_grad():
            outputs.append(model(x).clone())
    activity = [emulated_package.activity()] if emulated() else []
    return {"state": state_of(model, optimizer), "outputs": outputs, "activity": activity}


if __name__ == "__main__":
    torch.set_num_threads(1)
    recipes = {
        "current": fp8amp.CurrentScaling(),
        "delayed": fp8amp.DelayedScaling(history=2),
        "rowwise": fp8amp.RowwiseScaling(),
        "block": fp8amp.BlockScaling(),
        "constant": fp8amp.ConstantScaling(bias=4, gradient_bias=12),
    }
    results = {name: train(recipe) for name, recipe in recipes.items()}
    results["fused"] = train(recipes["current"], FusedBlock)
    results["autocast"] = train(recipes["current"], autocast=True)
    torch.save(results | {"graph": train_by_graph()}, sys.argv[1])
