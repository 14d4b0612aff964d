"""Progress: on a pseudo-terminal once a second has passed, silent elsewhere, a callable as a value; rich is not
imported before."""

import os
import pty
import subprocess
import sys
import textwrap

import pytest
import torch

import stowage
from stowage.report import progress

SCRIPT = """
import sys, time
from stowage.report import progress
progress.PATIENCE_S = float(sys.argv[1])
with progress.shown("recording a step") as report:
    report("order", 0.25)
    time.sleep(0.6)
    with progress.shown("planning"):
        time.sleep(0.4)
print("rich" in sys.modules)
"""


def run_on_terminal(code: str, *arguments: str) -> tuple[str, str]:
    """stdout, and what a terminal on stderr was sent."""
    ours, theirs = pty.openpty()
    environment = dict(os.environ, TERM="xterm", COLUMNS="100")
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    return out, seen.decode()


def test_a_terminal_sees_what_is_done_and_how_far():
    out, seen = run_on_terminal(SCRIPT, "0.1")
    assert "stowage: recording a step, order 25 %" in seen
    assert "stowage: recording a step, planning" in seen
    assert out.strip() == "True"


def test_a_terminal_sees_nothing_of_what_is_quick():
    out, seen = run_on_terminal(SCRIPT, "30")
    assert seen == "" and out.strip() == "False"


def test_elsewhere_there_is_silence():
    done = subprocess.run([sys.executable, "-c", SCRIPT, "0.1"], capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.strip() == "False"


def small_graph():
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return stowage.capture(train_step, torch.ones(2, 8))


def test_a_callable_is_told_the_phases():
    told = []
    stowage.plan(small_graph(), progress=lambda what, fraction: told.append((what, fraction)))
    assert ("planning, order", 0.0) in told and ("planning, layout", 1.0) in told
    assert all(0 <= fraction <= 1 for _, fraction in told)


def test_what_the_callable_raises_ends_planning():
    def stop(what, fraction):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stowage.plan(small_graph(), progress=stop)


def test_a_stderr_that_is_gone_is_nobody_looking(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress.visible()
