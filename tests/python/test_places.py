"""Steps that put other tensors in lasting places (`p.data = …`, optimizer state, buffers), and optimizers that keep
state in Python objects."""

from __future__ import annotations

import copy
import random

import pytest
import searches
import torch
from torch import nn

import stowage

FIRST = searches.first_seed()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def plain_step(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def momentum_encoder(rng):
    """MoCo, BYOL: the second net follows the first by .data."""
    model, follower = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        with torch.no_grad():
            for p, q in zip(follower.parameters(), model.parameters()):
                p.data = p.data * 0.9 + q.data * 0.1
            target = follower(x)
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, [model, follower], optimizer


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters, base, **options):
        super().__init__(parameters, dict(rho=0.05, **options))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for p in (p for g in self.param_groups for p in g["params"]):
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad * (0.05 / (norm + 1e-12)))

    @torch.no_grad()
    def second_step(self):
        for p in (p for g in self.param_groups for p in g["params"]):
            p.data = self.state[p]["old"]
        self.base.step()


def sharpness_aware(rng):
    model = net()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.first_step()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.second_step()
        return loss.detach()

    return step, [model], optimizer


class Remembers(torch.optim.Optimizer):
    """Keeps a new tensor in its state in each step, counts in Python numbers, and does something else when the count
    says so."""

    def __init__(self, parameters, rng):
        super().__init__(parameters, {"lr": 0.05})
        self.turn, self.every, self.warm = 0, rng.randrange(2, 7), rng.randrange(1, 8)
        self.history: list = []

    @torch.no_grad()
    def step(self, closure=None):
        self.turn += 1
        self.history.append(self.turn)
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, before=torch.zeros_like(p), mean=torch.zeros_like(p))
                state["step"] += 1
                change = p.grad - state["before"]
                state["before"] = p.grad.clone()
                state["mean"].mul_(0.9).add_(change, alpha=0.1 / (1 - 0.9 ** state["step"]))
                if state["step"] > self.warm:
                    p.add_(state["mean"].sign(), alpha=-group["lr"] / 10)
                p.add_(p.grad, alpha=-group["lr"])
                if self.turn % self.every == 0:
                    p.mul_(0.999)


def own_optimizer(rng):
    model = net()
    optimizer = Remembers(model.parameters(), rng)

    return plain_step(model, optimizer), [model], optimizer


def sets_its_rate(rng):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    calls = [0]

    def step(x):
        calls[0] += 1
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / calls[0]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, [model], optimizer


class Carries(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


def buffer_made_anew(rng):
    model = Carries()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    return plain_step(model, optimizer), [model], optimizer


def looks_ahead(rng):
    """Every k-th call, the slow weights are taken over."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    slow = [p.detach().clone() for p in model.parameters()]
    turn, every = [0], rng.randrange(2, 6)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        turn[0] += 1
        if turn[0] % every == 0:
            for s, p in zip(slow, model.parameters()):
                s += 0.5 * (p.data - s)
                p.data = s.clone()
        return loss.detach()

    return step, [model], optimizer


STEPS = [momentum_encoder, sharpness_aware, own_optimizer, sets_its_rate, buffer_made_anew, looks_ahead]


def left_by(make, seed, compiled, calls, **options):
    torch.manual_seed(seed)
    step, models, optimizer = make(random.Random(seed))
    run = stowage.compile(step, **options) if compiled else step
    g = torch.Generator().manual_seed(seed)
    results = [run(torch.randn(5, 8, generator=g)).clone() for _ in range(calls)]
    state = copy.deepcopy([m.state_dict() for m in models])
    mind = copy.deepcopy(optimizer.state_dict())
    others = {k: v for k, v in vars(optimizer).items() if isinstance(v, (int, list)) and k not in ("param_groups",)}
    return results, state, mind, others, run


def same(a, b):
    if torch.is_tensor(a):
        return torch.is_tensor(b) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", STEPS, ids=lambda f: f.__name__)
def test_eagers_numbers(make, seed):
    *expected, _ = left_by(make, seed, False, 18)
    *got, step = left_by(make, seed, True, 18)
    assert same(got, expected)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 1


@searches.longer
def test_many_seeds():
    for seed in searches.seeds(FIRST):
        make = STEPS[seed % len(STEPS)]
        assert same(left_by(make, seed, True, 20)[:-1], left_by(make, seed, False, 20)[:-1]), (make.__name__, seed)


@pytest.mark.parametrize("make", STEPS, ids=lambda f: f.__name__)
def test_within_a_budget(make):
    *expected, _ = left_by(make, 7, False, 14)
    *got, _step = left_by(make, 7, True, 14, budget="64KiB")
    assert same(got, expected)


def test_an_exception_leaves_the_places_as_eager_does():
    def make(rng):
        step, models, optimizer = momentum_encoder(rng)
        calls = [0]

        def failing(x):
            calls[0] += 1
            loss = step(x)
            if calls[0] in (9, 13):
                raise ValueError("after the update")
            return loss

        return failing, models, optimizer

    def run(compiled):
        torch.manual_seed(0)
        step, models, optimizer = make(random.Random(0))
        call = stowage.compile(step) if compiled else step
        g = torch.Generator().manual_seed(0)
        for i in range(16):
            try:
                call(torch.randn(5, 8, generator=g))
            except ValueError:
                assert i in (8, 12)
        return [m.state_dict() for m in models], optimizer.state_dict()

    assert same(run(True), run(False))


def test_a_place_that_is_emptied():
    """Optimizer state that is thrown away between calls: recorded anew, with eager's numbers."""

    def run(compiled):
        torch.manual_seed(0)
        step, models, optimizer = own_optimizer(random.Random(0))
        call = stowage.compile(step) if compiled else step
        g = torch.Generator().manual_seed(0)
        for i in range(16):
            if i in (3, 9):
                optimizer.state.clear()
            call(torch.randn(5, 8, generator=g))
        return models[0].state_dict(), optimizer.state_dict(), optimizer.turn

    assert same(run(True), run(False))


def test_state_in_a_dict_of_the_user():
    """Each call reads what the one before it has put there. What the user has kept of it stays as it was."""

    def run(compiled):
        torch.manual_seed(0)
        cell, head = torch.nn.GRUCell(6, 12), torch.nn.Linear(12, 6)
        optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-2)
        state = {"h": torch.zeros(4, 12)}
        kept = [state["h"]]

        def step(x):
            h = state["h"].detach()
            loss = 0.0
            for t in range(4):
                h = cell(x[:, t], h)
                loss = loss + (head(h) - x[:, t + 1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state["h"] = h
            return loss.detach()

        call = stowage.compile(step) if compiled else step
        g = torch.Generator().manual_seed(0)
        losses = []
        for i in range(16):
            losses.append(call(torch.randn(4, 5, 6, generator=g)).clone())
            kept.append(state["h"])
            if i == 11:
                state["h"] = kept[3]  # an older one again
        if compiled:
            assert call.stats()["planned_steps"] > 4, call.refusal
        return losses, [h.detach() for h in kept], dict(cell.named_parameters())

    assert same(run(True), run(False))


class Name:
    """A key of which == says nothing."""

    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return [self.text == getattr(other, "text", "")]

    def __hash__(self):
        return hash(self.text)


@pytest.mark.parametrize("of", ["other shapes", "equal shapes", "one element", "objects", "numpy", "tuples"])
def test_a_dict_by_keys_that_compare_as_they_like(of):
    """Gradients are summed by parameter, or by what stands for it, and forgotten with each update."""
    import numpy

    shapes = {"other shapes": [(4, 4), (4,)], "one element": [(1,), (1,)]}.get(of, [(4, 4), (4, 4)])

    def make():
        torch.manual_seed(FIRST)
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        keys = {
            "objects": [Name("a"), Name("b")],
            "numpy": [numpy.int64(3), numpy.int64(4)],
            "tuples": [("a", 1), ("b", 2)],
        }.get(of, parameters)
        optimizer = torch.optim.SGD(parameters, 1e-4)
        sums, calls = {}, [0]

        def step(x):
            loss = sum((x * p.sum() + p.square().mean()).square().mean() for p in parameters)
            for key, gradient in zip(keys, torch.autograd.grad(loss, parameters)):
                sums.setdefault(key, torch.zeros_like(gradient)).add_(gradient)
            calls[0] += 1
            if calls[0] % 4 == 0:
                for p, key in zip(parameters, keys):
                    p.grad = sums[key].clone()
                optimizer.step()
                sums.clear()
            return loss.detach()

        return parameters, step

    (theirs, eager), (ours, planned) = make(), make()
    step = stowage.compile(planned)
    generator = torch.Generator().manual_seed(FIRST)
    for _ in range(40):
        x = torch.randn(6, generator=generator)
        assert torch.equal(eager(x), step(x))
        assert all(map(torch.equal, theirs, ours))
    assert step.stats()["planned_steps"] > 0, step.refusal
