"""What a step returns and keeps, in every form: views of each other, of gradients, of parameters, of arguments, the
same tensor twice, in objects that nobody looks into, in lists that outlive the call. Values, strides and offsets are
those of eager, and so is who shares memory with whom: what the caller writes in place shows everywhere.
"""

import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed()
ROWS, WIDTH = 4, 6


class Box:
    def __init__(self, content):
        self.content = content


class Tuple(tuple):
    pass


VIEWS = {
    "itself": lambda t: t,
    "alias": lambda t: t.detach(),
    "rows": lambda t: t[1:3],
    "row": lambda t: t[-1],
    "columns": lambda t: t[..., ::2],
    "block": lambda t: t[1:, 2:5] if t.dim() == 2 else t[1:],
    "transposed": lambda t: t.t() if t.dim() == 2 else t,
    "flat": lambda t: t.reshape(-1)[2:],
    "diagonal": lambda t: t.diagonal() if t.dim() == 2 else t[:1],
    "windows": lambda t: t.unfold(-1, 2, 1),
    "expanded": lambda t: t[..., :1].expand(*t.shape[:-1], 5),
    "as_strided": lambda t: t.as_strided((2, 2), (1, 2), 1),
    "bits": lambda t: t.view(torch.int32),
    "nothing": lambda t: t[:0],
    "chained": lambda t: t[1:][..., 1:],
    "added dimension": lambda t: t.unsqueeze(0),
    "copy": lambda t: t.clone(),
}
HOLDERS = {
    "plain": lambda made: made,
    "tuple": tuple,
    "dict": lambda made: {str(i): t for i, t in enumerate(made)},
    "nested": lambda made: {"a": [made[0]], "b": (made[1:], 3, "x", None)},
    "box": Box,
    "boxes": lambda made: [Box(made[0]), *made[1:]],
    "half": lambda made: (made[0], Box(made[1:])),
    "number too": lambda made: (*made, 2.5),
}
KEEPERS = {
    "nobody": lambda net, log, made: None,
    "attribute": lambda net, log, made: setattr(net, "last", made[-1]),
    "list": lambda net, log, made: log.append(made[-1]),
    "both": lambda net, log, made: (setattr(net, "last", made[0]), log.append(made[-1])),
    "box": lambda net, log, made: log.append(Box(made[-1])),
    "view of it": lambda net, log, made: log.append(made[0].unsqueeze(0)),
}


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Box):
        return tensors_in(value.content)
    if isinstance(value, dict):
        return tensors_in(list(value.values()))
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (list, tuple)) else []


def described(tensors: list[torch.Tensor]) -> list:
    """All that a caller can see of them."""
    seen = [(t.detach().clone(), t.stride(), t.storage_offset(), t.requires_grad and t.is_leaf) for t in tensors]
    shares = [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for b in tensors] for a in tensors]
    return [seen, shares, [[a is b for b in tensors] for a in tensors]]


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


class Program:
    """A step that returns, and keeps, some views of what it has made and found."""

    def __init__(self, seed: int):
        rng = random.Random(seed)
        sources = [
            "out",
            "out",
            "out",
            "loss",
            "gradient",
            "parameter",
            "argument",
            "state",
            "buffer",
            "table",
            "new buffer",
            "old buffer",
        ]
        self.picked = [(rng.choice(sources), rng.choice(list(VIEWS))) for _ in range(rng.randint(1, 5))]
        self.holder, self.keeper = rng.choice(list(HOLDERS)), rng.choice(list(KEEPERS))
        self.twice = rng.random() < 0.3
        self.first = rng.random() < 0.5  # zero_grad() at the beginning or at the end
        self.writes = rng.random() < 0.7  # the caller, between calls
        self.check = rng.choice(["auto", "auto", "always", "never", 2])
        self.budget = rng.random() < 0.2

    def __str__(self) -> str:
        return f"{self.picked} in {self.holder}, kept by {self.keeper}, check={self.check}, twice={self.twice}, writes={self.writes}"

    def trained(self, compiled: bool) -> tuple[list, int, str]:
        """What the caller sees after each call; how many were planned; why none."""
        torch.manual_seed(2)
        net = nn.Linear(WIDTH, WIDTH)
        net.register_buffer("mean", torch.zeros(WIDTH))
        net.register_buffer("var", torch.ones(WIDTH))
        optimizer, log, table = torch.optim.Adam(net.parameters(), lr=0.1), [], torch.zeros(WIDTH)
        net.last = None

        def step(x):
            if self.first:
                optimizer.zero_grad()
            y = net(x)
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                net.mean.mul_(0.9).add_(y.mean(0))
                table.add_(y[0])
                old, net.var = net.var, net.var * 0.9 + y.var(0)
            found = {
                "out": y.detach(),
                "loss": loss.detach().reshape(1).expand(3),
                "gradient": net.weight.grad,
                "parameter": net.weight.detach(),
                "argument": x,
                "state": optimizer.state[net.weight]["exp_avg"],
                "buffer": net.mean,
                "table": table,
                "old buffer": old,
                "new buffer": net.var,
            }
            made = [applied(view, found[source]) for source, view in self.picked]
            if self.twice:
                made.append(made[0])
            KEEPERS[self.keeper](net, log, made)
            if not self.first:
                optimizer.zero_grad()
            return HOLDERS[self.holder](made)

        options = {"budget": 1 << 22} if self.budget else {}
        called = stowage.compile(step, check=self.check, **options) if compiled else step
        generator = torch.Generator().manual_seed(3)
        seen = []
        for call in range(9):
            x = torch.randn(ROWS, WIDTH, generator=generator)
            result = tensors_in(called(x))
            mine = [
                *result,
                *tensors_in([net.last, *log[-3:]]),
                *(p.grad for p in net.parameters() if p.grad is not None),
                *(x, table, net.mean, optimizer.state[net.weight]["exp_avg"]),
            ]
            seen.append(described(mine))
            if self.writes and call % 2:
                with torch.no_grad():
                    for t in result:
                        if t.dtype == torch.float32 and 0 not in t.stride():
                            t.mul_(0.5)
                seen.append(described(mine))
        return seen, called.stats()["planned_steps"] if compiled else 0, called.refusal if compiled else ""


def applied(view: str, t: torch.Tensor) -> torch.Tensor:
    try:
        return VIEWS[view](t)
    except (RuntimeError, IndexError):  # not of this tensor
        return t


def check(seed: int) -> int:
    program = Program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _, _ = program.trained(False)
        got, planned, refusal = program.trained(True)
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        for what, x, y in zip(("content, strides or offset", "who shares memory", "which are one object"), a, b):
            assert same(x, y), f"seed {seed}: {what} of look {call}: {program}"
    assert refusal == "", f"seed {seed}: {refusal}: {program}"
    return planned


@pytest.mark.parametrize("view", list(VIEWS))
def test_each_view(view):
    program = Program(0)
    program.holder, program.keeper, program.twice, program.writes, program.budget = (
        "tuple",
        "nobody",
        False,
        True,
        False,
    )
    for source in ("out", "argument"):
        for check in ("auto", "never"):
            program.picked, program.check = [(source, view)], check
            (expected, _, _), (got, planned, _) = program.trained(False), program.trained(True)
            assert same(expected, got), f"{source} {check}"
            assert planned >= 4


def test_random_programs():
    planned = [check(seed) for seed in range(SEED, SEED + 2)]
    assert sum(p > 0 for p in planned) > 1


@searches.longer
def test_many_random_programs():
    print(sum(check(seed) > 0 for seed in searches.seeds(SEED)), "of them planned")
