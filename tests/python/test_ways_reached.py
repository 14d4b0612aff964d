"""Whatever way a step comes to a tensor beside its model, it is put back where the model is: after verify(), and after an
error that takes a call back; and what the caller changes there is seen. ways_reached.py has the ways."""

import functools
import itertools

import pytest
import torch
from torch import nn
from ways_reached import WAYS, State

import stowage


def made(way):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    state = State()
    touch = WAYS[way](state, model, optimizer)

    def step(x, hungry=False):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        touch()
        return x.new_zeros(1 << 24) if hungry else loss.detach()

    def tensors():
        held = [v for values in optimizer.state.values() for v in values.values()]
        return [t.detach().clone() for t in (*model.parameters(), *held, state.average)]

    return step, tensors, state


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("way", WAYS)
def test_verify_puts_it_back(way):
    step, tensors, state = made(way)
    for _ in range(2):
        step(torch.randn(4, 6))
    before, calls = tensors(), state.calls[0]
    assert calls >= 2
    found = stowage.verify(step, [torch.randn(4, 6)])
    assert found.equal, found
    assert same(tensors(), before) and state.calls[0] == calls


@pytest.mark.parametrize("way, calls", list(itertools.product(WAYS, (0, 3))))
def test_a_call_that_runs_out_of_memory_has_changed_nothing(way, calls):
    step, tensors, _ = made(way)
    planned = stowage.compile(step, budget="8MiB")
    for _ in range(calls):
        planned(torch.randn(4, 6))
    before = tensors()
    with pytest.raises((stowage.OutOfMemory, stowage.Infeasible)):
        planned(torch.randn(4, 6), True)
    assert same(tensors(), before)


class Callable:
    def __init__(self, step):
        self._step = step

    def __call__(self, *args):
        return self._step(*args)


STEPS = {
    "partial": functools.partial,
    "partial of a decorated one": lambda step: functools.partial(torch.enable_grad()(step)),
    "object": Callable,
    "method": lambda step: Callable(step).__call__,
    "decorated": torch.enable_grad(),
    "lambda": lambda step: lambda *args: step(*args),
}


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("way", ["by_property", "by_wrapped_optimizer", "by_optimizer_hook"])
def test_whatever_the_step_itself_is(kind, way):
    step, tensors, _ = made(way)
    planned = stowage.compile(STEPS[kind](step), budget="8MiB")
    before = tensors()
    with pytest.raises(stowage.OutOfMemory):
        planned(torch.randn(4, 6), True)
    assert same(tensors(), before)


class Settings(State):
    def __init__(self):
        super().__init__()
        self.scale, self.terms = 0.5, {"one": 1.0}

    def touch(self, *_):
        self.average.mul_(self.scale).add_(self.terms["one"])


def _adds_ten(self, *_):
    self.average.add_(10.0)


def changed_between_calls(way, wrap):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    kind = type("Kind", (Settings,), {})
    state = kind()
    touch = WAYS[way](state, model, optimizer)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        touch()
        return loss.detach()

    run, seen = wrap(step), []
    for call in range(14):
        if call == 7:
            state.scale = 0.25
        if call == 9:
            state.terms["one"] = 3.0
        if call == 11:
            state.average = torch.ones(6)
        if call == 12:
            kind.touch = _adds_ten
        seen += [run(torch.randn(4, 6)), state.average.clone()]
    return seen, run


@pytest.mark.parametrize("way, check", list(itertools.product(WAYS, ("auto", "never"))))
def test_what_the_caller_changes_is_seen(way, check):
    """Numbers, tensors and methods of what the step comes to that way."""
    expected, _ = changed_between_calls(way, lambda step: step)
    got, run = changed_between_calls(way, lambda step: stowage.compile(step, check=check))
    assert run.stats()["planned_steps"] > 0, run.refusal
    assert all(map(torch.equal, expected, got))
