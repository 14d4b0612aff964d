"""Autocast blocks around calls of a step, and in it. What is cast in a block is remembered until the outermost block ends,
so that later calls of the block compute with weights of its first: as in eager, to the bit."""

import contextlib
import random

import pytest
import torch
from torch import nn

import stowage
from stowage._torch.settings import within_autocast

BLOCKS = {
    "none": contextlib.nullcontext,
    "on": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "off": lambda: torch.autocast("cpu", enabled=False),
    "without memory": lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False),
}


def trained(segments, inside, check):
    """Results of calls, so many in each block. ``check``: None for eager."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def plain(x):
        with BLOCKS[inside]():
            loss = (model(x) + model(-x)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = plain if check is None else stowage.compile(plain, check=check)
    generator, results = torch.Generator().manual_seed(1), []
    for block, calls in segments:
        with BLOCKS[block]():
            results += [step(torch.randn(4, 8, generator=generator)) for _ in range(calls)]
    return results, step


def assert_as_eager(segments, inside, check):
    expected, _ = trained(segments, inside, None)
    got, step = trained(segments, inside, check)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)), (segments, inside, check)
    assert not within_autocast()
    return step


@pytest.mark.parametrize("check", ["auto", "always", "never"])
@pytest.mark.parametrize("inside", list(BLOCKS))
@pytest.mark.parametrize("calls", [[14], [8, 6], [1] * 14, [1, 1, 1, 1, 1, 8, 3], [3, 1, 1, 5, 4]], ids=str)
@pytest.mark.parametrize("block", ["on", "off", "without memory"])
def test_blocks_that_hold_several_calls(block, calls, inside, check):
    step = assert_as_eager([(block, n) for n in calls], inside, check)
    assert step.stats()["planned_steps"] > 0, step.refusal


def test_random_blocks():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(16):
        segments = [(rng.choice(list(BLOCKS)), rng.randint(1, 6)) for _ in range(rng.randint(2, 6))]
        assert_as_eager(segments, rng.choice(list(BLOCKS)), rng.choice(["auto", "never", "always", 3]))


def test_a_block_inside_the_step_leaves_calls_quiet():
    """No Python runs in planned calls: nothing is remembered from one to the next."""
    _, step = trained([("none", 14)], "on", "never")
    assert step.stats()["planned_steps"] > 8 and step.stats()["checked_steps"] <= 1
