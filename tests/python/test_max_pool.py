"""max_pool1d without a gradient fills its result past PyTorch's dispatcher (runtime/torch/max_pool.cpp). Steps that use
it are planned, with eager's bits; so are its results when a budget makes them leave."""

import gc
import random

import pytest
import searches
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage import _runtime

FIRST = searches.first_seed()


def made(seed):
    """(model, step): pools masks, targets and what is differentiated, in ways drawn from ``seed``."""
    draw = random.Random(seed)
    kernel, stride, dilation = draw.randint(2, 4), draw.randint(1, 3), draw.randint(1, 2)
    padding, ceil = draw.randint(0, kernel // 2), draw.random() < 0.5
    kind = torch.float64 if draw.random() < 0.3 else torch.float32
    without = torch.inference_mode if draw.random() < 0.3 else torch.no_grad

    def pooled(t):
        return F.max_pool1d(t, kernel, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 24))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        mask = pooled((x > 0).to(kind)).to(x.dtype)
        with without():
            target = pooled(model(x)).mul(2.0)
        loss = ((pooled(model(x)) - target.clone()) * mask).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


def trained(seed, through=lambda step: step):
    model, step = made(seed)
    step = through(step)
    generator = torch.Generator().manual_seed(seed)
    losses = [step(torch.randn(4, 6, 24, generator=generator)).clone() for _ in range(8)]
    return [*losses, *(p.detach().clone() for p in model.parameters())], step


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 6))
def test_steps_are_planned_with_eager_s_bits(seed):
    eager, _ = trained(seed)
    compiled, step = trained(seed, stowage.compile)
    assert all(map(torch.equal, eager, compiled))
    assert step.stats()["planned_steps"] >= 4


@pytest.mark.parametrize("release", ["both", "recompute", "swap"])
def test_results_that_leave_come_back(release):
    eager, _ = trained(FIRST)
    gc.collect()
    before = _runtime.live_bytes()
    _runtime.reset_peak()
    trained(FIRST)
    peak = _runtime.peak_bytes() - before
    gc.collect()
    with stowage.budget(
        _runtime.live_bytes() + int((0.95 if release == "recompute" else 0.8) * peak), "random", release, seed=FIRST
    ) as budget:
        squeezed, _ = trained(FIRST)
    assert all(map(torch.equal, eager, squeezed))
    assert budget.stats()["evictions"] > 0


def test_nothing_else_changes():
    """Where no step is recorded the op is what it was: with gradients, transforms, fakes."""
    x = torch.randn(2, 3, 8, requires_grad=True)
    expected = F.max_pool1d(x.detach(), 2)
    assert torch.equal(F.max_pool1d(x, 2), expected)
    F.max_pool1d(x, 2).sum().backward()
    assert x.grad is not None and int(x.grad.sum()) == expected.numel()
    assert torch.equal(torch.func.vmap(lambda t: F.max_pool1d(t, 2))(x.detach()), expected)
    with torch._subclasses.FakeTensorMode():
        assert F.max_pool1d(torch.empty(2, 3, 8), 2).shape == expected.shape
    primal, tangent = torch.func.jvp(lambda t: F.max_pool1d(t, 2), (x.detach(),), (torch.ones(2, 3, 8),))
    assert torch.equal(primal, expected) and torch.equal(tangent, torch.ones_like(expected))
    with pytest.raises(RuntimeError, match="kernel_size"):
        F.max_pool1d(x.detach(), 0)
