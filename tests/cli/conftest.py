"""Runs the command line as a user would. STOWAGE_CLI names the executable (default: the release build)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Cli:
    def __init__(self, executable):
        self.executable = executable

    def __call__(self, *arguments, stdin=b"", timeout=60):
        """Runs `stowage ARGUMENTS`; a sanitizer's report or a signal is a failure here and now."""
        done = subprocess.run(
            [self.executable, *map(str, arguments)], input=stdin, capture_output=True, timeout=timeout
        )
        done.stdout = done.stdout.decode()
        done.stderr = done.stderr.decode(errors="replace")
        assert done.returncode in range(7), f"exit {done.returncode}: {done.stderr}"
        assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
        return done

    def json(self, *arguments, code=0):
        """The object that `stowage ARGUMENTS --json` prints."""
        done = self(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def cli():
    executable = os.environ.get("STOWAGE_CLI", str(ROOT / "build/release/bin/stowage"))
    if not os.access(executable, os.X_OK):
        pytest.skip(f"{executable} is not built")
    return Cli(executable)


def small_graph():
    """A step of three layers: weights w, activations a, gradients g, an update in place, a loss that is returned."""
    buffers, ops = [], []

    def buffer(name, size, kind, **more):
        buffers.append({"name": name, "bytes": size, "kind": kind, **more})
        return len(buffers) - 1

    weights = [buffer(f"w{i}", 256, "parameter", resident=True) for i in range(3)]
    previous, activations = None, []
    for i, weight in enumerate(weights):
        a = buffer(f"a{i}", 1000 + 100 * i, "activation")
        reads = [weight] if previous is None else [weight, previous]
        ops.append({"name": f"forward{i}", "target": "f", "reads": reads, "creates": [a], "cost_ns": 1000})
        activations.append(a)
        previous = a
    loss = buffer("loss", 4, "output", returned=True)
    gradient = buffer("g", 900, "gradient")
    ops.append({"name": "loss", "target": "l", "reads": [previous], "creates": [loss, gradient], "cost_ns": 500})
    for i in reversed(range(3)):
        update = buffer(f"gw{i}", 256, "gradient")
        following = buffer(f"g{i}", 900, "gradient")
        ops.append(
            {
                "name": f"backward{i}",
                "target": "b",
                "reads": [gradient, activations[i], weights[i]],
                "creates": [update, following],
                "cost_ns": 2000,
                "scratch": [{"bytes": 300, "from": 0, "to": 1}],
            }
        )
        gradient = following
        ops.append({"name": f"step{i}", "target": "s", "reads": [update], "writes": [weights[i]], "cost_ns": 100})
    return {
        "format": "stowage-graph",
        "version": 1,
        "name": "small",
        "align": 64,
        "meta": {},
        "buffers": buffers,
        "ops": ops,
    }


@pytest.fixture(name="small_graph")
def small_graph_value():
    return small_graph()


@pytest.fixture
def graph(tmp_path):
    path = tmp_path / "small.graph.json"
    path.write_text(json.dumps(small_graph()))
    return path


@pytest.fixture
def plan(cli, graph, tmp_path):
    path = tmp_path / "small.plan.json"
    assert cli("plan", graph, "-o", path).returncode == 0
    return path


@pytest.fixture
def intervals(tmp_path):
    path = tmp_path / "intervals.csv"
    path.write_text("id,lower,upper,size\na,0,3,4\nb,1,5,4\nc,3,6,8\nd,5,9,4\n")
    return path
