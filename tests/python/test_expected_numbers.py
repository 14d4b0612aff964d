"""Numbers that are the same in call after call, as checks that all went well: the plan looks at them by itself, and Python runs where
one is another. Numbers, skipped updates and errors are eager's, whenever that happens."""

import random

import pytest
import torch
from torch import nn

import stowage

CALLS = 40


def looks(held, x):
    loss = held.model(x).square().mean()
    held.opt.zero_grad()
    loss.backward()
    if not torch.isfinite(loss):
        held.skipped += 1
        return None
    held.opt.step()
    return loss.detach()


def raises(held, x):
    held.opt.zero_grad()
    loss = held.model(x).square().mean()
    if torch.isnan(loss) or torch.isinf(loss):
        raise FloatingPointError("no number")
    loss.backward()
    held.opt.step()
    return loss.item()


def distribution(held, x):
    held.opt.zero_grad()
    loss = -torch.distributions.Normal(held.model(x), 1.0).log_prob(x[:, :2]).mean()
    loss.backward()
    held.opt.step()
    return loss.detach()


def norm(held, x):
    held.opt.zero_grad()
    held.model(x).square().mean().backward()
    total = nn.utils.clip_grad_norm_(held.model.parameters(), 1.0, error_if_nonfinite=True)
    held.opt.step()
    return total


def scaler(held, x):
    held.opt.zero_grad()
    loss = held.model(x).square().mean()
    held.scaler.scale(loss).backward()
    held.scaler.step(held.opt)
    held.scaler.update()
    return loss.detach()


def counts(held, x):
    """A number of a few: which way it goes is seldom another."""
    y = held.model(x)
    high = int((y.abs() > 30).sum())
    loss = y.square().mean() if high == 0 else y.clamp(-30, 30).abs().mean() * (1 + high)
    held.opt.zero_grad()
    loss.backward()
    held.opt.step()
    return loss.detach()


def after_an_update(held, x):
    """What has been written by then goes back."""
    loss = held.model(x).square().mean()
    held.opt.zero_grad()
    loss.backward()
    held.opt.step()
    if any(not torch.isfinite(p).all() for p in held.model.parameters()):
        with torch.no_grad():
            for p in held.model.parameters():
                p.nan_to_num_(0.5, 0.5, 0.5)
        held.skipped += 1
    loss = held.model(x).abs().mean()
    held.opt.zero_grad()
    loss.backward()
    held.opt.step()
    return loss.detach()


def several(held, x):
    held.opt.zero_grad()
    y = held.model(x)
    if not torch.isfinite(y).all():
        raise AssertionError("a wrong forward pass")
    loss = y.square().mean()
    loss.backward()
    finite = all(bool(torch.isfinite(p.grad).all()) for p in held.model.parameters())
    if finite and int((y > 1e30).sum()) == 0:
        held.opt.step()
    return loss.item(), finite


def drawn(held, x):
    y = nn.functional.dropout(held.model(x), 0.3)
    loss = (y * torch.rand_like(y)).square().mean()
    held.opt.zero_grad()
    loss.backward()
    if torch.isfinite(loss):
        held.opt.step()
    return loss.detach() + torch.rand(1)


STEPS = [looks, raises, distribution, norm, scaler, counts, after_an_update, several, drawn]


class Held:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=7)
        self.skipped = 0

    def now(self, result):
        numbers = [v for state in self.opt.state.values() for v in state.values()]
        tensors = [*self.model.state_dict().values(), *numbers, *(p.grad for p in self.model.parameters())]
        result = [
            v.double().tolist() if isinstance(v, torch.Tensor) else v
            for v in (result if isinstance(result, tuple) else (result,))
        ]
        return (
            repr(result),
            [None if t is None else repr(t.double().tolist()) for t in tensors],
            self.skipped,
            torch.get_rng_state().sum(),
        )


def run(body, odd, compiled, **options):
    """``odd``: calls whose batch has what no number is."""
    held = Held()

    def step(x):
        return body(held, x)

    step = stowage.compile(step, **options) if compiled else step
    generator, seen = torch.Generator().manual_seed(3), []
    for call in range(CALLS):
        x = torch.randn(6, 4, generator=generator)
        if call in odd:
            x[call % 6, call % 4] = [float("inf"), float("nan"), 1e30][call % 3]
        try:
            seen.append(held.now(step(x)))
        except (FloatingPointError, ValueError, RuntimeError, AssertionError) as error:
            seen.append(held.now(f"{type(error).__name__}: {str(error)[:60]}"))
    return seen, step


def same(body, odd, **options):
    expected, _ = run(body, odd, False)
    got, step = run(body, odd, True, **options)
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert a == b, (call, a, b)
    return step


@pytest.mark.parametrize("body", [body for body in STEPS if body is not scaler])  # which keeps what it has found
def test_no_surprise(body):
    step = same(body, (), check="never")
    stats = step.stats()
    assert stats["planned_steps"] >= CALLS - 6, step.refusal
    assert stats["checked_steps"] <= 8, stats


@pytest.mark.parametrize("check", ["never", "auto", "always"])
@pytest.mark.parametrize("body", STEPS)
def test_one_surprise(body, check):
    step = same(body, {25}, check=check)
    assert step.stats()["planned_steps"] >= CALLS // 2, step.refusal


@pytest.mark.parametrize("body", STEPS)
def test_surprises_at_random(body):
    for seed in range(4):
        rng = random.Random(seed)
        same(body, set(rng.sample(range(CALLS), rng.randrange(1, 9))), check=rng.choice(["never", "auto"]))


@pytest.mark.parametrize("body", STEPS)
def test_within_a_budget(body):
    same(body, {18, 30}, budget=1 << 20)


def test_python_runs_again_after_a_surprise():
    """For longer each time: what often comes otherwise is no number to expect."""
    rare = same(looks, {12}, check="never").stats()["checked_steps"]
    often = same(looks, set(range(9, CALLS, 3)), check="never").stats()["checked_steps"]
    assert rare < often
    assert often >= CALLS // 2


def test_a_number_of_its_own_is_not_expected():
    """A loss is another in each call."""
    held = Held()

    def step(x):
        loss = held.model(x).square().mean()
        held.opt.zero_grad()
        loss.backward()
        held.opt.param_groups[0]["lr"] = 0.01 if loss.item() < 0.5 else 0.02
        held.opt.step()
        return loss.detach()

    compiled = stowage.compile(step, check="never")
    for _ in range(20):
        compiled(torch.randn(6, 4))
    assert compiled.stats()["checked_steps"] >= 14


COUNTED: list = []


@torch.library.custom_op("test_expected_numbers::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    COUNTED.append(len(COUNTED))
    return x * 2


@counted.register_fake
def _(x):
    return torch.empty_like(x)


def test_kernels_in_python_run_as_often_as_in_eager():
    """What they have counted goes back with a call that is taken back."""

    def body(held, x):
        with torch.no_grad():
            y = counted(x)
        loss = held.model(y).square().mean()
        if not torch.isfinite(loss):
            return None
        held.opt.zero_grad()
        loss.backward()
        held.opt.step()
        return loss.detach()

    ends = []
    for compiled in (False, True):
        COUNTED.clear()
        seen, step = run(body, {15, 18, 27, 33}, compiled)
        ends.append((seen, list(COUNTED)))
    assert ends[0] == ends[1]
    assert step.stats()["planned_steps"] >= CALLS // 3, step.refusal
