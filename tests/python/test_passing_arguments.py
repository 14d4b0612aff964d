"""Arguments that come anew with each call: arrays of NumPy, sets, functions and losses that stand in the call, iterators."""

import functools
import random

import numpy as np
import pytest
import searches
import torch
import torch.nn.functional as F
from torch import nn

import stowage

SEED = searches.first_seed()
LOUDNESS = 1.0


class Case:
    """A training whose calls are given what ``arguments(case, i)`` makes."""

    def __init__(self, step, arguments, wrap):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 0.05)
        self.extra = torch.arange(8.0)
        self.array = np.zeros((6, 8), np.float32)
        self.numbers = np.random.default_rng(3)
        self._step, self._arguments = step, arguments
        self.call = wrap(self.run)

    def run(self, *arguments):
        loss = self._step(self, *arguments)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def rows(self, i):
        return torch.randn(6, 8, generator=torch.Generator().manual_seed(i))

    def train(self, calls):
        seen = []
        for i in range(calls):
            seen.append(self.call(*self._arguments(self, i)))
            seen += [p.detach().clone() for p in self.net.parameters()]
            seen.append(torch.from_numpy(self.array.copy()))
        return seen


def agrees(step, arguments, planned, check="auto", calls=12):
    compiled = []

    def wrap(fn):
        compiled.append(stowage.compile(fn, check=check))
        return compiled[0]

    expected = Case(step, arguments, lambda fn: fn).train(calls)
    got = Case(step, arguments, wrap).train(calls)
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert torch.equal(a, b), f"value {i} is not as eager"
    assert compiled[0].stats()["planned_steps"] >= planned, compiled[0].refusal
    return compiled[0]


CHECKS = pytest.mark.parametrize("check", ["never", "auto"])


# ---- Arrays


def by_content(case, i):
    return (case.numbers.standard_normal((6, 8)).astype(np.float32),)


def the_same_again(case, i):
    """Two arrays take turns; what lies in the one that is not passed is written meanwhile."""
    arrays = np.full((6, 8), float(i // 4), np.float32), np.full((6, 8), float(i // 4), np.float32)
    case.pair = getattr(case, "pair", arrays)
    case.pair[i % 2][:] = i // 4
    case.pair[1 - i % 2][:] = 50 + i
    return (case.pair[i % 2],)


def one_array(case, i):
    case.array[:] = case.numbers.standard_normal((6, 8)) if i % 3 else 1.0
    return (case.array,)


def views(case, i):
    case.data = getattr(case, "data", case.numbers.standard_normal((40, 20)).astype(np.float32))
    return (case.data[i : i + 6, 3:11],)


OF_ARRAYS = {
    "from_numpy": lambda case, x: case.net(torch.from_numpy(x)).square().mean(),
    "as_tensor": lambda case, x: case.net(torch.as_tensor(x)).square().mean(),
    "tensor": lambda case, x: case.net(torch.tensor(x)).square().mean(),
    "a number of it": lambda case, x: case.net(torch.tensor(x)).square().mean() * float(x.max()),
    "twice": lambda case, x: (case.net(torch.from_numpy(x)) - torch.from_numpy(x)[:, :4]).square().mean(),
}


@pytest.mark.parametrize("arguments", [by_content, the_same_again, one_array, views])
@pytest.mark.parametrize("step", OF_ARRAYS.values(), ids=list(OF_ARRAYS))
def test_arrays(step, arguments):
    agrees(step, arguments, planned=6, check="never")


def written_between(case, x):
    rows = torch.from_numpy(x)
    loss = case.net(rows).square().mean()
    x *= 0.5
    return loss + rows.sum()


def written_by_a_kernel(case, x):
    rows = torch.from_numpy(x)
    rows.mul_(0.5)
    return case.net(rows).square().mean() + float(x[0, 0])


def written_before(case, x):
    x -= x.mean(0)
    return case.net(torch.from_numpy(x)).square().mean()


def written_now_and_then(case, x):
    rows = torch.from_numpy(x)
    loss = case.net(rows).square().mean()
    case.calls = getattr(case, "calls", 0) + 1
    if case.calls > 6:
        x *= 0.5
    return loss + rows.sum()


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("arguments", [by_content, one_array])
@pytest.mark.parametrize("step", [written_between, written_by_a_kernel, written_before, written_now_and_then])
def test_arrays_that_the_step_writes(step, arguments):
    compiled = agrees(step, arguments, planned=0, check="never")
    if step in (written_between, written_by_a_kernel):
        assert "array" in compiled.refusal
        assert "test_passing_arguments.py" in compiled.refusal


def test_an_array_of_objects_is_refused():
    def step(case, names):
        return case.net(case.rows(0)).mean()

    with pytest.warns(stowage.errors.UnsupportedWarning, match="ndarray"):
        compiled = agrees(step, lambda case, i: (np.array([object()]),), planned=0)
    assert "ndarray" in compiled.refusal


# ---- Sets, strings


@CHECKS
def test_sets(check):
    def step(case, names, x):
        loss = case.net(x).square().mean()
        return loss + case.net[0].weight.abs().sum() if "l1" in names else loss

    agrees(step, lambda case, i: ({"l1", "x"} if i % 4 else frozenset(("x",)), case.rows(i)), planned=5, check=check)


def test_a_set_that_the_step_changes():
    def step(case, seen, x):
        seen.discard(1)
        return case.net(x).square().mean() * len(seen)

    agrees(step, lambda case, i: ({0, 1, 2}, case.rows(i)), planned=8, check="never")


@CHECKS
def test_names_that_are_others_in_each_call(check):
    def step(case, batch):
        factor = 2.0 if batch["path"][0].endswith("7.png") else 1.0
        return case.net(batch["x"]).square().mean() * factor

    agrees(step, lambda case, i: ({"x": case.rows(i), "path": [f"{i}.png"]},), planned=8, check=check)


@CHECKS
def test_ways_by_name(check):
    def step(case, x, mode):
        return getattr(case.net(x), mode)().mean()

    agrees(step, lambda case, i: (case.rows(i), ("abs", "square")[i % 2]), planned=6, check=check, calls=16)


# ---- Functions


def apply(case, f, *rest):
    return f(*rest)


def captures_the_batch(case, i):
    x, y = case.rows(i), torch.arange(6) % 4
    return (lambda: F.cross_entropy(case.net(x), y),)


def captures_a_number(case, i):
    scale = 0.5 * i
    return (lambda x: scale * case.net(x).square().mean()), case.rows(i)


def captures_a_decision(case, i):
    square = i % 3 == 0
    return (lambda x: (case.net(x).square() if square else case.net(x).abs()).mean()), case.rows(i)


def captures_what_is_reached(case, i):
    return (lambda x: case.net(x * case.extra).square().mean()), case.rows(i)


def captures_a_function(case, i):
    def inner(z, by=1.0 + i % 2):
        return z.square().mean() * by

    return (lambda x: inner(case.net(x))), case.rows(i)


def calls_itself(case, i):
    def again(x, n):
        return case.net(x).square().mean() if n == 0 else again(x * 0.5, n - 1)

    return again, case.rows(i), 2


def writes_what_it_captures(case, i):
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return case.net(x).square().mean() * count

    return f, case.rows(i)


def reads_a_global(case, i):
    global LOUDNESS
    LOUDNESS = 1.0 if i < 8 else 3.0
    return (lambda x: LOUDNESS * case.net(x).square().mean()), case.rows(i)


def the_model_changes(case, i):
    if i == 8:
        case.net[1] = nn.Tanh()
    return (lambda x: case.net(x).square().mean()), case.rows(i)


def has_attributes(case, i):
    def f(x):
        return case.net(x).square().mean() * f.scale

    f.scale = float(i)
    return f, case.rows(i)


class Scaled:
    def __init__(self, weight):
        self.weight = weight

    def of(self, y):
        return y.square().mean() * self.weight


FUNCTIONS = {
    f.__name__: f
    for f in (
        captures_the_batch,
        captures_a_number,
        captures_a_decision,
        captures_what_is_reached,
        captures_a_function,
        calls_itself,
        writes_what_it_captures,
        reads_a_global,
        the_model_changes,
        has_attributes,
    )
}


@pytest.mark.parametrize("arguments", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_functions_that_stand_in_the_call(arguments):
    agrees(apply, arguments, planned=6, check="never", calls=16)


@CHECKS
def test_methods_of_what_is_made_for_the_call(check):
    def step(case, of, x):
        return of(case.net(x))

    agrees(step, lambda case, i: (Scaled(1.0 + i // 5).of, case.rows(i)), planned=8, check=check)


@CHECKS
def test_losses_made_for_the_call(check):
    def step(case, loss, x):
        return loss(case.net(x), torch.arange(6) % 4)

    def smoothed(case, i):
        return nn.CrossEntropyLoss(label_smoothing=0.1 * (i // 6)), case.rows(i)

    def weighted(case, i):
        return nn.CrossEntropyLoss(weight=torch.rand(4, generator=torch.Generator().manual_seed(i))), case.rows(i)

    def partly(case, i):
        return functools.partial(F.cross_entropy, label_smoothing=0.1 * (i // 6)), case.rows(i)

    for arguments in (smoothed, weighted, partly):
        agrees(step, arguments, planned=6, check=check)


# ---- Iterators


def batches(case, i):
    return [case.rows(10 * i + k) for k in range(2)]


ITERATORS = {
    "list": lambda case, i: (iter(batches(case, i)),),
    "zip": lambda case, i: (zip(*[batches(case, i)]),),
    "generator": lambda case, i: ((x for x in batches(case, i)),),
    "values": lambda case, i: (dict(enumerate(batches(case, i))).values(),),
    "map": lambda case, i: (map(torch.abs, batches(case, i)),),
}


@pytest.mark.parametrize("arguments", ITERATORS.values(), ids=list(ITERATORS))
def test_iterators(arguments):
    def step(case, parts):
        first = lambda part: part[0] if isinstance(part, tuple) else part
        return sum(case.net(first(part)).square().mean() for part in parts)

    agrees(step, arguments, planned=6, check="never", calls=14)


# ---- Any of them


def drawn(seed):
    """A step that takes some of these, in some order, and what its calls are given."""
    rng = random.Random(seed)
    kinds = rng.choices(("array", "names", "function", "number", "kept function"), k=rng.randint(1, 4))
    changes = [rng.choice((1, 2, 5, 100)) for _ in kinds]  # after how many calls it holds something else
    kept = []

    def arguments(case, i):
        given = []
        for kind, every in zip(kinds, changes):
            now = i // every
            if kind == "array":
                given.append(np.full((6, 8), now % 7 - 2.0, np.float32))
            elif kind == "names":
                given.append({f"n{now % 3}", "x"})
            elif kind == "number":
                given.append(float(now))
            elif kind == "kept function":
                kept[:] = kept or [lambda x: x.abs() * 2, lambda x: x.square()]
                given.append(kept[now % 2])
            else:
                rows = case.rows(now)
                given.append(
                    (lambda x: (x * now + rows[:, :4]).abs()) if now % 2 else (lambda x: (x - rows[:, :4]).square())
                )
        return given

    def step(case, *given):
        y = case.net(case.rows(1))
        for value in given:
            if isinstance(value, np.ndarray):
                y = y + case.net(torch.from_numpy(value)) * float(value[0, 0])
            elif isinstance(value, set):
                y = y.abs() if "n1" in value else y * len(value)
            elif isinstance(value, float):
                y = y * value if value < 3 else y.tanh()
            else:
                y = value(y)
        return y.mean()

    return step, arguments, rng.choice(["never", "auto", "always"])


@pytest.mark.filterwarnings("ignore:stowage")
def test_random_arguments():
    for i in range(12):
        step, arguments, check = drawn(SEED + i)
        try:
            agrees(step, arguments, planned=0, check=check, calls=14)
        except AssertionError as error:
            raise AssertionError(f"seed {SEED + i}, check={check!r}: {error}") from None
