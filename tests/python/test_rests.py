"""Steps that change in each call for a while (warm-ups, layers that are set free one by one, networks that grow): they
rest, and are served when the changes have become rare. Those that change for good cost ever fewer recordings."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage


class Task:
    """A net whose layers may be frozen, left out, or followed by another activation; a loss of some terms."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9)), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-2)
        self.depth, self.terms, self.activation = 2, 1, F.relu

    def step(self, x, y):
        for layer in self.net[: self.depth]:
            x = self.activation(layer(x))
        loss = F.cross_entropy(self.net[-1](x), y)
        for _ in range(self.terms):
            loss = loss * 0.9
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def frees_layers(task, phase):
    for i, layer in enumerate(task.net):
        layer.requires_grad_(i >= 9 - phase)
    task.depth = 9


def grows(task, phase):
    task.depth = min(1 + phase, 9)


def adds_terms(task, phase):
    task.terms = phase


def other_activations(task, phase):
    every = [F.relu, torch.tanh, F.gelu, F.silu, torch.sigmoid, F.elu, F.softplus, F.selu, F.mish, F.hardswish]
    task.activation = every[phase % len(every)]


KINDS = {f.__name__: f for f in (frees_layers, grows, adds_terms, other_activations)}


def trained(kind, phases, planned, **options):
    """Losses and parameters, the compiled step, what was warned."""
    task = Task()
    step = stowage.compile(task.step, **options) if planned else task.step
    generator = torch.Generator().manual_seed(1)
    losses = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for phase in phases:
            KINDS[kind](task, phase)
            x, y = torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)
            losses.append(step(x, y))
    told = [str(w.message) for w in warned if "stowage" in str(w.message)]
    return [*losses, *(p.detach().clone() for p in task.net.parameters())], step, told


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_changes_at_first_is_served_later(kind):
    early = [phase for phase in range(10) for _ in range(2)]
    phases = [*early, *[9] * (100 - len(early))]
    eager, _, _ = trained(kind, phases, False)
    planned, step, told = trained(kind, phases, True)
    assert same(eager, planned)
    assert any("keeps changing" in line for line in told)
    assert not step.refusal and step.stats()["planned_steps"] >= 10, step.refusal


def test_a_step_that_always_changes_is_recorded_ever_more_rarely(monkeypatch):
    from stowage.step import life_cycle

    monkeypatch.setattr(life_cycle, "_FIRST_REST", 8)
    phases = list(range(1, 90))
    eager, _, _ = trained("adds_terms", phases, False)
    planned, step, told = trained("adds_terms", phases, True)
    assert same(eager, planned)
    (entry,) = step._entries.values()
    assert entry.rest_calls >= 32 and entry.rests_until
    assert len(told) == 1 and "recorded 8 times" in told[0] and "so do the next 8 calls" in told[0]
    assert "keeps changing" in step.refusal
