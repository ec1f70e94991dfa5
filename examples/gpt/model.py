"""A GPT: pre-norm transformer decoder of plain torch modules (nn.Linear, nn.Embedding, nn.LayerNorm).

Nothing here knows about FP8: fp8amp.initialize() converts the nn.Linear layers of such a model in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    """The shape of a model, without what the data decides (vocabulary) and the run decides (context)."""

    layers: int
    heads: int
    width: int
    block_size: int


# From 125m on these are the shapes of the GPT-2 and GPT-3 papers (1.3b and 13b: heads divide the width).
SIZES: dict[str, Size] = {
    "tiny": Size(layers=4, heads=4, width=160, block_size=128),
    "125m": Size(layers=12, heads=12, width=768, block_size=1024),
    "350m": Size(layers=24, heads=16, width=1024, block_size=1024),
    "1.3b": Size(layers=24, heads=16, width=2048, block_size=2048),
    "7b": Size(layers=32, heads=32, width=4096, block_size=2048),
    "13b": Size(layers=40, heads=40, width=5120, block_size=2048),
    "175b": Size(layers=96, heads=96, width=12288, block_size=2048),
}


class Attention(nn.Module):
    """Causal multi-head self-attention, [batch, time, width] to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.qkv(x))

    def attend(self, qkv: Tensor) -> Tensor:
        """The rest of it, from the output of `qkv`."""
        batch, time, width = *qkv.shape[:2], qkv.shape[2] // 3
        qkv = qkv.view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [batch, heads, time, width / heads]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, time, width)
        return self.proj(y)


class MLP(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Embeddings of token and position, the blocks, a norm, and an output layer tied to the first."""

    def __init__(
        self, size: Size, vocab_size: int, activation_checkpointing: bool = False, block: type[Block] = Block
    ) -> None:
        super().__init__()
        self.block_size = size.block_size
        self.activation_checkpointing = activation_checkpointing
        self.wte = nn.Embedding(vocab_size, size.width)
        self.wpe = nn.Embedding(size.block_size, size.width)
        self.blocks = nn.ModuleList(block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.lm_head = nn.Linear(size.width, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self._initialize(size.layers)

    def _initialize(self, layers: int) -> None:
        """GPT-2's: N(0, 0.02), over sqrt(2 * layers) at the end of a residual branch; biases zero."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                last = name.endswith((".proj", ".down"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * layers) if last else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens, targets: int64 [batch, time]. Returns the mean cross entropy, or logits without targets."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        logits = self.lm_head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int, temperature: float, generator: torch.Generator) -> Tensor:
        """Append count sampled tokens to tokens [1, time]."""
        for _ in range(count):
            logits = self(tokens[:, -self.block_size :])[:, -1].float() / temperature
            choice = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator)
            tokens = torch.cat([tokens, choice.to(tokens.device)], dim=1)
        return tokens


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay, vectors (norm gains and biases) do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
