"""Graphs to report on, and a browser to see the reports with."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[2]
ARTEFACTS = ROOT / "build" / "report"  # screenshots, kept to be looked at


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (./dev setup installs it)")
    with Browser() as started:
        yield started


@pytest.fixture(scope="session")
def artefacts():
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return ARTEFACTS


@pytest.fixture(scope="session")
def stowage_cli():
    executable = os.environ.get("STOWAGE_CLI", str(ROOT / "build/release/bin/stowage"))

    def run(*arguments):
        done = subprocess.run([executable, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    return run


def training_graph(layers: int, line: str = "train.py:{}", name: str = "layers") -> dict:
    """Layers forward and backward with an update for each weight; activations of uneven sizes, scratch, in-place reuse,
    source lines."""
    buffers, ops = [], []

    def buffer(called, size, kind, **more):
        buffers.append({"name": called, "bytes": size, "kind": kind, **more})
        return len(buffers) - 1

    def op(called, target, where, **more):
        ops.append(
            {
                "name": called,
                "target": target,
                "cost_ns": 20_000 + 137 * (len(ops) % 11),
                **more,
                "meta": {"line": line.format(where)},
            }
        )

    weights = [buffer(f"layers.{i}.weight", 4096, "parameter", resident=True) for i in range(layers)]
    x = buffer("x", 8192, "input", resident=True)
    saved = []
    for i in range(layers):
        hidden = buffer(f"mm_{i}", 16384 + 512 * (i % 7), "activation")
        out = buffer(f"gelu_{i}", 16384 + 512 * (i % 7), "activation")
        op(
            f"mm_{i}",
            "aten::mm",
            10 + i % 5,
            reads=[weights[i], x],
            creates=[hidden],
            scratch=[{"bytes": 2048, "from": 0, "to": 1}],
        )
        op(f"gelu_{i}", "aten::gelu", 20 + i % 5, reads=[hidden], creates=[out])
        saved.append((x, hidden))
        x = out
    loss, gradient = buffer("loss", 4, "output", returned=True), buffer("grad_loss", 16384, "temporary")
    op("loss", "aten::mse_loss", 40, reads=[x], creates=[loss])
    op("loss_backward", "aten::mse_loss_backward", 41, reads=[x], creates=[gradient])
    updates = []
    for i in reversed(range(layers)):
        inner = buffer(f"gelu_backward_{i}", 16384 + 512 * (i % 7), "temporary")
        weight_gradient = buffer(f"layers.{i}.weight.grad", 4096, "gradient")
        following = buffer(f"mm_backward_{i}", 16384, "temporary")
        source, hidden = saved[i]
        op(f"gelu_backward_{i}", "aten::gelu_backward", 41, reads=[hidden, gradient], creates=[inner],
           **({"takeover": [[hidden, inner]]} if i % 3 == 0 else {}))  # fmt: skip
        op(f"mm_grad_{i}", "aten::mm", 41, reads=[inner, source], creates=[weight_gradient])
        op(f"mm_backward_{i}", "aten::mm", 41, reads=[inner, weights[i]], creates=[following])
        updates.append((weights[i], weight_gradient, i))
        gradient = following
    for weight, weight_gradient, i in updates:
        op(f"adamw_{i}", "aten::_fused_adamw_", 50, reads=[weight_gradient], writes=[weight])
    return {
        "format": "stowage-graph",
        "version": 1,
        "name": name,
        "align": 64,
        "meta": {},
        "buffers": buffers,
        "ops": ops,
    }


@pytest.fixture(scope="session")
def report_of(stowage_cli, tmp_path_factory):
    """Writes a report of a graph, planned with the options; gives the page's address."""

    def write(graph: dict, *plan_options, report_options=(), name="report.html"):
        folder = tmp_path_factory.mktemp("report")
        (folder / "graph.json").write_text(json.dumps(graph))
        stowage_cli("plan", folder / "graph.json", "-o", folder / "plan.json", *plan_options)
        same = [
            o
            for k, o in enumerate(plan_options)
            if o in ("--budget", "--link-gbps") or (k and plan_options[k - 1] in ("--budget", "--link-gbps"))
        ]
        stowage_cli("report", folder / "graph.json", folder / "plan.json", "-o", folder / name, *same, *report_options)
        return (folder / name).as_uri()

    return write
