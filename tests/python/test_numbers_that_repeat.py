"""Numbers that follow from what is there before the step (a batch's mask, a counter), which differ from the recorded one and
stay so for some calls: what Python makes of them, gives back, and does because of them, is that of the call."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import stowage


class Program:
    """``does``: what the step does with the number of the batch's entries above 0."""

    def __init__(self, does, source):
        self.does, self.source = does, source
        self.model = nn.Linear(8, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.counted = torch.zeros((), dtype=torch.long)
        self.log, self.seen, self.kept = [], set(), {}
        self.last = self.flag = None
        self.given, self.held, self.array = 0, {}, np.zeros(2, dtype=np.float32)
        self.give(0)

    def give(self, n):
        """Who calls does, before a call."""
        if self.source == "between":
            self.counted.fill_(n)
        elif self.source == "replaced" and self.held.get("n") != n:
            self.held = {"n": n, "now": torch.full((2,), n / 2)}
        elif self.source == "array" and self.array[0] != n:
            self.array = np.array([n, 0.0], dtype=np.float32)
        elif self.source in ("made", "compared", "filled", "ways"):
            self.given = n

    def step(self, x):
        if self.source == "batch":
            n = int((x > 0).sum())
        elif self.source == "listed":
            n = sum((x[:, 0] > 0).tolist())
        elif self.source == "between":
            n = self.counted.item()
        elif self.source == "made":
            n = torch.tensor([self.given, 0]).sum().item()
        elif self.source == "compared":
            n = int((torch.arange(9) < self.given).sum())
        elif self.source == "filled":
            n = int(torch.full((3,), float(self.given)).mean())
        elif self.source == "array":
            n = int(torch.from_numpy(self.array.copy()).sum())
        elif self.source == "replaced":
            n = int(self.held["now"].sum())
        elif self.source == "ways":  # of which each has its recording
            base = torch.tensor([float(self.given), 0.0])
            n = int((base * 2).sum()) // 2 if self.given % 2 else int(base.sum() + 1) - 1
        else:
            n = int(self.counted)
            self.counted.add_(1).clamp_(max=4)
        loss = self.model(x).square().mean()
        if self.source != "listed" or n >= 0:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        out = [loss.detach()]
        for do in self.does:
            if do == "number":
                out.append(n)
            elif do == "text":
                out.append(f"{n} of {x.numel()}")
            elif do == "is it many":
                out.append(n > 3)
            elif do == "so many":
                out.append([0] * n)
            elif do == "named":
                out.append({"n": n, f"n{n}": 1})
            elif do == "half":
                out.append(n / 2)
            elif do == "scaled":
                out.append(loss.detach() * n)
            elif do == "log many" and n > 3:
                self.log.append(n)
            elif do == "log few" and n < 2:
                self.log.append(-n)
            elif do == "last":
                self.last = n
            elif do == "flag" and n > 3:
                self.flag = True
            elif do == "seen":
                self.seen.add(n)
            elif do == "count":
                self.kept[n] = self.kept.get(n, 0) + 1
            elif do == "keep many" and n > 3:
                self.kept["loss"] = loss.detach()
            elif do == "other road" and n > 3:
                out.append(loss.detach().sqrt())
        return out

    def state(self):
        kept = {k: v.item() if isinstance(v, torch.Tensor) else v for k, v in self.kept.items()}
        return [list(self.log), sorted(self.seen), kept, self.last, self.flag, self.counted.item()]


DOES = [
    "number", "text", "is it many", "so many", "named", "half", "scaled", "log many", "log few", "last", "flag", "seen",
    "count", "keep many", "other road",
]  # fmt: skip
SOURCES = ["batch", "listed", "between", "counter", "made", "compared", "filled", "array", "replaced", "ways"]


def plain(result):
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in result]


def run(does, source, numbers, compiled, **options):
    torch.manual_seed(0)
    program = Program(does, source)
    step = stowage.compile(program.step, **options) if compiled else program.step
    seen = []
    for call, n in enumerate(numbers):
        x = -torch.rand(8, 8) - 0.1
        x[:n, 0] = -x[:n, 0]
        program.give(n)
        if call % 3 == 2:  # who calls takes what is there
            program.flag, program.last = None, None
            program.log.clear()
            program.kept.pop("loss", None)
        seen.append((plain(step(x)), program.state()))
    seen.append([p.tolist() for p in program.model.parameters()])
    return seen, step.stats()["planned_steps"] if compiled else 0


def assert_as_eager(does, source, numbers, **options):
    expected, _ = run(does, source, numbers, False)
    got, planned = run(does, source, numbers, True, **options)
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, f"call {call}"
    return planned


REPEATING = [1, 1, 1, 1, 5, 5, 5, 5, 1, 1, 2, 2, 2, 6, 6, 1, 6, 6, 1, 1]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("do", DOES)
def test_what_follows_from_a_number_that_stays(do, source):
    for check in ("auto", "never"):
        assert_as_eager([do], source, REPEATING, check=check)


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "replaced"])
def test_a_number_that_stays_is_recorded(source):
    """So that calls with it need no Python either."""
    program = Program(["number"], source)
    step = stowage.compile(program.step)
    for n in [1] * 6 + [4] * 40:
        x = -torch.rand(8, 8) - 0.1
        x[:n, 0] = -x[:n, 0]
        program.give(n)
        checked = step.stats()["checked_steps"]
        told = step(x)[1]
    assert told == 4
    stats = step.stats()
    assert stats["checked_steps"] == checked and stats["planned_steps"] >= 35, stats


@pytest.mark.parametrize("source", [source for source in SOURCES if source not in ("counter", "ways")])
def test_numbers_that_do_not_stay_are_not_recorded(source):
    program = Program(["number"], source)
    step = stowage.compile(program.step)
    for call in range(40):
        n = 1 + call * 5 % 7
        x = -torch.rand(8, 8) - 0.1
        x[:n, 0] = -x[:n, 0]
        program.give(n)
        assert step(x)[1] == n
    assert step.stats()["planned_steps"] >= 30


@pytest.mark.parametrize("seed", range(120))
def test_random_numbers(seed):
    r = random.Random(seed)
    does = r.sample(DOES, r.randint(1, 4))
    numbers = [n for _ in range(12) for n in [r.choice([0, 1, 1, 2, 4, 5, 7])] * r.choice([1, 1, 2, 3, 5])][:30]
    source, check = r.choice(SOURCES), r.choice(["auto", "never", "always"])
    try:
        assert_as_eager(does, source, numbers, check=check)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {does} {source} {check} {numbers}") from error


@pytest.mark.parametrize("where", ["argument", "held", "listed"])
@pytest.mark.parametrize("other", [-0.0, float("nan"), 1.0])
def test_numbers_of_other_bits(where, other):
    """0.0 is not -0.0, and NaN is itself."""
    held, model = torch.zeros(2), nn.Linear(2, 1)

    def step(x, first):
        of = {"argument": first, "held": held, "listed": first}[where]
        number = first.tolist()[0] if where == "listed" else of[0].item()
        return model(x).sum().detach() * math.copysign(2.0, number), f"{number}"

    run = stowage.compile(step)
    for first in [0.0] * 6 + [other] * 3 + [0.0] * 3 + [other, 0.0] * 3 + [other] * 8:
        x, given = torch.randn(3, 2), torch.full((2,), first)
        held.copy_(given)
        expected, text = step(x, given)
        loss, told = run(x, given)
        assert torch.equal(loss, expected) and told == text
    assert run.stats()["planned_steps"] >= 15


@pytest.mark.parametrize("how", ["number", "way"])
@pytest.mark.parametrize("options", [{}, {"check": "always"}, {"budget": "4MiB"}], ids=str)
def test_an_array_of_what_is_taken_back(how, options):
    """It shows what the step has written, also where a number that comes later is another one."""
    flag = {"now": 0}

    def trained(compiled):
        torch.manual_seed(0)
        weight = torch.ones(3, requires_grad=True)

        def step(x):
            weight.grad = None
            loss = (weight * x).square().mean()
            loss.backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.1)
            array = weight.detach().numpy()
            if how == "way" and flag["now"]:
                return loss.detach() * 2, array.copy()
            return loss.detach() + flag["now"], array.copy()

        run, seen = stowage.compile(step, **options) if compiled else step, []
        for now in [0] * 6 + [1, 1, 2, 0, 0, 1]:
            flag["now"] = now
            loss, shown = run(torch.randn(3))
            seen.append((loss.item(), shown.tolist(), weight.tolist()))
        return seen

    assert trained(True) == trained(False)


@pytest.mark.parametrize("seed", range(24))
def test_constants_of_calls_that_do_not_ask(seed):
    """A call makes a constant, and raises, goes another way, or asks for no number of it: what the next one asks is its own."""
    r = random.Random(seed)
    calls = [(0, "ask")] * 5 + [(0, "other way")] * 4 + [(0, "ask")] * 2
    calls += [(r.randrange(3), r.choice(["ask", "ask", "other way", "raise", "silent"])) for _ in range(24)]
    check, model = r.choice(["auto", "always", "never"]), nn.Linear(3, 2)

    def step(x, value, how):
        made = torch.full((3,), float(value))
        hidden = model(x * made)
        if how == "raise":
            raise ValueError(value)
        if how == "other way":
            hidden = hidden.exp()
        if how == "silent":
            return hidden.sum().detach(), None
        number = made.sum().item()
        return (hidden.sum() * number).detach(), number

    run = stowage.compile(step, check=check)
    for call, (value, how) in enumerate(calls):
        x, told = torch.randn(4, 3), []
        for one in (step, run):
            try:
                told.append(one(x, value, how))
            except ValueError as error:
                told.append((torch.zeros(()), str(error)))
        assert torch.equal(told[0][0], told[1][0]) and told[0][1] == told[1][1], f"seed {seed}, call {call}: {calls}"
