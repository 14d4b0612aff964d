"""Small models as chains of layers: GPT-2's blocks, Llama's, a mixture of experts. What PyTorch's tensor parallel cuts by
columns and by rows is told by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bench.shard.shard_models import _Experts

WIDTH, HEADS, TOKENS, VOCABULARY = 192, 6, 96, 512
HEAD = WIDTH // HEADS


class _Attention(nn.Module):
    def __init__(self, rotary: bool, bias: bool):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(4))
        if rotary:
            angles = torch.outer(torch.arange(TOKENS), 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD))
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        self.rotary = rotary

    def _turn(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.rotary:
            q, k = self._turn(q), self._turn(k)
        scores = (q @ k.transpose(-1, -2)) * HEAD**-0.5
        scores = scores.masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class _Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class _Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 8 * WIDTH // 3, bias=False) for _ in range(2))
        self.down = nn.Linear(8 * WIDTH // 3, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class _Block(nn.Module):
    def __init__(self, norm: Callable, attention: nn.Module, mlp: nn.Module):
        super().__init__()
        self.first, self.second, self.attention, self.mlp = norm(WIDTH), norm(WIDTH), attention, mlp

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class _Embedding(nn.Module):
    def __init__(self, positions: bool):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.02) if positions else None

    def forward(self, tokens):
        x = self.words(tokens)
        return x if self.positions is None else x + self.positions


class _Head(nn.Module):
    def __init__(self, norm: Callable):
        super().__init__()
        self.norm, self.words = norm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        return self.words(self.norm(x))


def _experts() -> nn.Module:
    made = _Experts(WIDTH, 2 * WIDTH, 4, TOKENS)
    nn.init.normal_(made.up, std=0.05)
    nn.init.normal_(made.down, std=0.05)
    return made


MODELS: dict[str, Callable[[int], list[nn.Module]]] = {
    "gpt-2": lambda n: [
        _Embedding(True),
        *(_Block(nn.LayerNorm, _Attention(False, True), _Mlp()) for _ in range(n)),
        _Head(nn.LayerNorm),
    ],
    "llama": lambda n: [
        _Embedding(False),
        *(_Block(nn.RMSNorm, _Attention(True, False), _Gated()) for _ in range(n)),
        _Head(nn.RMSNorm),
    ],
    "moe": lambda n: [
        _Embedding(True),
        *(_Block(nn.LayerNorm, _Attention(False, True), _experts()) for _ in range(n)),
        _Head(nn.LayerNorm),
    ],
}


def loss(y, targets):
    return F.cross_entropy(y.flatten(0, 1), targets.flatten())


def make(name: str, layers: int, batch: int):
    """(layers, batch), the same in every process."""
    torch.manual_seed(0)
    return MODELS[name](layers), (
        torch.randint(0, VOCABULARY, (batch, TOKENS)),
        torch.randint(0, VOCABULARY, (batch, TOKENS)),
    )
