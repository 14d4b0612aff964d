"""Gradients that the caller gives, takes or changes between the calls of a step, of parameters wherever they are held. Each
program draws from its seed what holds them, what the step does with their .grad, what its Python asks of them, and what
the caller does; compared with eager, call by call, to the bit."""

import itertools
import random
import types
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

CALLS = 26


def bare(count):
    return [nn.Parameter(torch.randn(4, 4)) for _ in range(count)]


class Owner:
    """No module: a user's own class that holds parameters."""

    def __init__(self, parameters):
        self.parameters = parameters


def held_by(kind, parameters):
    """What holds the parameters, and how the step gets at them."""
    if kind == "list":
        return lambda: parameters
    if kind == "tuple":
        held = tuple(parameters)
        return lambda: held
    if kind == "dict":
        names = {str(i): p for i, p in enumerate(parameters)}
        return lambda: list(names.values())
    if kind == "object":
        owner = Owner(parameters)
        return lambda: owner.parameters
    if kind == "namespace":
        space = types.SimpleNamespace(weights=parameters)
        return lambda: space.weights
    if kind == "module":
        module = nn.Module()
        for i, p in enumerate(parameters):
            module.register_parameter(f"p{i}", nn.Parameter(p))
        return lambda: list(module.parameters())
    if kind == "optimizer":
        optimizer = torch.optim.SGD(parameters, 0.1)
        return lambda: optimizer.param_groups[0]["params"]
    leaves = [p.detach().clone().requires_grad_() for p in parameters]  # "leaves"
    return lambda: leaves


HOLDERS = ["list", "tuple", "dict", "object", "namespace", "module", "optimizer", "leaves"]


def cleared(how, parameters):
    for p in parameters:
        if how == "none":
            p.grad = None
        elif how == "zeros" and p.grad is not None:
            p.grad.zero_()


def asked(what, p):
    """A number that Python makes of a gradient, without any operator."""
    if what == "presence":
        return 1.0 if p.grad is None else 2.0
    if what == "by name":
        return 1.0 if getattr(p, "grad", None) is None else 2.0
    if what == "truth":
        return 3.0 if p.grad is not None and p.grad.dim() == 2 else 1.0
    return 1.0


class Program:
    def __init__(self, seed):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        parameters = bare(draw.randint(1, 3))
        self.parameters = held_by(draw.choice(HOLDERS), parameters)
        others = bare(1)  # the step runs no operator on these
        self.others = held_by(draw.choice(HOLDERS), others)
        self.first, self.last = (draw.choice(["", "none", "zeros"]) for _ in range(2))
        self.learns = draw.random() < 0.7
        self.asks = draw.choice(["", "presence", "by name", "truth"])
        self.asks_others = draw.choice(["", "presence", "by name", "truth"])
        self.changes = [draw.choice(["", "", "", "none", "zeros", "ones", "new"]) for _ in range(CALLS)]
        self.changes[:6] = [""] * 6  # until calls are planned
        self.changes_others = [draw.choice(["", "", "none", "ones"]) for _ in range(CALLS)]
        self.changes_others[:6] = [""] * 6

    def step(self, x):
        parameters = self.parameters()
        weight = asked(self.asks, parameters[0]) * asked(self.asks_others, self.others()[0])
        cleared(self.first, parameters)
        for p in parameters:
            x = (x @ p).tanh()
        loss = x.square().mean() * weight
        loss.backward()
        if self.learns:
            with torch.no_grad():
                for p in parameters:
                    p -= 0.1 * p.grad
        cleared(self.last, parameters)
        return loss.detach()

    def change(self, how, parameters):
        for p in parameters:
            if how in ("none", "zeros"):
                cleared(how, [p])
            elif how == "ones":
                p.grad = torch.ones(4, 4)
            elif how == "new" and p.grad is not None:
                p.grad = p.grad * 0.5

    def run(self, step):
        generator = torch.Generator().manual_seed(1)
        for change, change_others in zip(self.changes, self.changes_others):
            self.change(change, self.parameters())
            self.change(change_others, self.others())
            loss = step(torch.randn(5, 4, generator=generator))
            there = [*self.parameters(), *self.others()]
            yield (
                loss,
                [p.detach().clone() for p in there],
                [p.grad if p.grad is None else p.grad.clone() for p in there],
            )


def same(a, b):
    return a is b is None or (a is not None and b is not None and torch.equal(a, b))


def compared(seed, check):
    """How many calls were planned."""
    eager, planned = Program(seed), Program(seed)
    step = stowage.compile(planned.step, check=check)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, (right, got) in enumerate(zip(eager.run(eager.step), planned.run(step))):
            where = f"seed {seed}, check={check!r}, call {call}"
            assert torch.equal(right[0], got[0]), where
            assert all(map(torch.equal, right[1], got[1])), where
            assert all(map(same, right[2], got[2])), where
    return step.stats()["planned_steps"]


@pytest.mark.parametrize("check", ["auto", "never"])
def test_gradients_between_calls_are_those_of_eager(check):
    first = searches.first_seed()
    planned = [compared(seed, check) for seed in searches.seeds(first, at_least=12)]
    assert sum(map(bool, planned)) >= len(planned) // 2


@pytest.mark.parametrize(("holder", "change"), [*itertools.product(HOLDERS, ["none", "ones"])])
def test_a_gradient_that_python_asks_for_alone(holder, change):
    """No operator reads it, and no call is checked."""

    def make():
        torch.manual_seed(0)
        parameters, net = held_by(holder, bare(1)), nn.Linear(4, 3)
        if change == "none":
            parameters()[0].grad = torch.ones(4, 4)

        def step(x):
            return net(x).sum().detach() * (1.0 if parameters()[0].grad is None else 2.0)

        return step, parameters

    (eager, theirs), (step, ours) = make(), make()
    planned = stowage.compile(step, check="never")
    generator = torch.Generator().manual_seed(1)
    for call in range(14):
        if call == 9:
            theirs()[0].grad = ours()[0].grad = torch.ones(4, 4) if change == "ones" else None
        x = torch.randn(5, 4, generator=generator)
        assert torch.equal(eager(x), planned(x)), f"call {call}"
    assert planned.stats()["planned_steps"] > 5
