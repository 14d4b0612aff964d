"""What the ranks of test_shard_budget.py do: steps within limits of bytes per rank. Each case runs on all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from shard_pair import Pair, make_mlp, mlp_batches
from shard_zoo import training

import stowage
from stowage import _runtime
from stowage.sharding import decision
from stowage.sharding.decision import decisions
from stowage.sharding.paper import program_of
from stowage.sharding.placements import mesh_document

_DEEP = {"widths": (48,) * 6, "clip": 0, "schedule": False}


def _decisions(make, batch, size: int):
    return decisions(program_of(make()[2], batch), mesh_document([size]), (size,), {})


def _asked(rank: int, ask: Callable):
    """What rank 0 finds, on all ranks."""
    box = [ask() if rank == 0 else None]
    dist.broadcast_object_list(box)
    return box[0]


def _held(pair: Pair, limit: int) -> None:
    """The planner's promise, and what the allocator has seen: state and arena beside the batch."""
    stats, graph = pair.step.stats(), pair.step.graph
    assert graph.resident_bytes + stats["arena_bytes"] <= limit, (graph.resident_bytes, stats["arena_bytes"], limit)
    assert stats["measured_peak_bytes"] <= stats["arena_bytes"], stats
    before = _runtime.live_bytes()
    _runtime.reset_peak()
    pair.step(*pair.batches[-1])
    assert _runtime.peak_bytes() - before <= 4096, "a planned step allocates beside its arena"


def _within(pair: Pair, limit: int, tolerance: float = 1e-9) -> None:
    pair.run(tolerance)
    pair.check_planned()
    _held(pair, limit)


def a_limit_that_only_the_combination_meets(rank, size):
    """Neither placements alone nor the fastest placement with recomputation and copies."""
    make, batches = make_mlp(**_DEEP), mlp_batches(8, rows=64, widths=(48, 48))

    def find():
        made = _decisions(make, batches[0], size)
        limit = made.smallest_bytes() * 5 // 4
        return limit, *made.frontier([limit])

    limit, point = _asked(rank, find)
    assert point["without"]["placement"] is None and point["without"]["recomputation and host"] is None, point
    assert "placement" in point["means"] and {"recomputation", "host"} & set(point["means"]), point
    pair = Pair(make, batches, (size,), budget=limit)
    _within(pair, limit)
    assert pair.step.plan.summary()["budget"]["limit_bytes"] == limit
    summary = pair.step._latest.latest.plan.summary()
    assert summary["recomputed_ops"] > 0 or summary["swapped_bytes"] > 0, summary


def a_mixture_of_experts_within_three_quarters(rank, size):
    """Of what a plan that may have twice the least bytes needs."""
    make, batches = training("moe", count=7)
    wide = stowage.shard_plan(program_of(make()[2], batches[0]), mesh=(size,), eps=1.0, budget="1GiB").summary()[
        "budget"
    ]
    limit = (wide["resident_bytes"] + wide["arena_bytes"]) * 3 // 4
    _within(Pair(make, batches, (size,), budget=limit), limit)


def what_nothing_meets_is_said_on_every_rank_before_anything_has_changed(rank, size):
    make, batches = make_mlp(**_DEEP), mlp_batches(8, rows=64, widths=(48, 48))
    model, _, step = make()
    before = [p.clone() for p in model.parameters()]
    sharded = stowage.shard(step, (size,), budget=1000)
    with pytest.raises(stowage.Infeasible, match="proven") as error:
        sharded(*batches[0])
    assert error.value.smallest_bytes >= error.value.bound_bytes > 1000
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert not any(hasattr(p, "full_tensor") for p in model.parameters())


def a_recording_that_needs_more_than_was_modelled_goes_elsewhere(rank, size):
    """Where each rank's graph is thought to need half of what it does, the first placement does not fit."""
    make, batches = make_mlp(**_DEEP), mlp_batches(8, rows=64, widths=(48, 48))
    limit = _asked(rank, lambda: _decisions(make, batches[0], size).smallest_bytes() * 3 // 2)
    real = decision.rank_graph
    decision.rank_graph = lambda plan: _halved(real(plan))
    try:
        pair = Pair(make, batches, (size,), budget=limit)
        pair.step.prepare(*batches[0])
        first = pair.step.plan.text
        _within(pair, limit)
    finally:
        decision.rank_graph = real
    assert pair.step.plan.text != first
    assert len({id(p) for p in pair.model.parameters()}) == len(list(pair.alone.parameters()))


def _halved(graph):
    document = json.loads(graph.to_json())
    for b in document["buffers"]:
        b["bytes"] //= 2
    return stowage.Graph.parse(json.dumps(document))
