"""Sharded steps whose Python has to run in every call: it counts, draws, keeps tensors, reads numbers, returns what it makes. Such
calls are planned as others are: the numbers, and all that Python has, are those of one process."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import logging
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from shard_pair import columns_plan, mlp_batches, zero_plan
from torch import nn

import stowage
from stowage import sharding

CALLS = 10


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(7, 9), nn.Linear(9, 5)
        self.norm, self.drop = nn.BatchNorm1d(9), nn.Dropout(0.25)
        self.calls, self.latest = 0, None

    def forward(self, x):
        self.calls += 1
        h = self.drop(self.norm(F.gelu(self.into(x))))
        self.latest = h.detach()
        return self.out(h)


@dataclasses.dataclass
class _Said:
    loss: object
    call: int


class _Run:
    """A training, and what its Python keeps."""

    def __init__(self):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = _Net().double()
        self.average = copy.deepcopy(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)
        self.scaler = torch.amp.GradScaler("cpu", 64.0)
        self.n, self.best, self.latest, self.mean, self.saved = 0, math.inf, None, None, None
        self.kept: list = []
        self.counts: collections.Counter = collections.Counter()
        self.log = logging.getLogger("stowage.test")

    def loss(self, x, y, scale=1.0):
        return (self.model(x) - y).square().mean() * scale

    def learn(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> dict:
        """All that training leaves, but for what is compared by its text."""
        modules = {"model": self.model, "average": self.average}
        found = {f"{m}.{name}": t for m, module in modules.items() for name, t in module.state_dict().items()}
        for i, p in enumerate(self.model.parameters()):
            found |= {f"optimizer.{i}.{k}": v for k, v in self.optimizer.state[p].items()}
        kept = {"latest": self.latest, "mean": self.mean, "of the model": self.model.latest}
        kept |= {f"kept.{i}": v for i, v in enumerate(self.kept)} | {
            f"saved.{i}": v for i, v in enumerate(self.saved or ())
        }
        found |= {name: v for name, v in kept.items() if isinstance(v, torch.Tensor)}
        return {name: getattr(t, "full_tensor", lambda t=t: t)().detach() for name, t in found.items()}

    def words(self) -> list:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        of_python = [v for v in self.kept if not isinstance(v, torch.Tensor)]
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return [
            self.n,
            self.model.calls,
            rates,
            of_python,
            self.counts,
            drawn,
            round(self.best, 9),
        ]


# ---- Steps (run, x, y)


def _counts(run, x, y):
    run.n += 1
    return run.learn(run.loss(x, y, 1 + 0.1 * run.model.calls)), run.n


def _warms_up(run, x, y):
    run.n += 1
    for group in run.optimizer.param_groups:
        group["lr"] = 0.05 * min(1.0, run.n / 6)
    return run.learn(run.loss(x, y))


def _keeps_its_loss(run, x, y):
    run.latest = run.learn(run.loss(x, y))
    run.kept.append(run.latest)
    return len(run.kept)


def _averages_its_loss(run, x, y):
    loss = run.learn(run.loss(x, y))
    run.mean = loss if run.mean is None else 0.9 * run.mean + 0.1 * loss
    return run.mean


def _averages_its_weights(run, x, y):
    run.n += 1
    loss = run.learn(run.loss(x, y))
    decay = min(0.9, (1 + run.n) / (10 + run.n))
    with torch.no_grad():
        for p, q in zip(run.average.parameters(), run.model.parameters()):
            p.mul_(decay).add_(q, alpha=1 - decay)
    return loss


def _says(run, x, y):
    run.n += 1
    said = _Said(run.learn(run.loss(x, y)).item(), run.n)
    return f"{said.loss:.8f}", said.call


def _logs(run, x, y):
    loss = run.learn(run.loss(x, y))
    run.log.debug("loss %.8f", loss.item())
    run.kept.append(f"{loss.item():.8f}")
    return loss


def _keeps_the_best(run, x, y):
    loss = run.learn(run.loss(x, y)).item()
    if loss < run.best:
        run.best, run.saved = loss, [p.detach().clone() for p in run.model.parameters()]
    return loss


def _counts_what_is_right(run, x, y):
    out = run.model(x)
    loss = run.learn(F.cross_entropy(out, y.argmax(1)))
    run.counts["n"] += len(x)
    run.counts["right"] += (out.argmax(1) == y.argmax(1)).sum().item()
    return {"accuracy": run.counts["right"] / run.counts["n"], "loss": loss}


def _reads_lists_and_arrays(run, x, y):
    out = run.model(x)
    loss = run.learn((out - y).square().mean())
    run.kept.append([round(v, 8) for v in out.sum(0).tolist()] + [round(float(v), 8) for v in out.detach().numpy()[0]])
    return float(np.asarray(loss))


def _draws_in_python(run, x, y):
    loss = run.loss(x, y, 0.5 + random.random())
    return run.learn(loss)


def _mixes_its_batch(run, x, y):
    part = float(np.random.beta(0.4, 0.4))
    order = torch.as_tensor(np.random.permutation(len(x)))
    return run.learn(run.loss(part * x + (1 - part) * x[order], y))


def _permutes_and_adds_noise(run, x, y):
    order = torch.randperm(len(x))
    return run.learn(run.loss(x[order] + 0.01 * torch.randn(x.shape, dtype=x.dtype), y[order]))


def _goes_two_ways(run, x, y):
    h = run.model.into(x)
    if random.random() < 0.6:
        h = torch.relu(h)
    return run.learn((run.model.out(h) - y).square().mean())


def _looks_now_and_then(run, x, y):
    run.n += 1
    loss = run.learn(run.loss(x, y))
    if run.n % 2 == 0:
        run.kept.append(round(sum(p.detach().abs().sum().item() for p in run.model.parameters()), 7))
    return loss


def _leaves_out_updates(run, x, y):
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), 1.0).item()
    run.kept.append(round(norm, 8))
    if norm > np.median(run.kept):
        return None
    run.optimizer.step()
    return norm


def _catches_its_own_error(run, x, y):
    loss = run.loss(x, y)
    try:
        if loss.item() > 1.2:
            raise ValueError("too large")
        run.learn(loss)
    except ValueError as error:
        run.kept.append(str(error))
    return loss.detach()


def _schedules(run, x, y):
    loss = run.learn(run.loss(x, y))
    run.schedule.step()
    run.kept.append(run.schedule.get_last_lr()[0])
    return loss


def _schedules_by_the_loss(run, x, y):
    loss = run.learn(run.loss(x, y))
    run.plateau.step(loss.item())
    return loss


def _scales(run, x, y):
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    run.scaler.scale(loss).backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    return loss.detach()


def _steps_twice(run, x, y):
    """Sharpness-aware minimization: away from the weights, and back."""
    loss = run.loss(x, y)
    loss.backward()
    with torch.no_grad():
        before = [p.clone() for p in run.model.parameters()]
        for p in run.model.parameters():
            p.add_(p.grad, alpha=0.05)
    further = run.loss(x, y)
    run.optimizer.zero_grad()
    further.backward()
    with torch.no_grad():
        for p, was in zip(run.model.parameters(), before):
            p.copy_(was)
    run.optimizer.step()
    run.optimizer.zero_grad()
    return loss.detach(), further.item()


# ---- The same in one process and in parts


def _leaves(result) -> list:
    values = result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else [result]
    return [math.nan if v is None else float(v) for v in values]


def _same(a, b, what) -> None:
    a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
    assert a.shape == b.shape and torch.allclose(a, b, 1e-9, 1e-9, equal_nan=True), (what, a, b)


def _trained(body, size, calls=CALLS, **options):
    """The state of a sharded training, call for call that of one process."""
    alone = _Run()
    expected = [_leaves(body(alone, *batch)) for batch in mlp_batches(calls)]
    words = alone.words()
    mine = _Run()
    step = stowage.shard(lambda x, y: body(mine, x, y), (size,), **options)
    for call, (batch, wanted) in enumerate(zip(mlp_batches(calls), expected, strict=True)):
        _same(_leaves(step(*batch)), wanted, f"{body.__name__}: what call {call} returns")
    assert str(mine.words()) == str(words), body.__name__
    theirs, ours = alone.state(), mine.state()
    assert theirs.keys() == ours.keys(), body.__name__
    for name, t in theirs.items():
        _same(ours[name], t, f"{body.__name__}: {name}")
    return step


def _each(bodies, size, least=CALLS - 4):
    """``least``: planned calls; the first four are eager, recorded, and rehearsed twice."""
    for i, body in enumerate(bodies):
        step = _trained(body, size, plan=(zero_plan, columns_plan)[i % 2])
        assert step.stats()["planned_steps"] >= least and not step.refusal, (body.__name__, step.refusal, step.stats())


def counters_rates_and_kept_tensors(rank, size):
    _each((_counts, _warms_up, _keeps_its_loss, _averages_its_loss, _averages_its_weights, _schedules), size)


def numbers_that_python_uses(rank, size):
    _each(
        (_says, _logs, _counts_what_is_right, _reads_lists_and_arrays, _schedules_by_the_loss, _scales, _steps_twice),
        size,
    )


def what_python_draws(rank, size):
    _each((_draws_in_python, _mixes_its_batch, _permutes_and_adds_noise), size)


def ways_that_change(rank, size):
    """Which calls are planned depends on what has come before."""
    bodies = (_goes_two_ways, _looks_now_and_then, _leaves_out_updates, _catches_its_own_error, _keeps_the_best)
    _each(bodies, size, least=0)
    assert _trained(_goes_two_ways, size, 24, plan=zero_plan).stats()["planned_steps"] > 8


def all_kinds_as_the_planner_places_them(rank, size):
    for name, body in globals().items():
        if (
            name.startswith("_")
            and getattr(body, "__code__", None)
            and body.__code__.co_varnames[:3] == ("run", "x", "y")
        ):
            _trained(body, size, 14)


def within_a_budget(rank, size):
    """The limit is kept, where such a step was refused before."""
    for body in (_counts, _logs, _averages_its_loss):
        free = _trained(body, size).stats()
        need = free["planned_peak_bytes"] + free["resident_bytes"] if "resident_bytes" in free else 16_000
        step = _trained(body, size, budget=need)
        assert step.stats()["planned_steps"] >= CALLS - 4, step.refusal
        assert step.stats()["misses"] == 0


def what_changes_once_is_watched_anew(rank, size):
    """Between two calls, and no operator shows it: after some calls over shells none needs Python again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    names = ["a"]

    def body(x, y):
        assert names
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = stowage.shard(body, (size,), plan=zero_plan)
    wishes, wish = [], step._wish
    step._wish = lambda *given: wishes.append(wish(*given)) or wishes[-1]
    for call, batch in enumerate(mlp_batches(18)):
        if call == 6:
            names.append("b")
        step(*batch)
    planned = [found[0] == sharding.calls._PLANNED for found in wishes]
    assert planned[4:6] == [True] * 2 and not any(planned[6:9]) and all(planned[13:]), planned


# ---- Ranks that differ


def a_rank_whose_python_differs_ends_all(rank, size):
    run = _Run()

    def body(x, y):
        run.n += 1
        loss = run.loss(x, y)
        if run.n == CALLS and rank == 1:
            return run.learn(loss)
        loss.item()
        return run.learn(loss)

    step = stowage.shard(body, (size,), plan=zero_plan)
    *batches, last = mlp_batches(CALLS)
    for batch in batches:
        step(*batch)
    assert step.stats()["planned_steps"] >= CALLS - 7, step.refusal
    run.model.latest = None
    before = {name: t.clone() for name, t in run.state().items()}
    with pytest.raises(stowage.Error, match="the ranks' Python differs: rank"):
        step(*last)
    run.model.latest = None  # Python's own, of the call that has not happened
    for name, t in run.state().items():
        assert torch.equal(t, before[name]), name


def a_rank_that_does_something_new_makes_all_run_without_a_plan(rank, size):
    """Which costs time, and no number: the others have come to the end of what was recorded."""
    run, alone = _Run(), _Run()

    def body(run, rank, x, y):
        run.n += 1
        loss = run.learn(run.loss(x, y))
        if run.n == 7 and rank == 1:
            torch.ones(3) + 1
        return loss

    step = stowage.shard(lambda x, y: body(run, rank, x, y), (size,), plan=zero_plan)
    torch.manual_seed(1)
    expected = [body(alone, 0, *batch) for batch in mlp_batches(7)]
    torch.manual_seed(1)
    planned = []
    for batch, loss in zip(mlp_batches(7), expected, strict=True):
        _same(step(*batch), loss, "loss")
        planned.append(step.stats()["planned_steps"])
    assert planned[-3:] == [1, 2, 2], planned
    theirs = alone.state()
    for name, t in run.state().items():
        _same(t, theirs[name], name)


def numbers_told_before_are_made_anew_on_all_ranks(rank, size):
    """One has taken back what had run: collectives meet only where all begin again."""
    tells, asked = sharding.calls.Moments.tells, []

    def told(self, under_way):
        asked.append(under_way)
        return tells(self, under_way and (rank != 1 or len(asked) % 3 != 0))

    sharding.calls.Moments.tells = told
    try:
        step = _trained(_steps_and_asks, size, plan=zero_plan)
    finally:
        sharding.calls.Moments.tells = tells
    assert step.stats()["planned_steps"] >= CALLS - 7 and any(asked)  # gradients of the call before are in the way once


def _steps_and_asks(run, x, y):
    out = run.model(x)
    first = out.sum().item()
    loss = (out - y).square().mean() * (1 + 0.01 * first)
    second = loss.item()
    run.learn(loss)
    return first, second, run.model.out.weight.detach().sum().item()


def what_the_step_raises_comes_as_in_one_process(rank, size):
    """With what was done before it; and the next call is planned."""

    def body(run, x, y):
        run.n += 1
        loss = run.learn(run.loss(x, y))
        if run.n == 7:
            raise LookupError("of the step's own")
        return loss

    run, alone = _Run(), _Run()
    step = stowage.shard(lambda x, y: body(run, x, y), (size,), plan=zero_plan)
    said = []
    for fn in (lambda x, y: body(alone, x, y), step):
        torch.manual_seed(1)
        for call, batch in enumerate(mlp_batches(12)):
            with pytest.raises(LookupError, match="own") if call == 6 else contextlib.nullcontext():
                said.append(fn(*batch))
    for call, (a, b) in enumerate(zip(said[:11], said[11:], strict=True)):
        _same(b, a, call)
    theirs = alone.state()
    for name, t in run.state().items():
        _same(t, theirs[name], name)
    assert run.n == alone.n and step.stats()["planned_steps"] >= 5, step.stats()
