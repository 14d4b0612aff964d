"""A checkpoint is loaded between calls, states are made anew, parameters are moved: recordings of what was before do not hold
its memory. Where it comes back (weights exchanged with their averages), the plans of both serve."""

import copy
import gc
import io

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


CHANGES = {"loads": loads, "copies": copies, "clones states": clones_states, "moves parameters": moves_parameters}


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
    assert max(lives) - lives[0] <= 6 * kept, [n - before for n in lives]  # two generations of what is moved


@pytest.mark.parametrize("change", ["loads", "copies", "clones states"])
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
