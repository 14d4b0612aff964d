"""What the user drops is gone for a planned step, too: guards hold what they watch, but keep nothing alive that the
step would find dead. Random programs: where the object lies, what refers to it, how the step reads it, and when it
goes.

The seed is printed; STOWAGE_SEED: another."""

import random
import weakref

import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed(clock=False)
CALLS = 16


class Part:
    def __init__(self, scale: float):
        self.scale = scale

    def factor(self) -> float:
        return self.scale


class Owner:
    pass


def plain(part):
    reference = weakref.ref(part)
    return lambda: part_scale(reference())


def proxied(part):
    reference = weakref.proxy(part)

    def read():
        try:
            return reference.scale
        except ReferenceError:
            return 1.0

    return read


def of_a_method(part):
    reference = weakref.WeakMethod(part.factor)
    return lambda: reference()() if reference() is not None else 1.0


def in_a_set(part):
    found = weakref.WeakSet([part])
    return lambda: 1.0 + sum(p.scale for p in found)


def counted(part):
    found = weakref.WeakSet([part])
    return lambda: 1.0 + len(found)


def as_a_value(part):
    found = weakref.WeakValueDictionary(part=part)
    return lambda: part_scale(found.get("part"))


def as_a_key(part):
    found = weakref.WeakKeyDictionary({part: 3.0})
    return lambda: sum(found.values(), 1.0)


def part_scale(part) -> float:
    return 1.0 if part is None else part.scale


KINDS = [plain, proxied, of_a_method, in_a_set, counted, as_a_value, as_a_key]


def losses(kind, seen: str, goes: int, check: str | None) -> tuple[list, stowage.CompiledStep | None]:
    """``seen``: whether the step also reads what holds the object, and keeps a count; ``goes``: before which call its
    owner drops it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    owner, count = Owner(), [0]
    owner.part = Part(2.5)
    read = kind(owner.part)

    def alone(x):
        return model(x).square().mean() * read()

    def beside(x):
        return model(x).square().mean() * read() + (0.5 if owner.part is not None else 0.0)

    def counting(x):
        count[0] += 1
        return beside(x)

    loss_of = {"alone": alone, "beside": beside, "counting": counting}[seen]

    def step(x):
        loss = loss_of(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = None if check is None else stowage.compile(step, check=check)
    given = []
    for i in range(CALLS):
        if i == goes:
            owner.part = None
        given.append((compiled or step)(torch.randn(3, 4)))
    return [*given, *(p.detach() for p in model.parameters())], compiled


@pytest.mark.parametrize("check", ["auto", "never"])
@pytest.mark.parametrize("seen", ["alone", "beside", "counting"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_dropped_is_gone(kind, seen, check):
    goes = random.Random(f"{SEED} {kind.__name__} {seen} {check}").randrange(4, CALLS - 2)
    print(f"seed {SEED}: dropped before call {goes}")
    eager, _ = losses(kind, seen, goes, None)
    planned, step = losses(kind, seen, goes, check)
    assert all(torch.equal(a, b) for a, b in zip(eager, planned, strict=True))
    assert step.stats()["planned_steps"] > 0


def test_a_guard_that_has_let_go():
    """It has changed for good, and holds nothing."""
    from stowage._core import Guard

    part = Part(1.0)
    guard = Guard()
    guard.of_class(part, "part")
    assert guard.changed() == ""
    reference = weakref.ref(part)
    del part
    assert reference() is not None
    guard.let_go("'part'")
    assert reference() is None
    assert guard.changed() == "'part'"
