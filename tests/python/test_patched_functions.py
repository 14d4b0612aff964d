"""PyTorch's functions and methods that a program has put its own in the place of, which call PyTorch's: patched from the
start, or between two calls. A mode that listens is told the new owner of the name, from within the old one."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage

CALLS = 12
_LABELS = torch.zeros(4, dtype=torch.long)
USES = {  # written in Python, in C, or both
    "relu": (F, lambda m, x: m(x).relu() + F.relu(m(x))),
    "linear": (F, lambda m, x: m(x)),
    "layer_norm": (F, lambda m, x: F.layer_norm(m(x), (8,))),
    "scaled_dot_product_attention": (F, lambda m, x: F.scaled_dot_product_attention(*(m(x)[None, None],) * 3)),
    "max_pool1d": (F, lambda m, x: F.max_pool1d(m(x)[None], 2)),
    "dropout": (F, lambda m, x: F.dropout(m(x), 0.0)),
    "cross_entropy": (F, lambda m, x: F.cross_entropy(m(x), _LABELS)),
    "norm": (torch, lambda m, x: m(x) * torch.norm(m(x))),
    "einsum": (torch, lambda m, x: torch.einsum("ij,ij->i", m(x), x)),
    "cdist": (torch, lambda m, x: torch.cdist(m(x), x)),
    "sin": (torch, lambda m, x: torch.sin(m(x))),
    "tanh": (torch.Tensor, lambda m, x: m(x).tanh()),
    "__mul__": (torch.Tensor, lambda m, x: m(x) * x),
    "__rsub__": (torch.Tensor, lambda m, x: 1 - m(x)),
    "sum": (torch.Tensor, lambda m, x: m(x) * m(x).sum()),
}


class Doubled:
    def __init__(self, original):
        self._original = original

    def __call__(self, *args, **kwargs):
        return torch.mul(self._original(*args, **kwargs), 2)


def doubled(original):
    def call(*args, **kwargs):
        return torch.mul(original(*args, **kwargs), 2)

    return call


HOW = {
    "function": doubled,
    "like the original": lambda original: functools.wraps(original)(doubled(original)),
    "partial": lambda original: functools.partial(doubled(original)),
    "object": Doubled,
}


def trained(name, how, since, compile_it):
    owner, use = USES[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(x):
        loss = use(model, x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    called = stowage.compile(step, check="always" if since else "auto") if compile_it else step
    own, original = name in vars(owner), getattr(owner, name)
    generator, results = torch.Generator().manual_seed(1), []
    try:
        for call in range(CALLS):
            if call == since:
                setattr(owner, name, HOW[how](original))
            results.append(called(torch.randn(4, 8, generator=generator)))
    finally:
        setattr(owner, name, original) if own else delattr(owner, name)
    return results, called


@pytest.mark.parametrize("since", [0, 8])
@pytest.mark.parametrize("how", list(HOW))
@pytest.mark.parametrize("name", list(USES))
def test_as_in_eager(name, how, since):
    if USES[name][0] is torch.Tensor and how in ("partial", "object"):
        pytest.skip("no method: it would not be given the tensor")
    expected, _ = trained(name, how, since, False)
    got, step = trained(name, how, since, True)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert step.stats()["planned_steps"] > 0, step.refusal
