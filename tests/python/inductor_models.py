"""Small modules for torch.compile, and what they take: the allocator below PyTorch counts."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage.inductor
from stowage import _runtime


@pytest.fixture(autouse=True, scope="session")
def own_inductor_cache(tmp_path_factory):
    """Compiled kernels are shared by the tests of a session, plans are not: each test sees its own."""
    if " " in torch.__file__:
        pytest.skip("PyTorch's Inductor cannot link here: it does not quote its own folder's name, which has a space")
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    with functorch_config.patch(enable_autograd_cache=False), inductor_config.patch({"cpp.simdlen": 1}):
        yield


@pytest.fixture(autouse=True)
def compiled_anew(own_inductor_cache):
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Mlp(nn.Module):
    def __init__(self, width=64, depth=5, dropout=0.0):
        super().__init__()
        parts = [[nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout)] for _ in range(depth)]
        self.layers = nn.Sequential(*(layer for part in parts for layer in part))

    def forward(self, x):
        return self.layers(x).square().mean()


class Attention(nn.Module):
    """Causal, by PyTorch's own kernel, which makes two tensors; and a norm before it."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        for _ in range(2):
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x.square().mean()


class Convolutions(nn.Module):
    """BatchNorm changes its statistics in place."""

    def __init__(self, channels=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3),
            nn.BatchNorm2d(channels), nn.ReLU(), nn.AvgPool2d(2),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x).square().mean()


MODELS = {
    "mlp": lambda: (Mlp(), torch.randn(256, 64)),
    "attention": lambda: (Attention(), torch.randn(4, 32, 64)),
    "convolutions": lambda: (Convolutions(), torch.randn(4, 3, 16, 16)),
}


def make(name):
    torch.manual_seed(0)
    return MODELS[name]()


def compiled(model, budget=None, **options):
    ours = {} if budget == "default" else stowage.inductor.options(budget=budget)
    return torch.compile(model, options={**ours, **options} or None, dynamic=False)


def step(function, model, batch, seed=5):
    """Loss and gradients, and the most that was live above what was there before."""
    for p in model.parameters():
        p.grad = None
    torch.manual_seed(seed)
    before = _runtime.live_bytes()
    _runtime.reset_peak()
    loss = function(batch)
    loss.backward()
    peak = _runtime.peak_bytes() - before
    return loss.detach().clone(), [p.grad for p in model.parameters()], peak


def same_bits(a, b):
    return torch.equal(a[0], b[0]) and all(
        x is y is None or torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True)
    )  # fmt: skip


def records(function):
    return stowage.inductor.reports.records_of(function)
