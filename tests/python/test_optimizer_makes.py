"""Optimizers that make tensors from Python's numbers and write into them, as those do that add up a distance over all
parameters: planned with the bits of eager, whether the number stays a tensor, is asked for, leads to another branch, or the
tensor is kept."""

import pytest
import torch
from torch import nn

import stowage

CALLS = 18


def added_up(optimizer, group, params):
    total = torch.tensor([0.0])
    for p in params:
        total.add_(p.grad.square().sum())
    for p in params:
        p.sub_(group["lr"] * p.grad / (total.sqrt() + 1))


def asked_for(optimizer, group, params):
    total = torch.tensor(0.0)
    for p in params:
        total += p.grad.abs().sum()
    for p in params:
        p.sub_(p.grad, alpha=group["lr"] / (1 + total.item()))


def another_number_in_each_call(optimizer, group, params):
    scale = torch.tensor([float(group["calls"])])
    scale.mul_(0.5)
    for p in params:
        p.sub_(p.grad * group["lr"] / scale)


def on_the_host(optimizer, group, params):
    for p in params:
        step = optimizer.state[p].setdefault("step", torch.tensor(0.0))
        step += 1
        count = torch.tensor(1.0)
        count.mul_(step)
        count += group["calls"]
        p.sub_(p.grad, alpha=group["lr"] / count.item())


def in_parts(optimizer, group, params):
    table = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    table[1, 1] = group["calls"]
    table[0].mul_(2)
    for p in params:
        p.sub_(group["lr"] * p.grad * table.sum() / 10)


def kept_by_another(optimizer, group, params):
    for p in params:
        state = optimizer.state[p]
        largest = state.setdefault("largest", torch.tensor([1.0]))
        norm = torch.tensor([0.0])
        norm.add_(p.grad.norm())
        state["largest"] = torch.maximum(largest, norm)
        p.sub_(group["lr"] * p.grad / state["largest"])


def kept(optimizer, group, params):
    for p in params:
        norm = torch.tensor([0.0])
        norm.add_(p.grad.norm())
        optimizer.state[p]["last"] = norm
        p.sub_(group["lr"] * p.grad / (1 + norm))


def branching(optimizer, group, params):
    total = torch.as_tensor([0.0])
    total += sum(p.grad.sum() for p in params)
    for p in params:
        p.sub_(p.grad, alpha=group["lr"] if total > 0 else group["lr"] / 2)


def kept_and_asked_for(optimizer, group, params):
    """What a number comes from on the host is kept beyond the step."""
    for p in params:
        state = optimizer.state[p]
        step = state.setdefault("step", torch.tensor(0.0))
        step += 1
        state["count"] = torch.tensor(1.0)
        state["count"].mul_(step)
        p.sub_(p.grad, alpha=group["lr"] / state["count"].item())


def made_by_an_op_kept_and_asked_for(optimizer, group, params):
    for p in params:
        state = optimizer.state[p]
        step = state.setdefault("step", torch.tensor(0.0))
        step += 1
        state["twice"] = step * 2
        p.sub_(p.grad, alpha=group["lr"] / state["twice"].item())


def kept_by_the_optimizer(optimizer, group, params):
    for p in params:
        optimizer.last = torch.tensor(1.0)
        optimizer.last.mul_(p.grad.norm())
        p.sub_(p.grad, alpha=group["lr"] / (1 + optimizer.last.item()))


WAYS = [
    added_up,
    asked_for,
    another_number_in_each_call,
    on_the_host,
    in_parts,
    kept_by_another,
    kept,
    branching,
    kept_and_asked_for,
    made_by_an_op_kept_and_asked_for,
    kept_by_the_optimizer,
]


class Optimizer(torch.optim.Optimizer):
    def __init__(self, params, way):
        super().__init__(params, {"lr": 0.01, "calls": 0})
        self.way = way

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["calls"] += 1
            self.way(self, group, group["params"])


def trained(way, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = Optimizer(model.parameters(), way)

    def train_step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = stowage.compile(train_step, **options) if options else train_step
    left = [step(torch.randn(3, 4)) for _ in range(CALLS)]
    left += [p.detach().clone() for p in model.parameters()]
    return left + [v.clone() for state in optimizer.state.values() for v in state.values()], step


@pytest.mark.parametrize("options", [{"check": "never"}, {"check": "always"}, {"budget": "1MiB"}], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_as_eager(way, options):
    eager, _ = trained(way)
    planned, step = trained(way, **options)
    assert all(map(torch.equal, eager, planned))
    assert step.stats()["planned_steps"] >= CALLS // 2, step.refusal


def test_a_step_that_keeps_what_it_has_filled():
    """Outside of optimizers, too."""

    def trained(compiled):
        torch.manual_seed(0)
        model, kept = nn.Linear(4, 2), {"norms": []}

        def train_step(x):
            loss = model(x).square().sum()
            loss.backward()
            norm = torch.tensor([0.0])
            for p in model.parameters():
                norm += p.grad.square().sum()
                p.data.sub_(p.grad, alpha=0.01)
                p.grad = None
            kept["norms"] = [*kept["norms"][-1:], norm]
            return loss.detach()

        step = stowage.compile(train_step) if compiled else train_step
        left = [value for _ in range(CALLS) for value in (step(torch.randn(3, 4)), kept["norms"][-1].clone())]
        return left + [p.detach() for p in model.parameters()] + kept["norms"], step

    eager, _ = trained(False)
    planned, step = trained(True)
    assert all(map(torch.equal, eager, planned))
    assert step.stats()["planned_steps"] >= CALLS // 2, step.refusal


def test_a_step_that_returns_what_it_has_filled():
    """Its Python need not run."""

    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def train_step(x):
            optimizer.zero_grad()
            total = torch.tensor(0.0)
            for rows in x.split(1):
                loss = model(rows).square().sum()
                loss.backward()
                total += loss.detach()
            optimizer.step()
            return total

        step = stowage.compile(train_step) if compiled else train_step
        return [step(torch.randn(3, 4)) for _ in range(CALLS)], step

    eager, _ = trained(False)
    planned, step = trained(True)
    assert all(map(torch.equal, eager, planned))
    replays = [replay for entry in step._entries.values() for replay in entry.replays]
    assert [replay.shadowed_because for replay in replays] == [""]
