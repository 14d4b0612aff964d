"""What the programs of test_generator.py and test_generators.py share: steps that do acts on random generators in order, each
call its own or the same, and end with an update of a model."""

from __future__ import annotations

import torch
from torch import nn

CALLS = 12


class ActingProgram:
    """``acts``: what each call does. ``others``: acts of single calls, by call."""

    def __init__(self, acts, others, model: nn.Module):
        self.acts, self.others = acts, others or {}
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.call = self.count = 0
        self.seen = []  # numbers that the step has read

    def acts_now(self):
        return self.others.get(self.call, self.acts)

    def read(self, out):
        self.seen.append(out.square().mean().item())

    def update(self, out):
        self.count += 1
        loss = out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def assert_alike(expected, got, told):
    """``expected``, ``got``: what trained() returns: tensors by call, and numbers that the steps have read."""
    for call, (a, b) in enumerate(zip(expected[0], got[0], strict=True)):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), f"call {call} of {told}"
    assert expected[1] == got[1], told


def random_acts_and_others(r, random_acts):
    """random_acts(r): of one call. The first of an act is its name."""
    acts = random_acts(r)
    if r.random() < 0.4:
        acts = [act for act in acts if act[0] != "count"]
    return acts, {r.randrange(CALLS): random_acts(r) for _ in range(r.randrange(3))}


__all__ = ["CALLS", "ActingProgram", "assert_alike", "random_acts_and_others"]
