"""Steps that change what they are given: items of dictionaries and lists, fields, attributes of tensors. After a call
the caller finds what eager leaves there, whether the call was planned or not."""

import dataclasses
import random
import warnings
from typing import Any

import pytest
import searches
import torch
from torch import nn

import stowage
from stowage.errors import UnsupportedWarning

SEED = searches.first_seed()


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    out: Any = None
    count: int = 0


def batch() -> dict[str, Any]:
    x = torch.randn(4, 6)
    return {
        "x": x,
        "same": x,
        "y": torch.randn(4, 3),
        "list": [torch.ones(2), 1],
        "batch": Batch(torch.randn(4, 6)),
        "n": 2,
    }


# Each changes what the argument holds, and may use the loss; what can be gone is looked for.
CHANGES = {
    "sets an item": lambda b, loss: b.__setitem__("loss", loss),
    "sets a number": lambda b, loss: b.__setitem__("n", b.get("n", 0) + 1),
    "replaces a tensor": lambda b, loss: b.__setitem__("x", b["x"] * 2),
    "replaces it by one of its own": lambda b, loss: b.__setitem__("x", b["same"]),
    "replaces one of two names": lambda b, loss: b.__setitem__("same", b["x"] + 1),
    "a view": lambda b, loss: b.__setitem__("view", b["x"][:, ::2]),
    "pops": lambda b, loss: b.pop("y", None),
    "appends a tensor": lambda b, loss: b["list"].append(loss * 2),
    "appends a number": lambda b, loss: b["list"].append(3),
    "replaces an element": lambda b, loss: b["list"].__setitem__(0, b["list"][0] + loss),
    "reverses": lambda b, loss: b["list"].reverse(),
    "sets a field": lambda b, loss: setattr(b["batch"], "out", loss + 1),
    "counts in a field": lambda b, loss: setattr(b["batch"], "count", b["batch"].count + 1),
    "replaces a field": lambda b, loss: setattr(b["batch"], "x", b["batch"].x.flip(0)),
    "marks a tensor": lambda b, loss: setattr(b["x"], "mark", 5),
    "hangs a tensor on a tensor": lambda b, loss: setattr(b["x"], "loss", loss),
    "wants its gradient": lambda b, loss: b["same"].requires_grad_(True),
    "writes into it": lambda b, loss: b["batch"].x.mul_(2),
    "transposes in place": lambda b, loss: b["list"][0].unsqueeze_(0),
    "changes nothing": lambda b, loss: None,
}


class Program:
    def __init__(self, changes: list[str]):
        torch.manual_seed(7)
        self.model = nn.Linear(6, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.changes = [CHANGES[name] for name in changes]

    def step(self, b: dict[str, Any]) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(b["x"].detach()) - self.model(b["batch"].x).detach()).pow(2).mean()
        for change in self.changes[::2]:
            change(b, loss.detach())
        loss.backward()
        self.optimizer.step()
        for change in self.changes[1::2]:
            change(b, loss.detach())
        return loss.detach()


def content(value: Any) -> Any:
    """All that the caller can see, copied."""
    if isinstance(value, torch.Tensor):
        own = {k: content(v) for k, v in vars(value).items()}
        return ("tensor", value.detach().clone(), value.stride(), value.storage_offset(), value.requires_grad, own)
    if isinstance(value, dict):
        return {k: content(v) for k, v in value.items()}
    if isinstance(value, list):
        return [content(v) for v in value]
    return content(vars(value)) if isinstance(value, Batch) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and a == b


def run(changes: list[str], calls: int = 7, **options: Any) -> tuple[list, stowage.CompiledStep | None]:
    program = Program(changes)
    step = stowage.compile(program.step, **options) if options else program.step
    seen = []
    for _ in range(calls):
        b = batch()
        result = step(b)
        shared = b["x"] is b.get("same"), b.get("loss") is not None and b["loss"] is b["batch"].out
        seen.append((result, content(b), shared, [p.detach().clone() for p in program.model.parameters()]))
    return seen, step if options else None


def compare(changes: list[str], check: str, seed: int) -> bool:
    eager, _ = run(changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsupportedWarning)
        planned, step = run(changes, check=check)
    for call, (a, b) in enumerate(zip(eager, planned)):
        assert same(a, b), f"seed {seed}: call {call + 1} of {changes}, check={check!r}, is not as eager"
    return step.stats()["planned_steps"] > 0


@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("change", list(CHANGES))
def test_each_change(change, check):
    assert compare([change], check, 0), "not planned"
    assert compare(["changes nothing", change], check, 0), "not planned"


def random_program(seed: int) -> bool:
    rng = random.Random(seed)
    return compare(rng.choices(list(CHANGES), k=rng.randint(1, 6)), rng.choice(["never", "auto", "always"]), seed)


def test_random_programs():
    planned = sum(random_program(SEED + i) for i in range(12))
    print(f"seeds {SEED} to {SEED + 11}: {planned} planned")
    assert planned > 6


@searches.longer
def test_many_random_programs():
    print(sum(random_program(seed) for seed in searches.seeds(SEED + 1000)), "planned")


def test_data_of_an_argument_is_refused():
    model = nn.Linear(6, 3)

    def step(x):
        x.data = x.data * 2
        return model(x).sum().detach()

    compiled = stowage.compile(step)
    with pytest.warns(UnsupportedWarning, match="sets the .data of an argument"):
        for _ in range(4):
            x = torch.ones(2, 6)
            compiled(x)
            assert torch.equal(x, torch.full((2, 6), 2.0))


# What Python may ask of an argument, and two arguments of the same shape and strides that answer otherwise
BUFFER = torch.arange(24.0).reshape(6, 4) / 10
ASKED = {
    "storage_offset": (lambda x: x.storage_offset(), lambda: (BUFFER[:2], BUFFER[3:5])),
    "_is_view": (lambda x: x._is_view(), lambda: (BUFFER[:2].clone(), BUFFER[:2])),
    "_base": (lambda x: x._base is None, lambda: (BUFFER[:2].clone(), BUFFER[:2])),
    "grad": (lambda x: x.grad is not None, lambda: (BUFFER[:2].clone(), _with_gradient(BUFFER[:2].clone()))),
    "is_shared": (lambda x: x.is_shared(), lambda: (BUFFER[:2].clone(), BUFFER[:2].clone().share_memory_())),
    "_version": (lambda x: x._version, lambda: (BUFFER[:2].clone(), BUFFER[:2].clone().add_(1))),
    "data_ptr": (lambda x: x.data_ptr() % 64, lambda: (BUFFER[:2], BUFFER[3:5])),
    "id": (lambda x: MARKED.get(id(x), 0), lambda: (BUFFER[:2].clone(), _marked(BUFFER[:2].clone()))),
    "hash": (lambda x: MARKED.get(hash(x), 0), lambda: (BUFFER[:2].clone(), _marked(BUFFER[:2].clone()))),
}
MARKED: dict[int, int] = {}


def _with_gradient(x: torch.Tensor) -> torch.Tensor:
    x.grad = torch.ones_like(x)
    return x


def _marked(x: torch.Tensor) -> torch.Tensor:
    MARKED[id(x)] = MARKED[hash(x)] = 5
    return x


@pytest.mark.parametrize("name", list(ASKED))
def test_what_python_asks_of_an_argument(name):
    """Arguments of one signature that differ in what the step asks for without an operator."""
    ask, make = ASKED[name]
    batches = make()

    def trained(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def train_step(x):
            loss = (model(x) * (1 + float(ask(x)))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = stowage.compile(train_step, check="never") if compiled else train_step
        return [step(batches[call > 5 and call % 2]) for call in range(11)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsupportedWarning)
        pairs = list(zip(trained(False), trained(True), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs), name
