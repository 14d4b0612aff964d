"""Random small modules, compiled with random budgets: the bits of the default compile, and no more than was predicted."""

import random

import inductor_models as m
import pytest
import torch
from inductor_models import compiled_anew, own_inductor_cache  # noqa: F401
from torch import nn

import stowage
from stowage.inductor import reports  # noqa: F401

WIDTH = 32


class _Random(nn.Module):
    """Layers, residual sums, products of branches, reductions, views and dropout, as a seed says."""

    def __init__(self, seed: int):
        super().__init__()
        rng = random.Random(seed)
        self.layers, self.program = nn.ModuleList(), []
        for _ in range(rng.randrange(2, 6)):
            kind = rng.choice(["linear", "norm", "act", "branch", "softmax", "drop", "embed", "view", "stats", "mask"])
            self.program.append((kind, rng.random()))
            if kind in ("linear", "branch", "embed"):
                self.layers.append(nn.Linear(WIDTH, WIDTH))
            elif kind == "norm":
                self.layers.append(nn.LayerNorm(WIDTH))
            elif kind == "stats":
                self.layers.append(nn.BatchNorm1d(WIDTH))
            else:
                self.layers.append(nn.Identity())
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for (kind, number), layer in zip(self.program, self.layers):
            if kind == "act":
                x = torch.nn.functional.gelu(x) if number < 0.5 else torch.sigmoid(x) * x
            elif kind == "branch":
                x = x + layer(x) * torch.tanh(x)
            elif kind == "softmax":
                x = torch.softmax(x, -1) + x
            elif kind == "drop":
                x = torch.nn.functional.dropout(x, number / 2, self.training)
            elif kind == "embed":
                x = x + layer.weight[torch.arange(x.shape[0]) % WIDTH]
            elif kind == "mask":
                x = torch.relu(x) + x.masked_fill(x > number, number)
            elif kind == "view":
                x = (x.view(-1, 4, WIDTH // 4).transpose(1, 2).reshape(-1, WIDTH) + x).contiguous()
            else:
                x = layer(x)
        return self.last(x).square().mean()


def _first_steps(seed, budget):
    torch.manual_seed(seed)
    model = _Random(seed)
    batch = torch.randn(64, WIDTH)
    torch._dynamo.reset()
    function = m.compiled(model, budget)
    return m.step(function, model, batch), m.step(function, model, batch, seed=7), function


@pytest.mark.parametrize("number", range(3))
def test_gradients_of_random_modules(number):
    seed = random.randrange(10**6)
    print("seed", seed)
    rng = random.Random(seed)
    expected = _first_steps(seed, "default")
    torch._dynamo.reset()
    free = _first_steps(seed, None)
    most = m.records(free[2])[0].chosen.peak_bytes
    assert m.same_bits(free[0], expected[0]) and free[1][2] <= most
    budget = int(most * rng.uniform(0.5, 0.999))
    try:
        found = _first_steps(seed, budget)
    except stowage.Infeasible as error:
        assert budget < error.smallest_bytes <= most
        found = _first_steps(seed, budget := error.smallest_bytes)
    assert m.same_bits(found[0], expected[0]) and m.same_bits(found[1], expected[1])
    assert found[1][2] <= budget
