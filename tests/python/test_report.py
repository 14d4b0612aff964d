"""Reports of recorded steps: the page, the trace, and the snapshot as PyTorch's own viewer reads it, beside one that
was measured."""

import json
import pickle
import re

import pytest
import torch
from torch.cuda import _memory_viz

import stowage
from stowage.report.reports import write_report


def small_step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train_step(x):
        hidden = model(x)
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step, torch.randn(16, 32)


@pytest.fixture(scope="module")
def planned():
    train_step, x = small_step()
    step = stowage.compile(train_step)
    for _ in range(5):
        step(x)
    assert step.stats()["planned_steps"] > 0
    return step


def replayed_peak(snapshot) -> int:
    """The most bytes that a snapshot's trace has live; allocations are found again, inside a segment, and never
    overlap."""
    live, peak = {}, 0
    for trace in snapshot["device_traces"]:
        for event in trace:
            start, end = event["addr"], event["addr"] + event["size"]
            if event["action"] == "alloc":
                assert all(end <= a or b <= start for a, b in live.values()), event
                assert any(
                    s["address"] <= start and end <= s["address"] + s["total_size"] for s in snapshot["segments"]
                )
                live[start] = (start, end)
            elif event["action"] == "free_completed":
                assert live.pop(start) == (start, end)
            peak = max(peak, sum(b - a for a, b in live.values()))
    return peak


def shown_by_pytorch(snapshot) -> tuple[str, str, str]:
    return _memory_viz.segsum(snapshot), _memory_viz.trace(snapshot), _memory_viz.trace_plot(snapshot)


def test_the_snapshot_opens_in_pytorchs_viewer_beside_a_measured_one(planned, tmp_path):
    path = tmp_path / "step.pickle"
    planned.report(path)
    ours = pickle.loads(path.read_bytes())
    segments, trace, page = shown_by_pytorch(ours)
    assert "segment" in segments or "block" in segments.lower()
    allocations = sum(e["action"] == "alloc" for e in ours["device_traces"][0])
    # Each in a segment that the trace made
    assert len(re.findall(r"^\w+ = [a-z]\d*\[\d+:", trace, re.MULTILINE)) == allocations > 20
    assert trace.count("cudaMalloc") == 2 and "MEM[" not in trace
    assert "Active Memory Timeline" in page
    lines = {
        (f["filename"], f["line"])
        for e in ours["device_traces"][0]
        for f in e["frames"]
        if f["filename"].endswith("test_report.py")
    }
    assert len(lines) >= 3

    train_step, x = small_step()
    train_step(x)
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        train_step(x)
    measured = _memory_viz._profile_to_snapshot(profile)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(measured)
    # The viewer's own totals: what is there at the end of a step is what is there at the end of the plan, parameters
    # and states.
    at_end = {id(s): sum(b["size"] for b in s["blocks"] if b["state"] == "active_allocated") for s in ours["segments"]}
    assert sum(at_end.values()) >= planned.stats()["resident_bytes"] > 0
    for key in ("action", "addr", "size", "stream", "frames"):
        assert key in measured["device_traces"][-1][0] and key in ours["device_traces"][0][0]


def test_the_snapshots_peak_is_that_of_the_plan(tmp_path):
    train_step, x = small_step()
    graph = stowage.capture(train_step, x)
    plan = stowage.plan(graph)
    plan.report(tmp_path / "plan.pickle")
    snapshot = pickle.loads((tmp_path / "plan.pickle").read_bytes())
    unpadded = 64 * (graph.buffers + graph.ops)
    peak = replayed_peak(snapshot) - graph.resident_bytes
    assert plan.summary()["peak_bytes"] - unpadded < peak <= plan.summary()["peak_bytes"]
    assert snapshot["segments"][-1]["total_size"] == plan.arena_bytes


def test_the_page_and_the_trace_name_the_lines_of_the_step(planned, tmp_path):
    planned.report(tmp_path / "step.html")
    planned.report(tmp_path / "step.perfetto.json")
    slices = [e for e in json.loads((tmp_path / "step.perfetto.json").read_text())["traceEvents"] if e["ph"] == "X"]
    lines = {e["args"].get("line", "").rsplit("/", 1)[-1] for e in slices}
    assert len([line for line in lines if line.startswith("test_report.py:")]) >= 3
    assert (tmp_path / "step.html").stat().st_size > 50_000


def test_pages_without_a_plan(tmp_path):
    entries = [
        {"t_ns": 1_000_000 + k, "event": "live" if k % 2 else "drop", "bytes": 64 * k, "op": None} for k in range(9)
    ]
    write_report(tmp_path / "eager.html", timeline=entries, limit_bytes=512)
    row = {
        "tensor": "w",
        "bytes": 64,
        "placement": "S0",
        "local_bytes": 32,
        "redundant_bytes": 0,
        "why": "",
        "more": "is left out",
    }
    write_report(tmp_path / "sharding.html", ledger=[row], devices=2)
    for wrong in ({}, {"ledger": [row], "graph": object()}):
        with pytest.raises(TypeError):
            write_report(tmp_path / "wrong.html", **wrong)
    with pytest.raises(stowage.Error, match="must end in .html"):
        write_report(tmp_path / "eager.pickle", timeline=entries)


def test_what_cannot_be_reported_says_why(tmp_path):
    train_step, x = small_step()
    step = stowage.compile(train_step)
    with pytest.raises(stowage.Error, match="nothing is planned yet"):
        step.report(tmp_path / "step.html")
    graph = stowage.capture(train_step, x)
    plan = stowage.plan(graph)
    plan.save(tmp_path / "plan.json")
    loaded = stowage.Plan.load(tmp_path / "plan.json")
    with pytest.raises(TypeError, match="needs its graph"):
        loaded.report(tmp_path / "plan.html")
    loaded.report(tmp_path / "plan.html", graph)
    with pytest.raises(stowage.Error, match="must end in"):
        plan.report(tmp_path / "plan.txt")
    other = stowage.capture(lambda y: (y * 2).sum(), x)
    with pytest.raises(stowage.InvalidPlan):
        plan.report(tmp_path / "other.html", other)
