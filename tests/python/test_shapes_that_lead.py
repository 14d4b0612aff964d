"""Masks of arguments whose number of rows is another in some calls, one leading to the next: `a[mask] -= 1`, then
`b[a == b] += 1`. What leads to a later mask has another shape then than was recorded: it must be neither read nor
written with the recorded one. All bits are eager's, in each call.

The random programs draw what is done to the rows of a mask, from what the next mask is made, and how the last one is
read. An error here writes beyond a buffer, so the process may die of it."""

from __future__ import annotations

import itertools
import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

FIRST = searches.first_seed()
CALLS = 16
ROWS, WIDTH = 48, 6


def subtracted(a, b, mask):
    a[mask] -= 1
    return a, b


def filled(a, b, mask):
    b[mask] = a[mask] + 3
    return a, b


def added_at(a, b, mask):
    rows = mask.any(1).nonzero().squeeze(1)
    return a.index_add(0, rows, b[rows].floor()), b


def scattered(a, b, mask):
    b.masked_scatter_(mask, a.masked_select(mask).mul_(2))
    return a, b


def sorted_rows(a, b, mask):
    rows = b[mask.any(1)]
    return a + rows.sort(0).values.cumsum(0).sum().fmod(3), b


DEEDS = [subtracted, filled, added_at, scattered, sorted_rows]
MASKS = [
    lambda a, b, c: a == b,
    lambda a, b, c: a > c,
    lambda a, b, c: (b < c) & (a < 2),
    lambda a, b, c: b > b.mean(),
]
READS = [
    lambda a, b: a.mean() + b.mean(),
    lambda a, b: a[b > 0].sum() / 10,
    lambda a, b: a.mean() * (2 if (a > 3).any() else 1),
    lambda a, b: b.mean() + len(a[a > 1]),
]


def batches(seed, kinds):
    """Each comes several times, so that some ways are planned."""
    data = torch.Generator().manual_seed(seed)
    some = [torch.randn(ROWS, WIDTH, generator=data).mul_(1 + i) for i in range(kinds)]
    return list(itertools.islice(itertools.cycle([*some, some[0], some[0]]), CALLS))


def trained(seed, compiled):
    draw = random.Random(seed)
    deeds = [(draw.choice(DEEDS), draw.choice(MASKS), draw.choice([-1, 0, 1])) for _ in range(draw.randint(2, 4))]
    read, kinds = draw.choice(READS), draw.randint(2, 4)
    torch.manual_seed(seed)
    model = nn.Linear(WIDTH, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def train_step(x):
        with torch.no_grad():
            a, b = x.floor(), x.ceil()
            for deed, mask, c in deeds:
                a, b = deed(a, b, mask(a, b, c))
            weight = read(a, b)
        optimizer.zero_grad()
        loss = model(x).square().mean() * (1 + weight.abs())
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = stowage.compile(train_step) if compiled else train_step
    left = []
    for x in batches(seed, kinds):
        left.append((step(x).clone(), *(p.detach().clone() for p in model.parameters())))
    return left


def check_program(seed):
    eager = trained(seed, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned = trained(seed, True)
    for call, (one, other) in enumerate(zip(eager, planned)):
        assert all(torch.equal(x, y) for x, y in zip(one, other)), f"seed {seed}, call {call}"


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed):
    check_program(seed)


def test_a_mask_that_another_has_led_to():
    def left(compiled):
        torch.manual_seed(0)
        model = nn.Linear(16, 4)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def train_step(x):
            with torch.no_grad():
                y = x[:, :4] * 3
                y[:, :2] = y[:, :2].round()
                a, b = y.floor().to(torch.int64), y.ceil().to(torch.int64)
                a[(b > 0) * (a == b)] -= 1
                b[(a < 20) * (a == b)] += 1
            loss = model(x).square().mean() * (1 + (b - a).float().mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.compile(train_step) if compiled else train_step
        return [step(torch.randn(32, 16)).clone() for _ in range(24)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(torch.equal(one, other) for one, other in zip(left(False), left(True), strict=True))


@searches.longer
def test_many_random_programs():
    for seed in searches.seeds(FIRST):
        check_program(seed)
