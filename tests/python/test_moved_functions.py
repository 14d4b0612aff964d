"""Functions of PyTorch's whose places the program has filled so that nobody could tell which of them runs: the step gives
eager's numbers, and says why it has no plan. When they are back, it has one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage.step.guards.moved_functions import moved

CALLS = 12
T = torch.Tensor
POW, SUM, MEAN, TRANSPOSED, DATA = T.pow, T.sum, T.mean, T.T.__get__, T.data.__get__


def for_both(a, b, function):
    return [(T, a, function), (T, b, function)]


KINDS = {
    "pow": (for_both("pow", "__pow__", lambda t, other: POW(t, other) * 2), lambda h: h**2 + h.pow(2)),
    "two within": (for_both("sum", "mean", lambda t, d: SUM(t, d) - MEAN(t, d) / 2), lambda h: h.sum(1).dot(h.mean(1))),
    "property": ([(T, "T", property(lambda t: TRANSPOSED(t) * 2))], lambda h: h.T),
    "data": ([(T, "data", property(lambda t: DATA(t) * 2))], lambda h: h * h.data),
    "methods": ([(T, "relu", T.sigmoid), (T, "sigmoid", T.relu)], lambda h: h.relu() + h.sigmoid() * 2),
    "losses": ([(F, "mse_loss", F.l1_loss), (F, "l1_loss", F.mse_loss)], lambda h: F.mse_loss(h, h * 2) + F.l1_loss(h, h / 3)),
    "functions": ([(F, "relu", F.gelu), (F, "gelu", F.relu)], lambda h: F.gelu(h) + F.relu(h) * 2),
}  # fmt: skip


def trained(kind, since, compiled):
    places, loss_of = KINDS[kind]
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in places]
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(model(x)).abs().max()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def back():
        for owner, name, value in before:
            delattr(owner, name) if value is None else setattr(owner, name, value)

    run, losses = stowage.compile(step) if compiled else step, []
    data = torch.Generator().manual_seed(1)
    try:
        for call in range(CALLS):
            if call == since:
                for owner, name, value in places:
                    setattr(owner, name, value)
            losses.append(run(torch.randn(4, 3, generator=data)).item())
    finally:
        back()
    return losses, run


@pytest.mark.parametrize("since", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_as_eager(kind, since):
    expected, _ = trained(kind, since, False)
    with pytest.warns(UserWarning, match="this call runs eagerly, as "):
        got, step = trained(kind, since, True)
    assert got == expected
    assert moved() == ""
    x = torch.randn(4, 3)
    for _ in range(8):
        step(x)
    assert step.stats()["planned_steps"] >= 4


def test_as_pytorch_comes():
    assert moved() == ""


@pytest.mark.parametrize(
    "owner, name, value",
    [
        (T, "mine", lambda t: t),
        (F, "gelu", F.relu),
        (T, "tanh", lambda t: t),
        (F, "old_relu", F.relu),
        (T, "is_cuda", property(bool)),
    ],
    ids=["a method more", "one for another", "a method", "kept under another name", "a property that asks where"],
)
def test_what_can_be_told(owner, name, value, monkeypatch):
    monkeypatch.setattr(owner, name, value, raising=False)
    assert moved() == ""


def test_one_for_two_that_change_no_number(monkeypatch):
    for one, other in (("cuda", "xpu"), ("__repr__", "__str__"), ("mine", "yours")):
        shared = lambda t, *args: t
        monkeypatch.setattr(T, one, shared, raising=False)
        monkeypatch.setattr(T, other, shared, raising=False)
    assert moved() == ""
