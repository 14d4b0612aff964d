"""A step whose code works out names of attributes may read any. A scheduler that steps in it changes its own in each call: Python
runs in each where the step asks the scheduler, or the optimizer, and in no other."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import operator
import pickle
import types
from unittest import mock

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import stowage
from stowage import compiled_regions

CALLS = 20


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(3):
            setattr(self, f"layer{i}", nn.Linear(5, 5))
        self.factor1 = 0.5

    def by_getattr(self, x):
        for i in range(3):
            x = torch.tanh(getattr(self, f"layer{i}")(x))
        return x

    def by_hasattr(self, x):
        return self.by_getattr(x) if hasattr(self, "".join(("lay", "er0"))) else x

    def by_vars(self, x):
        return self.by_getattr(x) * vars(self)["".join(("fac", "tor1"))]

    def by_dict(self, x):
        return self.by_getattr(x) * sum(v for v in self.__dict__.values() if isinstance(v, float))

    def by_dir(self, x):
        return self.by_getattr(x) * len([name for name in dir(self) if name.startswith("fac")])

    def by_setattr(self, x):
        setattr(self, "".join(("fac", "tor1")), 0.5)
        return self.by_vars(x)


WAYS = [name for name in vars(Layers) if name.startswith("by_")]
SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=CALLS + 2),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [4]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def _trained(make, planned, change=None):
    """make(model, optimizer): a scheduler, and what the step does with x. Loggers lead to pytest's handlers, which keep what they
    have written to themselves."""
    loggers = [logging.getLogger(), *(o for o in logging.Logger.manager.loggerDict.values() if hasattr(o, "handlers"))]
    with contextlib.ExitStack() as without:
        for logger in loggers:
            others = [h for h in logger.handlers if not type(h).__module__.startswith("_pytest")]
            without.enter_context(mock.patch.object(logger, "handlers", others))
        return _steps(make, planned, change)


def _steps(make, planned, change):
    torch.manual_seed(0)
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler, forward = make(model, optimizer)

    def body(x):
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    step = stowage.compile(body) if planned else body
    losses = []
    for call in range(CALLS):
        if change is not None and call in (8, 14):
            change(model, call)
        losses.append(step(torch.full((4, 5), 0.1 * call + 0.1)))
    return step, [*losses, *(p.detach() for p in model.parameters()), torch.tensor(optimizer.param_groups[0]["lr"])]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_scheduler_that_nobody_asks_needs_no_python(way, scheduler, monkeypatch):
    monkeypatch.setattr(compiled_regions, "in_use", lambda: False)  # another test may have compiled something

    def make(model, optimizer):
        return SCHEDULERS[scheduler](optimizer), getattr(model, way)

    step, found = _trained(make, True)
    assert all(map(torch.equal, found, _trained(make, False)[1]))
    assert step.stats()["planned_steps"] >= CALLS - 4, step.refusal
    if way not in ("by_setattr",):
        assert step.stats()["checked_steps"] <= 9, step.stats()


def test_where_something_has_been_compiled(monkeypatch):
    """Nobody listens there. A step that shows its names is as ever."""
    monkeypatch.setattr(compiled_regions, "in_use", lambda: True)

    def make(model, optimizer):
        return SCHEDULERS["lambda"](optimizer), lambda x: model.layer2(model.layer1(x))

    step, found = _trained(make, True)
    assert all(map(torch.equal, found, _trained(make, False)[1]))
    assert step.stats()["checked_steps"] <= 9, step.stats()


@pytest.mark.parametrize("way", WAYS)
def test_what_changes_elsewhere_is_seen(way):
    def make(model, optimizer):
        return SCHEDULERS["lambda"](optimizer), getattr(model, way)

    def change(model, call):
        model.factor1 = 0.1 * call
        model.layer1 = nn.Identity()
        setattr(model, f"fac{call}", 1.5)

    found, expected = (_trained(make, planned, change)[1] for planned in (True, False))
    assert all(map(torch.equal, found, expected))


def _key(*parts):
    """A name that stands in no code."""
    return "".join(parts)


class Proxy:
    def __init__(self, held):
        self.held = held

    def __getattr__(self, name):
        return getattr(self.held, name)


ASKS = {
    "getattr": lambda s, o: getattr(s, _key("last", "_epo", "ch")),
    "vars": lambda s, o: vars(s)[_key("last", "_epo", "ch")],
    "dict": lambda s, o: s.__dict__[_key("last", "_epo", "ch")],
    "all values": lambda s, o: sum(v for v in vars(s).values() if type(v) is int),
    "attrgetter": lambda s, o: operator.attrgetter(_key("last", "_epo", "ch"))(s),
    "members": lambda s, o: dict(inspect.getmembers(s))[_key("last", "_epo", "ch")],
    "state_dict": lambda s, o: s.state_dict()[_key("last", "_epo", "ch")],
    "pickle": lambda s, o: pickle.loads(pickle.dumps({k: v for k, v in s.state_dict().items() if type(v) is int}))[
        _key("last", "_epo", "ch")
    ],
    "copy": lambda s, o: vars(copy.copy(s))[_key("last", "_epo", "ch")],
    "object": lambda s, o: object.__getattribute__(s, _key("last", "_epo", "ch")),
    "static": lambda s, o: inspect.getattr_static(s, _key("last", "_epo", "ch")),
    "descriptor": lambda s, o: vars(lr_scheduler.LRScheduler)["__dict__"].__get__(s)[_key("last", "_epo", "ch")],
    "partial": lambda s, o: functools.partial(getattr, s)(_key("last", "_epo", "ch")),
    "proxy": lambda s, o: getattr(Proxy(s), _key("last", "_epo", "ch")),
    "getstate": lambda s, o: s.__dict__.copy()[_key("last", "_epo", "ch")],
    "holder": lambda s, o: getattr(
        getattr(types.SimpleNamespace(scheduler=s), _key("sched", "uler")), _key("last", "_epo", "ch")
    ),
    "dir": lambda s, o: sum(getattr(s, n) for n in dir(s) if n.startswith(_key("last", "_e"))),
    "rate": lambda s, o: getattr(o, _key("param", "_groups"))[0][_key("l", "r")],
    "rate in vars": lambda s, o: vars(o)[_key("param", "_groups")][0][_key("l", "r")],
    "rate of scheduler": lambda s, o: getattr(s, _key("opti", "mizer")).state_dict()[_key("param", "_groups")][0][
        _key("l", "r")
    ],
}


def _late(value):
    """The same for many calls, and then not."""
    return value > 12 if value >= 1 else value < 0.0077


@pytest.mark.parametrize("late", [False, True], ids=["in each call", "late"])
@pytest.mark.parametrize("ask", ASKS)
def test_a_scheduler_that_is_asked(ask, late):
    def make(model, optimizer):
        made = SCHEDULERS["lambda"](optimizer)
        of = _late if late else float
        return made, lambda x: model.by_getattr(x) * (1.0 + of(ASKS[ask](made, optimizer)))

    found, expected = (_trained(make, planned)[1] for planned in (True, False))
    assert all(map(torch.equal, found, expected))


SETS = {
    "setattr": lambda s, name, value: setattr(s, name, value),
    "object": lambda s, name, value: object.__setattr__(s, name, value),
    "dict": lambda s, name, value: s.__dict__.update({name: value}),
    "vars": lambda s, name, value: vars(s).__setitem__(name, value),
}


@pytest.mark.parametrize("way", SETS)
def test_a_scheduler_that_is_set(way):
    """By a name that the step works out: in each call."""

    def make(model, optimizer):
        made = SCHEDULERS["lambda"](optimizer)

        def forward(x):
            SETS[way](made, _key("last", "_epo", "ch"), getattr(made, _key("last", "_epo", "ch")) + 2)
            return model.by_getattr(x)

        return made, forward

    found, expected = (_trained(make, planned)[1] for planned in (True, False))
    assert all(map(torch.equal, found, expected))
