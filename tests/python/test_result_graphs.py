"""What a step returns beside numbers: whether it requires grad, its autograd graph and what backward does to that, its class,
attributes and hooks, and which containers are the same object as ones that were there before. In each call as in eager.
"""

import collections
import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

ROWS, WIDTH = 3, 4


def with_attribute(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    t.note = "text"
    return t


def with_hook(t: torch.Tensor) -> torch.Tensor:
    t = t * 2
    t.register_hook(lambda grad: grad * 3)
    return t


def retained(t: torch.Tensor) -> torch.Tensor:
    t = t * 2
    t.retain_grad()
    return t


# Of what the step has made, after its backward(): net, other (no part of the loss), x, out, loss
MADE = {
    "loss": lambda net, other, x, out, loss: loss,
    "loss detached": lambda net, other, x, out, loss: loss.detach(),
    "out": lambda net, other, x, out, loss: out,
    "view of out": lambda net, other, x, out, loss: out[1:],
    "scaled loss": lambda net, other, x, out, loss: loss * 2,
    "loss and more": lambda net, other, x, out, loss: loss + net[2].bias.sum(),
    "graph to come": lambda net, other, x, out, loss: other(x).square().sum(),
    "of a parameter": lambda net, other, x, out, loss: other.weight.sum(),
    "view of a parameter": lambda net, other, x, out, loss: other.weight.t(),
    "a parameter": lambda net, other, x, out, loss: other.weight,
    "a new leaf": lambda net, other, x, out, loss: loss.detach().clone().requires_grad_(),
    "a new parameter": lambda net, other, x, out, loss: nn.Parameter(loss.detach().clone()),
    "with an attribute": lambda net, other, x, out, loss: with_attribute(loss),
    "with a hook": lambda net, other, x, out, loss: with_hook(other(x)).sum(),
    "hooked itself": lambda net, other, x, out, loss: with_hook(other(x)),
    "retaining": lambda net, other, x, out, loss: retained(other(x)),
    "shape": lambda net, other, x, out, loss: out.shape,
    "dtype": lambda net, other, x, out, loss: out.dtype,
}
ALONE = {
    "loss",
    "loss detached",
    "out",
    "scaled loss",
    "shape",
    "dtype",
    "a parameter",
}  # for which no Python has to run
# Made, the batch, and a container that lasts
HELD = {
    "tuple": lambda made, batch, kept: tuple(made),
    "list": lambda made, batch, kept: made,
    "ordered": lambda made, batch, kept: collections.OrderedDict(enumerate(made)),
    "the batch": lambda made, batch, kept: (batch, *made),
    "what lasts": lambda made, batch, kept: {"kept": kept, "made": made},
    "deep in the batch": lambda made, batch, kept: (batch["more"], made),
    "one list twice": lambda made, batch, kept: (made, made),
    "with attribute": lambda made, batch, kept: _named(collections.OrderedDict(enumerate(made))),
}


def _named(container):
    container.name = "text"
    return container


def parts(value) -> list:
    if isinstance(value, dict):
        value = list(value.values())
    if type(value) in (list, tuple):
        return [part for each in value for part in parts(each)]
    return [value]


def containers(value) -> list:
    if isinstance(value, dict):
        return [value, *(c for each in value.values() for c in containers(each))]
    return [value, *(c for each in value for c in containers(each))] if type(value) in (list, tuple) else []


def look(t: torch.Tensor) -> list:
    node = t.grad_fn
    seen = [
        t.detach().clone(),
        t.requires_grad,
        t.is_leaf,
        type(t),
        node.name() if node else "",
        repr(t),
        dict(t.__dict__),
    ]
    return [*seen, None if t.grad is None or not (t.is_leaf or t.retains_grad) else t.grad.clone()]


def backward(t: torch.Tensor) -> str:
    try:
        t.sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def trained(names: tuple, held: str, check: str, compiled: bool) -> tuple[list, dict]:
    torch.manual_seed(3)
    net, other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, 2)
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    kept = [1.0]

    def step(batch):
        out = net(batch["x"])
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return HELD[held]([MADE[name](net, other, batch["x"], out, loss) for name in names], batch, kept)

    called = stowage.compile(step, check=check) if compiled else step
    seen = []
    for call in range(8):
        batch = {"x": torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(call)), "more": [1]}
        result = called(batch)
        found = containers(result)
        seen.append([type(c).__name__ for c in found] + [getattr(c, "name", "") for c in found])
        seen.append([[c is known for c in found] for known in (batch, batch["more"], kept, *found)])
        for part in parts(result):
            if not isinstance(part, torch.Tensor):
                seen.append([type(part), part])
                continue
            seen += [look(part), backward(part), look(part)]
            seen += [None if p.grad is None else p.grad.clone() for p in (*net.parameters(), *other.parameters())]
            optimizer.zero_grad()
        if call % 3 == 1:
            optimizer.step()
    return seen, called.stats() if compiled else {}


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and a == b


def agree(names: tuple, held: str, check: str) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected, _), (got, stats) = (trained(names, held, check, compiled) for compiled in (False, True))
    assert stats["planned_steps"] >= 3
    for at, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert same(a, b), f"{names} in {held}, check={check}, look {at}: {a} in eager, {b} planned"
    return stats


@pytest.mark.parametrize("name", list(MADE))
def test_each_result(name):
    stats = agree((name,), "tuple", "never")
    assert (stats["checked_steps"] < stats["planned_steps"]) == (
        name in ALONE
    )  # its Python has run in some calls, or in all


@pytest.mark.parametrize("held", list(HELD))
def test_each_container(held):
    agree(("loss detached",), held, "never")


def test_random_results():
    for seed in searches.seeds(searches.first_seed(), at_least=6):
        rng = random.Random(seed)
        names = tuple(rng.choice(list(MADE)) for _ in range(rng.randint(1, 3)))
        agree(names, rng.choice(list(HELD)), rng.choice(["auto", "never", "always"]))


@pytest.mark.parametrize("check", ["auto", "always", "never"])
@pytest.mark.parametrize("of", ["parameter", "before the update", "buffer", "momentum", "argument", "other"])
def test_a_graph_over_what_the_step_has_written(of, check):
    """Its backward pass asks how often that was written since. Between calls, too, Tensor._version is eager's."""

    def make():
        torch.manual_seed(3)
        net, other = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 1)
        net.register_buffer("average", torch.zeros(ROWS, WIDTH))
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def step(x):
            penalty = net.weight.square().sum() if of == "before the update" else None
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            net.average.lerp_(x.detach(), 0.1)
            if of == "argument":
                x.mul_(0.5)
            momentum = optimizer.state[net.weight]["momentum_buffer"]
            over = {"parameter": net.weight, "buffer": net.average, "momentum": momentum[:1], "argument": x}.get(
                of, other.weight
            )
            return loss.detach(), (over * other.weight).sum() if penalty is None else penalty

        return net, other, optimizer, step

    def backward(graph):
        try:
            graph.backward()
        except RuntimeError as error:
            return type(error)  # spent, or written since

    (theirs, other, optimizer, eager), (ours, another, optimizer_too, planned) = make(), make()
    step = stowage.compile(planned, check=check)
    generator = torch.Generator().manual_seed(3)
    for call in range(9):
        x = torch.randn(ROWS, WIDTH, generator=generator)
        y = x.clone()
        (loss, graph), (loss_too, graph_too) = eager(x), step(y)
        assert torch.equal(loss, loss_too) and torch.equal(graph, graph_too)
        if call % 3 == 2:
            assert backward(graph) == backward(graph_too), call
        for a, b in [
            (x, y),
            *zip(theirs.state_dict(keep_vars=True).values(), ours.state_dict(keep_vars=True).values()),
            *zip(other.parameters(), another.parameters()),
            *(
                (a["momentum_buffer"], b["momentum_buffer"])
                for a, b in zip(optimizer.state.values(), optimizer_too.state.values())
            ),
        ]:
            assert torch.equal(a, b) and a._version == b._version, call
            assert (a.grad is None) == (b.grad is None) and (a.grad is None or torch.equal(a.grad, b.grad)), call
    assert step.stats()["planned_steps"] > 0, step.refusal
