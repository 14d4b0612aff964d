"""stowage.compile(step, budget=...): the limit holds from the first call on, also where plain eager does not fit."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage import _runtime
from stowage.errors import UnsupportedWarning

STEPS = 6
WIDTH = 48

pytestmark = pytest.mark.alone


class Net(nn.Module):
    """BatchNorm, dropout, in-place ReLU; its activations are many times its parameters."""

    def __init__(self, depth: int = 8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(depth))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.dropout(torch.sin(F.relu_(norm(layer(x)))), 0.1, self.training)
        return x


class Training:
    """Batches are made when they are needed, so that nothing but the step is alive."""

    def __init__(self):
        gc.collect()
        self.outside = _runtime.live_bytes()
        torch.manual_seed(5)
        self.model = Net().train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses = []

    def step(self):
        model, optimizer = self.model, self.optimizer

        def train_step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train_step

    def run(self, step, sizes) -> int:
        """Peak of all that is alive, less what was before."""
        _runtime.reset_peak()
        torch.manual_seed(11)
        for size in sizes:
            self.losses.append(float(step(torch.randn(size, WIDTH))))
        return _runtime.peak_bytes() - self.outside

    def state(self):
        tensors = [*self.model.state_dict().items()]
        for i, state in enumerate(self.optimizer.state.values()):
            tensors += [(f"{i}.{key}", value) for key, value in state.items()]
        return [(name, bytes(t.untyped_storage())) for name, t in [*tensors, ("generator", torch.get_rng_state())]]


def assert_same(expected: Training, got: Training) -> None:
    assert expected.losses == got.losses
    for (name, x), (_, y) in zip(expected.state(), got.state(), strict=True):
        assert x == y, name


def eager(sizes) -> tuple[Training, int]:
    training = Training()
    return training, training.run(training.step(), sizes)


@pytest.mark.parametrize(("sizes", "planned"), [([400] * STEPS, 2), ([300] * STEPS + [400] * STEPS + [300, 400], 6)])
def test_a_step_that_does_not_fit_is_compiled_under_its_budget(sizes, planned):
    """With batches of one shape, and of others midway, which are recorded under the budget too."""
    expected, peak = eager(sizes)
    budget = int(peak * 0.6)
    got = Training()
    step = stowage.compile(got.step(), budget=budget, strict=True)
    assert got.run(step, sizes) <= budget
    assert step.refusal == ""
    assert step.stats()["planned_steps"] >= planned
    assert_same(expected, got)


def reading_data(step):
    """Counts what is different in its batch, so it is never planned."""

    def reads_data(x):
        torch.unique(x[:1], dim=0)
        return step(x)

    return reads_data


def test_checks_and_steps_that_are_never_planned_stay_within_the_budget():
    sizes = [400] * 8
    expected, peak = eager(sizes)
    budget = int(peak * 0.6)
    checked = Training()
    step = stowage.compile(checked.step(), budget=budget, check_every=2)
    assert checked.run(step, sizes) <= budget
    assert step.stats()["planned_steps"] >= 2
    assert_same(expected, checked)

    refused = Training()
    step = stowage.compile(reading_data(refused.step()), budget=budget)
    with pytest.warns(UnsupportedWarning, match="unique"):
        assert refused.run(step, sizes) <= budget
    assert_same(expected, refused)


def test_what_recordings_keep_alive_counts_too(monkeypatch):
    """Numbers on the tapes of earlier calls: a kilobyte, by which a later call would otherwise pass the budget."""
    sizes = [300] * 3 + [400] * 3 + [300, 400]
    _, peak = eager(sizes)
    got = Training()
    limits = []
    again = stowage.budget._again
    monkeypatch.setattr(
        stowage.budget, "_again", lambda block, limit: limits.append(limit - got.outside) or again(block, limit)
    )
    budget = int(peak * 0.6)
    got.run(stowage.compile(got.step(), budget=budget, strict=True), sizes)
    assert len(limits) >= 5
    assert max(limits) <= budget + 4, limits  # the loss of the rehearsed step, which the eager one is compared with


def test_calls_that_are_never_planned_learn_from_each_other():
    """One block serves them all: what follows which op is foreseen from the second call on, and a limit far away puts
    it to sleep."""

    def stats_of(share: float, calls: int) -> list[dict]:
        training = Training()
        step = stowage.compile(reading_data(training.step()), budget=int(peak * share))
        found = []
        with pytest.warns(UnsupportedWarning, match="unique"):
            for _ in range(calls):
                training.run(step, [400])
                found.append(step._eager_calls._block.stats())
        assert_same(expected, training)
        return found

    expected, peak = eager([400])
    for _ in range(5):
        expected.run(expected.step(), [400])
    tight, far = stats_of(0.6, 6), stats_of(4, 6)
    assert tight[-1]["policy"]["foreseen_ops"] > 0.6 * tight[-1]["ops"]
    assert tight[-1]["evictions"] > tight[-2]["evictions"] > 0
    assert far[-1]["evictions"] == 0
    assert far[-1]["ops"] == far[-2]["ops"] > 0


def recorded(training, train_step, budget):
    """The tape of one step, recorded under a budget or not."""
    from stowage.step.eager_calls import EagerCalls
    from stowage.step.reach.world import World
    from stowage.step.record.recording import record
    from stowage.step.replay.room import Room

    x = training.batch
    world = World(train_step)
    room = Room.of_environment(_runtime.Arena(), None)
    within = EagerCalls(budget, None, room, leaving=False).call(lambda: world, [x]).within() if budget else None
    recording = record(train_step, (x,), {}, [x], world=world, within=within)
    assert recording.refusal == ""
    return recording.tape


def test_the_recording_is_that_of_plain_eager():
    """Neither the moves of tensors nor what is allocated to bring them back is on the tape."""
    _, peak = eager([400] * 2)
    training = Training()
    train_step = training.step()
    training.batch = torch.randn(400, WIDTH)
    train_step(training.batch)
    plain, limited = recorded(training, train_step, None), recorded(training, train_step, int(peak * 0.5))
    assert plain.same_program(limited) == ""
    graphs = [_runtime.lower(tape, "step", _runtime.RowSlicing()).graph for tape in (plain, limited)]
    assert graphs[0].program_peak_bytes == graphs[1].program_peak_bytes
    assert graphs[0].resident_bytes == graphs[1].resident_bytes


@pytest.mark.alone  # what else is alive would make room
@pytest.mark.parametrize("calls", [0, 1])
def test_too_small_a_budget_leaves_everything_as_it_was(calls):
    """The first call, and the recorded one: parameters, BatchNorm's statistics, moments, gradients, generator."""
    training = Training()
    train_step = training.step()
    x = torch.randn(400, WIDTH)
    for _ in range(calls):
        train_step(x)
    before = training.state()
    grads = [p.grad for p in training.model.parameters()]
    step = stowage.compile(train_step, budget=150_000)
    for _ in range(2):
        with pytest.raises(stowage.OutOfMemory, match="does not run eagerly within its budget of .*at least") as caught:
            step(x)
        assert caught.value.bound_bytes > 150_000
    for (name, t), (_, u) in zip(before, training.state(), strict=True):
        assert t == u, name
    assert all(a is p.grad for a, p in zip(grads, training.model.parameters(), strict=True))
    assert step.stats()["eager_steps"] == 0
    train_step(x)
