"""Losses over rows that data select, in numbers that change from call to call: hard mining, masked means, decisions on
what is left. A plan may run nothing that would raise for a number of rows that Python has not been told yet."""

import random

import pytest
import searches
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage.errors import UnsupportedWarning

CALLS = 24
MASKS = {
    "of the result": lambda x, h, t: t > 0.5,
    "of a column": lambda x, h, t: h[:, 1] > 0,
    "of the argument": lambda x, h, t: x[:, 0] > 0,
    "above the mean": lambda x, h, t: t > t.mean(),
    "both": lambda x, h, t: (t > 0) & (x[:, 1] < 1),
}
SELECTIONS = {
    "by mask": lambda t, h, v: t[v],
    "rows by mask": lambda t, h, v: h[v].sum(1),
    "masked_select": lambda t, h, v: torch.masked_select(t, v),
    "by place": lambda t, h, v: t[v.nonzero().squeeze(1)],
    "sorted": lambda t, h, v: t[v].sort().values,
    "in two steps": lambda t, h, v: h[v][:, 0] * 2,
    "laid out again": lambda t, h, v: torch.zeros_like(t).masked_scatter(v, t[v] * 2)[v],
    "set where": lambda t, h, v: torch.zeros_like(t).index_put((v,), t[v])[v],
}
REDUCTIONS = {
    "mean": lambda s: s.mean(),
    "sum": lambda s: s.sum(),
    "mean square": lambda s: s.square().mean(),
    "deviation": lambda s: s.std(unbiased=False),
    "cumulated": lambda s: s.cumsum(0).mean(),
    "softmax": lambda s: s.softmax(0).square().sum(),
    "scaled by the count": lambda s: s.mean() * s.numel(),
}
GUARDS = {
    "none": lambda s, v, t: True,
    "any": lambda s, v, t: bool(v.any()),
    "sum": lambda s, v, t: bool(v.sum() > 0),
    "numel": lambda s, v, t: s.numel() > 0,
    "item": lambda s, v, t: v.sum().item() > 1,
}


def train(seed: int, compiled: bool):
    draw = random.Random(seed)
    terms = [
        [draw.choice(list(each.values())) for each in (MASKS, SELECTIONS, REDUCTIONS, GUARDS)]
        for _ in range(draw.randrange(1, 4))
    ]
    one_by_one, rows = draw.random() < 0.3, draw.choice((5, 6, 17))
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train_step(x):
        h = model(x)
        t = F.relu(h.sum(1))
        losses = []
        for mask, select, reduce, guard in terms:
            v = mask(x, h, t)
            s = select(t, h, v)
            losses.append(reduce(s) if guard(s, v, t) else (t * 0).sum())
        optimizer.zero_grad()
        if one_by_one:
            for loss in losses:
                loss.backward(retain_graph=True)
        else:
            sum(losses).backward()
        optimizer.step()
        return sum(losses).detach()

    step = stowage.compile(train_step) if compiled else train_step
    seen = []
    for call in range(CALLS):
        loss = step(torch.randn(rows, 4) * (5 if call % 7 == 3 else 1))
        seen.append([loss.clone(), *(p.detach().clone() for p in model.parameters())])
    return seen, step


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32)) or bool(a.isnan().any() and b.isnan().any())


def agree(seed: int) -> int:
    wanted, _ = train(seed, False)
    got, step = train(seed, True)
    for call, (a, b) in enumerate(zip(wanted, got)):
        assert all(map(same, a, b)), (seed, call)
    return step.stats()["planned_steps"]


@pytest.mark.parametrize("seed", range(12))
def test_as_eager(seed):
    agree(seed)


def test_many_are_planned():
    assert sum(agree(seed) > 0 for seed in range(12, 20)) >= 4


@searches.longer
def test_many():
    for seed in searches.seeds(searches.first_seed()):
        agree(seed)


COUNTED = {
    "different": lambda p, h: torch.unique(p),
    "different in a row": lambda p, h: torch.unique_consecutive(p),
    "with their numbers": lambda p, h: torch.unique(p, return_counts=True)[1],
    "places": lambda p, h: (p == 1).nonzero(),
    "rows": lambda p, h: h[p == 1],
    "selected": lambda p, h: torch.masked_select(p, p > 1),
    "bins": lambda p, h: torch.bincount(p),
    "repeated": lambda p, h: p.repeat_interleave(p),
}


@pytest.mark.parametrize("name", COUNTED)
def test_rows_that_are_only_counted(name):
    """What is counted is used no further: each number of rows is another step all the same, and recorded as one."""

    def train(compiled):
        torch.manual_seed(3)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        most = [0]

        def train_step(x):
            h = model(x)
            loss = h.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            most[0] = max(most[0], len(COUNTED[name](h.argmax(1), h)))
            return loss.detach()

        step = stowage.compile(train_step) if compiled else train_step
        batches = [torch.randn(5, 4) for _ in range(4)]
        seen = [(step(batches[call % 4].clone()), most[0]) for call in range(60)]
        return seen, step

    (expected, _), (found, step) = train(False), train(True)
    assert all(torch.equal(a, b) and m == n for (a, m), (b, n) in zip(expected, found))
    assert step.stats()["planned_steps"] >= 30 and not step.refusal


def test_parameters_that_are_used_in_some_calls_are_named():
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    draw = random.Random(0)

    @stowage.compile
    def step(x, used):
        optimizer.zero_grad()
        loss = sum(model[i](x).sum() for i in used)
        loss.backward()
        optimizer.step()
        return loss.detach()

    with pytest.warns(UnsupportedWarning, match=r"model\.\d\.weight has (a|no) gradient before the call"):
        for _ in range(40):
            step(torch.randn(2, 3), draw.sample(range(6), 3))
