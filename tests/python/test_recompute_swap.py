"""Plans with recomputation and swaps give the bits of eager, at the planned peak, without a miss."""

import itertools
import json

import pytest
import zoo
from training import FORMS, assert_planned, assert_same_state, train
from transform import Steps, transformed

import stowage
import stowage.step.replay.step_plan


def by_hand(monkeypatch, edit):
    """Every plan that is made from now on passes through edit(graph, plan). Returns the plans made."""
    made = []
    planner = stowage.plan

    def plan(graph, budget=None, **options):
        made.append(edit(graph, planner(graph, budget, **options)))
        return made[-1]

    monkeypatch.setattr(stowage.step.replay.step_plan, "plan", plan)
    return made


def kinds(plan) -> dict[str, int]:
    steps = json.loads(plan._plan.to_json())["steps"]
    ops = [s["op"] for s in steps if "op" in s]
    return {
        "again": len(ops) - len(set(ops)),
        "out": sum("swap_out" in s for s in steps),
        "in": sum("swap_in" in s for s in steps),
    }


@pytest.mark.parametrize(
    "name, join", [*((name, False) for name in zoo.BUILDERS if name != "resnet50"), ("unet", True), ("lstm", True)]
)
def test_random_edits(name, join, monkeypatch):
    plans = by_hand(monkeypatch, lambda g, p: transformed(g, p, 5, 8, 6, join))
    eager = train(name)
    planned = train(name, compiled=True)
    assert_same_state(eager, planned)
    assert_planned(planned, exact_peak=not join)
    found = kinds(plans[-1])
    assert found["again"] >= 4 and found["in"] >= 3, found


@pytest.mark.parametrize("form", list(FORMS))
def test_random_edits_with_poisoned_arena(form, monkeypatch):
    by_hand(monkeypatch, lambda g, p: transformed(g, p, 6, 40, 20))
    steps = []
    eager = train("gpt2", form=form)
    planned = train(
        "gpt2",
        form=form,
        compiled=True,
        between=lambda i, m, o: steps and steps[0]._room.arena.fill(0xFF),
        started=steps,
    )
    assert_same_state(eager, planned)
    assert_planned(planned)


def random_ops(graph):
    return [k for k, op in enumerate(json.loads(graph.to_json())["ops"]) if "rng" in op.get("traits", [])]


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_every_dropout_mask_is_drawn_again(name, monkeypatch):
    """Right before each of its uses, so also with other draws in between, and more than once."""

    def edit(graph, plan):
        steps = Steps.of(graph, plan)
        for k in random_ops(graph):
            op = steps.ops[k]
            buffer = (op.get("creates") or op.get("writes"))[0]
            for at in reversed(steps.touches(buffer)):
                step = steps.ops[steps.steps[at][1]]
                if buffer in step.get("reads", []):
                    steps.recompute(buffer, at)
        return steps.plan()

    plans = by_hand(monkeypatch, edit)
    eager = train(name)
    planned = train(name, compiled=True)
    assert_same_state(eager, planned)
    assert_planned(planned)
    assert kinds(plans[-1])["again"] >= 2 * len(random_ops(planned.step.graph)) > 0


@pytest.mark.parametrize("name", ["unet", "resnet50"])
def test_every_batch_norm_runs_again(name, monkeypatch):
    """Its results come back, and running statistics are updated once a step."""

    def edit(graph, plan):
        steps = Steps.of(graph, plan)
        for _k, op in enumerate(steps.ops):
            if op["target"] == "aten::native_batch_norm":
                steps.recompute(op["creates"][0], steps.touches(op["creates"][0])[1])
        return steps.plan()

    plans = by_hand(monkeypatch, edit)
    eager = train(name)
    planned = train(name, compiled=True)
    assert_same_state(eager, planned)
    assert_planned(planned)
    assert kinds(plans[-1])["again"] >= 10


def swap_all(graph, plan, least_gap=6):
    """Every buffer with a gap between two uses waits there on the host."""
    steps = Steps.of(graph, plan)
    for buffer, what in enumerate(steps.buffers):
        if what.get("resident") or what["bytes"] == 0:
            continue
        touches = steps.touches(buffer)
        for a, b in reversed(list(itertools.pairwise(touches))):
            if b - a >= least_gap:
                steps.swap(buffer, a, b, 2, 2)
    return steps.plan()


@pytest.mark.parametrize("store", ["memory", "file"])
@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_everything_that_waits_is_swapped(name, store, monkeypatch, tmp_path):
    if store == "file":
        monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    plans = by_hand(monkeypatch, swap_all)
    eager = train(name)
    planned = train(name, compiled=True)
    assert_same_state(eager, planned)
    assert_planned(planned)
    assert kinds(plans[-1])["out"] > 20
    stats = planned.step.stats()
    assert 0 < stats["host_bytes"] <= stats["swapped_bytes"]
    assert stats["swapped_bytes"] == sum_out(planned.step.graph, plans[-1])


def sum_out(graph, plan) -> int:
    buffers = json.loads(graph.to_json())["buffers"]
    return sum(buffers[s["swap_out"]]["bytes"] for s in json.loads(plan._plan.to_json())["steps"] if "swap_out" in s)


def test_a_slow_link_stalls_the_step(monkeypatch):
    by_hand(monkeypatch, swap_all)
    planned = train("gpt2", compiled=True, link_gbps=0.05, count=5)
    stats = planned.step.stats()
    one_way_ns = stats["swapped_bytes"] / 0.05
    assert stats["step_ns"] >= one_way_ns  # each lane has to carry that much
    assert stats["stall_ns"] > 0
