"""Tensors that are not one block of memory: what torch.func wraps around tensors and a program keeps beyond the transform, nested
tensors, opaque ones. Wherever they are, what is trained beside them is planned, and stays in its budget; what trains with
them is planned, or refused by its reason."""

from __future__ import annotations

import gc
import random

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functionalize, grad, jvp, vmap

import stowage
from stowage import _runtime

CALLS = 9


def _kept_within(transform):
    def kept():
        found = []

        def f(x):
            found.append(x * 2)
            return (x * 2).sum()

        transform(f)(torch.randn(4, 8))
        return found[0]

    return kept


def _fake():
    with FakeTensorMode() as mode:
        return mode.from_tensor(torch.randn(4, 8))


def _dual():
    with forward_ad.dual_level():
        return forward_ad.make_dual(torch.randn(4, 8), torch.randn(4, 8))


def _freed():
    x = torch.randn(4, 8)
    x.untyped_storage().resize_(0)
    return x


def _old_view():
    """PyTorch raises where it is asked for its node."""
    base = torch.ones(4, 8, requires_grad=True) * 2
    with torch.no_grad():
        view = base[:2]
    base.mul_(2)
    return view


def _nested(layout):
    return lambda: torch.nested.nested_tensor([torch.randn(5, 8), torch.randn(3, 8)], layout=layout)


KINDS = {
    "vmap": _kept_within(vmap),
    "grad": _kept_within(grad),
    "grad within vmap": _kept_within(lambda f: vmap(grad(f))),
    "jvp": _kept_within(lambda f: lambda x: jvp(f, (x,), (x,))),
    "functionalize": _kept_within(functionalize),
    "nested": _nested(torch.strided),
    "jagged": _nested(torch.jagged),
    "mkldnn": lambda: torch.randn(4, 8).to_mkldnn(),
    "coo": lambda: torch.randn(4, 8).to_sparse(),
    "csr": lambda: torch.randn(4, 8).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(4, 8), 0.1, 0, torch.qint8),
    "meta": lambda: torch.randn(4, 8, device="meta"),
    "fake": _fake,
    "dual": _dual,
    "freed": _freed,
    "old view": _old_view,
}


def _beside(kind, where):
    """A step, where such a tensor is alive: in the program, an attribute of the model, or in a list of its."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    kept = KINDS[kind]()
    if where == "attribute":
        model.kept = kept
    elif where == "list":
        model.kept = [kept]

    def body(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(1)
    return body, model, [torch.randn(4, 8) for _ in range(CALLS)], kept


@pytest.mark.parametrize("where", ["program", "attribute", "list"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_beside_one(kind, where):
    body, model, batches, _kept = _beside(kind, where)
    losses = [body(x) for x in batches]
    expected = [*losses, *(p.detach() for p in model.parameters())]
    for budget in (None, "64MiB"):
        body, model, batches, _kept = _beside(kind, where)
        step = stowage.compile(body, budget=budget)
        losses = [step(x) for x in batches]
        assert all(map(torch.equal, [*losses, *(p.detach() for p in model.parameters())], expected))
        assert step.stats()["planned_steps"] >= 3, step.refusal
    for room in (64 << 20, 40_000):
        gc.collect()
        others = _runtime.live_bytes()
        body, model, batches, _kept = _beside(kind, where)
        with stowage.budget(others + room):
            losses = [body(x) for x in batches]
        assert all(map(torch.equal, [*losses, *(p.detach() for p in model.parameters())], expected))


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.inner, self.norm = nn.Embedding(50, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, x):
        x = self.embedding(x) if x.dtype == torch.int64 else x
        return self.out(self.drop(self.norm(torch.tanh(self.inner(x)))))


def _of_jagged(source, varies, tokens):
    """A step on sequences of several lengths, in one tensor of layout jagged."""
    torch.manual_seed(0)
    model = _Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    rng = random.Random(3)

    def made(*given):
        if source == "list":
            return torch.nested.as_nested_tensor(list(given), layout=torch.jagged)
        if source == "offsets":
            return torch.nested.nested_tensor_from_jagged(*given)
        return given[0]

    def body(*given):
        out = model(made(*given))
        loss = out.values().square().mean() + out.to_padded_tensor(0.0).sum() * 1e-3 + out.mean(-1).values().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def batch():
        lengths = [rng.randint(1, 9) for _ in range(3)] if varies == "others" else [3, 7, 5]
        if varies == "of one total":
            lengths = rng.choice([[3, 7, 5], [5, 7, 3], [1, 9, 5], [6, 4, 5]])
        rows = [torch.randint(0, 50, (n,)) if tokens else torch.randn(n, 16) for n in lengths]
        if source == "list":
            return rows
        offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
        if source == "offsets":
            return [torch.cat(rows), offsets]
        return [torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets)]

    torch.manual_seed(1)
    return body, model, batch


@pytest.mark.parametrize("tokens", [False, True], ids=["rows", "tokens"])
@pytest.mark.parametrize("varies", ["", "others", "of one total"], ids=["same lengths", "other lengths", "one total"])
@pytest.mark.parametrize("source", ["list", "offsets", "argument"])
def test_what_is_trained_with_jagged_ones(source, varies, tokens):
    body, model, batch = _of_jagged(source, varies, tokens)
    expected = [*(body(*batch()) for _ in range(16)), *(p.detach() for p in model.parameters())]
    for budget in (None, "8MiB"):
        body, model, batch = _of_jagged(source, varies, tokens)
        step = stowage.compile(body, budget=budget)
        found = [*(step(*batch()) for _ in range(16)), *(p.detach() for p in model.parameters())]
        assert all(map(torch.equal, found, expected))
        assert varies or source == "argument" or step.stats()["planned_steps"] >= 6, step.refusal
        assert source != "argument" or "nested tensor" in step.refusal


@pytest.mark.parametrize("where", ["argument", "kept", "made"])
def test_what_is_trained_with_strided_ones(where):
    """Within a block the other tensors leave, and these stay."""

    def run(limit):
        torch.manual_seed(0)
        model, wide = nn.Linear(8, 8), nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        optimizer = torch.optim.SGD([*model.parameters(), *wide.parameters()], 1e-2)
        make = lambda: torch.nested.nested_tensor([torch.randn(5, 8), torch.randn(3, 8)])
        kept = make()

        def body(x, wide_rows):
            nested = x if where == "argument" else kept if where == "kept" else torch.nested.nested_tensor(list(x))
            loss = model(nested).to_padded_tensor(0.0).square().mean() + torch.relu(wide(wide_rows)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.compile(body) if limit == "planned" else body
        batches = [(make() if where == "argument" else torch.randn(2, 5, 8), torch.randn(512, 64)) for _ in range(4)]
        if isinstance(limit, int):
            with stowage.budget(limit) as block:
                found = [step(*batch) for batch in batches]
            return [*found, *(p.detach() for p in model.parameters())], block.stats()
        return [*(step(*batch) for batch in batches), *(p.detach() for p in model.parameters())], step

    expected, _ = run(None)
    found, step = run("planned")
    assert all(map(torch.equal, found, expected)) and "nested tensor" in step.refusal
    found, roomy = run(64 << 20)
    assert all(map(torch.equal, found, expected))
    found, tight = run(int(0.8 * roomy["peak_bytes"]))
    assert all(map(torch.equal, found, expected)) and tight["evictions"] > 0
