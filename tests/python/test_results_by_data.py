"""Operators of the user's own whose results look as their data say: how large they are, how many, of which dtype."""

import itertools
import random

import pytest
import searches
import torch
from torch import nn

import stowage

CALLS = 14
LIBRARY = torch.library.Library("stowage_results_by_data", "DEF")
COUNT = {"calls": 0}


def _positive(x):
    return x[x > 0].clone()


def _suppressed(x):
    """As in detection: rows that are left when those too near to a better one are gone."""
    order, kept = x[:, 0].argsort(descending=True), []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[(x[order] - x[best]).abs().sum(1) > 1.0]
    return torch.tensor(kept)


def _strides(x):
    return x * 2 if x.sum() > 0 else (x.t().contiguous() * 2).t()


def _shown(x):
    """What a step can see of a result without reading it."""
    return [x.shape, x.stride(), x.dtype]


# Name: (schema of the results, kernel, how a step uses them, which returns what it goes on with and what it has seen)
KINDS = {
    "as many as data say": ("Tensor", _positive, lambda o, r: ((o * r.sum()).mean(), [r])),
    "sums of as many": ("Tensor", _positive, lambda o, r: ((o * (r * 2 + 1).sum()).mean(), [])),
    "rows that are kept": ("Tensor", _suppressed, lambda o, r: (o[r].square().mean(), [r.shape])),
    "a number beside": (
        "(Tensor, float)",
        lambda x: (x * 2, float(x.max())),
        lambda o, r: ((o * r[0]).mean() * r[1], [r[1]]),
    ),
    "a count beside": (
        "(Tensor, int)",
        lambda x: (x * 2, int((x > 0).sum())),
        lambda o, r: ((o * r[0]).mean() * r[1], [r[1]]),
    ),
    "several": (
        "Tensor[]",
        lambda x: [x * k for k in range(1, 3 + int(x.sum() > 0))],
        lambda o, r: ((o * sum(r)).mean() * len(r), [len(r)]),
    ),
    "a dtype": (
        "Tensor",
        lambda x: x * 1 if x.sum() > 0 else (x * 100).int(),
        lambda o, r: ((o * r).mean(), _shown(r)),
    ),
    "strides": ("Tensor", _strides, lambda o, r: ((o * r).mean(), _shown(r))),
    "all the same": ("Tensor", lambda x: x * 2, lambda o, r: ((o * r).mean(), _shown(r))),
    "nothing at times": (
        "Tensor",
        lambda x: x[: int(x.sum() > 0)].clone(),
        lambda o, r: ((o * (r.sum() + 1)).mean(), _shown(r)),
    ),
}
WAYS = ["plain", "counts", "draws", "a fake that asks"]


def _operator(kind: str, way: str):
    returns, kernel, _ = KINDS[kind]
    name = f"{list(KINDS).index(kind)}_{WAYS.index(way)}"
    LIBRARY.define(f"op{name}(Tensor x) -> {returns}")

    def run(x):
        COUNT["calls"] += 1
        return kernel(x + torch.randn(()) if way == "draws" else x)

    LIBRARY.impl(f"op{name}", run, "CPU")
    if way == "a fake that asks" and returns == "Tensor":

        def fake(x):
            return x.new_empty(torch.library.get_ctx().new_dynamic_size())

        torch.library.register_fake(f"stowage_results_by_data::op{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.stowage_results_by_data, f"op{name}").default


OPERATORS = {(kind, way): _operator(kind, way) for kind, way in itertools.product(KINDS, WAYS)}


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, kind, way):
        ctx.save_for_backward(x)
        ctx.how = kind, way
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        kind, way = ctx.how
        scale, _ = KINDS[kind][2](x, OPERATORS[kind, way](x))
        return gradient * 2 + scale.tanh(), None, None


def train(kind: str, way: str, place: str, compiled: bool, seed: int = 0, same_data: bool = False, **options):
    torch.manual_seed(seed)
    COUNT["calls"] = 0
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def train_step(x):
        out, seen = model(x), []
        if place == "backward":
            loss = _InBackward.apply(out, kind, way).square().mean()
        else:
            loss, seen = KINDS[kind][2](out, OPERATORS[kind, way](out.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), seen

    step = stowage.compile(train_step, **options) if compiled else train_step
    found = []
    for _ in range(CALLS):
        loss, seen = step(torch.ones(5, 6) if same_data else torch.randn(5, 6))
        values = [t.tolist() if isinstance(t, torch.Tensor) else t for t in seen]
        found.append([float(loss), values, model.weight.tolist(), COUNT["calls"], float(torch.rand(()))])
    return found, step


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_as_eager(kind, way, place):
    wanted, _ = train(kind, way, place, False)
    got, _ = train(kind, way, place, True)
    assert got == wanted


@pytest.mark.parametrize("kind", list(KINDS))
def test_planned_where_they_look_alike(kind):
    wanted, _ = train(kind, "counts", "forward", False, same_data=True)
    got, step = train(kind, "counts", "forward", True, same_data=True)
    assert got == wanted
    assert step.stats()["planned_steps"] >= 3, step.refusal


def test_within_a_budget():
    for kind in ("rows that are kept", "all the same", "a number beside"):
        wanted, _ = train(kind, "plain", "forward", False)
        got, _ = train(kind, "plain", "forward", True, budget="1MiB")
        assert got == wanted, kind


def test_a_declared_form_that_is_not_kept_is_an_error():
    torch.manual_seed(0)
    LIBRARY.define("liar(Tensor x) -> Tensor")
    LIBRARY.impl("liar", lambda x: x[: 3 + int(x.sum() > 4)].clone(), "CPU")
    torch.library.register_fake("stowage_results_by_data::liar", lambda x: x[:3].clone(), lib=LIBRARY)
    weight = nn.Parameter(torch.ones(5))

    def train_step(x):
        loss = (weight * x).sum() * torch.ops.stowage_results_by_data.liar(x).sum()
        weight.grad = None
        loss.backward()
        return loss.detach()

    step = stowage.compile(train_step)
    for _ in range(6):
        step(torch.full((5,), 0.1))
    assert step.stats()["planned_steps"] >= 2
    with pytest.raises(RuntimeError, match="another form than was recorded, and than it declares"):
        step(torch.ones(5))
    assert float(step(torch.full((5,), 0.1))) == pytest.approx(0.15)


@searches.longer
def test_many():
    for seed in searches.seeds(searches.first_seed()):
        draw = random.Random(seed)
        of = draw.choice(list(KINDS)), draw.choice(WAYS), draw.choice(["forward", "backward"])
        assert train(*of, True, seed)[0] == train(*of, False, seed)[0], (seed, of)
