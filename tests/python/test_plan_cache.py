"""Plans are kept between processes: found again, never believed unchecked, bounded, and shared without harm."""

import json
import os
import random
import subprocess
import sys
import warnings

import pytest
from training import assert_same_state, train

import stowage
import stowage.cache.costs
from stowage.cache import plan_cache

OFF = {"budget_bytes": None, "keep_order": False, "takeover": True, "time_limit": 0.0, "seed": 0, "link_gbps": None}


def chain(length=6, scale=64, cost_ns=1000, name="op"):
    ops = [
        {"name": f"{name}{i}", "target": "t", "reads": [i - 1] if i else [], "creates": [i], "cost_ns": cost_ns}
        for i in range(length)
    ]
    buffers = [{"name": f"b{i}", "bytes": scale * (i + 1), "kind": "activation"} for i in range(length)]
    data = {"format": "stowage-graph", "version": 1, "name": "chain", "align": 64, "buffers": buffers, "ops": ops}
    return stowage.Graph.parse(json.dumps(data))


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("STOWAGE_CACHE", str(tmp_path))
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "1MiB")
    monkeypatch.setattr(stowage.cache.costs, "_FILES", {})
    return tmp_path / "plans"


def test_a_plan_is_made_once(kept):
    first, second = stowage.plan(chain()), stowage.plan(chain())
    assert not first.from_cache and second.from_cache
    assert second._plan.to_json() == first._plan.to_json()
    summaries = [{k: v for k, v in p.summary().items() if k != "seconds"} for p in (first, second)]
    assert summaries[0] == summaries[1]
    assert len(list(kept.iterdir())) == 1


def test_names_and_costs_make_no_other_plan_but_bytes_and_options_do(kept):
    stowage.plan(chain())
    other_names = chain(name="renamed", cost_ns=7)
    plan = stowage.plan(other_names)
    assert plan.from_cache and plan.summary()["step_ns"] == other_names.program_step_ns == 42
    stowage.check(other_names, plan)
    assert not stowage.plan(chain(scale=128)).from_cache
    assert not stowage.plan(chain(), keep_order=True).from_cache
    assert not stowage.plan(chain(), seed=1).from_cache
    assert stowage.plan(chain(), threads=2).from_cache


def test_under_a_budget_costs_count(kept):
    budget = 1 << 20
    assert not stowage.plan(chain(), budget).from_cache
    assert stowage.plan(chain(), budget).from_cache
    assert not stowage.plan(chain(cost_ns=1001), budget).from_cache
    assert not stowage.plan(chain(cost_ns=1001), budget, link_gbps=3.0).from_cache


def test_off(kept, monkeypatch):
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "off")
    assert not stowage.plan(chain()).from_cache and not stowage.plan(chain()).from_cache
    assert not kept.exists()


def test_flipped_bytes_are_ignored_with_a_warning(kept):
    wanted = stowage.plan(chain())._plan.to_json()
    (path,) = kept.iterdir()
    good = path.read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    damaged = [b"", b"\n", b"stowage-plan 1 ", good[:40], good[: len(good) // 2], good + b"x"]
    for _ in range(60):
        content = bytearray(good)
        content[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(content))
    for content in damaged:
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="is ignored"):
            plan = stowage.plan(chain())
        assert not plan.from_cache and plan._plan.to_json() == wanted
        assert stowage.plan(chain()).from_cache  # written anew


def test_an_entry_of_another_graph_is_ignored(kept):
    stowage.plan(chain(scale=128))
    (other,) = kept.iterdir()
    content = other.read_bytes()
    stowage.plan(chain())
    (path,) = [p for p in kept.iterdir() if p != other]
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="of another graph"):
        assert not stowage.plan(chain()).from_cache


def test_an_entry_that_is_sealed_but_wrong_does_not_pass_the_checker(kept):
    graph = chain()
    stowage.plan(graph)
    entry = plan_cache.find(graph, OFF)
    data = json.loads(entry.plan.to_json())
    data["placements"] = [{**p, "offset": 0} for p in data["placements"]]
    plan_cache.keep(
        graph, OFF, plan_cache.Entry(stowage._core.Plan.parse(json.dumps(data)), entry.summary, entry.costs_ns)
    )
    with pytest.warns(UserWarning, match="is ignored"):
        assert not stowage.plan(graph).from_cache


def test_the_least_recently_used_leave(kept, monkeypatch):
    for i, graph in enumerate([chain(5), chain(6), chain(7)]):
        stowage.plan(graph)
        newest = max(kept.iterdir(), key=lambda p: p.stat().st_mtime_ns)
        os.utime(newest, (1000 + i, 1000 + i))
    assert stowage.plan(chain(5)).from_cache  # used now
    size = sum(p.stat().st_size for p in kept.iterdir())
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", str(size))
    stowage.plan(chain(8))
    assert sum(p.stat().st_size for p in kept.iterdir()) <= size
    assert stowage.plan(chain(5)).from_cache and stowage.plan(chain(8)).from_cache
    assert not stowage.plan(chain(6)).from_cache


def test_all_entries_are_looked_at_seldom(kept, monkeypatch):
    """And those of one process never take more than the limit."""
    looks, evict = [], plan_cache._evict
    monkeypatch.setattr(plan_cache, "_evict", lambda *of: (looks.append(1), evict(*of))[1])
    monkeypatch.setattr(plan_cache, "_MANY", 8)
    for length in range(3, 63):
        stowage.plan(chain(length))
    assert len(looks) == 1  # the first, of which there was nothing
    total = sum(p.stat().st_size for p in kept.iterdir())
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", str(total))
    looks.clear()
    for length in range(63, 123):
        stowage.plan(chain(length))
        assert sum(p.stat().st_size for p in kept.iterdir()) <= total
    assert 5 < len(looks) < 40


def test_without_a_writable_directory_nothing_is_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STOWAGE_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "1MiB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not stowage.plan(chain()).from_cache and not stowage.plan(chain()).from_cache


PROCESS = """
import sys, warnings
sys.path.insert(0, {here!r})
warnings.simplefilter("error")
import stowage
from test_plan_cache import chain
for round in range(15):
    for length in range(3, 9):
        graph = chain(length)
        stowage.check(graph, stowage.plan(graph))
"""


def test_processes_share_the_directory(kept, monkeypatch):
    """Reading, writing and evicting at once: nobody sees half a file."""
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "2000")  # a few entries
    code = PROCESS.format(here=os.path.dirname(__file__))
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said
    assert [p for p in kept.iterdir() if p.suffix != ".plan"] == []


def test_kept_costs_are_taken_where_they_are_near(kept):
    options = {**OFF, "budget_bytes": 1 << 20}
    graph = chain(cost_ns=1000)
    assert plan_cache.kept_costs(graph, options, measured=True) is None
    plan = stowage.plan(graph, 1 << 20)
    assert plan_cache.kept_costs(chain(cost_ns=2900), options, measured=True) == (graph.costs_ns, False)
    assert plan_cache.kept_costs(chain(cost_ns=3100), options, measured=True) is None
    provisional = plan_cache.Entry(plan._plan, plan.summary(), graph.costs_ns, provisional=True)
    plan_cache.keep(graph, options, provisional)
    assert plan_cache.kept_costs(chain(cost_ns=3100), options, measured=True) == (graph.costs_ns, True)
    assert plan_cache.kept_costs(chain(cost_ns=3100), options, measured=False) is None


@pytest.mark.parametrize("share", [None, 0.75])
def test_the_second_start_plans_nothing(kept, monkeypatch, share):
    """Also under a budget, where plans depend on costs that differ whenever they are measured."""
    monkeypatch.setattr(plan_cache, "_NEAR", 1.0)  # ops of microseconds, on a machine that does other things too
    options = {}
    if share is not None:
        free = train("gpt2", compiled=True, count=4).step
        options["budget"] = int(free.stats()["resident_bytes"] + share * free.stats()["arena_bytes"])
        stowage.cache.costs._FILES.clear()
        for path in kept.parent.rglob("*.*"):
            path.unlink()
    first = train("gpt2", compiled=True, count=8, **options)
    assert not first.step.stats()["plan_from_cache"] and first.step.stats()["planned_steps"] > 0
    stowage.cache.costs._FILES.clear()  # as in a new process

    def never(*arguments):
        raise AssertionError("planned again")

    monkeypatch.setattr(stowage._core, "plan", never)
    second = train("gpt2", compiled=True, count=8, **options)
    assert second.step.stats()["plan_from_cache"] and second.step.stats()["planned_steps"] > 0
    assert second.step.plan.summary()["peak_bytes"] == first.step.plan.summary()["peak_bytes"]
    assert_same_state(first, second)
