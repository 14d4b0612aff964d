"""Arguments that are no tensors and another value in each call: a plan serves them all, and its Python sees each."""

import datetime
import decimal
import enum
import fractions
import pathlib
import uuid

import numpy as np
import pytest
import torch
from torch import nn

import stowage

CALLS = 24


class Mode(enum.Enum):
    ONE = 1
    TWO = 2


class Length(int):
    scale = 2


class Name(str):
    scale = 3


class InIndia(datetime.tzinfo):
    def __repr__(self):
        return "InIndia()"

    def utcoffset(self, when):
        return datetime.timedelta(hours=5, minutes=30)


DAY = datetime.datetime(2024, 1, 1)
# Name: (the value of call i, what the step reads of it)
MANY = {
    "int": (lambda i: i, float),
    "float": (lambda i: i / 3, float),
    "complex": (lambda i: complex(i, 1), abs),
    "str": (lambda i: "a" * i, len),
    "bytes": (lambda i: bytes([i]), lambda a: a[0]),
    "range": (lambda i: range(i + 1), sum),
    "Decimal": (lambda i: decimal.Decimal(i) / 3, float),
    "Decimal's digits": (lambda i: decimal.Decimal("1." + "0" * (i + 1)), lambda a: len(str(a))),
    "Fraction": (lambda i: fractions.Fraction(i, 3), float),
    "datetime": (lambda i: DAY + datetime.timedelta(hours=i), lambda a: a.hour),
    "datetime of a zone": (lambda i: DAY.replace(hour=i, tzinfo=datetime.timezone.utc), lambda a: a.timestamp() / 1e9),
    "date": (lambda i: datetime.date(2024, 1, i + 1), lambda a: a.day),
    "timedelta": (lambda i: datetime.timedelta(seconds=i), lambda a: a.total_seconds()),
    "Path": (lambda i: pathlib.Path("images", f"{'x' * i}.png"), lambda a: len(a.name)),
    "UUID": (lambda i: uuid.UUID(int=i), lambda a: a.int),
    "numpy.float32": (lambda i: np.float32(i / 7), float),
    "numpy.int64": (lambda i: np.int64(i), float),
    "numpy.str_": (lambda i: np.str_("a" * i), len),
    "numpy.datetime64": (lambda i: np.datetime64("2024-01-01") + i, lambda a: int(a.astype(int)) / 1e4),
    "of int": (lambda i: Length(i), lambda a: a * a.scale),
    "of str": (lambda i: Name("a" * i), lambda a: len(a) * a.scale),
    "a dict of them": (lambda i: {"path": pathlib.Path("a" * i), "when": DAY}, lambda a: len(str(a["path"]))),
}
FEW = {
    "bool": (lambda i: i % 2 == 0, float),
    "None at times": (lambda i: None if i % 2 else 1.5, lambda a: a or 0.5),
    "numpy.bool_": (lambda i: np.bool_(i % 2), float),
    "Enum": (lambda i: (Mode.ONE, Mode.TWO)[i % 2], lambda a: a.value),
    "dtype": (lambda i: (torch.float32, torch.float64)[i % 2], lambda a: a.itemsize),
}
NEVER = {"datetime of a zone of one's own": (lambda i: DAY.replace(hour=i, tzinfo=InIndia()), lambda a: a.hour)}


def train(value, read, compiled: bool):
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    seen = []

    def train_step(x, given):
        seen.append(repr(given))
        loss = model(x).square().mean() * float(read(given))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stowage.compile(train_step) if compiled else train_step
    losses = [float(step(torch.randn(5, 6), value(i % 20))) for i in range(CALLS)]
    return [losses, seen, model.weight.tolist()], step


@pytest.mark.filterwarnings("ignore::stowage.errors.UnsupportedWarning")
@pytest.mark.parametrize("name", [*MANY, *FEW, *NEVER])
def test_each_value_counts(name):
    value, read = {**MANY, **FEW, **NEVER}[name]
    wanted, _ = train(value, read, False)
    got, step = train(value, read, True)
    assert got == wanted
    assert step.stats()["planned_steps"] >= (0 if name in NEVER else 8), step.refusal
