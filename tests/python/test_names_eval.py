"""A module's eval() in the code of a step is no reading of text by Python's own."""

import builtins

import pytest
import torch
from torch import nn

import stowage
from stowage.step.guards.reads import reads

model = nn.Linear(2, 2)


def method():
    model.eval()


def method_of_a_call():
    return model.train().eval()


def in_a_branch(x, train=True):
    if not train:
        model.eval()
    return model(x)


def builtin():
    return eval("model")


def by_its_module():
    return builtins.eval("model")


def taken_along():
    f = model.eval
    return f()


def with_text():
    return model.eval("x + 1")


def by_name():
    return getattr(model, "eval")()  # noqa: B009


def replaced():
    model.eval = None


@pytest.mark.parametrize("function", [method, method_of_a_call, in_a_branch])
def test_a_method_without_arguments(function):
    read = reads(function.__code__)
    assert not read.dynamic and not read.evaluates and "eval" in read.attributes


@pytest.mark.parametrize("function", [builtin, by_its_module, taken_along, with_text, by_name, replaced])
def test_what_may_be_pythons_own(function):
    read = reads(function.__code__)
    assert read.dynamic and read.evaluates


def test_a_number_is_returned_without_the_steps_python():
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    calls = []

    def train_step(x, train=True):
        calls.append(0) if False else None
        if not train:
            net.eval()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step = stowage.compile(train_step)
    for _ in range(6):
        step(torch.ones(3, 4))
    assert step.stats()["planned_steps"] >= 2 and step.refusal == ""
