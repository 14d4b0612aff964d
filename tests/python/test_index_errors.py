"""A batch with an index that a kernel refuses (a label that is no class, a token that no table has): the call raises as eager
does, with what the step's Python has done until then, and with the gradients of the call before."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage

CALLS, BAD = 12, (7, 9)
SIZE = 6  # of what is indexed

# By kind: what a step makes of x (rows, SIZE) and of indices (rows); and how the indices are passed
USES = {
    "cross entropy": lambda m, x, i: F.cross_entropy(m.out(x), i),
    "nll of images": lambda m, x, i: F.cross_entropy(m.out(x).t()[None], i[None]),
    "embedding": lambda m, x, i: m.table(i).square().mean() + m.out(x).mean(),
    "embedding bag": lambda m, x, i: m.bag(i[None]).square().mean() + m.out(x).mean(),
    "gather": lambda m, x, i: m.out(x).gather(1, i[:, None]).square().mean(),
    "gather, last": lambda m, x, i: m.out(x).gather(-1, i[:, None]).square().mean(),
    "index": lambda m, x, i: m.out(x).t()[i].square().mean(),
    "second index": lambda m, x, i: m.out(x)[torch.arange(len(i)), i].square().mean(),
    "index select": lambda m, x, i: m.out(x).index_select(1, i).square().mean(),
    "scatter add": lambda m, x, i: torch.zeros(SIZE).scatter_add(0, i, m.out(x)[:, 0]).square().mean(),
    "index add": lambda m, x, i: torch.zeros(SIZE, SIZE).index_add_(0, i, m.out(x)).square().mean(),
    "scatter reduce": lambda m, x, i: (
        torch.zeros(SIZE).scatter_reduce(0, i, m.out(x)[:, 0], "amax", include_self=False).square().mean()
    ),
    "index put": lambda m, x, i: torch.zeros(SIZE, SIZE).index_put((i,), m.out(x), accumulate=True).square().mean(),
    "take": lambda m, x, i: m.out(x)[0].take(i).square().mean(),
    "smoothed": lambda m, x, i: F.cross_entropy(m.out(x), i, label_smoothing=0.1),
}
FORMS = {
    "plain": (lambda i: i, lambda i: i),
    "column": (lambda i: torch.stack([i, i], 1), lambda pair: pair[:, 1]),
    "cast": (lambda i: i.int(), lambda i: i.long()),
    "shifted": (lambda i: torch.cat([i.new_zeros(1), i]), lambda i: F.pad(i, (0, 1))[1:-1].contiguous()),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.table, self.bag = nn.Linear(SIZE, SIZE), nn.Embedding(SIZE, 4), nn.EmbeddingBag(SIZE, 4)


def train(use, form, inside, wrap, late=False):
    """All that can be seen after each call."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = []
    make, undo = FORMS[form]

    def work(x, given):
        log.append("begins")
        loss = USES[use](model, x, undo(given))
        log.append("has a loss")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append("has ended")
        return loss.detach()

    def step(x, given):
        if not inside:
            return work(x, given)
        try:
            return work(x, given)
        except (IndexError, RuntimeError):
            log.append("is left out")
            return None

    step = wrap(step)
    generator = torch.Generator().manual_seed(1)
    seen = []
    for call in range(CALLS):
        x = torch.randn(6, SIZE, generator=generator)
        i = torch.randint(0, SIZE, (6,), generator=generator)
        if call in BAD:
            i[2] = SIZE + call
        try:
            result = step(x, make(i))
        except (IndexError, RuntimeError) as error:
            result = type(error)
            assert "ind" in str(error).lower() or "bounds" in str(error), error
        grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        seen.append((result, list(log), grads, [p.detach().clone() for p in model.parameters()]))
    return seen, step


def alike(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return a == b


@pytest.mark.parametrize("inside", [False, True], ids=["leaves the step", "is caught in it"])
@pytest.mark.parametrize(
    ("use", "form"),
    [
        *((use, "plain") for use in USES),
        *((use, form) for use in ("cross entropy", "embedding", "second index") for form in FORMS if form != "plain"),
    ],
)
def test_a_bad_index(use, form, inside):
    expected, _ = train(use, form, inside, lambda fn: fn)
    got, step = train(use, form, inside, stowage.compile)
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert alike(a, b), (call, a[0], b[0], a[1][-4:], b[1][-4:])
    assert step.refusal == "" and step.stats()["planned_steps"] >= 4


class Tables:
    """The same names, of a size that changes: a vocabulary that has grown, a head with more classes, one of two by turns."""

    def __init__(self, sizes):
        self.all = [nn.ModuleDict({"table": nn.Embedding(n, 4), "out": nn.Linear(4, n)}) for n in sizes]
        self.now = self.all[0]


LOOKED_UP = {
    "embedding": lambda m, i: m["table"](i).square().mean(),
    "weight[i]": lambda m, i: m["table"].weight[i].square().mean(),
    "cross entropy": lambda m, i: F.cross_entropy(m["out"](m["table"].weight[:1].expand(len(i), 4)), i),
    "gather": lambda m, i: m["out"].weight.gather(0, i[:, None].expand(-1, 4)).square().mean(),
}


@pytest.mark.parametrize("turns", [False, True], ids=["grows once", "by turns"])
@pytest.mark.parametrize("use", LOOKED_UP)
def test_an_index_beyond_the_recorded_table(use, turns):
    """The step looks up another one now: the call is recorded and planned; beyond that one, it raises as eager does."""
    calls, bad = 40, 36

    def trained_with(wrap):
        torch.manual_seed(0)
        tables = Tables((SIZE, SIZE + 4))
        optimizer = torch.optim.SGD([p for each in tables.all for p in each.parameters()], lr=0.1)

        @wrap
        def step(i):
            loss = LOOKED_UP[use](tables.now, i)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        seen = []
        for call in range(calls):
            larger = bool(call % 2) if turns else call >= 6
            tables.now = tables.all[larger]
            i = torch.randint(0, SIZE + 4 * larger, (8,))
            if larger:
                i[0] = SIZE + call % 4
            if call == bad + (not larger):
                i[1] = SIZE + 4
            try:
                seen.append(step(i))
            except (IndexError, RuntimeError) as error:
                seen.append(type(error))
            seen += [p.detach().clone() for p in tables.now.parameters()]
        return seen, step

    expected, _ = trained_with(lambda fn: fn)
    got, step = trained_with(stowage.compile)
    assert alike(got, expected)
    assert step.refusal == "" and step.stats()["planned_steps"] >= calls - 14


@pytest.mark.parametrize("ignored", [-100, 255])
def test_what_is_ignored_is_planned(ignored):
    torch.manual_seed(0)
    model = nn.Linear(8, SIZE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @stowage.compile
    def step(x, y):
        loss = F.cross_entropy(model(x), y, ignore_index=ignored)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(10):
        y = torch.randint(0, SIZE, (6,))
        y[3:5] = ignored
        step(torch.randn(6, 8), y)
    assert step.stats()["planned_steps"] == 7


def test_negative_indices_that_count_from_the_end_are_planned():
    weight = nn.Parameter(torch.randn(SIZE, 3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    @stowage.compile
    def step(i):
        loss = weight[i].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(10):
        step(torch.randint(-SIZE, SIZE, (6,)))
    assert step.stats()["planned_steps"] == 7
