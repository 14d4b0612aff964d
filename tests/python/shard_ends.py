"""A sharded step that nobody holds any more lets go of all that it has cut, at once."""

from __future__ import annotations

import contextlib
import functools
import gc

import torch
from shard_pair import columns_plan, zero_plan
from torch import nn

import stowage
from stowage import _runtime


class _Steps:
    """A training; ``at_five`` happens in its fifth call."""

    def __init__(self, model, at_five=lambda: None, logs=False):
        self.model, self.at_five, self.logs, self.calls = model, at_five, logs, 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.seen: list[float] = []
        self.twice = False

    def __call__(self, x, y):
        self.calls += 1
        self.optimizer.zero_grad()
        if self.calls == 5:
            self.at_five()
        loss = (self.model(x) - y).square().mean()
        if self.twice:
            loss = loss * 2
        loss.backward()
        self.optimizer.step()
        if self.logs:
            self.seen.append(float(loss))
        return loss.detach()


def _perceptron():
    return nn.Sequential(nn.Linear(7, 64), nn.GELU(), nn.Linear(64, 5)).double()


def _normed():
    return nn.Sequential(nn.Linear(7, 64), nn.BatchNorm1d(64), nn.Linear(64, 5)).double()


def _raise(error):
    raise error("no")


def _train(size, make, wide=7, calls=8, **options):
    torch.manual_seed(0)
    train = make()
    step = stowage.shard(train, (size,), **options)
    for call in range(calls):
        x = torch.randn(8, wide if call == 5 else 7, dtype=torch.float64)
        with contextlib.suppress(ValueError, RuntimeError, KeyboardInterrupt):
            step(x, torch.randn(8, 5, dtype=torch.float64))


def _leaves_nothing(size, make, **options):
    _train(size, make, **options)  # what the first of its kind in a process leaves is the process's
    gc.collect()
    before = _runtime.live_bytes()
    gc.disable()
    try:
        _train(size, make, **options)
        left = _runtime.live_bytes() - before  # what ranks are telling each other just now is some bytes
        assert left < 1000, f"{left} bytes are left"
    finally:
        gc.enable()


def nothing_is_left_of_planned_calls(rank, size):
    for plan in (None, zero_plan, columns_plan):
        _leaves_nothing(size, lambda: _Steps(_perceptron()), plan=plan)
    _leaves_nothing(size, lambda: _Steps(_normed()))
    _leaves_nothing(size, lambda: _Steps(_perceptron()), budget="64MiB")


def nothing_is_left_where_python_runs_in_every_call(rank, size):
    _leaves_nothing(size, lambda: _Steps(_perceptron(), logs=True))


def nothing_is_left_of_few_calls(rank, size):
    for calls in (0, 1, 2):
        _leaves_nothing(size, lambda: _Steps(_perceptron()), calls=calls)


def nothing_is_left_after_errors(rank, size):
    for error in (ValueError, KeyboardInterrupt):
        _leaves_nothing(size, lambda error=error: _Steps(_perceptron(), functools.partial(_raise, error)))
    _leaves_nothing(size, lambda: _Steps(_perceptron()), wide=6)


def calls_without_a_plan_have_no_arena_beside_them(rank, size):
    """One that leaves what was recorded, and the next, which is recorded anew."""
    train = _Steps(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)))
    step = stowage.shard(train, (size,))
    x = torch.ones(20_000, 64)
    peaks = []
    for call in range(12):
        train.twice = call >= 8
        _runtime.reset_peak()
        step(x, x)
        peaks.append(_runtime.peak_bytes())
    arena = step.stats()["arena_bytes"]
    assert step.stats()["planned_steps"] >= 4 and arena > 5_000_000, step.refusal
    assert max(peaks[8:]) < max(peaks[:3]) + arena // 2, (peaks, arena)
