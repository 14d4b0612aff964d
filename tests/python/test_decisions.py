"""Decisions on arguments that also depend on numbers of Python's: `if (x > threshold).any():`. Every call decides by its
own numbers, whether it runs eagerly, over shells, or not at all.

The random programs draw what is compared with which kind of number, how the decision is read, and what follows from
it; the numbers come as arguments, from a closure that the step or the loop changes, or as tensors made of lists."""

from __future__ import annotations

import itertools
import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

FIRST = searches.first_seed()
CALLS = 26


def run(make, thresholds, compiled, seed=0, check="auto"):
    """make(model, optimizer, settings) -> step(x, threshold); what each call leaves."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = {"threshold": 0.0}
    step = make(model, torch.optim.SGD(model.parameters(), 0.05), settings)
    call = stowage.compile(step, check=check) if compiled else step
    data = torch.Generator().manual_seed(seed + 1)
    batches = [torch.randn(5, 6, generator=data) for _ in range(3)]
    left = []
    for x, threshold in zip(itertools.cycle(batches), thresholds):
        settings["threshold"] = threshold
        loss, told = call(x, threshold)
        left.append((loss.clone(), told, [p.detach().clone() for p in model.parameters()]))
    return left, call


def as_eager(make, thresholds, seed=0, check="auto"):
    eager, _ = run(make, thresholds, False, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planned, step = run(make, thresholds, True, seed, check)
    for call, ((a, told, p), (b, told_too, q)) in enumerate(zip(eager, planned)):
        assert str(told) == str(told_too), f"call {call}: {told} and {told_too}"
        assert torch.equal(a, b) and all(torch.equal(x, y) for x, y in zip(p, q)), f"call {call}"
    return step


def finished(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def branches(given):
    def make(model, optimizer, settings):
        def step(x, threshold):
            loss = model(x).square().mean()
            high = bool((x > given(threshold, settings)).any())
            return finished(model, optimizer, loss * 2 if high else loss + 1), high

        return step

    return make


def counts(given):
    def make(model, optimizer, settings):
        def step(x, threshold):
            n = int((x > given(threshold, settings)).sum())
            return finished(model, optimizer, model(x).square().mean() * n), n

        return step

    return make


def lists(given):
    def make(model, optimizer, settings):
        def step(x, threshold):
            rows = (x > given(threshold, settings)).sum(1).tolist()
            return finished(model, optimizer, model(x).square().mean() * (rows[0] + 1)), rows

        return step

    return make


def arrays(given):
    def make(model, optimizer, settings):
        def step(x, threshold):
            rows = (x > given(threshold, settings)).float().sum(1).numpy()
            return finished(model, optimizer, model(x).square().mean() * float(rows.max())), rows.tolist()

        return step

    return make


def masks(given):
    def make(model, optimizer, settings):
        def step(x, threshold):
            kept = model(x)[x[:, 0] > given(threshold, settings)]
            return finished(model, optimizer, kept.square().sum()), len(kept)

        return step

    return make


def splits(given):
    def make(model, optimizer, settings):
        def step(x, threshold):
            at = (x[:, 0] > given(threshold, settings)).sum().clamp(1, 4).reshape(1)
            parts = model(x).tensor_split(at)
            return finished(model, optimizer, sum(p.square().sum() for p in parts)), [len(p) for p in parts]

        return step

    return make


READS = [branches, counts, lists, arrays, masks, splits]
GIVEN = {
    "argument": lambda threshold, settings: threshold,
    "closure": lambda threshold, settings: settings["threshold"],
    "tensor": lambda threshold, settings: torch.tensor(settings["threshold"]),
    "tensor of a list": lambda threshold, settings: torch.tensor([settings["threshold"], 3.0]).min(),
}
THRESHOLDS = {
    "falls": [2.5 - 0.2 * i for i in range(CALLS)],
    "returns": [(0.1, 5.0, 0.2, 0.3)[i % 4] for i in range(CALLS)],
    "late": [0.0] * 8 + [5.0, 0.0, 5.0, 5.0, -5.0, 0.0] * 3,
}


@pytest.mark.parametrize("thresholds", THRESHOLDS)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("read", READS, ids=lambda f: f.__name__)
def test_by_the_numbers_of_the_call(read, given, thresholds):
    as_eager(read(GIVEN[given]), THRESHOLDS[thresholds])


@pytest.mark.parametrize("read", [branches, counts, lists, arrays], ids=lambda f: f.__name__)
def test_numbers_that_fall_are_planned(read):
    step = as_eager(read(GIVEN["closure"]), THRESHOLDS["falls"])
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > CALLS // 2


def test_a_kernel_of_a_decision_may_raise():
    """As in eager, and nothing of the call has happened."""

    def make(model, optimizer, settings):
        def step(x, threshold):
            first = float(x.flatten().gather(0, torch.tensor([int(settings["threshold"])])))
            return finished(model, optimizer, model(x).square().mean() * first), first

        return step

    def trained(compiled):
        left = []
        torch.manual_seed(0)
        model, settings = nn.Linear(6, 3), {}
        step = make(model, torch.optim.SGD(model.parameters(), 0.05), settings)
        call = stowage.compile(step) if compiled else step
        x = torch.randn(5, 6)
        for at in [0, 1, 2, 3, 4, 5, 1000, 3, 1000, 1000, 4, 2]:
            settings["threshold"] = at
            try:
                left.append(call(x, 0.0)[1])
            except (RuntimeError, IndexError) as error:
                left.append(str(error).splitlines()[0])
            left.append(model.weight.detach().tolist())
        return left

    assert trained(True) == trained(False)


# ---- Random programs


def program(seed):
    rng = random.Random(seed)
    parts = []
    for _ in range(rng.randrange(1, 4)):
        parts.append(
            (
                rng.choice(["argument", "closure", "tensor", "list", "own count"]),
                rng.choice(["gt", "clamp", "scaled", "index", "twice"]),
                rng.choice(["any", "item", "tolist", "numpy", "mask", "nonzero", "split", "allclose"]),
                rng.choice(["branch", "factor", "constant"]),
            )
        )
    values = rng.sample([-9.0, -1.0, -0.3, 0.0, 0.2, 0.7, 1.5, 9.0], rng.randrange(2, 5))
    steady = rng.randrange(0, 10)
    thresholds = [values[0]] * steady + [rng.choice(values) for _ in range(CALLS - steady)]

    def make(model, optimizer, settings):
        count = [0]

        def number(kind, threshold):
            if kind == "argument":
                return threshold
            if kind == "own count":
                return 0.05 * count[0] - 0.5
            if kind == "closure":
                return settings["threshold"]
            if kind == "tensor":
                return torch.tensor(settings["threshold"])
            return torch.tensor([settings["threshold"], settings["threshold"] * 0.5])

        def compared(x, how, value):
            if how == "gt":
                return x[:, :2] > value
            if how == "clamp":
                clamped = x[:, :2].clamp(max=value) if isinstance(value, float) else torch.minimum(x[:, :2], value)
                return clamped == x[:, :2]
            if how == "scaled":
                return x[:, :2] * value > 0.1
            if how == "index":
                return x[(x[:, :2] * value)[:, 0].argsort()][:3, :2] > 0
            return (x[:, :2] + value).mul_(2.0).sub_(0.2) > value

        def step(x, threshold):
            count[0] += 1
            out, told = model(x), []
            for kind, how, read, use in parts:
                mask = compared(x, how, number(kind, threshold))
                rows = out[: len(mask)]
                if read == "any":
                    told.append(bool(mask.any()))
                elif read == "item":
                    told.append(mask.sum().item())
                elif read == "tolist":
                    told.append(sum(mask.sum(0).tolist()))
                elif read == "numpy":
                    told.append(float(mask.float().mean(1).numpy().max()))
                elif read == "mask":
                    told.append(len(rows[mask[:, 0]]))
                    out = out + rows[mask[:, 0]].sum()
                elif read == "nonzero":
                    told.append(len(mask[:, 0].nonzero()))
                    out = out + rows[mask[:, 0].nonzero().flatten()].sum()
                elif read == "split":
                    at = mask[:, 0].sum().clamp(1, 2).reshape(1)
                    told.append(len(rows.tensor_split(at)[0]))
                else:
                    told.append(torch.allclose(mask.float(), torch.ones(())))
                if use == "branch":
                    out = out.tanh() if told[-1] else out.sin()
                elif use == "factor":
                    out = out * (1 + 0.1 * told[-1])
                else:
                    out = out + torch.tensor([float(told[-1]), 1.0, 2.0])
            return finished(model, optimizer, out.tanh().square().mean()), told

        return step

    return make, thresholds, rng.choice(["auto", "always", "never", 3])


def check_program(seed):
    make, thresholds, check = program(seed)
    try:
        return as_eager(make, thresholds, seed % 1000, check)
    except AssertionError as error:
        raise AssertionError(f"program of seed {seed}: {error}") from None


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed):
    check_program(seed)


@searches.longer
def test_many_random_programs():
    for seed in searches.seeds(FIRST):
        check_program(seed)
