"""What a process has of the system's memory while its steps are planned: residents and the arena, and nothing that the calls which
ran eagerly have left; while one is recorded anew, what eager needs, and no arena beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime

ROWS, WIDTH = 20_000, 256  # 20 MB a tensor


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out, self.scale = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), 1.0
        self.more = False

    def forward(self, x):
        x = self.out(torch.tanh(self.layer(x))) * self.scale
        return torch.sigmoid(x) if self.more else x


def _training():
    torch.manual_seed(0)
    model = _Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def body(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, body


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_a_process_of_its_own(changes: bool) -> None:
    torch.set_num_threads(1)
    model, body = _training()
    x = torch.ones(ROWS, WIDTH)
    before = _resident_bytes()
    step = stowage.compile(body)
    for call in range(16):
        if changes and call in (6, 7, 12):
            model.scale += 1
        step(x)
    stats = step.stats()
    assert stats["planned_steps"] >= (6 if changes else 12), step.refusal
    print(json.dumps({"more": _resident_bytes() - before, "arena": stats["arena_bytes"]}))


@pytest.mark.parametrize("changes", [False, True])
def test_planned_calls_have_their_arena_alone(changes):
    here = os.path.dirname(os.path.abspath(__file__))
    code = f"import sys; sys.path.insert(0, {here!r}); import test_memory_of_a_process as t; t.in_a_process_of_its_own({changes})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["more"] < found["arena"] + (40 << 20), (
        found
    )  # code and tables of the process; eager keeps 100 MB and more


@pytest.mark.parametrize("way", ["a number", "an operator"])
def test_a_call_that_is_recorded_anew_has_no_arena_beside_it(way):
    """Nor has one that leaves what was recorded."""
    model, body = _training()
    x = torch.ones(ROWS, WIDTH)
    peaks = []
    for model.more in (False, False, True, True):
        _runtime.reset_peak()
        live = _runtime.live_bytes()
        body(x)
        peaks.append(_runtime.peak_bytes() - live)
    model, body = _training()
    step = stowage.compile(body)
    for _ in range(6):
        step(x)
    stats = step.stats()
    assert stats["planned_steps"] > 0 and stats["arena_bytes"] > ROWS * WIDTH * 8
    live = _runtime.live_bytes() - stats["arena_bytes"]
    _runtime.reset_peak()
    for _ in range(5):
        if way == "a number":
            model.scale += 1
        else:
            model.more = True
        step(x)
    assert step.stats()["eager_steps"] > stats["eager_steps"]
    assert _runtime.peak_bytes() - live < 1.05 * max(peaks)
