"""A checkpoint is loaded between calls, states are made anew, parameters are moved: recordings of what was before do not hold
its memory. Where it comes back (weights exchanged with their averages), the plans of both serve."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime

WIDTH = 192


class Training:
    def __init__(self, compiled=True, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.compiled = stowage.compile(self.step, **options) if compiled else self.step
        self.draw = torch.Generator().manual_seed(1)

    def step(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def call(self):
        return self.compiled(torch.randn(256, WIDTH, generator=self.draw))


def loads(t):
    file = io.BytesIO()
    torch.save(t.optimizer.state_dict(), file)
    file.seek(0)
    t.optimizer.load_state_dict(torch.load(file))


def copies(t):
    t.optimizer.load_state_dict(copy.deepcopy(t.optimizer.state_dict()))


def clones_states(t):
    for state in t.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].clone()


def moves_parameters(t):
    for p in t.model.parameters():
        p.data = p.data.clone()


def makes_the_optimizer_anew(t):
    t.optimizer = torch.optim.AdamW(t.model.parameters())


def assigns_parameters(t):
    t.model.load_state_dict({name: p.clone() for name, p in t.model.state_dict().items()}, assign=True)
    makes_the_optimizer_anew(t)


def makes_the_model_anew(t):
    t.model = copy.deepcopy(t.model)
    makes_the_optimizer_anew(t)


CHANGES = {
    "loads": loads,
    "copies": copies,
    "clones states": clones_states,
    "moves parameters": moves_parameters,
    "another optimizer": makes_the_optimizer_anew,
    "assigns parameters": assigns_parameters,
    "another model": makes_the_model_anew,
}


def run(training, change, rounds=8, calls=5):
    left, lives = [], []
    for _ in range(rounds):
        left += [training.call() for _ in range(calls)]
        gc.collect()
        lives.append(_runtime.live_bytes())
        change(training)
    return [*left, *(p.detach().clone() for p in training.model.parameters())], lives


@pytest.mark.parametrize("change", CHANGES)
def test_memory_does_not_grow(change):
    before = _runtime.live_bytes()
    expected, _ = run(Training(compiled=False), CHANGES[change])
    gc.collect()
    training = Training()
    got, lives = run(training, CHANGES[change])
    assert all(map(torch.equal, got, expected))
    assert training.compiled.stats()["planned_steps"] > 0
    kept = sum(p.nbytes for p in training.model.parameters())
    assert max(lives) - lives[0] <= 6 * kept + 16384, [n - before for n in lives]  # two generations of all
    assert max(lives[4:]) <= max(lives[:4]) + 64 * 1024, [n - before for n in lives]


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "moves parameters"])
def test_a_budget_holds(change):
    free = Training()
    expected, _ = run(free, CHANGES[change])
    stats = free.compiled.stats()
    del free
    gc.collect()
    budget = stats["resident_bytes"] + stats["arena_bytes"] * 9 // 10
    training = Training(budget=budget)
    own = _runtime.live_bytes() - sum(p.nbytes for p in training.model.parameters())
    left = []
    for i in range(8):
        for j in range(5):
            x = torch.randn(256, WIDTH, generator=training.draw)
            # In the first call after a change what it has made lives, and it is looked for what has died
            _runtime.reset_peak()
            left.append(training.compiled(x))
            if j > 0:
                assert _runtime.peak_bytes() - own - x.nbytes <= budget + len(left) * 64, (i, j)
        CHANGES[change](training)
    assert all(map(torch.equal, [*left, *training.model.parameters()], expected))


@pytest.mark.parametrize("budgeted", [False, True])
def test_models_that_take_turns(budgeted):
    """Each comes back, and is planned, for as long as it goes on."""
    turns = [Training(compiled=False) for _ in range(2)]
    training = Training(budget="64MiB" if budgeted else None)
    plain = Training(compiled=False)
    alike = [Training(compiled=False) for _ in range(2)]
    planned = 0
    for call in range(60):
        for one, others in ((training, turns), (plain, alike)):
            one.model, one.optimizer = others[call % 2].model, others[call % 2].optimizer
        assert torch.equal(training.call(), plain.call()), call
        if call == 39:
            planned = training.compiled.stats()["planned_steps"]
    assert training.compiled.stats()["planned_steps"] >= planned + 19, training.compiled.refusal


class Reaching(Training):
    """The step could reach much more than it uses."""

    def __init__(self):
        super().__init__()
        large = lambda: torch.zeros(512, 512)
        self.best_model, self.best_tensor = nn.Linear(512, 512), large()
        self.best_weights = {name: p.clone() for name, p in self.best_model.state_dict().items()}
        self.memories, self.caches = [large()], {"first": large(), "second": [large()]}
        self.average_model = torch.optim.swa_utils.AveragedModel(self.best_model)
        self.second_optimizer = torch.optim.SGD([nn.Parameter(large())], 0.1, momentum=0.9)
        self.frozen = nn.Parameter(large(), requires_grad=False)


@pytest.mark.parametrize(
    "name",
    ["best_model", "best_tensor", "best_weights", "memories", "caches", "average_model", "second_optimizer", "frozen"],
)
def test_memory_that_the_step_does_not_use_is_its_owners(name):
    training = Reaching()
    for _ in range(6):
        training.call()
    assert training.compiled.stats()["planned_steps"] > 0
    gc.collect()
    before = _runtime.live_bytes()
    setattr(training, name, None)
    gc.collect()
    assert before - _runtime.live_bytes() >= 512 * 512 * 4
    plain = Training(compiled=False)
    for _ in range(6):
        plain.call()
    planned = training.compiled.stats()["planned_steps"]
    assert all(torch.equal(training.call(), plain.call()) for _ in range(4))
    assert training.compiled.stats()["planned_steps"] == planned + 4


def test_recordings_do_not_hold_those_before_them():
    """Each was recorded beside the earlier ones."""
    training = Training()
    for width in (16, 24, 32):
        for _ in range(6):
            training.compiled(torch.randn(width, WIDTH))
    replays = [weakref.ref(r.recording) for e in training.compiled._entries.values() for r in e.replays[-1:]]
    tapes = [weakref.ref(ref().world) for ref in replays]
    latest = training.compiled._latest
    for entry in training.compiled._entries.values():
        entry.replays = [replay for replay in entry.replays if replay is latest]
    gc.collect()
    assert len(tapes) >= 3 and sum(ref() is not None for ref in tapes) == 1


def test_weights_that_are_exchanged_with_their_averages():
    """Both plans serve, for as long as it goes on."""
    training = Training()
    averages = [p.detach().clone() for p in training.model.parameters()]
    for _ in range(20):
        for p, average in zip(training.model.parameters(), averages):
            held = p.data
            p.data, average.data = average.data, held
        training.call()
    before = training.compiled.stats()["planned_steps"]
    for _ in range(10):
        for p, average in zip(training.model.parameters(), averages):
            held = p.data
            p.data, average.data = average.data, held
        training.call()
    assert training.compiled.stats()["planned_steps"] >= before + 9, training.compiled.refusal
