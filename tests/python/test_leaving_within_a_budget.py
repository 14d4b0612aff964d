"""Calls that leave their recording within a tight budget: what follows runs eagerly, in the midst of forward, backward, an
optimizer's step or a function that averages, and finds what the budget has let go. Compared with eager, to the bit."""

import copy
import random

import pytest
import searches
import torch
from torch import nn

import stowage

CALLS = 14


def _decay(o, call):
    if call == 6:
        o.optimizer.param_groups[-1]["weight_decay"] = 0.01


def _states_anew(o, call):
    if call == 7:
        o.optimizer.load_state_dict(copy.deepcopy(o.optimizer.state_dict()))


def _forgets(o, call):
    if call == 8:
        o.optimizer.state.clear()


def _rate(o, call):
    for group in o.optimizer.param_groups:
        group["lr"] = 1e-3 / (1 + call // 5)


EDITS = [_decay, _states_anew, _forgets, _rate, lambda o, call: None]
# What the step itself does in some calls only
AT_TIMES = {
    "averages": lambda o, h: [a.lerp_(p, 0.1) for a, p in zip(o.averages, o.model.parameters())],
    "shrinks": lambda o, h: [p.mul_(0.999) for p in o.model.parameters()],
    "adds noise": lambda o, h: [p.add_(torch.randn_like(p), alpha=1e-4) for p in o.model.parameters()],
    "sums": lambda o, h: o.sums.add_(h.detach().sum(0)),
    "clips": lambda o, h: nn.utils.clip_grad_norm_(o.model.parameters(), 0.1),
    "nothing": lambda o, h: None,
}


class Program:
    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.seed, self.width, self.depth = seed, draw.choice([32, 64, 128]), draw.randint(2, 4)
        self.rows = draw.choice([16, 64, 256])
        self.edit, self.at_times = draw.choice(EDITS), draw.choice(list(AT_TIMES))
        self.every, self.groups = draw.choice([3, 4, 5]), draw.choice([1, 2])
        self.kind, self.foreach = draw.choice(["adamw", "sgd", "rmsprop"]), draw.choice([None, False])
        self.slices, self.penalty = draw.random() < 0.5, draw.random() < 0.4
        self.options = draw.choice([{}, {"link_gbps": 0}, {"residents": "leave"}])
        self.share = draw.uniform(0.6, 1.1)

    def __repr__(self):
        return f"seed {self.seed}: {vars(self)}"

    def run(self, wrap):
        torch.manual_seed(self.seed)
        layers = [nn.Sequential(nn.Linear(self.width, self.width), nn.GELU()) for _ in range(self.depth)]
        self.model = nn.Sequential(*layers, nn.Linear(self.width, self.width))
        self.averages = [p.detach().clone() for p in self.model.parameters()]
        self.sums = torch.zeros(self.width)
        parameters = list(self.model.parameters())
        groups = (
            [{"params": parameters}] if self.groups == 1 else [{"params": parameters[:2]}, {"params": parameters[2:]}]
        )
        if self.kind == "adamw":
            self.optimizer = torch.optim.AdamW(groups, 1e-3, weight_decay=0.0, foreach=self.foreach)
        elif self.kind == "sgd":
            self.optimizer = torch.optim.SGD(groups, 1e-3, momentum=0.9, foreach=self.foreach)
        else:
            self.optimizer = torch.optim.RMSprop(groups, 1e-3, foreach=self.foreach)
        count = [0]

        def train_step(x):
            count[0] += 1
            now = count[0] % self.every == 0
            h = self.model(x)
            loss = (h - x).square().mean()
            if self.penalty and now:
                loss = loss + 1e-4 * sum(p.square().sum() for p in self.model.parameters())
            loss.backward()
            with torch.no_grad():
                if now and self.at_times == "clips":
                    AT_TIMES["clips"](self, h)
                self.optimizer.step()
                if now and self.at_times != "clips":
                    AT_TIMES[self.at_times](self, h)
            self.optimizer.zero_grad()
            return loss.detach()

        step, data = wrap(train_step), torch.randn(self.rows * 4, self.width)
        seen = []
        for call in range(CALLS):
            self.edit(self, call)
            x = data[self.rows : self.rows * 2] if self.slices else torch.randn(self.rows, self.width)
            loss = step(x)
            seen.append([loss.clone(), self.sums.clone(), *(t.detach().clone() for t in (*parameters, *self.averages))])
        return seen, step


def agree(seed: int) -> bool:
    """False: the budget cannot be met."""
    program = Program(seed)
    wanted, _ = program.run(lambda step: step)
    _, step = program.run(stowage.compile)
    whole = step.stats()["resident_bytes"] + step.stats()["arena_bytes"]
    if not step.stats()["planned_steps"]:
        return False
    del step
    try:
        got, _ = program.run(lambda f: stowage.compile(f, budget=int(whole * program.share), **program.options))
    except (stowage.Infeasible, stowage.OutOfMemory):
        return False
    for call, (a, b) in enumerate(zip(wanted, got)):
        assert all(map(torch.equal, a, b)), (call, program)
    return True


@pytest.mark.parametrize("first", [4, 8, 16])
def test_as_eager(first):
    assert sum(agree(seed) for seed in range(first, first + 4)) >= 1


@searches.longer
def test_many():
    for seed in searches.seeds(searches.first_seed()):
        agree(seed)
