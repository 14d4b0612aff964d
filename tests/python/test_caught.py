"""Errors of kernels that the step's own Python catches: the numbers and the state are those of eager."""

import contextlib
import sys

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


@contextlib.contextmanager
def unknown_words():
    try:
        yield
    except IndexError:
        pass


def swallowed_by_a_generator(model, x, log):
    loss = model[1].bias.sum() * 0
    with unknown_words():
        loss = model(x).square().mean()
    return loss  # noqa: RET504


def of_a_caller(model, x, log):
    """The handler is around the function whose kernel raises."""
    try:
        return suppressed_not(model, x)
    except IndexError:
        return model[1].bias.sum() * 0


def suppressed_not(model, x):
    return model(x).square().mean()


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


BODIES = [
    other_rows,
    suppressed,
    swallowed,
    swallowed_by_a_generator,
    of_a_caller,
    told,
    raised_as_another,
    at_the_end,
]


@pytest.mark.parametrize("blind", [False, True], ids=["seen", "blind"])
@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("body", BODIES)
def test_as_eager(body, check, blind):
    expected, _ = run(body, False, blind=blind)
    got, step = run(body, True, check, blind)
    assert all(same(a, b) for a, b in zip(expected, got, strict=True))
    assert step.stats()["planned_steps"] >= 3, step.refusal


def _there(log):
    try:
        return log.index("never there")
    except ValueError:
        return 0


def handled_elsewhere(model, x, log):
    _there(log)
    return suppressed_not(model, x)


def around_what_never_raises(model, x, log):
    try:
        return model[1](torch.ones(3, 8)).square().mean()
    except RuntimeError:
        return model[1].bias.sum()


def of_other_errors(model, x, log):
    try:
        return model(x).square().mean()
    except (KeyError, TypeError) as error:
        raise TypeError("another") from error


def of_any_error_after_others(model, x, log):
    try:
        return model(x).square().mean()
    except TypeError:
        return model[1].bias.sum()
    except:  # noqa: E722
        return model[1].bias.sum() * 2


def ends_by_returning(model, x, log):
    found = model[1].bias.sum()
    try:
        found = model(x).square().mean()
    finally:
        return found  # noqa: B012


def ends_by_raising(model, x, log):
    try:
        return model(x).square().mean()
    finally:
        if x.max() > 10:
            raise ValueError("too large")


LET_PASS = [at_the_end, of_other_errors] if sys.version_info >= (3, 11) else []
MORE = [of_other_errors, of_any_error_after_others, ends_by_returning, ends_by_raising]
BODIES += MORE


@pytest.mark.parametrize("body", MORE)
@pytest.mark.parametrize("check", ["never", "always"])
def test_each_kind_of_handler(body, check):
    test_as_eager(body, check, blind=True)


@pytest.mark.parametrize("body", [handled_elsewhere, around_what_never_raises, *BODIES])
def test_what_runs_again_is_copied_only_where_handlers_are_around_what_may_raise(body):
    """Before a call whose Python runs: all that it can reach, as it may have to run a second time."""
    _, step = run(body, True, blind=True)
    kept = {replay.recording.catches_values for entry in step._entries.values() for replay in entry.replays}
    assert kept == {body in BODIES and body not in LET_PASS}
