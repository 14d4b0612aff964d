"""What a step's Python reads may change between two calls, and no operator shows it. Where it stays so, it is watched as it is
now, and no call needs Python any more; where it changes in each call, few calls are spent on that."""

from __future__ import annotations

import collections
import itertools
import logging
import types

import pytest
import torch
from torch import nn

import stowage

CALLS, CHANGED_AT = 28, 7
NEW = itertools.count(10)  # values that nothing has had
LEVEL: list[int] = [3]
NAMES = {"a": 1}


def _of_list():
    names = ["a"]
    return (lambda: len(names) > 0), (lambda n: names.append(n))


def _of_dict():
    known = {"a": 1}
    return (lambda: len(known) > 0), (lambda n: known.update({n: n}))


def _of_deque():
    latest = collections.deque(["a"], maxlen=4)
    return (lambda: len(latest) > 0), (lambda n: latest.append(n))


def _of_attribute():
    config = types.SimpleNamespace(width=3)
    return (lambda: config.width > 0), (lambda n: setattr(config, "width", 4 + n))


def _of_attribute_of_class():
    class Config:
        width = 3

    return (lambda: Config.width > 0), (lambda n: setattr(Config, "width", 4 + n))


def _of_global():
    return (lambda: LEVEL[0] > 0), (lambda n: LEVEL.append(n))


def _of_global_dict():
    return (lambda: NAMES["a"] > 0), (lambda n: NAMES.update(a=next(NEW)))


def _of_cell():
    count = 1

    def change(n):
        nonlocal count
        count = 2 + n

    return (lambda: count > 0), change


def _of_logger():
    logger = logging.getLogger(f"{__name__}.watched")
    logger.setLevel(30)
    return (lambda: logger.level < 99), (lambda n: logger.setLevel(40 + n))


def _of_module():
    module = nn.Identity()
    module.calls = 1
    return (lambda: module.calls > 0), (lambda n: setattr(module, "calls", 2 + n))


KINDS = [f for name, f in list(globals().items()) if name.startswith("_of_")]


def _trained(reads, change, changed_at, budget):
    """Per call: was Python needed, and was it planned?"""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def body(x):
        assert reads()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = stowage.compile(body, budget=budget)
    planned, ran = [], []
    for call in range(CALLS):
        if call in changed_at:
            change(call)
        before = step.stats()
        step(torch.full((5, 6), 0.1 * call))
        after = step.stats()
        planned.append(after["planned_steps"] > before["planned_steps"])
        ran.append(after["checked_steps"] > before["checked_steps"])
    return step, planned, ran


@pytest.mark.parametrize("budget", [None, "4MiB"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__[4:])
def test_what_changes_once_is_watched_anew(kind, budget):
    _step, planned, ran = _trained(*kind(), {CHANGED_AT}, budget)
    assert all(planned[4:CHANGED_AT]) and ran[CHANGED_AT], (planned, ran)
    quiet = range(CHANGED_AT + 7, CALLS)
    assert all(planned[c] for c in quiet), planned
    assert sum(ran[c] for c in quiet) <= 4, ran  # checks that are due in any step


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__[4:])
def test_what_changes_in_each_call_is_recorded_ever_more_rarely(kind):
    step, planned, ran = _trained(*kind(), range(CHANGED_AT, CALLS), None)
    assert all(ran[c] or not planned[c] for c in range(CHANGED_AT, CALLS)), (planned, ran)
    assert sum(planned[CHANGED_AT:]) >= CALLS - CHANGED_AT - 4, planned
    assert not step.refusal


def test_what_changes_now_and_then_is_watched_anew_each_time():
    _step, planned, ran = _trained(*_of_dict(), {7, 15}, None)
    assert sum(planned) >= CALLS - 8, planned
    assert sum(ran[13:15]) <= 1 and sum(ran[-4:]) <= 2, ran
