"""Steps that set the .grad of parameters to tensors of Python's own: sums that last over calls, buffers, arrays, another
model's gradients, rows of one flat tensor."""

import random

import pytest
import searches
import torch
from torch import nn

import stowage

CALLS = 26


class _ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.as_tensor(x.detach().numpy() @ weight.detach().numpy().T)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return torch.from_numpy(grad.numpy() @ weight.detach().numpy()), torch.from_numpy(
            grad.numpy().T @ x.detach().numpy()
        )


class Program:
    def __init__(self, kind, every=1, optimizer="sgd", clears=True):
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.second = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.parameters = list(self.net.parameters())
        make = {
            "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
            "adam": lambda p: torch.optim.Adam(p, 0.01),
        }[optimizer]
        self.optimizer = make(self.parameters)
        self.kind, self.every, self.clears = kind, every, clears
        self.sums = {} if kind == "sums by parameter" else [torch.zeros_like(p) for p in self.parameters]
        self.flat = torch.zeros(sum(p.numel() for p in self.parameters))
        self.calls = 0

    def step(self, x):
        self.calls += 1
        now = self.calls % self.every == 0
        if self.kind == "by NumPy":
            loss = self.net[2](torch.tanh(_ByNumpy.apply(x, self.net[0].weight))).square().mean()
        elif self.kind == "of another model":
            loss = self.second(x).square().mean()
        else:
            loss = self.net(x).square().mean()
        if self.kind == "by NumPy":
            self.optimizer.zero_grad()
            loss.backward()
        elif self.kind == "of another model":
            self.second.zero_grad()
            loss.backward()
            for p, other in zip(self.parameters, self.second.parameters(), strict=True):
                p.grad = other.grad
        else:
            found = torch.autograd.grad(loss, self.parameters)
            at = 0
            for i, (p, g) in enumerate(zip(self.parameters, found, strict=True)):
                if self.kind == "sums by parameter":
                    self.sums.setdefault(p, torch.zeros_like(p)).add_(g)
                elif self.kind == "lasting sums":
                    self.sums[i].lerp_(g, 0.5)
                else:
                    self.flat[at : at + p.numel()].add_(g.reshape(-1))
                at += p.numel()
            at = 0
            for i, p in enumerate(self.parameters) if now else ():
                if self.kind == "sums by parameter":
                    p.grad = self.sums[p]
                elif self.kind == "lasting sums":
                    p.grad = self.sums[i]
                else:
                    p.grad = self.flat[at : at + p.numel()].view_as(p)
                at += p.numel()
        if now:
            self.optimizer.step()
            if self.kind == "sums by parameter":
                self.sums.clear()
            elif self.kind == "rows of one":
                self.flat.zero_()
            if self.clears and self.kind != "by NumPy":
                self.optimizer.zero_grad()
        return loss.detach()

    def state(self):
        sums = self.sums.values() if isinstance(self.sums, dict) else self.sums
        state = [v for s in self.optimizer.state.values() for v in s.values()]
        grads = [
            p.grad if p.grad is not None else torch.zeros(1) for p in [*self.parameters, *self.second.parameters()]
        ]
        return [*self.parameters, *self.second.parameters(), *sums, self.flat, *state, *grads]


KINDS = ["sums by parameter", "lasting sums", "rows of one", "of another model", "by NumPy"]


def compared(kind, every, optimizer, clears, between=None, **how):
    eager, planned = Program(kind, every, optimizer, clears), Program(kind, every, optimizer, clears)
    step = stowage.compile(planned.step, **how)
    generator = torch.Generator().manual_seed(2)
    for call in range(CALLS):
        x = torch.randn(4, 6, generator=generator)
        where = f"{kind}, {every}, {optimizer}, {clears}, {between}, {how}: call {call}"
        assert torch.equal(eager.step(x), step(x)), where
        if call in (9, 17) and between:
            for program in (eager, planned):
                for p in program.parameters:
                    if between == "none":
                        p.grad = None
                    elif p.grad is not None:
                        p.grad.mul_(0.5)
        assert len(eager.state()) == len(planned.state()), where
        assert all(map(torch.equal, eager.state(), planned.state())), where
    return step


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_pythons_own(kind, optimizer):
    for clears in (True, False):
        step = compared(kind, 1, optimizer, clears)
        # Each call finds another view of the flat tensor where the one before has left one
        assert step.stats()["planned_steps"] > 0 or (kind == "rows of one" and not clears), step.refusal


@pytest.mark.filterwarnings("ignore")
def test_random_programs():
    planned = 0
    for seed in searches.seeds(searches.first_seed(), at_least=8):
        draw = random.Random(seed)
        how = draw.choice([{}, {"check": "never"}, {"check": "always"}, {"check": 3}, {"budget": "8KiB"}])
        step = compared(
            draw.choice(KINDS),
            draw.choice([1, 2, 3, 4]),
            draw.choice(["sgd", "adam"]),
            draw.random() < 0.5,
            draw.choice([None, "none", "halved"]),
            **how,
        )
        planned += step.stats()["planned_steps"] > 0
    assert planned > 2


@pytest.mark.parametrize("clears", [True, False])
@pytest.mark.parametrize("scales", [True, False])
def test_gradients_that_are_arguments(clears, scales):
    """Of workers elsewhere, say: each call brings its own."""

    def make():
        torch.manual_seed(3)
        net = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x, gradients):
            loss = net(x).square().mean()
            for p, g in zip(net.parameters(), gradients, strict=True):
                p.grad = g
            if scales:
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            if clears:
                optimizer.zero_grad()
            return loss.detach()

        return net, step

    (theirs, eager), (ours, planned) = make(), make()
    step = stowage.compile(planned)
    generator = torch.Generator().manual_seed(2)
    for call in range(12):
        x = torch.randn(3, 6, generator=generator)
        given = [torch.randn(p.shape, generator=generator) for p in theirs.parameters()]
        copies = [g.clone() for g in given]
        assert torch.equal(eager(x, given), step(x, copies)), call
        assert all(map(torch.equal, given, copies)), call
        for p, q, c in zip(theirs.parameters(), ours.parameters(), copies, strict=True):
            assert torch.equal(p, q) and (p.grad is None) == (q.grad is None), call
            assert q.grad is None or (q.grad is c and torch.equal(p.grad, q.grad)), call
    assert step.stats()["planned_steps"] > 0, step.refusal


@pytest.mark.parametrize("bare", [False, True], ids=["module", "held by itself"])
@pytest.mark.parametrize("when", ["first", "between", "last", "never", "now and then"])
@pytest.mark.parametrize("make", ["as it is", "a copy", "scaled", "added"])
def test_what_is_set_by_hand_and_added_to_by_the_next_call(make, when, bare):
    """As GradNorm does, and meta learning."""

    def train(wrap):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        held = [nn.Parameter(p.detach().clone()) for p in model.parameters()] if bare else list(model.parameters())
        weight, bias = held
        optimizer = torch.optim.SGD(held, 0.02, momentum=0.9)
        calls = iter(range(100))

        def step(x):
            call = next(calls)
            if when == "first":
                optimizer.zero_grad()
            (x @ weight.t() + bias).square().sum().backward()
            if when == "between":
                optimizer.zero_grad()
            (grad,) = torch.autograd.grad((x @ weight.t()).abs().sum(), weight)
            if make == "a copy":
                grad = grad.clone()
            elif make == "scaled":
                grad = grad * 0.5
            elif make == "added":
                grad = grad + (0 if weight.grad is None else weight.grad)
            weight.grad = grad
            optimizer.step()
            if when == "last" or (when == "now and then" and call % 3 == 0):
                optimizer.zero_grad()
            return grad.sum()

        step = wrap(step)
        generator = torch.Generator().manual_seed(1)
        seen = []
        for _ in range(20):
            seen.append(step(torch.randn(4, 5, generator=generator)).clone())
            seen += [p.detach().clone() for p in held]
            seen += [torch.zeros(()) if p.grad is None else p.grad.clone() for p in held]
        return seen, step

    expected, _ = train(lambda fn: fn)
    got, step = train(stowage.compile)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert step.stats()["planned_steps"] >= (0 if when == "now and then" else 12), step.refusal


@pytest.mark.parametrize("zero", ["in place", "to None", "never", "last"])
@pytest.mark.parametrize("other", ["negative", "none", "of another loss", "scaled in place"])
@pytest.mark.parametrize("check", ["never", "auto"])
def test_what_is_set_aside_for_an_optimizer_and_put_back(check, other, zero):
    def train(wrap):
        torch.manual_seed(0)
        w, v = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4))
        optimizer = torch.optim.SGD([w, v], 0.05, momentum=0.5)

        def step(x):
            loss = (x @ w + v).square().mean()
            if zero in ("in place", "to None"):
                optimizer.zero_grad(set_to_none=zero == "to None")
            loss.backward()
            mine = w.grad
            if other == "negative":
                w.grad = mine.neg()
            elif other == "none":
                w.grad = None
            elif other == "of another loss":
                w.grad = torch.autograd.grad((x @ w).abs().mean(), w)[0]
            else:
                w.grad = mine.clone().mul_(0.5)
            optimizer.step()
            w.grad = mine
            if zero == "last":
                optimizer.zero_grad()
            return loss.detach()

        step = wrap(step)
        generator = torch.Generator().manual_seed(1)
        seen = []
        for _ in range(16):
            seen.append(step(torch.randn(6, 8, generator=generator)).clone())
            seen += [p.detach().clone() for p in (w, v)]
            seen += [None if p.grad is None else p.grad.clone() for p in (w, v)]
        return seen, step

    expected, _ = train(lambda fn: fn)
    got, step = train(lambda fn: stowage.compile(fn, check=check))
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert (a is None and b is None) or torch.equal(a, b), (i // 5, i % 5)
    assert step.stats()["planned_steps"] >= 8, step.refusal
