"""Modelled times with overlap, against a second model that shares nothing with the planner (shard_timeline.py)."""

import json
import random

import pytest
import torch
from searches import first_seed, seeds
from shard_timeline import timeline
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import stowage  # noqa: F401
from stowage import _core
from stowage.sharding.paper import frontier, program_of
from stowage.sharding.program import tensor_ids


def _program(width: int, rows: int, depth: int):
    """Each op on tensors of its own, none on lists."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
        model, batch = nn.Sequential(*layers), torch.zeros(rows, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def train_step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return program_of(train_step, (batch,))


def _mesh(rng: random.Random, sizes: tuple[int, ...]) -> dict:
    """No two ways cost the same."""
    axes = [{"size": n, "latency_ns": rng.uniform(100, 9000), "gbps": rng.uniform(5, 300)} for n in sizes]
    return {"axes": axes, "tflops": rng.uniform(1, 10), "memory_gbps": 1000, "kernel_ns": 1000}


def _plan(program, mesh: dict, **options) -> dict:
    return json.loads(_core.plan_sharding(program.to_json(), json.dumps(mesh), json.dumps(options)))


def _same(plan: dict, program, mesh: dict) -> None:
    found = timeline(json.loads(program.to_json()), mesh, plan)
    for key in ("overlapped_ns", "communication_ns", "links_ns"):
        assert plan[key] == pytest.approx(found[key], rel=1e-9), key
    assert [op["waited_ns"] for op in plan["ops"]] == pytest.approx(found["waited_ns"], rel=1e-9, abs=1e-3)
    assert [op["ahead_bytes"] for op in plan["ops"]] == found["ahead_bytes"]
    assert plan["time"]["value"] == plan["overlapped_ns"]
    assert plan["time"]["bound"] <= plan["time"]["value"] * (1 + 1e-9)


def test_times_are_those_of_the_second_model():
    beside = 0
    for seed in seeds(first_seed(), at_least=6):
        rng = random.Random(seed)
        program = _program(rng.choice((100, 512)), rng.choice((500, 4000)), rng.choice((1, 2)))
        mesh = _mesh(rng, rng.choice(((2,), (4,), (2, 3), (2, 2), (4, 8))))
        goal = rng.choice(("time", "redundancy"))
        plan = _plan(program, mesh, overlap=True, goal=goal, eps=rng.choice((0, 0.2)), time_limit_seconds=20)
        _same(plan, program, mesh)
        beside += plan["overlapped_ns"] < plan["compute_ns"] + plan["communication_ns"]
    assert beside > 1


def test_a_second_model_that_is_told_lies_notices():
    """So that the test above can fail: a bucket, a placement, a time."""
    program, mesh = _program(256, 500, 2), _mesh(random.Random(1), (4, 8))
    plan = _plan(program, mesh, overlap=True, eps=0.2)
    assert plan["bucket_bytes"] > 0
    moved = next(
        (o, i)
        for o, (op, planned) in enumerate(zip(program.ops, plan["ops"], strict=True))
        for i, (t, place) in enumerate(zip(tensor_ids(op), planned["inputs"], strict=True))
        if place != plan["tensors"][t]["placement"] and plan["ops"][o]["communication_ns"]
    )
    home = plan["tensors"][tensor_ids(program.ops[moved[0]])[moved[1]]]["placement"]
    for change in (
        lambda p: p.update(bucket_bytes=0),
        lambda p: p["ops"][0].update(compute_ns=p["ops"][0]["compute_ns"] + 1e6),
        lambda p: p["ops"][moved[0]]["inputs"].__setitem__(moved[1], home),
    ):
        lie = json.loads(json.dumps(plan))
        change(lie)
        with pytest.raises(AssertionError):
            _same(lie, program, mesh)


def test_without_overlap_nothing_of_it_is_said():
    program, mesh = _program(32, 64, 1), _mesh(random.Random(0), (2,))
    plan = _plan(program, mesh)
    assert not {"overlapped_ns", "links_ns", "bucket_bytes"} & set(plan)
    assert not {"waited_ns", "ahead_bytes"} & set(plan["ops"][0])
    assert plan["time"]["value"] == pytest.approx(plan["compute_ns"] + plan["communication_ns"])


def test_more_bytes_are_never_slower():
    program = _program(256, 2000, 1)
    points = frontier(program, mesh=(2, 2), eps=(0.0, 0.1, 1.0), overlap=True)
    times = [point["time"]["value"] for point in points]
    assert times == sorted(times, reverse=True)
