"""What steps of strangers do with gradients: hooks, gradients that stay or come from outside, other ways to differentiate. Each is
compared with eager, call by call, to the bit."""

import pytest
import torch
import torch.nn.functional as F
from strange import CHECKS, agrees, net, nothing, same, trained
from torch import nn

import stowage

# ---- Hooks


@CHECKS
@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_hook_on_the_node_that_adds_up_a_gradient(check, kind):
    """No object of Python's shows it. It comes and goes between calls."""

    def make():
        model, optimizer = net()
        nodes, handles, seen = [], [], []

        def step(x, y, i):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        def outside(i):
            if i in (5, 9):
                weight = model[0].weight
                nodes.append(weight.expand_as(weight).grad_fn.next_functions[0][0])
                hook = nodes[-1].register_hook if kind == "after" else nodes[-1].register_prehook
                handles.append(hook(lambda *grads: seen.append(1)))
                if kind == "before":
                    handles.append(hook(lambda grads: (grads[0] * 2,)))
            if i == 7:
                while handles:
                    handles.pop().remove()
            return len(seen)

        return step, model, outside

    agrees(make, 14, planned=4, check=check)


# ---- Gradients


@CHECKS
def test_gradients_stay_for_an_optimizer_outside(check):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        def outside(i):
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return norm

        return step, model, outside

    agrees(make, planned=8, check=check)


@CHECKS
@pytest.mark.parametrize("end", [True, False])
def test_gradients_given_from_outside_are_added_to(check, end):
    def make():
        model, optimizer = net()

        def step(x, y, i):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if end:
                optimizer.zero_grad()

        def outside(i):
            if i in (5, 6, 8):
                for p in model.parameters():
                    p.grad = torch.full_like(p, 0.5)
            if i == 9:
                model(torch.ones(2, 16)).sum().backward()

        return step, model, outside

    agrees(make, 16, planned=6, check=check)


@CHECKS
def test_accumulation_over_calls(check):
    def make():
        model, optimizer = net()
        count = {"calls": 0}

        def step(x, y, i):
            (F.cross_entropy(model(x), y) / 4).backward()
            count["calls"] += 1
            if count["calls"] % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

        return step, model, lambda i: count["calls"]

    agrees(make, 40, planned=20, check=check)


def test_two_models_that_leave_gradients_in_each_other():
    def make():
        critic, maker = nn.Linear(16, 1), nn.Linear(16, 16)
        a, b = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())

        def judge(x):
            a.zero_grad()
            loss = critic(x).mean() - critic(maker(x).detach()).mean()
            loss.backward()
            a.step()
            return loss.detach()

        def pretend(x):
            b.zero_grad()
            loss = critic(maker(x)).mean()
            loss.backward()
            b.step()
            return loss.detach()

        steps = []

        def both(x, y, i):
            if not steps:
                steps.extend([stowage.compile(judge), stowage.compile(pretend)] if make.planned else [judge, pretend])
            return torch.stack([steps[0](x), steps[1](x)])

        return both, nn.ModuleList([critic, maker]), lambda i: None

    make.planned = False
    eager, _ = trained(make, 12, False)
    make.planned = True
    compiled, _step = trained(make, 12, False)
    assert same(eager, compiled)


# ---- Ways that differ in what is differentiated


def _gradients_of_gradients(net, x, y, due):
    loss = F.cross_entropy(net(x), y)
    weights = list(net.parameters())
    gradients = torch.autograd.grad(loss, weights, create_graph=due)
    if due:
        gradients = [g + 0.1 * h for g, h in zip(gradients, torch.autograd.grad(gradients[0].square().sum(), weights))]
    return loss, gradients


def _features_without_gradients(net, x, y, due):
    with torch.set_grad_enabled(not due):
        features = net[1](net[0](x))
    loss = F.cross_entropy(net[2](features), y)
    return loss, torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)


def _targets_with_gradients(net, x, y, due):
    with torch.set_grad_enabled(due):
        target = net(x + 1).softmax(1)
    loss = F.cross_entropy(net(x), y) + (net(x).softmax(1) - target).square().sum()
    return loss, torch.autograd.grad(loss, list(net.parameters()))


@CHECKS
@pytest.mark.parametrize("kind", [_gradients_of_gradients, _features_without_gradients, _targets_with_gradients])
def test_ways_that_run_the_same_operators_in_another_grad_mode(kind, check):
    def make():
        model, _ = net()

        def step(x, y, i):
            loss, gradients = kind(model, x, y, i % 4 == 0)
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients):
                    if g is not None:
                        p.sub_(0.1 * g)
            return loss.item()

        return step, model, nothing

    agrees(make, 32, planned=16, check=check)


@pytest.mark.parametrize("check", ["never", "auto"])
def test_recorded_in_a_call_that_finds_one_gradient_less(check):
    """The next calls find it; they do the same operations, and need a recording of their own."""

    def trained(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile(step)
        seen = []
        for call in range(16):
            if call in (1, 9):
                model[0].weight.grad = None
            seen.append(run(torch.randn(6, 8), torch.randn(6, 4)))
            seen += [p.detach().clone() for p in model.parameters()]
        return seen, run

    expected, _ = trained(lambda step: step)
    found, step = trained(lambda step: stowage.compile(step, check=check))
    assert all(map(torch.equal, expected, found))
    assert step.stats()["planned_steps"] > 8
