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


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("tensors", [False, True])
def test_ctc(tensors, varies, reduction):
    agrees(lambda wrap: ctc(wrap, tensors, varies, reduction), 9 if varies else 16, "never")


def packed(wrap, kind, in_order, tensors, varies):
    torch.manual_seed(0)
    embedding, recurrent, head = nn.Embedding(20, 8), kind(8, 16, batch_first=True), nn.Linear(16, 4)
    model = nn.ModuleList([embedding, recurrent, head])
    optimizer = torch.optim.Adam(model.parameters(), 0.05)

    def train_step(tokens, lengths):
        rows = nn.utils.rnn.pack_padded_sequence(embedding(tokens), lengths, batch_first=True, enforce_sorted=in_order)
        hidden, counts = nn.utils.rnn.pad_packed_sequence(recurrent(rows)[0], batch_first=True)
        loss = head(hidden.sum(1) / counts[:, None].float()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), counts

    step = wrap(train_step)
    draws = torch.Generator().manual_seed(1)
    seen = []
    for i in range(16):
        lengths = [[7, 5, 3, 2], [7, 7, 2, 1]][i // 2 % 2 if varies else 0]
        lengths = lengths if in_order else lengths[::-1]
        tokens = torch.randint(0, 20, (4, 7), generator=draws)
        seen += step(tokens, torch.tensor(lengths) if tensors else lengths)
        seen += [p.detach().clone() for p in model.parameters()]
    return seen


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_packed_sequences(kind, in_order, tensors, varies):
    agrees(lambda wrap: packed(wrap, kind, in_order, tensors, varies), 6 if varies else 11, "auto")
