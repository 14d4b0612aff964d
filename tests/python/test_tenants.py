"""Tensors that lie in memory of which another one is the owner: tied weights, parameters and gradients that are views of
one flat buffer, tables cut into buffers. The caller moves them about between calls; no guard of Python's sees where a
tensor lies."""

import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed()
WIDTH = 6
COUNT = 4  # of each kind


class Home(nn.Module):
    """Parameters, buffers and plain tensors, cut from flat memory of their kind in which there is room for more."""

    def __init__(self, gradients: bool):
        super().__init__()
        self.flat = {
            kind: torch.randn((COUNT + 2) * WIDTH * WIDTH) for kind in ("parameter", "buffer", "plain", "grad")
        }
        self.plain = []
        for i in range(COUNT):
            self.register_parameter(f"p{i}", nn.Parameter(torch.empty(0)))
            self.register_buffer(f"b{i}", torch.empty(0))
            self.of("parameter", i).data = self.cut("parameter", i)
            self.of("buffer", i).data = self.cut("buffer", i)
            self.plain.append(self.cut("plain", i))
            if gradients:
                self.flat["grad"].zero_()
                self.of("parameter", i).grad = self.cut("grad", i)

    def cut(self, kind: str, place: int) -> torch.Tensor:
        return self.flat[kind][place * WIDTH * WIDTH : (place + 1) * WIDTH * WIDTH].view(WIDTH, WIDTH)

    def of(self, kind: str, i: int) -> torch.Tensor:
        return self.plain[i] if kind == "plain" else getattr(self, ("p" if kind == "parameter" else "b") + str(i))

    def forward(self, x):
        for i in range(COUNT):
            x = torch.tanh(x @ self.of("parameter", i) + 0.1 * (x @ self.of("buffer", i)) - 0.1 * x @ self.plain[i])
        return x


def move(home: Home, rng: random.Random) -> None:
    kind = rng.choice(["parameter", "buffer", "plain"])
    i, j = rng.sample(range(COUNT), 2)
    a, b = home.of(kind, i), home.of(kind, j)
    how = rng.choice(["swap", "elsewhere", "spare", "turned", "in place", "set_", "tied", "gradient", "gradients swap"])
    if how == "swap":
        a.data, b.data = b.data, a.data
    elif how == "elsewhere":
        a.data = torch.randn(WIDTH, WIDTH)
    elif how == "spare":
        a.data = home.cut(kind, COUNT + rng.randrange(2))
    elif how == "turned":
        a.data = a.data.t()
    elif how == "in place":
        with torch.no_grad():
            a.t_()
    elif how == "set_":
        with torch.no_grad():
            a.set_(home.flat[kind].untyped_storage(), COUNT * WIDTH * WIDTH, (WIDTH, WIDTH), (1, WIDTH))
    elif how == "tied":
        a.data = b.data
    elif how == "gradient":
        home.of("parameter", i).grad = rng.choice([None, torch.ones(WIDTH, WIDTH), home.cut("grad", COUNT)])
    else:
        p, q = home.of("parameter", i), home.of("parameter", j)
        p.grad, q.grad = q.grad, p.grad


def trained(seed: int, check, calls: int = 24, moves: bool = True):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    gradients = rng.random() < 0.4
    home = Home(gradients)
    optimizer = torch.optim.SGD(home.parameters(), lr=0.05, momentum=rng.choice([0.0, 0.9]))
    writes = rng.random() < 0.5

    def step(x):
        if gradients:
            home.flat["grad"].zero_()
        else:
            optimizer.zero_grad()
        loss = home(x).square().mean()
        loss.backward()
        if gradients:
            home.flat["grad"].clamp_(-0.1, 0.1)
        optimizer.step()
        if writes:
            home.plain[1].mul_(0.99)
            home.b2.add_(0.01)
        return loss.detach()

    run = step if check is None else stowage.compile(step, check=check)
    seen = []
    for call in range(calls):
        if moves and call > 4 and rng.random() < 0.3:
            move(home, rng)
        seen.append(run(torch.randn(3, WIDTH)).clone())
        seen += [t.detach().clone() for t in (*home.parameters(), *home.buffers(), *home.plain, *home.flat.values())]
        seen += [torch.zeros(()) if p.grad is None else p.grad.clone() for p in home.parameters()]
    return seen, run


def check_seed(seed: int, how: str, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = trained(seed, None, **options)
        found, run = trained(seed, how, **options)
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert a.shape == b.shape and torch.equal(a, b), f"seed {seed}: value {i}; {run.refusal}"
    return run


@pytest.mark.parametrize("how", ["auto", "never"])
def test_moved_between_calls(how):
    for seed in range(SEED, SEED + 12):
        check_seed(seed, how)


@pytest.mark.parametrize("seed", range(6))
def test_planned_where_nothing_moves(seed):
    run = check_seed(seed, "auto", calls=10, moves=False)
    assert not run.refusal and run.stats()["planned_steps"] >= 6


@searches.longer
def test_many_moved_between_calls():
    for seed in searches.seeds(SEED):
        check_seed(seed, random.Random(seed).choice(["auto", "never"]))
