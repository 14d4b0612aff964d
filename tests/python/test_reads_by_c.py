"""State that a step reads through a callable or an object of C, by a name that none of its code shows: its guard sees each change.
Readers times places where a reader can be kept."""

from __future__ import annotations

import argparse
import builtins
import collections
import copy
import dataclasses
import functools
import operator
import pickle
import signal
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import stowage
from stowage.step.guards.reads import reads
from stowage.step.reach.world import World


class Holder:
    def __init__(self):
        self.scale, self.sub = 1.0, types.SimpleNamespace(k=1.0)


class Slotted:
    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


def of_holder(read):
    """read: a function of no arguments, made of a Holder."""

    def make():
        holder = Holder()
        return read(holder), lambda: setattr(holder, "scale", 2.0)

    return make


def of_slots(read):
    def make():
        holder = Slotted()
        return read(holder), lambda: setattr(holder, "scale", 2.0)

    return make


def of_container(container, read, change):
    def make():
        made = container()
        return read(made), lambda: change(made)

    return make


def of_namespace(kind, read):
    def make():
        a = kind(x=1.0)
        return read(a), lambda: setattr(a, "x", 2.0)

    return make


def inherited():
    class Base:
        rate = 1.0

    class Derived(Base):
        rate = 3.0

    held = super(Derived, Derived())
    return (lambda: held.rate), lambda: setattr(Base, "rate", 2.0)


def alias():
    class Generic:
        rate = 1.0
        __class_getitem__ = classmethod(types.GenericAlias)

    held = Generic[int]
    return (lambda: held.rate), lambda: setattr(Generic, "rate", 2.0)


def bound_by_class():
    class Bound:
        def __init__(self):
            self.scale = 1.0

        get = functools.partialmethod(getattr, "scale")

    held = Bound()
    return held.get, lambda: setattr(held, "scale", 2.0)


def scheduler():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 1.0)
    held = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    numbers = lambda: sum(v for v in held.state_dict().values() if isinstance(v, (int, float)))
    return numbers, lambda: setattr(held, "gamma", 2.0)


def structured():
    array = np.ones(2, [("x", float), ("y", int)])
    row = array[0]
    return (lambda: float(row["x"])), lambda: array.__setitem__(0, (2.0, 0))


def name():
    """Not a constant of any code."""
    return "".join(["sc", "ale"])


READERS = {
    "getattr in a partial": of_holder(lambda h: functools.partial(getattr, h, name())),
    "getattr by another name": of_holder(lambda h: functools.partial(lambda f, *of: f(*of), builtins.getattr, h, name())),
    "getattr in a container": of_holder(lambda h: functools.partial(lambda d, *of: d[0](*of), [getattr], h, name())),
    "__getattribute__ of an object": of_holder(lambda h: functools.partial(h.__getattribute__, name())),
    "__getattribute__ of object": of_holder(lambda h: functools.partial(object.__getattribute__, h, name())),
    "attrgetter": of_holder(lambda h: functools.partial(operator.attrgetter(name()), h)),
    "attrgetter made by a held class": of_holder(
        lambda h: functools.partial(lambda make, of: make(name())(of), operator.attrgetter, h)
    ),
    "methodcaller": of_holder(lambda h: functools.partial(operator.methodcaller("__getattribute__", name()), h)),
    "vars, held": of_holder(lambda h: functools.partial(lambda f, of: next(iter(f(of).values())), vars, h)),
    "eval, held": of_holder(lambda h: functools.partial(eval, "h.sc" + "ale", {"h": h})),
    "format, bound": of_holder(lambda h: functools.partial(("{0." + name() + "}").format, h)),
    "format_map, bound": of_holder(lambda h: functools.partial(("{h." + name() + "}").format_map, {"h": h})),
    "format of str, held": of_holder(lambda h: functools.partial(str.format, "{0." + name() + "}", h)),
    "pickled": of_holder(lambda h: lambda: pickle.dumps(h)),
    "copied": of_holder(lambda h: lambda: next(iter(copy.copy(h).__dict__.values()))),
    "__reduce_ex__": of_holder(lambda h: functools.partial(h.__reduce_ex__, 2)),
    "a slot's getter": of_slots(lambda h: functools.partial(Slotted.__dict__[name()].__get__, h)),
    "a slot's descriptor": of_slots(lambda h: functools.partial(lambda d, of: d.__get__(of), Slotted.__dict__[name()], h)),
    "len of a list, bound": of_container(lambda: [1.0], lambda x: x.__len__, lambda x: x.append(1.0)),
    "item of a dict, bound": of_container(lambda: {"a": 1}, lambda x: functools.partial(x.__getitem__, "a"), lambda x: x.update(a=2)),
    "item of a deque, bound": of_container(
        lambda: collections.deque([1.0]), lambda x: functools.partial(x.__getitem__, 0), lambda x: x.__setitem__(0, 2.0)
    ),
    "a list compared, bound": of_container(lambda: [1.0], lambda x: functools.partial(x.__eq__, [1.0]), lambda x: x.append(1.0)),
    "a set asked, bound": of_container(lambda: {5}, lambda x: functools.partial(x.__contains__, 3), lambda x: x.add(3)),
    "a bytearray, bound": of_container(
        lambda: bytearray(b"\1"), lambda x: functools.partial(x.__getitem__, 0), lambda x: x.__setitem__(0, 2)
    ),
    "an array, bound": of_container(
        lambda: np.ones(2), lambda x: functools.partial(x.__getitem__, 0), lambda x: x.__setitem__(0, 2)
    ),
    "static method, held": of_container(
        lambda: {"a": 1}, lambda x: functools.partial(staticmethod(x.get), "a"), lambda x: x.update(a=2)
    ),
    "property, held": of_container(
        lambda: {"a": 1}, lambda x: functools.partial(property(x.get).__get__, "a"), lambda x: x.update(a=2)
    ),
    "ufunc of a function": of_container(
        lambda: {1: 1.0}, lambda x: functools.partial(np.frompyfunc(x.get, 1, 1), 1), lambda x: x.update({1: 2.0})
    ),
    "namespaces compared": of_namespace(
        types.SimpleNamespace, lambda a: functools.partial(lambda p, q: p == q, a, types.SimpleNamespace(x=1.0))
    ),
    "namespace as text": of_namespace(types.SimpleNamespace, lambda a: lambda: f"{a}"),
    "namespace in a list": of_namespace(
        types.SimpleNamespace, lambda a: functools.partial(lambda p, q: p in q, a, [types.SimpleNamespace(x=1.0)])
    ),
    "arguments compared": of_namespace(
        argparse.Namespace, lambda a: functools.partial(lambda p, q: p == q, a, argparse.Namespace(x=1.0))
    ),
    "arguments as text": of_namespace(argparse.Namespace, lambda a: lambda: str(a)),
    "super(), held": inherited,
    "generic alias": alias,
    "method of a partial": bound_by_class,
    "state of a scheduler": scheduler,
    "row of a structured array": structured,
}  # fmt: skip


class Kept:
    pass


def in_attribute(read):
    kept = Kept()
    kept.read = read
    return lambda: kept.read()


def in_default(read):
    def call(of=read):
        return of()

    return call


PLACES = {
    "cell": lambda read: lambda: read(),
    "list": lambda read: functools.partial(lambda held: held[0](), [read]),
    "dict": lambda read: functools.partial(lambda held: held["of"](), {"of": read}),
    "attribute": in_attribute,
    "default": in_default,
    "method": lambda read: types.MethodType(lambda held: held(), read),
    "call, bound": lambda read: lambda: read.__call__(),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", READERS)
def test_a_change_is_seen(reader, place):
    read, change = READERS[reader]()
    step = PLACES[place](read)
    before = str(step())
    world = World(step)
    with world.noting():
        step()
    world.settle()
    assert not world.guard.changed()
    change()
    assert str(step()) != before, "the test changes nothing"
    assert world.guard.changed() or world.guard.blind


@pytest.mark.parametrize("reader", ["getattr in a partial", "namespaces compared", "super(), held", "pickled"])
def test_losses_are_eagers(reader):
    def trained(compiled):
        torch.manual_seed(0)
        read, change = READERS[reader]()
        seen: dict = {}
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(x):
            scale = seen.setdefault(str(read()), 1.0 + len(seen))
            loss = net(x).square().mean() * scale
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = []
        for call in range(14):
            losses.append(run(torch.randn(3, 4, generator=data)).item())
            if call == 7:
                change()
        return losses, run

    got, step = trained(True)
    assert got == trained(False)[0]
    assert step.stats()["planned_steps"] >= 6, step.refusal


def sets_by_statement(holder):
    holder.scale = True


SETTERS = {
    "statement": sets_by_statement,
    "setattr": lambda holder: setattr(holder, "scale", True),
    "setattr, held": lambda holder: functools.partial(setattr, holder, name(), True)(),
    "__setattr__, held": lambda holder: holder.__setattr__(name(), True),
}


KINDS = {
    "object": Holder,
    "slots": Slotted,
    "module": lambda: nn.Linear(1, 1),
    "tensor": lambda: torch.ones(1),
    "function": lambda: lambda: None,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sets", SETTERS)
def test_what_a_step_sets_is_set_by_each_call(kind, sets):
    """Also where nobody within it reads that, and where somebody sets something else between calls."""
    holder, set_it = KINDS[kind](), SETTERS[sets]
    net = nn.Linear(4, 4)

    def step(x):
        set_it(holder)
        return net(x).sum().detach()

    run = stowage.compile(step)
    seen = []
    for call in range(14):
        run(torch.ones(2, 4))
        seen.append(holder.scale)
        if call in (5, 9, 10):
            holder.scale = False  # by somebody else
    assert seen == [True] * 14
    assert run.stats()["planned_steps"] >= 4, run.refusal


def test_what_a_step_sets_of_the_interpreter_is_set_by_each_call():
    net, handler = nn.Linear(4, 4), lambda *_: None
    before, seen = (sys.getrecursionlimit(), signal.getsignal(signal.SIGUSR2)), []

    def step(x):
        sys.setrecursionlimit(3456)
        signal.signal(signal.SIGUSR2, handler)
        return net(x).sum().detach()

    run = stowage.compile(step)
    try:
        for _ in range(12):
            run(torch.ones(2, 4))
            seen.append((sys.getrecursionlimit(), signal.getsignal(signal.SIGUSR2)))
            sys.setrecursionlimit(before[0])
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    finally:
        sys.setrecursionlimit(before[0])
        signal.signal(signal.SIGUSR2, before[1])
    assert seen == [(3456, handler)] * 12


def test_what_a_held_setter_sets_is_set_by_each_call():
    holder, net = Holder(), nn.Linear(4, 4)
    held = holder.__setattr__

    def step(x):
        held(name(), True)
        return net(x).sum().detach()

    run = stowage.compile(step)
    seen = []
    for call in range(14):
        run(torch.ones(2, 4))
        seen.append(holder.scale)
        if call in (5, 9, 10):
            holder.scale = False  # by somebody else
    assert seen == [True] * 14
    assert run.stats()["planned_steps"] >= 4, run.refusal


@dataclasses.dataclass(frozen=True)
class Frozen:
    rows: int
    columns: int = 3


class SetsItself:
    def by_its_base(self):
        super().__setattr__("scale", True)


BY_CONSTANT = {
    "frozen": Frozen.__init__,
    "unbound": lambda o, v: object.__setattr__(o, "scale", v),
    "bound": lambda o, v: o.__setattr__("scale", v),
    "super": SetsItself.by_its_base,
    "deleted": lambda o: o.__delattr__("scale"),
    "deleted, unbound": lambda o: object.__delattr__(o, "scale"),
    "setattr": lambda o, v: setattr(o, "scale", v),
    "getattr": lambda o, v: getattr(o, "scale", v),
}
BY_VARIABLE = {
    "unbound": lambda o, n: object.__setattr__(o, n, 1),
    "bound": lambda o, n: o.__setattr__(n, "scale"),
    "deleted": lambda o, n: o.__delattr__(n),
    "deleted, unbound": lambda o, n: object.__delattr__(o, n),
    "held": lambda o: o.__setattr__,
    "mapped": lambda o, names: list(map(o.__setattr__, names, names)),
    "by name": lambda o: o.__setattr__,
    "spread": lambda o, both: o.__setattr__(*both),
    "by keyword": lambda o, n: o.__setattr__(value="scale", name=n),
    "one of two": lambda o, n: setattr(o, "scale" if n else n, 1),
    "delattr": lambda o, n: delattr(o, n),
    "getattr": lambda o, n: getattr(o, n),
}


@pytest.mark.parametrize("use", BY_CONSTANT)
def test_names_that_code_shows(use):
    assert not reads(BY_CONSTANT[use].__code__).dynamic


@pytest.mark.parametrize("use", BY_VARIABLE)
def test_names_that_code_does_not_show(use):
    assert reads(BY_VARIABLE[use].__code__).dynamic
