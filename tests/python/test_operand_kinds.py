"""Between two calls, what an operator takes becomes another kind of thing: none, a number, a tensor of another layout, a view. The call
gives what eager gives, numbers and errors, whatever was recorded before."""

import random

import pytest
import torch
import torch.nn.functional as F
from searches import first_seed, seeds

import stowage

KINDS = {
    "none": lambda: None,
    "number": lambda: 2.0,
    "dense": lambda: torch.linspace(0.1, 1, 36).view(6, 6),
    "double": lambda: torch.linspace(0.1, 1, 36).double().view(6, 6),
    "strided": lambda: torch.linspace(0.1, 1, 72).view(6, 12)[:, ::2],
    "transposed": lambda: torch.linspace(0.1, 1, 36).view(6, 6).t(),
    "expanded": lambda: torch.tensor(2.0).expand(6, 6),
    "scalar": lambda: torch.tensor(2.0),
    "wants a gradient": lambda: torch.linspace(0.1, 1, 36).view(6, 6).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.linspace(0.1, 1, 36).view(6, 6)),
    "negated": lambda: torch._neg_view(torch.linspace(0.1, 1, 36).view(6, 6)),
    "zero": lambda: torch._efficientzerotensor((6, 6)),
    "coo": lambda: torch.eye(6).to_sparse(),
    "csr": lambda: torch.eye(6).to_sparse_csr(),
    "mkldnn": lambda: torch.eye(6).to_mkldnn(),
}


def _row(kind):
    """Of a plain matrix, else none: a bias, a weight."""
    plain = isinstance(kind, torch.Tensor) and kind.dim() == 2 and kind.layout == torch.strided
    return kind[0].contiguous() if plain else None  # batch_norm of others does not repeat its bits


USES = {
    "matmul": lambda h, k: torch.matmul(k, h) if isinstance(k, torch.Tensor) and k.dim() == 2 else h,
    "bias": lambda h, k: F.linear(h, torch.eye(6), _row(k)),
    "scale of a norm": lambda h, k: F.layer_norm(h, (6,), _row(k)),
    "statistics": lambda h, k: F.batch_norm(h, None if k is None else torch.zeros(6), None if k is None else torch.ones(6), _row(k), training=k is None),
    "bias of a convolution": lambda h, k: F.conv1d(h[None], torch.ones(6, 6, 1), _row(k)),
    "product": lambda h, k: h if k is None else h * k,
    "weight of a mean": lambda h, k: torch.lerp(h, h * 2, 0.5 if k is None else k),
    "list": lambda h, k: torch.cat([h] if _row(k) is None else [h, k.to(h.dtype)]),
    "alternative": lambda h, k: torch.where(h > 0, h, 0.0 if k is None else k),
}  # fmt: skip
HOLDERS = ("attribute", "argument", "dict")


class Box:
    pass


def trained(use, kinds, holder, wrap):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    box, table = Box(), {}

    def step(x, given=None):
        value = {"argument": given, "attribute": box.value, "dict": table["value"]}[holder]
        loss = use(model(x), value).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run, seen = wrap(step), []
    for i in range(14):
        if i in (0, 7, 11):
            box.value = table["value"] = KINDS[kinds[i == 7]]()
        x = torch.randn(6, 6)
        try:
            seen.append(run(x, box.value) if holder == "argument" else run(x))
        except Exception as error:
            seen.append((type(error), str(error).partition("\n")[0]))
            optimizer.zero_grad()
    return [*seen, *(p.detach() for p in model.parameters())]


def same(a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and a[0] == b[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES)
def test_many_kinds_in_turn(use):
    for seed in seeds(first_seed(), at_least=12):
        draw = random.Random(f"{seed} {use}")
        kinds, holder = draw.sample(list(KINDS), 2), draw.choice(HOLDERS)
        expected = trained(USES[use], kinds, holder, lambda step: step)
        got = trained(USES[use], kinds, holder, stowage.compile)
        differs = [i for i, (a, b) in enumerate(zip(expected, got)) if not same(a, b)]
        assert not differs, (seed, kinds, holder, differs, expected[differs[0]], got[differs[0]])


@pytest.mark.parametrize("use", ["bias", "scale of a norm", "statistics", "bias of a convolution"])
def test_a_tensor_that_is_none_later(use):
    for kinds in (("dense", "none"), ("none", "dense")):
        expected = trained(USES[use], kinds, "attribute", lambda step: step)
        got = trained(USES[use], kinds, "attribute", stowage.compile)
        assert all(map(same, expected, got)), kinds
