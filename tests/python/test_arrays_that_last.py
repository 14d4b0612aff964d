"""NumPy arrays over memory that lasts: parameters, buffers, state of the optimizer, arguments. Whoever keeps one sees what
later calls write, and what is written into it the next call reads; as in eager."""

import collections
import itertools
import random

import numpy as np
import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed()
CALLS = 9


class Program:
    """A step that asks for an array of ``of`` at ``when`` and does ``what`` with it."""

    def __init__(self, of, what, when="first", each=1):
        torch.manual_seed(SEED)
        self.model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.model.register_buffer("scale", torch.ones(6))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.of, self.what, self.when, self.each = of, what, when, each
        self.seen, self.counter = [], itertools.count()

    def tensor(self, x):
        weight = self.model[0].weight
        return {
            "parameter": lambda: weight.detach(),
            "transposed": lambda: weight.detach().t(),
            "row": lambda: weight.data[2],
            "buffer": lambda: self.model.scale,
            "argument": lambda: x,
            "columns": lambda: x[:, 1:4],
            "momentum": lambda: (
                self.optimizer.state[weight]["momentum_buffer"] if self.optimizer.state else weight.data
            ),
        }[self.of]()

    def step(self, x):
        at = next(self.counter)
        now = at % self.each == 0
        returned = held = None

        def asks():
            nonlocal returned, held
            array = self.tensor(x).numpy()
            self.seen.append(float(array.sum()))
            if self.what == "returns":
                returned = array
            elif self.what == "returns a part":
                returned = array[1:]
            elif self.what == "holds" and now:
                held = array
            elif self.what == "writes" and now:
                array[...] = array * 0.5
            elif self.what == "converts":
                held = np.asarray(self.tensor(x), dtype=np.float64)

        if self.when == "first":
            asks()
        self.model.scale.mul_(0.9)
        loss = (self.model(x * self.model.scale)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        if self.when == "before the update":
            asks()
        self.optimizer.step()
        if self.when == "last":
            asks()
        if held is not None:
            self.seen.append(float(held.sum()))
        return returned if returned is not None else loss.detach()

    def state(self):
        return [
            *self.model.state_dict().values(),
            *(s["momentum_buffer"] for s in self.optimizer.state.values()),
        ]


OF = ["parameter", "transposed", "row", "buffer", "argument", "columns", "momentum"]
WHAT = ["looks", "returns", "returns a part", "holds", "writes", "converts"]
WHEN = ["first", "before the update", "last"]


def arguments():
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randn(5, 6, generator=generator) for _ in range(CALLS)]


def compared(of, what, when, each=1, edits=False, **how):
    """Every number that was seen, and after each call all arrays that were returned so far. The number of planned calls."""
    eager, planned = Program(of, what, when, each), Program(of, what, when, each)
    step = stowage.compile(planned.step, **how)
    kept, theirs = [], []
    for call, (x, y) in enumerate(zip(arguments(), arguments(), strict=True)):
        theirs.append(eager.step(x))
        kept.append(step(y))
        if edits and call in (2, 6) and isinstance(kept[-1], np.ndarray):
            kept[-1][...] = theirs[-1][...] = 0.25
        where = f"{of}, {what}, {when}, {each}, {edits}, {how}: call {call}"
        assert eager.seen == planned.seen, where
        assert all(map(np.array_equal, map(np.asarray, theirs), map(np.asarray, kept))), where
        assert all(map(torch.equal, eager.state(), planned.state())), where
        assert torch.equal(x, y), where
    return step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("of", OF)
def test_arrays_are_those_of_eager(of, what):
    for when, each in itertools.product(WHEN, (1, 3) if what in ("holds", "writes") else (1,)):
        compared(of, what, when, each, edits=what.startswith("returns") and when != "first")


def test_one_that_is_gone_before_the_update_is_planned():
    for of, what, when in itertools.product(["parameter", "row", "buffer"], ["looks", "returns"], WHEN):
        step = compared(of, what, when)
        written_later = when == "first" or (of != "buffer" and when == "before the update")
        assert (step.stats()["planned_steps"] > 0) == (what == "looks" or not written_later), (
            of,
            what,
            when,
            step.refusal,
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["looks", "returns", "writes"])
@pytest.mark.parametrize("of, when", [("parameter", "last"), ("row", "before the update"), ("momentum", "first")])
def test_where_state_may_wait_on_the_host(of, what, when):
    step = compared(of, what, when, budget="3KiB", residents="leave")
    assert step.stats()["planned_steps"] > 0 or what != "looks", step.refusal


@pytest.mark.filterwarnings("ignore")
def test_random_programs():
    outcomes = collections.Counter()
    for seed in searches.seeds(SEED, at_least=12):
        draw = random.Random(seed)
        how = draw.choice(
            [{}, {"check": "never"}, {"check": "always"}, {"budget": "4KiB"}, {"budget": "4KiB", "residents": "leave"}]
        )
        of, what, when = draw.choice(OF), draw.choice(WHAT), draw.choice(WHEN)
        step = compared(of, what, when, draw.choice([1, 2, 4]), draw.random() < 0.5, **how)
        outcomes[step.stats()["planned_steps"] > 0] += 1
    print(outcomes)


@pytest.mark.parametrize("check", ["auto", "always"])
@pytest.mark.parametrize("held", ["until the end", "and asked again", "by a part"])
def test_a_result_and_its_array_have_one_memory(held, check):
    """Whoever has both may write into one and read the other, within the step and between calls."""

    def make():
        torch.manual_seed(1)
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step(x):
            out = net(x)
            found = out.detach()
            array = found.numpy()
            loss = out.square().mean() * float(abs(array).max())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if held == "and asked again":
                again = found.numpy()
                return found, [array, again][int(loss.detach() * 1e4) % 2], float(again.sum())
            return found, array[1:] if held == "by a part" else array, 0.0

        return step

    eager, planned = make(), make()
    step = stowage.compile(planned, check=check)
    kept = []
    for call, x in enumerate(arguments()):
        x = x[:, :4].contiguous()
        theirs, ours = eager(x), step(x)
        kept.append((theirs, ours))
        for found, array, _ in (theirs, ours):
            if call % 2:
                array[0] = 2.5
            else:
                found.mul_(0.5)
        for (a, b, c), (d, e, f) in kept:
            assert torch.equal(a, d) and np.array_equal(b, e) and c == f, call
    assert step.stats()["planned_steps"] > 0, step.refusal
