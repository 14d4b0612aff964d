"""Steps as strangers write them, eagerly and compiled, call by call."""

import random
import warnings

import pytest
import torch
from torch import nn

import stowage


def trained(make, calls, planned, **options):
    """[what each call showed], the compiled step. ``make()`` -> (step, model, show); ``calls``: arguments, or a
    function that makes them."""
    torch.manual_seed(0)
    random.seed(0)
    step, model, show = make()
    run = stowage.compile(step, **options) if planned else step
    seen = []
    generator = torch.Generator().manual_seed(1)
    for i in range(calls):
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        result = run(x, y, i)
        seen.append(
            (
                result.clone() if isinstance(result, torch.Tensor) else result,
                [p.detach().clone() for p in model.parameters()],
                [None if p.grad is None else p.grad.clone() for p in model.parameters()],
                show(i),
            )
        )
    return seen, run


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


def agrees(make, calls=12, planned=1, **options):
    """Eager and compiled show the same; at least so many calls were planned."""
    eager, _ = trained(make, calls, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled, step = trained(make, calls, True, **options)
    for i, (a, b) in enumerate(zip(eager, compiled)):
        for what, x, y in zip(("result", "parameters", "gradients", "what Python shows"), a, b):
            assert same(x, y), f"call {i}: {what}; {step.refusal!r}"
    assert step.stats()["planned_steps"] >= planned, step.refusal
    return step


def net():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def nothing(i):
    return None


CHECKS = pytest.mark.parametrize("check", ["auto", "always", "never"])
