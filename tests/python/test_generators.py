"""Steps that draw from random generators of their own: held by closures, globals, attributes of the model, handed over
as arguments, or made in each call. Eager's numbers, and after every call every generator where eager leaves it.

A program is a list of acts that its step does in order, each with one of its generators:

    draw     a number for each element of what has been made so far     read     the loss so far, as a number
    seed K   manual_seed(K)                                              count    manual_seed(how many steps there were)
    save I   keep the state as I                                         back I   set it to what was kept, before the step or in it
    drop     a dropout, which draws from the default generator           mix      another operator that draws
"""

from __future__ import annotations

import random
import threading

import pytest
import searches
import torch
from torch import nn

import stowage

CALLS = 12
FIRST = searches.first_seed(clock=True)
GLOBAL = torch.Generator()
KINDS = ("global", "closure", "attribute", "made")


class Program:
    """``acts``: (what, number, generator). ``others``: acts of single calls, by call. ``between``: acts of the user's
    after calls, by call."""

    def __init__(self, acts, others=None, between=None):
        self.acts, self.others, self.between = acts, others or {}, between or {}
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        self.model.noise = torch.Generator().manual_seed(11)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.closure = torch.Generator().manual_seed(12)
        GLOBAL.manual_seed(13)
        self.kept = [torch.Generator().manual_seed(100 + i).get_state() for i in range(3)]
        self.call = self.count = 0
        self.seen = []

    def outside(self):
        return {"global": GLOBAL, "closure": self.closure, "attribute": self.model.noise}

    def step_function(self):
        mine = self.closure

        def step(x):
            out = self.model(x)
            kept = list(self.kept)
            made = None
            for what, number, which in self.others.get(self.call, self.acts):
                if which == "made":
                    made = made or torch.Generator().manual_seed(1000 + number)
                    g = made
                else:
                    g = GLOBAL if which == "global" else mine if which == "closure" else self.model.noise
                if what == "draw":
                    out = out + torch.randn(out.shape, generator=g)
                elif what == "mix":
                    out = _mixed(out, number, g)
                elif what == "drop":
                    out = nn.functional.dropout(out, 0.3)
                elif what == "read":
                    self.seen.append(out.square().mean().item())
                elif what == "seed":
                    g.manual_seed(number)
                elif what == "count":
                    g.manual_seed(500 + self.count)
                elif what == "save":
                    kept[number] = g.get_state()
                else:
                    g.set_state(kept[number])
            self.count += 1
            loss = out.square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        return step


def _mixed(out, number, g):
    if number == 0:
        return out * torch.empty_like(out).bernoulli_(0.5, generator=g)
    if number == 1:
        return out[torch.randperm(out.shape[0], generator=g)]
    weights = torch.linspace(1, 2, out.shape[1])
    return out * torch.multinomial(weights, out.shape[1], generator=g).to(out.dtype)


def trained(acts, others=None, between=None, **options):
    program = Program(acts, others, between)
    step = program.step_function()
    run = stowage.compile(step, **options) if options else step
    torch.manual_seed(3)
    data = torch.Generator().manual_seed(1)
    history = []
    for call in range(CALLS):
        program.call = call
        loss = run(torch.randn(8, 16, generator=data))
        for what, number, which in program.between.get(call, ()):
            g = program.outside()[which]
            g.manual_seed(number) if what == "seed" else torch.rand(number + 1, generator=g)
        history.append(
            [
                loss.clone(),
                torch.get_rng_state(),
                *(g.get_state() for g in program.outside().values()),
                *(p.detach().clone() for p in program.model.parameters()),
            ]
        )
    return history, program.seen, run


def as_eager(acts, others=None, between=None, **options):
    expected, read, _ = trained(acts, others, between)
    got, read_too, step = trained(acts, others, between, **(options or {"check": "auto"}))
    for call, (a, b) in enumerate(zip(expected, got)):
        assert all(torch.equal(x, y) for x, y in zip(a, b)), f"call {call} of {acts}, {others}, {between}"
    assert read == read_too
    return step


@pytest.mark.parametrize("which", KINDS)
@pytest.mark.parametrize("acts", [
    [("draw", 0)],
    [("mix", 0), ("mix", 1), ("mix", 2)],
    [("draw", 0), ("drop", 0), ("draw", 0)],
    [("seed", 5), ("draw", 0)],
    [("draw", 0), ("count", 0), ("mix", 1)],
    [("draw", 0), ("seed", 7)],
    [("save", 0), ("draw", 0), ("back", 0), ("draw", 0)],
    [("draw", 0), ("read", 0), ("draw", 0), ("read", 0)],
    [("back", 1), ("draw", 0), ("save", 2), ("draw", 0), ("back", 2), ("draw", 0)],
])  # fmt: skip
@pytest.mark.parametrize("check", ["auto", "always"])
def test_own_generators_are_planned(acts, which, check):
    step = as_eager([(what, n, which) for what, n in acts], check=check)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 4
    assert step.stats()["misses"] == 0


@pytest.mark.parametrize("which", ["global", "closure", "attribute"])
def test_seeded_by_the_step_and_drawn_from_by_others(which):
    """The step itself draws nothing from it."""
    step = as_eager([("seed", 5, which)], between={c: [("draw", 2, which)] for c in range(CALLS)}, check="auto")
    assert step.stats()["planned_steps"] > 4


@pytest.mark.parametrize("which", ["global", "closure", "attribute"])
def test_moved_between_calls(which):
    between = {5: [("seed", 3, which)], 7: [("draw", 3, which)], 8: [("draw", 700, which), ("seed", 9, "global")]}
    step = as_eager([("draw", 0, which), ("drop", 0, which)], between=between, check="auto")
    assert step.stats()["planned_steps"] > 4


def random_acts(r):
    kinds = ["draw"] * 3 + ["mix"] * 3 + ["read", "seed", "count", "save", "back", "drop"]
    generators = r.sample(KINDS, r.randrange(1, 4))
    return [(r.choice(kinds), r.randrange(3), r.choice(generators)) for _ in range(r.randrange(1, 9))]


def random_program(seed):
    r = random.Random(seed)
    acts = random_acts(r)
    if r.random() < 0.4:
        acts = [(what, n, g) for what, n, g in acts if what != "count"]
    others = {r.randrange(CALLS): random_acts(r) for _ in range(r.randrange(3))}
    moves = [("seed", r.randrange(9), r.choice(KINDS[:3])), ("draw", r.randrange(900), r.choice(KINDS[:3]))]
    between = {r.randrange(CALLS): [r.choice(moves)] for _ in range(r.randrange(4))}
    return acts, others, between


def search(seed):
    r = random.Random(f"options {seed}")
    options = {"check": r.choice(["auto", "always"])}
    if r.random() < 0.3:
        options["budget"] = "48KiB"
    as_eager(*random_program(seed), **options)


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed):
    search(seed)


def test_many_random_programs():
    for seed in searches.seeds(FIRST, max(searches.SECONDS, 3.0)):
        search(seed)
