"""Training under stowage.budget and without, and what both leave behind, for the tests of the eager budget."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import stowage
from stowage import _runtime


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) * (1 / 4)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        p = F.dropout(scores.masked_fill(~mask, float("-inf")).softmax(-1), 0.1, self.training)
        x = x + F.dropout(self.out((p @ v).transpose(1, 2).reshape(b, t, c)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class Gpt(nn.Module):
    """GPT-2's shape with dropout everywhere. ``how``: "plain", or each block checkpointed, "reentrant" or "not"."""

    def __init__(self, layers: int = 3, width: int = 32, how: str = "plain"):
        super().__init__()
        self.embed, self.place = nn.Embedding(97, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 97, bias=False)
        self.how = how

    def forward(self, tokens, depth: int | None = None):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks[:depth]:
            x = block(x) if self.how == "plain" else checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return self.head(x)

    def loss(self, tokens, depth: int | None = None):
        return F.cross_entropy(self(tokens[:, :-1], depth).flatten(0, 1), tokens[:, 1:].flatten())

    @staticmethod
    def batches(count: int, batch: int = 4, length: int = 25):
        generator = torch.Generator().manual_seed(3)
        return [torch.randint(0, 97, (batch, length), generator=generator) for _ in range(count)]


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        return F.relu_(y)


class ResNet(nn.Module):
    """BatchNorm, in-place ReLU and in-place addition, dropout before the head."""

    def __init__(self, blocks: int = 3, width: int = 8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(F.dropout(self.blocks(self.stem(x)).mean((2, 3)), 0.2, self.training))

    def loss(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    @staticmethod
    def batches(count: int, batch: int = 4):
        generator = torch.Generator().manual_seed(3)
        return [
            (torch.randn(batch, 3, 16, 16, generator=generator), torch.randint(0, 10, (batch,), generator=generator))
            for _ in range(count)
        ]


def plain_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model.loss(batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, lr=1e-3, **options)


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, **options)


def train(
    make_model: Callable[[], nn.Module],
    budget: Any = None,
    *,
    step: Callable = plain_step,
    optimizer: Callable = adamw,
    steps: int = 4,
) -> tuple[dict[str, bytes], int]:
    """All that training leaves behind, by name, and its peak of live bytes (that of the block, under a budget)."""
    gc.collect()
    torch.manual_seed(5)
    model = make_model().train()
    opt = optimizer(model.parameters())
    batches = model.batches(steps)
    torch.manual_seed(11)
    losses = []
    _runtime.reset_peak()
    with budget if budget is not None else contextlib.nullcontext():
        for batch in batches:
            losses.append(step(model, opt, batch))
        opt.zero_grad()
    peak = _runtime.peak_bytes() if budget is None else budget.stats()["peak_bytes"]
    left = (
        {f"loss {i}": loss for i, loss in enumerate(losses)}
        | dict(model.state_dict())
        | {"generator": torch.get_rng_state()}
    )
    for i, state in enumerate(opt.state.values()):
        left |= {f"optimizer {i} {key}": value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: content(tensor) for name, tensor in left.items()}, peak


def share(peak: int, fraction: float) -> int:
    """A limit: what is live now, which no budget can let go (tests before this one leave some), and ``fraction`` of the
    rest of the peak."""
    live = _runtime.live_bytes()
    return live + int(fraction * (peak - live))


def content(tensor: torch.Tensor) -> bytes:
    """Every bit of it, held where no limit counts it."""
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())


def assert_same(left: dict[str, bytes], right: dict[str, bytes]) -> None:
    assert left.keys() == right.keys()
    different = [name for name in left if left[name] != right[name]]
    assert not different, f"{len(different)} of {len(left)} differ, first {different[:3]}"


def assert_nothing_left(budget: stowage.budget) -> None:
    assert budget.alive() == {"values": 0, "recipes": 0, "keeper_values": 0, "host_bytes": 0}


def assert_same_under(
    make_model: Callable[[], nn.Module],
    fraction: float,
    *,
    expect_evictions: bool = True,
    policy: str = "default",
    release: str = "both",
    link_gbps: float | None = None,
    prefetch: bool = True,
    **how: Any,
) -> dict:
    """Trains twice, plainly and with ``fraction`` of the plain peak; every bit must be the same. Returns the budget's
    stats."""
    expected, peak = train(make_model, **how)
    limit = share(peak, fraction)
    budget = stowage.budget(limit, policy, release, link_gbps, prefetch=prefetch, debug=True)
    got, _ = train(make_model, budget, **how)
    assert_same(expected, got)
    stats = budget.stats()
    assert stats["peak_bytes"] <= limit, stats
    assert not expect_evictions or stats["evictions"] > 0, stats
    assert_nothing_left(budget)
    return stats
