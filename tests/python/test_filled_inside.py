"""Tensors that PyTorch's own functions fill on the host, by lengths that they are given: CTC, packed sequences."""

import pytest
import torch
from torch import nn

import stowage

LENGTHS = [[4, 3, 2], [4, 2, 1], [3, 3, 3]]


def ctc(wrap, tensors, varies, reduction):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 6))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    criterion = nn.CTCLoss(zero_infinity=True, reduction=reduction)

    def train_step(x, targets, lengths, target_lengths):
        loss = criterion(model(x).log_softmax(-1), targets, lengths, target_lengths).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = wrap(train_step)
    draws = torch.Generator().manual_seed(1)
    seen = []
    for i in range(20):
        x, targets = torch.randn(12, 3, 5, generator=draws), torch.randint(1, 6, (3, 4), generator=draws)
        given = [12, 11, 12], LENGTHS[i % 3 if varies else 0]
        seen.append(step(x, targets, *(map(torch.tensor, given) if tensors else given)))
        seen += [p.detach().clone() for p in model.parameters()]
    return seen


def agrees(train, planned, check):
    steps = []

    def wrap(fn):
        steps.append(stowage.compile(fn, check=check))
        return steps[0]

    expected, got = train(lambda fn: fn), train(wrap)
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert torch.equal(a, b), f"value {i} is not as eager"
    assert steps[0].stats()["planned_steps"] >= planned, steps[0].refusal


@pytest.mark.parametrize("check", ["never", "auto"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("tensors", [False, True])
def test_ctc(tensors, varies, reduction, check):
    agrees(lambda wrap: ctc(wrap, tensors, varies, reduction), 9 if varies else 16, check)
