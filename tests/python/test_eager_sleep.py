"""A budget that is far from its limit sleeps, wakes when it is not, sleeps again after a spike, and never beside other
threads."""

from __future__ import annotations

import threading

import budgeted
import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime
from stowage._torch.private import address

SMALL, LARGE = 16, 700
pytestmark = pytest.mark.alone  # what other tests leave is a part of what is far from the limit


def net():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(12)])
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def step(model, optimizer, rows):
    loss = model(torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def trained(sizes, limit=None, **how):
    model, optimizer = net()
    losses, asleep = [], []
    _runtime.reset_peak()
    if limit is None:
        losses = [step(model, optimizer, rows) for rows in sizes]
        return [float(loss) for loss in losses], _runtime.peak_bytes(), None, None
    with stowage.budget(limit, debug=True, progress=False, **how) as b:
        for rows in sizes:
            before = b.stats()["ops"]
            losses.append(step(model, optimizer, rows))
            asleep.append(b.stats()["ops"] == before)
    return [float(loss) for loss in losses], b.stats()["peak_bytes"], asleep, b


@pytest.mark.parametrize("how", [{}, {"release": "swap"}, {"link_gbps": 2.0}])
def test_it_sleeps_again_after_a_spike(how):
    sizes = [SMALL] * 4 + [LARGE] * 3 + [SMALL] * 8 + [LARGE] + [SMALL] * 14
    expected, peak, _, _ = trained(sizes)
    live = _runtime.live_bytes()
    got, reached, asleep, b = trained(sizes, live + int(0.5 * (peak - live)), **how)
    assert got == expected
    assert b.stats()["evictions"] > 0 and reached > live + 0.4 * (peak - live)
    assert asleep[3] and not any(asleep[4:7]) and asleep[14] and not asleep[15] and asleep[-1], asleep
    budgeted.assert_nothing_left(b)


def test_it_never_sleeps_where_nothing_may_be_copied_out():
    """What is made meanwhile has no recipe, and could not leave when a large step comes."""
    sizes = [SMALL] * 4 + [LARGE] * 3
    expected, peak, _, _ = trained(sizes)
    live = _runtime.live_bytes()
    got, _, asleep, b = trained(sizes, live + int(0.55 * (peak - live)), release="recompute")
    assert got == expected and not any(asleep) and b.stats()["evictions"] > 0


def test_it_stays_awake_while_what_is_away_does_not_fit():
    model, optimizer = net()
    live = _runtime.live_bytes()
    with stowage.budget(live + (2 << 20), debug=True) as b:
        away = [torch.full((1 << 15,), float(i)) for i in range(40)]
        for _ in range(8):
            step(model, optimizer, SMALL)
        before = b.stats()["ops"]
        step(model, optimizer, SMALL)
        assert b.stats()["ops"] > before
        assert all(bool((t == i).all()) for i, t in enumerate(away))


def test_the_peak_is_that_of_the_whole_block():
    """Though it is counted anew from step to step."""
    limit = _runtime.live_bytes() + (64 << 20)
    model, optimizer = net()
    with stowage.budget(limit) as b:
        start = _runtime.live_bytes()
        del_me = torch.empty(8 << 20, dtype=torch.uint8)
        del del_me
        for _ in range(6):
            step(model, optimizer, SMALL)
        assert b.stats()["peak_bytes"] >= start + (8 << 20)
    assert b.stats()["peak_bytes"] >= start + (8 << 20)
    assert _runtime.peak_bytes() >= start + (8 << 20)


def test_a_thread_that_attaches_while_it_sleeps():
    """It wakes; what the entering thread may be using is held back until that thread comes by."""
    model, optimizer = net()
    limit = _runtime.live_bytes() + (3 << 20)
    with stowage.budget(limit, debug=True) as b:
        shared = [torch.full((1 << 14,), float(i)) for i in range(8)]
        for _ in range(5):
            step(model, optimizer, SMALL)
        seen = b.stats()["ops"]
        step(model, optimizer, SMALL)
        assert b.stats()["ops"] == seen  # asleep
        wrong = []

        def work():
            with b.attach():
                sums = [t + 1 for t in shared]  # met
                mine = [torch.full((1 << 15,), float(i)) for i in range(60)]  # made, and more than the limit
                wrong.extend(i for i, t in enumerate(mine) if not bool((t == i).all()))
                wrong.extend(i for i, t in enumerate(sums) if not bool((t == i + 1).all()))
                for t in shared:
                    assert b._runtime.describe(address(t)) in ("resident", "unknown", "recomputable")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert not thread.is_alive() and not wrong
        assert b.stats()["ops"] > seen and b.stats()["evictions"] > 0
        before = b.stats()["ops"]
        for _ in range(8):
            step(model, optimizer, SMALL)  # home comes by
        assert b.stats()["ops"] > before  # and it sleeps no more
        assert b._runtime.evict(address(shared[0]), False) == "swapped"
        assert all(bool((t == i).all()) for i, t in enumerate(shared))
