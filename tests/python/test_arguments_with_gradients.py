"""Arguments that require grad: saliency, adversarial examples, physics-informed nets. Their .grad, which the caller reads,
and all else is eager's."""

import random

import pytest
import searches
import torch
from torch import nn

import stowage

FIRST = searches.first_seed(clock=True)


def saliency(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def adversarial(model, optimizer, x):
    model(x).square().mean().backward()
    moved = (x + 0.1 * x.grad.sign()).detach()
    optimizer.zero_grad()
    return saliency(model, optimizer, moved)


def physics(model, optimizer, x):
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = (slope.norm(dim=1) - 1).square().mean() + out.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def only_its_own(model, optimizer, x):
    """The gradient of the argument is the result."""
    (slope,) = torch.autograd.grad(model(x).square().sum(), x)
    return slope


def cleared(model, optimizer, x):
    loss = saliency(model, optimizer, x)
    x.grad = None
    return loss


def hooked(model, optimizer, x):
    x.register_hook(lambda grad: grad * 2)
    return saliency(model, optimizer, x)


STEPS = (saliency, adversarial, physics, only_its_own, cleared, hooked)


def trained(acts, planned, same=False, stop=-1, width=4):
    """``acts``: the step of each call. ``same``: one argument for all calls, whose gradient adds up."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 2))
    table = nn.Embedding(4, 8)
    optimizer = torch.optim.AdamW([*model.parameters(), *table.parameters()], lr=1e-2)
    now = [acts[0]]

    def step(x, i):
        loss = now[0](model, optimizer, x)
        (table(i).square().mean() * x.sum()).backward()
        return loss

    run = stowage.compile(step) if planned else step
    history = []
    lasting = torch.randn(6, width, requires_grad=True)
    for call, act in enumerate(acts):
        now[0] = act
        torch.manual_seed(call)
        x = lasting if same else torch.randn(6, width, requires_grad=True)
        if call == stop and planned:
            before = None if x.grad is None else x.grad.clone()
            with pytest.raises(IndexError):
                run(x, torch.tensor([9]))
            assert (x.grad is None) == (before is None)
            assert before is None or torch.equal(before, x.grad)
        loss = run(x, torch.tensor([call % 4]))
        grad = torch.zeros(()) if x.grad is None else x.grad.clone()
        grads = [p.grad.clone() for p in [*model.parameters(), *table.parameters()] if p.grad is not None]
        history.append([loss, grad, *grads, *(p.detach().clone() for p in model.parameters())])
    return history, run


def as_eager(acts, **options):
    expected, _ = trained(acts, False, **options)
    got, step = trained(acts, True, **options)
    for call, (a, b) in enumerate(zip(expected, got)):
        assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b)), f"call {call} of {acts}"
    return step


@pytest.mark.parametrize("act", STEPS)
def test_planned(act):
    step = as_eager([act] * 10)
    assert step.stats()["planned_steps"] > 4, step.refusal


@pytest.mark.parametrize("act", [saliency, physics])
def test_one_argument_whose_gradient_adds_up(act):
    as_eager([act] * 10, same=True)


@pytest.mark.parametrize("stop", range(1, 8))
def test_after_an_error_its_gradient_is_as_before(stop):
    as_eager([saliency] * 10, stop=stop)


def test_part_of_a_graph_is_refused():
    torch.manual_seed(0)
    weight = torch.ones(4, requires_grad=True)
    step = stowage.compile(lambda x: x.sum().backward())
    with pytest.warns(UserWarning, match="part of a graph that was made outside"):
        for _ in range(4):
            step(weight * 2)
    assert torch.equal(weight.grad, torch.full((4,), 8.0))


def test_random_calls():
    for seed in searches.seeds(FIRST, max(searches.SECONDS, 3.0)):
        r = random.Random(seed)
        acts = [r.choice(STEPS)] * 5
        for _ in range(7):
            acts.append(r.choice([acts[-1], acts[-1], r.choice(STEPS)]))
        as_eager(acts, same=r.random() < 0.2)
