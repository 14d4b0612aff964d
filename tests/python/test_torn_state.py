"""A planned step is a transaction: whichever of its ops raises, the state is that before the step or that after it, the
error says which, and the next call goes on with the bits of eager."""

import json

import pytest
import searches
import torch
import torch.nn.functional as F
from test_recompute_swap import by_hand, kinds
from torch import nn
from torn import SETTLED, WIDE, WORLDS, Loop, Twins
from torn import differs as first_difference
from transform import transformed

import stowage
from stowage.step.replay.step_plan import StepPlan

SOAK = searches.SECONDS


def ops_of(twins) -> int:
    """How often a kernel is called in a planned step."""
    replay = twins.compiled._latest
    replay.executor.inject(1 << 40)
    twins.step()
    return (1 << 40) - replay.executor.injected_in


def throw_everywhere(twins, times: int, every: int) -> int:
    """The k-th op raises, for every k of the step (or some of them); after each error a step that goes through."""
    ops = ops_of(twins)
    thrown = 0
    for k in range(ops) if SOAK else {*range(0, ops, every), ops - 1}:
        twins.compiled._latest.executor.inject(k, times)
        with pytest.raises(RuntimeError, match="injected") as caught:
            twins.call()
        twins.compiled._latest.executor.inject(-1, 0)
        twins.stopped(caught.value)
        thrown += 1
        twins.step()
    assert twins.compiled.refusal == ""
    return thrown


@pytest.mark.parametrize("edited", [False, True], ids=["plain", "edited"])
@pytest.mark.parametrize("name", list(WORLDS))
def test_every_op(name, edited, monkeypatch):
    """What is small can always be taken back, even where the op raises again."""
    plans = by_hand(monkeypatch, lambda g, p: transformed(g, p, 5, 8, 6)) if edited else []
    for check in ("never", "always"):
        twins = Twins(WORLDS[name], check=check, budget=1 << 34 if edited else None)
        twins.settle()
        thrown = throw_everywhere(twins, 2, 7)
        assert twins.befores == thrown
    if edited:
        found = kinds(plans[-1])
        assert found["again"] >= 2 and found["in"] >= 2, found


@pytest.mark.parametrize("name", list(WORLDS))
def test_every_op_of_a_wide_model(name):
    """Updates are not copied: an op that raises after the first one runs once more, and the step comes to its end."""
    twins = Twins(lambda: WORLDS[name](WIDE[name]), check="never")
    twins.settle()
    throw_everywhere(twins, 1, 9)
    assert twins.befores > 0 and twins.afters > 0


def test_an_op_that_fails_twice_after_updates_says_so():
    twins = Twins(lambda: WORLDS["mlp"](WIDE["mlp"]), check="never")
    twins.settle()
    twins.compiled._latest.executor.inject(ops_of(twins) - 1, 2)
    with pytest.raises(stowage.Error, match="injected.*half done .* go back to a checkpoint"):
        twins.call()
    assert torch.ones(2).sum() == 2


# ---- Plans made anew at the end of a call that has trained


class Interrupt(BaseException):
    pass


def cannot(twins, monkeypatch, error):
    """From now on plans made after a rehearsal, which saw other allocations, end in ``error``."""
    made = StepPlan.make

    def make(plan):
        if plan._rehearsed:
            raise error
        made(plan)

    def learned(plan):
        plan._rehearsed = True
        plan.make()

    monkeypatch.setattr(StepPlan, "make", make)
    monkeypatch.setattr(StepPlan, "replan_if_learned", learned)


@pytest.mark.parametrize("name", list(WORLDS))
@pytest.mark.parametrize("error", [stowage.Infeasible("no plan", 7, 5), stowage.OutOfMemory("no plan")], ids=repr)
def test_no_plan_keeps_the_budget_after_a_rehearsal(name, error, monkeypatch):
    """The call has trained and gives its result; the next one raises and changes nothing, as does each after it."""
    twins = Twins(WORLDS[name], budget=1 << 34)
    cannot(twins, monkeypatch, error)
    calls = 0
    while True:
        try:
            planned = twins.call()
        except type(error) as caught:
            twins.stopped(caught)
            break
        twins.agree(planned)
        calls += 1
    assert 2 < calls < SETTLED
    for _ in range(2):
        with pytest.raises(type(error), match="no plan") as caught:
            twins.call()
        twins.stopped(caught.value)
    assert twins.befores == 3 and twins.compiled.stats()["planned_steps"] == 0


@pytest.mark.parametrize("name", list(WORLDS))
@pytest.mark.parametrize("budget", [None, 1 << 34])
@pytest.mark.parametrize("error", [Interrupt(), MemoryError(), stowage.Error("a fault")], ids=repr)
def test_errors_after_a_rehearsal(name, budget, error, monkeypatch):
    """Of planning: the call that has trained says so, or gives its result."""
    twins = Twins(WORLDS[name], budget=budget)
    cannot(twins, monkeypatch, error)
    for _ in range(SETTLED):
        try:
            planned = twins.call()
        except type(error) as caught:
            twins.stopped(caught)
            break
        twins.agree(planned)
    within = budget is not None and isinstance(error, stowage.Error)
    assert (twins.befores, twins.afters) == ((1, 0) if within else (0, 1))


def test_costs_for_which_no_plan_is_found_keep_the_one_there_is(monkeypatch):
    """It keeps the budget whatever its ops cost."""
    plans, refused = [], []

    def planned_once(*args, **options):
        if plans:
            refused.append(args)
            raise stowage.Infeasible("no plan", 7, 5)
        plans.append(plan(*args, **options))
        return plans[-1]

    plan = stowage.step.replay.step_plan.plan
    monkeypatch.setattr(stowage.step.replay.step_plan, "plan", planned_once)
    monkeypatch.setattr(StepPlan, "_take_kept_costs", lambda plan, lowered, options: setattr(plan, "_guessed", 1.0))
    twins = Twins(WORLDS["mlp"], budget=1 << 34)
    twins.settle()
    kept, first = (json.loads(p._plan.to_json()) for p in (twins.compiled.plan, plans[0]))
    assert refused and kept["steps"] == first["steps"] and kept["placements"] == first["placements"]


# ---- Operators that raise because of what they are given: in calls of every kind


@torch.library.custom_op("torn::tap", mutates_args=())
def tap(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
    if flag.item():
        raise RuntimeError("tapped")
    return x.clone()


@torch.library.custom_op("torn::update", mutates_args=("p", "m"))
def update(p: torch.Tensor, m: torch.Tensor, grad: torch.Tensor, flag: torch.Tensor) -> None:
    """Raises when half of it is done."""
    m.mul_(0.9).add_(grad)
    if flag.item():
        raise RuntimeError("tapped")
    p.add_(m, alpha=-0.1)


tap.register_fake(lambda x, flag: torch.empty_like(x))
update.register_fake(lambda p, m, grad, flag: None)


def _backward(ctx, grad):
    return torch.ops.torn.tap(grad, ctx.saved_tensors[0]), None


tap.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(torch.roll(inputs[1], 0))
)
LAYERS = 3


def tapped(width: int = 16) -> Loop:
    """Layers with running statistics; a tap after each, in forward and in backward, and updates that may raise."""
    model = nn.ModuleList(
        nn.Sequential(nn.Linear(8 if i == 0 else width, width), nn.BatchNorm1d(6)) for i in range(LAYERS)
    ).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)  # only holds the parameters
    loop = Loop(model, optimizer)
    loop.momenta = [torch.zeros_like(p) for p in model.parameters()]
    state = loop.state
    loop.state = lambda: state() | {f"momentum {i}": m.clone() for i, m in enumerate(loop.momenta)}

    def step(x, y):
        flags = x[0].flatten() > 100
        optimizer.zero_grad()
        h = x.clamp(max=10)
        for i, layer in enumerate(model):
            h = torch.ops.torn.tap(F.dropout(layer(h), 0.1).tanh(), flags[i])
            h = Both.apply(h, flags[LAYERS + i])
        loss = h.pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for i, (p, m) in enumerate(zip(model.parameters(), loop.momenta)):
                torch.ops.torn.update(p, m, p.grad, flags[2 * LAYERS + i])
        return loss.detach()

    loop.step = step
    return loop


class Both(torch.autograd.Function):
    """Raises in backward alone."""

    @staticmethod
    def forward(ctx, x, flag):
        ctx.save_for_backward(flag)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.torn.tap(grad, ctx.saved_tensors[0]), None


TAPS = 2 * LAYERS + 4 * LAYERS


@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("width", [16, 128])
def test_operators_that_raise(width, check):
    """In the recorded calls, in the rehearsal, in calls whose Python runs and in those where it does not."""
    seen = set()
    for k in range(TAPS) if SOAK else (0, LAYERS - 1, LAYERS, 2 * LAYERS - 1, 2 * LAYERS, 2 * LAYERS + 5, TAPS - 1):
        twins = Twins(lambda: tapped(width), check=check)
        twins.step()  # before anything is known of the step, it is eager
        for _call in range(7):
            good = twins.batch
            bad = good[0].clone()
            bad[0].view(-1)[k] = 1000
            twins.batch = bad, good[1]
            with pytest.raises(RuntimeError, match="tapped") as caught:
                twins.call()
            twins.stopped(caught.value)
            twins.batch = good
            stats = twins.compiled.stats()
            seen.add((stats["planned_steps"] > 0, stats["checked_steps"] > 0))
            twins.step()
        assert twins.befores == 7 and twins.compiled.refusal == ""
    assert len(seen) == 3, seen


@pytest.mark.parametrize("check", ["never", "always"])
@pytest.mark.parametrize("differs", [False, True], ids=["as recorded", "leaves"])
def test_bad_data_within_a_budget(check, differs):
    """A call that a budget runs eagerly stops as eager does, or is taken back as a whole: running statistics,
    generator, gradients, counters."""

    def normed() -> Loop:
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(16, 5)).train()
        optimizer = torch.optim.NAdam(model.parameters(), 0.01)
        loop = Loop(model, optimizer)
        loop.begins = True

        def step(x, y):
            if loop.begins:
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        loop.step = step
        return loop

    befores = 0
    for call in range(1, 7):
        twins = Twins(normed, check=check, budget=1 << 30)
        for _ in range(call):
            twins.step()
        good = twins.batch
        twins.batch = good[0], torch.full_like(good[1], 9)
        twins.planned.begins = twins.eager.begins = not differs
        with pytest.raises(IndexError) as caught:
            twins.call()
        befores += stopped_as_eager(twins, caught.value)
        twins.batch = good
        twins.planned.begins = twins.eager.begins = True
        twins.step()
    assert befores >= (4 if not differs else 1)


def stopped_as_eager(twins, error) -> bool:
    """The state is that before the call, and the error says so; else that after the same error in eager."""
    now, gradients = twins.planned.state(), twins.planned.gradients()
    twins.planned.generator = torch.get_rng_state()
    said = (
        any("nothing of this step has happened" in note for note in error.__notes__)
        if hasattr(error, "__notes__")
        else False
    )
    if not first_difference(twins.before, now):
        assert said and all(g is None or torch.equal(g, b) for g, b in zip(gradients, twins.grads_before))
        return True
    with pytest.raises(IndexError):
        twins.eagerly()
    twins.eager.generator = torch.get_rng_state()
    assert not said and not first_difference(twins.eager.state(), now)
    assert all((a is None and b is None) or torch.equal(a, b) for a, b in zip(gradients, twins.eager.gradients()))
    return False
