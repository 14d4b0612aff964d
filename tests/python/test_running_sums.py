"""Tensors that a step adds to in place, and replaces every so many calls: running losses, counts of right answers,
confusion matrices. Wherever Python keeps them, calls after a replacement are planned, and all that Python shows is
eager's."""

import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage


class Plain:
    pass


def in_a_dict():
    kept = {}
    return lambda: kept["sum"], lambda value: kept.__setitem__("sum", value)


def in_an_object():
    kept = Plain()
    return lambda: kept.sum, lambda value: setattr(kept, "sum", value)


def in_a_module():
    kept = nn.Module()
    return lambda: kept.sum, lambda value: setattr(kept, "sum", value)


def in_a_list():
    kept = [0.0, 1]
    return lambda: kept[0], lambda value: kept.__setitem__(0, value)


def in_a_closure():
    kept = 0.0

    def put(value):
        nonlocal kept
        kept = value

    return lambda: kept, put


HOLDERS = {f.__name__: f for f in (in_a_dict, in_an_object, in_a_module, in_a_list, in_a_closure)}
STARTS = {"a number": lambda: 0.0, "a tensor": lambda: torch.zeros(())}
CASES = [
    *itertools.product(HOLDERS, ["a number"], [True]),
    ("in_a_dict", "a tensor", True),
    ("in_an_object", "a tensor", False),
]


def trained(holder, start, inside, planned, **options):
    torch.manual_seed(0)
    net = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    get, put = HOLDERS[holder]()
    seen, count = [], itertools.count(1)
    put(STARTS[start]())

    def report():
        seen.append(float(get()))
        put(STARTS[start]())

    def train_step(x, y, due):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = get()
        value += loss.detach()
        put(value)
        if inside and due:
            report()
        return loss.detach()

    step = stowage.compile(train_step, **options) if planned else train_step
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        x, y = torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)
        due = int(next(count) % 6 == 0)
        seen.append(step(x, y, due).item())
        seen.append(float(get()))
        if due and not inside:
            report()
    return [*seen, net.weight.tolist(), net.bias.tolist()], step


@pytest.mark.parametrize("holder,start,inside", CASES)
def test_sums_that_are_replaced_now_and_then(holder, start, inside):
    eager, _ = trained(holder, start, inside, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned, step = trained(holder, start, inside, True)
    assert eager == planned
    assert step.stats()["planned_steps"] >= 18, step.refusal


@pytest.mark.parametrize("options", [{"check": "always"}, {"budget": "4MiB"}, {"budget": "4MiB", "residents": "leave"}])
def test_sums_under_other_options(options):
    eager, _ = trained("in_an_object", "a number", True, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned, step = trained("in_an_object", "a number", True, True, **options)
    assert eager == planned
    assert step.stats()["planned_steps"] >= 18, step.refusal


def test_a_sum_that_lies_in_two_places():
    """A list of the sums so far holds the one that is written, too."""
    net = nn.Linear(8, 3)

    def make():
        torch.manual_seed(0)
        for p in net.parameters():
            torch.nn.init.normal_(p)
        return {"sum": torch.zeros(()), "all": []}

    def run(planned):
        kept, optimizer = make(), torch.optim.SGD(net.parameters(), 0.1)

        def train_step(x, i):
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept["sum"] += loss.detach()
            if i % 5 == 4:
                kept["all"].append(kept["sum"])
                kept["sum"] = torch.zeros(()) if i % 2 else kept["all"][0]
            return loss.detach()

        step = stowage.compile(train_step) if planned else train_step
        generator = torch.Generator().manual_seed(1)
        seen = []
        for i in range(36):
            seen.append(step(torch.randn(4, 8, generator=generator), i).item())
            seen.append((kept["sum"].item(), [t.item() for t in kept["all"]]))
        return seen, net.weight.tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(False) == run(True)
