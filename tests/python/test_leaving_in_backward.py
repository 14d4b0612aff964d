"""Planned steps with a budget that do something new within their backward pass: the call goes on eagerly, under its
budget, with eager's numbers."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage


def scaled(gradient, new):
    return gradient.clone() * 1.5 if new else gradient * 1.0


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, new):
        ctx.new = new
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return scaled(gradient, ctx.new[0]), None


def by_a_hook(hidden, new):
    if hidden.requires_grad:
        hidden.register_hook(lambda g: scaled(g, new[0]))
    return hidden


KINDS = {"a hook": by_a_hook, "a function": _Scaled.apply}


def make(kind):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    weights, new = list(net.parameters()), [False]

    def step(x, y):
        loss = F.cross_entropy(net[4](KINDS[kind](net[:4](x), new)), y)
        gradients = torch.autograd.grad(loss, weights)
        doubled = [g * 2 for g in gradients]
        with torch.no_grad():
            for p, g, d in zip(weights, gradients, doubled):
                p.sub_(g + d, alpha=0.01)
        return loss.detach()

    return step, weights, new


def batch():
    return torch.randn(32, 16), torch.randint(0, 4, (32,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_what_is_new_within_a_backward_pass(kind, share):
    seen = []
    for planned in (False, True):
        step, weights, new = make(kind)
        run = free = stowage.compile(step)
        for _ in range(4):
            free(*batch())
        if planned:
            budget = free.graph.resident_bytes + int(share * free.graph.program_peak_bytes)
            run = stowage.compile(step, budget=budget)
        else:
            run = step
        losses = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(14):
                new[0] = i in (6, 9, 10)
                losses.append(run(*batch()))
        seen.append([*losses, *(p.detach().clone() for p in weights)])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert run.stats()["planned_steps"] >= 4, run.refusal
