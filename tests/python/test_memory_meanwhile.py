"""A step that puts other memory under lasting tensors for a part of itself (`p.data = average`), and takes it away again: as
where a validation within the step runs with averaged weights."""

import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed()
CALLS = 20
MOVES = {
    "averages": lambda model, averages: list(zip(model.parameters(), averages)),
    "copies": lambda model, averages: [(p, a.clone()) for p, a in zip(model.parameters(), averages)],
    "each other": lambda model, averages: [
        (model[0].weight, model[3].weight.data),
        (model[3].weight, model[0].weight.data),
    ],
    "scaled": lambda model, averages: [(p, p.data * 0.5) for p in model.parameters()],
    "turned": lambda model, averages: [(model[0].weight, model[0].weight.data.t())],
    "buffers": lambda model, averages: [(model[1].running_mean, averages[1]), (model[1].running_var, torch.ones(6))],
}


class Program:
    """``reads``: a number is asked for before, meanwhile, afterwards; ``others``: calls that do something else
    meanwhile; ``first``: it is before the update."""

    def __init__(self, moves: str, seed: int):
        rng = random.Random(seed)
        self.moves = moves
        self.reads = [rng.random() < 0.4 for _ in range(3)]
        self.others = {call for call in range(4, CALLS) if rng.random() < 0.2} if rng.random() < 0.7 else set()
        self.first = rng.random() < 0.5
        self.check = rng.choice(["auto", "always", "never"])

    def trained(self, compiled: bool):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        averages = [p.detach().clone() for p in model.parameters()]
        told, state = [], {"call": -1}

        def meanwhile(x):
            moved = [(t, t.data, other) for t, other in MOVES[self.moves](model, averages)]
            for t, _, other in moved:
                t.data = other
            model.eval()
            with torch.no_grad():
                out = model(x).square().mean()
                if self.reads[1]:
                    told.append(out.item())
                if state["call"] in self.others:
                    out = out.sin() + torch.rand(2).sum()
            model.train()
            for t, own, _ in moved:
                t.data = own
            return out

        def step(x):
            state["call"] += 1
            loss = model(x).square().mean()
            if self.reads[0]:
                told.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            if self.first:
                found = meanwhile(x)
            optimizer.step()
            with torch.no_grad():
                for a, p in zip(averages, model.parameters()):
                    a.lerp_(p, 0.2)
            if not self.first:
                found = meanwhile(x)
            if self.reads[2]:
                told.append(found.item())
            return loss.detach(), found

        run = stowage.compile(step, check=self.check) if compiled else step
        seen = []
        for _ in range(CALLS):
            seen += run(torch.randn(4, 6))
            seen += [t.detach().clone() for t in (*model.parameters(), *model.buffers(), *averages)]
        return [*seen, torch.tensor(told, dtype=torch.float64)], run


def check(moves: str, seed: int):
    program = Program(moves, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _ = program.trained(False)
        found, run = program.trained(True)
    for i, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert torch.equal(a, b), f"seed {seed}: value {i}: {vars(program)}"
    return run, program


@pytest.mark.parametrize("moves", sorted(MOVES))
def test_other_memory_meanwhile(moves):
    for seed in range(SEED, SEED + 6):
        run, program = check(moves, seed)
        if not program.others:
            assert not run.refusal and run.stats()["planned_steps"] >= CALLS - 6


@searches.longer
def test_much_other_memory_meanwhile():
    for seed in searches.seeds(SEED):
        check(random.Random(seed).choice(sorted(MOVES)), seed)
