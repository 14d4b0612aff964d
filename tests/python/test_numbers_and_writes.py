"""Numbers that a step asks of tensors, before and after it writes to these tensors in place; of each, what eager gives. Some
follow from what is there before the step, others from what it makes, and what has been written to by the time that
Python asks for a number is not what the number was made of."""

import random

import pytest
import torch
from torch import nn

import stowage

CALLS = 10


class Program:
    """Acts, by name, on tensors that lie in the arguments, around the step, and in a model."""

    def __init__(self, acts):
        self.acts = acts
        self.model = nn.Linear(4, 2)
        self.state = nn.BatchNorm1d(4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.5)
        self.table, self.large = torch.rand(6, 4), torch.rand(64, 512)
        self.count = torch.zeros(())

    def step(self, x, scale):
        here = {
            "argument": x,
            "scale": scale,
            "table": self.table,
            "large": self.large,
            "count": self.count,
            "weight": self.model.weight.detach(),
            "mean": self.state.running_mean,
            "drawn": torch.randn(6, 4),
            "made": x * 1.5,
        }
        numbers, told, loss = {}, [], None
        for act, *of in self.acts:
            if act == "reduce":
                name, tensor, how = of
                numbers[name] = (here[tensor] if how != "part" else here[tensor].reshape(-1)[:2]).sum()
                if how == "norm":
                    numbers[name] = here[tensor].square().sum().sqrt()
            elif act == "write":
                tensor, how = of
                with torch.no_grad():
                    if how == "mul":
                        here[tensor].mul_(0.75)
                    elif how == "add":
                        here[tensor].add_(scale)
                    elif how == "copy":
                        here[tensor].copy_(here[tensor].cos())
                    else:
                        here[tensor].reshape(-1)[:1].add_(1)
            elif act == "tell":
                told.append(numbers[of[0]].item())
            elif act == "list":
                told.append(here[of[0]].reshape(-1)[:3].tolist())
            elif act == "branch":
                told.append("more" if numbers[of[0]] > 0 else "less")
            elif act == "forward":
                loss = self.model(self.state(x)).square().mean()
                loss.backward()
                numbers["loss"] = loss = loss.detach()
            elif act == "update":
                self.optimizer.step()
                self.optimizer.zero_grad()
        return loss, told


TENSORS = ["argument", "scale", "table", "large", "count", "weight", "mean", "drawn", "made"]
LASTING = TENSORS[:-2]


def random_acts(r):
    acts, names = [], []
    for i in range(r.randint(6, 16)):
        kind = r.choice(["reduce", "reduce", "write", "write", "tell", "tell", "list", "forward", "update", "branch"])
        if kind == "reduce":
            names.append(f"n{i}")
            acts.append(("reduce", names[-1], r.choice(TENSORS), r.choice(["sum", "norm", "part"])))
        elif kind == "write":
            acts.append(("write", r.choice(LASTING), r.choice(["mul", "add", "copy", "part"])))
        elif kind in ("tell", "branch") and names:
            acts.append((kind, r.choice(names)))
        elif kind == "list":
            acts.append(("list", r.choice(TENSORS)))
        elif kind == "forward":
            names.append("loss")
            acts.append(("forward",))
        elif kind == "update":
            acts.append(("update",))
    return acts + [("tell", name) for name in r.sample(names, len(names))]


def run(acts, compiled, **options):
    torch.manual_seed(0)
    program = Program(acts)
    step = stowage.compile(program.step, **options) if compiled else program.step
    told, planned = [], 0
    for call in range(CALLS):
        x, scale = torch.randn(6, 4), torch.full((), 0.5 + (call >= 5))
        loss, numbers = step(x, scale)
        told.append((numbers, None if loss is None else loss.item(), x.tolist(), scale.item()))
        if call == 6:  # the loop looks at what it has, and writes to it
            told.append(program.table.sum().item())
            program.count.zero_()
    lasting = (program.table, program.large, program.count, *program.model.parameters(), program.state.running_mean)
    planned = step.stats()["planned_steps"] if compiled else 0
    return told, [t.detach().clone() for t in lasting], planned


def assert_as_eager(acts, **options):
    told, lasting, _ = run(acts, False)
    planned_told, planned_lasting, planned = run(acts, True, **options)
    for call, (expected, got) in enumerate(zip(told, planned_told, strict=True)):
        assert expected == got, f"call {call}"
    assert all(map(torch.equal, lasting, planned_lasting))
    return planned


ASKED_LATE = [
    ("reduce", "drawn", "drawn", "sum"),
    ("reduce", "before", None, "sum"),
    ("write", None, "mul"),
    ("tell", "drawn"),
    ("tell", "before"),
]


@pytest.mark.parametrize("tensor", LASTING)
@pytest.mark.parametrize("how", ["sum", "norm", "part"])
def test_a_number_of_what_was_there_before_a_write(tensor, how):
    acts = [tuple(tensor if part is None else part for part in act) for act in ASKED_LATE]
    acts[1] = ("reduce", "before", tensor, how)
    assert assert_as_eager(acts) >= 5


@pytest.mark.parametrize("tensor", LASTING)
def test_a_number_of_what_a_whole_update_has_written(tensor):
    acts = [("reduce", "before", tensor, "norm"), ("forward",), ("update",), ("write", tensor, "add")]
    acts += [
        ("tell", "loss"),
        ("tell", "before"),
        ("list", tensor),
        ("reduce", "after", tensor, "norm"),
        ("tell", "after"),
    ]
    assert assert_as_eager(acts) >= 5


def test_branches_by_what_was_there_before_a_write():
    acts = [("reduce", "before", "argument", "sum"), ("write", "argument", "copy"), ("forward",), ("tell", "loss")]
    assert_as_eager([*acts, ("branch", "before"), ("write", "table", "mul")])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("options", [{}, {"budget": "4MiB"}], ids=["planned", "budget"])
def test_random_programs(seed, options):
    acts = random_acts(random.Random(seed))
    try:
        assert_as_eager(acts, **options)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {acts}") from error
