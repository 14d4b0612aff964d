"""What is strange (strange_kinds.py) in a budget's block, among tensors that leave and come back, and in planned steps: bits are
those of eager, whether it is planned or refused."""

from __future__ import annotations

import pytest
import torch
from strange_kinds import KINDS, ROWS, WIDTH, alike, flat, weight
from torch import nn

import stowage


def _run(make, limit):
    """Beside tensors that wait to be read, and others that backward needs."""
    found = []

    def body():
        for i in range(2):
            torch.manual_seed(i)
            x = torch.randn(ROWS, WIDTH)
            waiting = [x * j for j in range(12)]
            made = flat(make(x))
            weights = [weight(j).requires_grad_() for j in range(6)]
            out = x
            for w in weights:
                out = torch.tanh(out @ w)
            out.sum().backward()
            found.append([*made, *(w.grad for w in weights), *(t.sum() for t in waiting)])

    if limit is None:
        body()
        return found, {}
    with stowage.budget(limit) as block:
        body()
    return found, block.stats()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_beside_tensors_that_leave(name):
    make = KINDS[name]
    expected, _ = _run(make, None)
    found, roomy = _run(make, 1 << 30)
    assert all(map(alike, found, expected))
    evictions = 0
    for share in (0.85, 0.6):
        try:
            found, stats = _run(make, int(share * roomy["peak_bytes"]))
        except stowage.OutOfMemory:
            continue  # one of its tensors is most of the peak
        assert all(map(alike, found, expected)), share
        assert stats["peak_bytes"] <= int(share * roomy["peak_bytes"])
        evictions += stats["evictions"]
    assert evictions > 0


def _steps(make, **options):
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def body(x):
        made = flat(make(x))
        loss = model(x).square().mean()
        for t in made:
            if t.is_floating_point() and t.numel():
                loss = loss * (1 + torch.nan_to_num(t.float()).mean() * 1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), made[:2]

    step = stowage.compile(body, **options) if options else body
    torch.manual_seed(1)
    found = []
    for _ in range(8):
        found += [t.clone() for t in flat(step(torch.randn(ROWS, WIDTH)))]
    return [*found, *(p.detach() for p in model.parameters())], step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_in_a_step(name):
    expected, _ = _steps(KINDS[name])
    for budget in (None, "64MiB"):
        found, step = _steps(KINDS[name], budget=budget)
        assert alike(found, expected), budget
        assert step.refusal or step.stats()["planned_steps"] >= 3
