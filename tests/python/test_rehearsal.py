"""Rehearsal: the planned step runs on the real tensors and leaves no trace, in the memory of a planned step."""

import pytest
import torch
import zoo
from test_host_store import state_of
from test_recompute_swap import by_hand
from training import FORMS, OPTIMIZERS, plain_step
from transform import transformed

import stowage
from stowage import _runtime
from stowage.step.replay.replay import Replay


def lets_go(model, optimizer, loss_fn):
    def train_step(batch):
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


def rehearse(replay, arguments):
    inputs = replay.inputs(arguments)
    with replay.host_state() as undo:
        replay.match(inputs)
        rehearsal = replay.rehearse_matched(inputs)
        undo.now()
    return rehearsal


def started(name, form="loop", count=4):
    model, loss_fn, batches = zoo.make(name, count + 1)
    optimizer = OPTIMIZERS["adamw"](model.parameters(), **FORMS[form])
    step = stowage.compile(lets_go(model, optimizer, loss_fn), strict=True)
    for batch in batches[:count]:
        step(batch)
    leaves = batches[count] if isinstance(batches[count], tuple) else (batches[count],)
    return model, optimizer, step, list(leaves)


@pytest.mark.parametrize("name, form", [("gpt2", "loop"), ("gpt2", "fused"), ("unet", "foreach")])
def test_leaves_no_trace_and_takes_no_more_than_the_plan(name, form, monkeypatch):
    by_hand(monkeypatch, lambda g, p: transformed(g, p, 7, 6, 6))
    model, optimizer, step, inputs = started(name, form)
    before = state_of(model, optimizer)
    step._room.arena.release()
    live = _runtime.live_bytes()
    _runtime.reset_peak()
    rehearse(step._latest, inputs)
    assert _runtime.peak_bytes() - live <= step.stats()["arena_bytes"] + 64  # the loss is copied out
    assert _runtime.live_bytes() <= live + 64
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(model, optimizer), strict=True))


def test_tells_a_difference_in_one_bit():
    model, _optimizer, step, inputs = started("gpt2")
    replay = step._latest
    rehearsal = rehearse(replay, inputs)
    loss = step._fn(*inputs)
    assert replay.agrees(rehearsal, loss, replay.inputs(inputs))
    weight = next(model.parameters())
    with torch.no_grad():
        bits = weight.view(torch.int32)
        bits[3, 5] ^= 1
        assert not replay.agrees(rehearsal, loss, replay.inputs(inputs))
        bits[3, 5] ^= 1
        assert replay.agrees(rehearsal, loss, replay.inputs(inputs))
    torch.rand(1)
    assert not replay.agrees(rehearsal, loss, replay.inputs(inputs))


def test_a_kernel_that_raises_in_the_rehearsal():
    model, loss_fn, batches = zoo.make("gpt2")
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = stowage.compile(plain_step(model, optimizer, loss_fn), strict=True)
    step(batches[0])
    step(batches[1])
    before = state_of(model, optimizer)
    with pytest.raises(IndexError):
        step(torch.full_like(batches[2], 10_000))
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(model, optimizer), strict=True))
    for batch in batches:
        step(batch)
    assert step.stats()["planned_steps"] >= 4


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError("no room")])
def test_a_rehearsal_that_raises_what_the_step_does_not(error, monkeypatch):
    """Training goes on; the reason is the true one, and it is not tried for ever."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = stowage.compile(plain_step(model, optimizer, lambda model, batch: model(batch).square().mean()))
    tries = []

    def raises(self, *args, **kwargs):
        tries.append(1)
        raise error

    monkeypatch.setattr(Replay, "rehearse_matched", raises)
    with pytest.warns(UserWarning, match=f"its rehearsals raise .*{type(error).__name__}: {error}"):
        for i in range(16):
            step(torch.ones(2, 4) * i)
    assert len(tries) < 12
    assert str(error) in step.refusal
