"""isinstance() and issubclass() in a step: abstract classes that others are registered with, protocols, hooks, singledispatch.
What they answer changes between calls."""

import abc
import collections.abc
import functools
import numbers
import typing

import pytest
import torch
from torch import nn

import stowage

CALLS, CHANGE = 13, 9


class Abstract(abc.ABC):  # noqa: B024
    pass


@typing.runtime_checkable
class Fits(typing.Protocol):
    name: str

    def fit(self): ...


class Hooked(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other):
        return True if any("fancy" in vars(base) for base in other.__mro__) else NotImplemented


class Meta(type):
    def __instancecheck__(cls, value):
        return getattr(value, "kind", 0) == 1


class Checked(metaclass=Meta):
    pass


def matches(value):
    match value:
        case Abstract():
            return True
    return False


def cases(cls, value, single):
    """By kind: what the step asks, and what changes the answer."""
    sequence, several = collections.abc.Sequence, (int, Abstract)
    return {
        "registered": (lambda: isinstance(value, Abstract), lambda: Abstract.register(cls)),
        "subclass": (lambda: issubclass(cls, Abstract), lambda: Abstract.register(cls)),
        "one of several": (lambda: isinstance(value, several), lambda: Abstract.register(cls)),
        "sequence": (lambda: isinstance(value, sequence), lambda: sequence.register(cls)),
        "number": (lambda: isinstance(value, numbers.Number), lambda: numbers.Number.register(cls)),
        "match": (lambda: matches(value), lambda: Abstract.register(cls)),
        "protocol": (lambda: isinstance(value, Fits), lambda: vars(value).update(fit=print, name="x")),
        "protocol, class": (lambda: isinstance(value, Fits), lambda: (setattr(cls, "fit", 1), setattr(cls, "name", 2))),
        "hook": (lambda: isinstance(value, Hooked), lambda: setattr(cls, "fancy", 1)),
        "metaclass": (lambda: isinstance(value, Checked), lambda: setattr(value, "kind", 1)),
        "callable": (lambda: callable(value), lambda: setattr(cls, "__call__", lambda self: 1)),
        "hashable": (lambda: isinstance(value, collections.abc.Hashable), lambda: setattr(cls, "__hash__", None)),
        "sized": (lambda: isinstance(value, collections.abc.Sized), lambda: setattr(cls, "__len__", lambda self: 3)),
        "single dispatch": (lambda: single(value) == 2.0, lambda: single.register(cls)(lambda _: 2.0)),
        "single dispatch, abstract": (
            lambda: single(value) == 3.0,
            lambda: (single.register(Abstract)(lambda _: 3.0), Abstract.register(cls)),
        ),
    }


def train(kind, wrap):
    cls = type("Data", (), {})
    single = functools.singledispatch(lambda _: 1.0)
    asks, change = cases(cls, cls(), single)[kind]
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean() * (2.0 if asks() else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = wrap(step)
    losses = []
    for call in range(CALLS):
        if call == CHANGE:
            change()
        losses.append(step(torch.ones(3, 8)).item())
    return losses, step


@pytest.mark.parametrize("kind", cases(object, object(), None))
def test_an_answer_that_changes_is_seen(kind):
    expected, _ = train(kind, lambda fn: fn)
    got, step = train(kind, stowage.compile)
    assert got == expected and step.stats()["planned_steps"] >= 6
