"""Errors of kernels that the step's own Python catches: the numbers and the state are those of eager."""

import contextlib

import pytest
import torch
from torch import nn

import stowage


def other_rows(model, x, log):
    try:
        return model(x).square().mean()
    except IndexError:
        log.append("clamped")
        return model(x.clamp(0, 9)).square().mean() * 2


def suppressed(model, x, log):
    loss = model[1].bias.sum() * 0
    with contextlib.suppress(IndexError):
        loss = model(x).square().mean()
    return loss


class Swallows:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is IndexError


def swallowed(model, x, log):
    loss = model[1].bias.sum() * 0
    with Swallows():
        loss = model(x).square().mean()
    return loss  # noqa: RET504  (the block may end early)


def told(model, x, log):
    """Python waits for a number that the raising kernel would lead to."""
    try:
        loss = model(x).square().mean()
        log.append(loss.item())
        return loss
    except IndexError:
        log.append("clamped")
        return model(x.clamp(0, 9)).square().mean() * 2


def raised_as_another(model, x, log):
    try:
        return model(x).square().mean()
    except IndexError as error:
        raise ValueError("no such word") from error


def at_the_end(model, x, log):
    try:
        return model(x).square().mean()
    finally:
        log.append("done")


def run(body, compiled, check="auto", blind=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    log: list = []

    def train_step(x):
        if blind:
            log.append(len(log))
        loss = body(model, x, log)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stowage.compile(train_step, check=check) if compiled else train_step
    seen: list = []
    generator = torch.Generator().manual_seed(1)
    for i in range(14):
        x = torch.randint(0, 10, (5,), generator=generator)
        if i in (2, 6, 9, 10):
            x[i % 5] = 11
        try:
            seen.append(step(x))
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
        seen += [p.detach().clone() for p in model.parameters()]
        seen += [list(log), torch.get_rng_state()]
    return seen, step


def same(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("blind", [False, True], ids=["seen", "blind"])
@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("body", [other_rows, suppressed, swallowed, told, raised_as_another, at_the_end])
def test_as_eager(body, check, blind):
    expected, _ = run(body, False, blind=blind)
    got, step = run(body, True, check, blind)
    assert all(same(a, b) for a, b in zip(expected, got, strict=True))
    assert step.stats()["planned_steps"] >= 4, step.refusal
