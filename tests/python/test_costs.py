"""Costs are measured in planned steps and kept in a file that several processes may share and that may be damaged."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
import zoo
from training import OPTIMIZERS, assert_same_state, plain_step, train

import stowage
import stowage.cache.costs
from stowage import _runtime
from stowage.cache.costs import CostFile, cost_file

MACHINE = {"torch": "x", "cpu": "y", "threads": 1}


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stowage.cache.costs, "_FILES", {})
    return tmp_path / "stowage"


def test_planned_steps_write_the_file(fresh):
    train("gpt2", compiled=True, count=7)
    (path,) = fresh.iterdir()
    data = json.loads(path.read_text())
    assert data["machine"] == {"torch": torch.__version__, "cpu": stowage.cache.costs._cpu_model(), "threads": 1}
    matmuls = [key for key in data["ops"] if key.startswith("aten::addmm(")]
    assert matmuls and all(len(samples) == 4 and min(samples) > 0 for samples in data["ops"].values())
    # The learning rate is no part of a key, shapes are.
    assert len(matmuls) == len(set(matmuls)) and all("[" in key for key in matmuls)


def test_a_second_process_prices_its_graph_from_the_file(fresh):
    run = train("gpt2", compiled=True, count=7)
    first = cost_file(_runtime.kernel_threads()[1])
    stowage.cache.costs._FILES.clear()
    second = cost_file(_runtime.kernel_threads()[1])
    assert second is not first and {k: second.cost_ns(k) for k in first.ops} == {k: first.cost_ns(k) for k in first.ops}
    model, loss_fn, batches = zoo.make("gpt2")
    graph = stowage.capture(
        plain_step(model, OPTIMIZERS["adamw"](model.parameters(), foreach=False), loss_fn), batches[0]
    )
    keys = run.step._latest.planned._cost_keys
    known = sum(second.cost_ns(key) for key in keys if key)
    assert graph.program_step_ns == known


def test_summary_tells_the_measured_time(fresh):
    """Without a budget the plan stays as it is, with the costs of the rehearsal."""
    run = train("vit", compiled=True, count=4)
    plan, graph = run.step.plan, run.step.graph
    assert plan.summary()["step_ns"] == graph.program_step_ns
    stowage.check(graph, plan)
    assert_same_state(train("vit", count=4), run)


def test_merging_keeps_what_others_have_written(tmp_path):
    path = tmp_path / "costs.json"
    a, b = CostFile(path, MACHINE), CostFile(path, MACHINE)
    a.add([("k", 10), ("k", 30), ("k", 20), ("only a", 1)])
    a.save()
    b.add([("k", 50), ("only b", 2)])
    b.save()
    c = CostFile(path, MACHINE)
    assert (c.cost_ns("k"), c.cost_ns("only a"), c.cost_ns("only b"), c.cost_ns("nobody")) == (50, 1, 2, None)
    assert [f.name for f in tmp_path.iterdir()] == ["costs.json"]  # no temporary file stays


def test_the_file_keeps_the_keys_that_were_measured_last(tmp_path, monkeypatch):
    monkeypatch.setattr(stowage.cache.costs, "_MOST_KEYS", 3)
    path = tmp_path / "costs.json"
    for batch in (["a", "b", "c"], ["a", "d"]):
        costs = CostFile(path, MACHINE)
        costs.add([(key, 1) for key in batch])
        costs.save()
    assert list(CostFile(path, MACHINE).ops) == ["c", "a", "d"]


def test_samples_are_limited_and_the_median_counts(tmp_path):
    costs = CostFile(tmp_path / "costs.json", MACHINE)
    for ns in (10**9, *[100] * 7):  # one slow first touch
        costs.add([("k", ns)])
    assert costs.cost_ns("k") == 100
    for _ in range(20):
        costs.add([("k", 7)])
    assert len(costs.ops["k"]) == 8 and costs.cost_ns("k") == 7


@pytest.mark.parametrize("content", [
    "", "{", "[]", '{"format": "stowage-costs"}',
    '{"format": "stowage-costs", "version": 1, "machine": {}, "ops": {}, "link_gbps": {}}',
    json.dumps({"format": "stowage-costs", "version": 1, "machine": MACHINE, "ops": {"k": 3}, "link_gbps": {}}),
])  # fmt: skip
def test_a_damaged_file_is_ignored_and_written_anew(content, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.warns(UserWarning, match="ignored"):
        costs = CostFile(path, MACHINE)
    assert costs.ops == {}
    costs.add([("k", 5)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs.save()
    assert CostFile(path, MACHINE).cost_ns("k") == 5


def test_no_place_for_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    costs = CostFile(tmp_path / "file" / "costs.json", MACHINE)
    costs.add([("k", 5)])
    costs.save()
    assert costs.cost_ns("k") == 5


def test_the_link_is_measured_once(fresh):
    host = stowage._runtime.Host()
    gbps = cost_file(_runtime.kernel_threads()[1]).lane_gbps(host, "memory")
    assert 0.1 < gbps < 1000
    stowage.cache.costs._FILES.clear()
    assert cost_file(_runtime.kernel_threads()[1]).lane_gbps(None, "memory") == gbps  # from the file
    assert host.bytes == 0
    assert os.listdir(fresh)


def test_a_program_that_plans_often_saves_now_and_then_and_at_its_end(tmp_path):
    script = tmp_path / "often.py"
    script.write_text(
        """
import json, sys
from pathlib import Path
from stowage.cache import costs

file = costs.CostFile(Path(sys.argv[1]), {"torch": "x", "cpu": "y", "threads": 1})
saves = []
save = file.save
file.save = lambda: (saves.append(1), save())[1]
for i in range(200):
    file.add([(f"op {i}", 1000 + i)])
    file.save_in_time()
assert 1 <= len(saves) < 50, len(saves)
"""
    )
    path = tmp_path / "cache" / "costs.json"
    subprocess.run([sys.executable, script, path], check=True)
    assert len(json.loads(path.read_text())["ops"]) == 200
