"""Fuzzes the readers of the cache directory, which are Python's: kept plans and measured costs. Below a right digest
anything may stand.

    PYTHONPATH=build/release/python python tests/fuzz/cache_readers.py        as many executions as fit into one second
    STOWAGE_FUZZ_RUNS=1000000 STOWAGE_SEED=7 …                                so many, from another seed

What is broken, the limit of a second for an execution included, ends it with the input in cache_readers.input.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
import zlib
from pathlib import Path

os.environ["STOWAGE_CACHE"] = tempfile.mkdtemp(prefix="stowage-fuzz-")
os.environ["STOWAGE_PLAN_CACHE"] = "64MiB"

import stowage
from stowage import _core
from stowage.cache import plan_cache
from stowage.cache.costs import CostFile

_MAGIC = b"stowage-plan 1 "
_MOST_SECONDS = 1
_MACHINE = {"torch": "0", "cpu": "fuzz", "threads": 1}
_VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    1 << 31,
    1 << 53,
    1 << 62,
    1 << 63,
    -(1 << 63),
    1 << 70,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    "optimal",
    [],
    {},
    [[]],
    {"": None},
    [0] * 40,
]
_TEXTS = [
    b"",
    b"[" * 5000,
    b'{"a":' * 5000,
    b"1" * 5000,
    b"\xff",
    b"\0",
    b"NaN",
    b"-",
    b"1e999",
    b'"\\ud800"',
    b",",
    b"}",
    b"\n",
]


def changed(rng: random.Random, value, depth: int = 0):
    """Somewhere in it something is of another kind, left out, doubled, or another number."""
    if isinstance(value, dict) and value and depth < 6 and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(rng, value[key], depth + 1)}
    if isinstance(value, list) and value and depth < 6 and rng.random() < 0.9:
        i = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.1:
            return value[:i] + value[i + 1 :]
        if kind < 0.2:
            return value[: i + 1] + value[i:]
        if kind < 0.3:
            j = rng.randrange(len(value))
            return [value[j] if k == i else value[i] if k == j else v for k, v in enumerate(value)]
        return [*value[:i], changed(rng, value[i], depth + 1), *value[i + 1 :]]
    if type(value) is int and rng.random() < 0.6:
        return value + rng.choice([-1, 1, -64, 64, value, 1 << 30])
    return rng.choice(_VALUES)


def changed_bytes(rng: random.Random, text: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:i] + bytes([rng.randrange(256)]) + text[i + 1 :]
        elif kind == 1:
            text = text[:i] + text[j:]
        elif kind == 2:
            text = text[:i] + rng.choice(_TEXTS) + text[i:]
        else:
            text = text[:j] + text[i:j] + text[j:]
        text = text[:200_000]
    return text


def encoded(rng: random.Random, value) -> bytes:
    text = json.dumps(value).encode()
    return changed_bytes(rng, text) if rng.random() < 0.2 else text


def small_graph() -> _core.Graph:
    """Three ops that can be planned within less than program order needs."""
    return _core.Graph.parse(
        json.dumps(
            {
                "format": "stowage-graph",
                "version": 1,
                "name": "fuzz",
                "align": 64,
                "buffers": [
                    {"name": "w", "bytes": 256, "kind": "parameter", "resident": True},
                    *({"name": f"b{i}", "bytes": 512 * (i + 1), "kind": "activation"} for i in range(4)),
                ],
                "ops": [
                    {"name": "a", "target": "aten::mm", "reads": [0], "creates": [1], "cost_ns": 100},
                    {"name": "b", "target": "aten::tanh", "reads": [1], "creates": [2], "cost_ns": 50},
                    {"name": "c", "target": "aten::tanh", "reads": [1], "creates": [3], "cost_ns": 50},
                    {"name": "d", "target": "aten::add", "reads": [2, 3], "creates": [4], "cost_ns": 10},
                ],
            }
        )
    )


class Plans:
    """A kept plan, changed: what comes back is absent, or passes the checker, has its own figures and keeps the
    budget."""

    def __init__(self):
        self.graph = small_graph()
        self.entries = []  # (options, key, head, plan)
        for budget in (None, stowage.plan(self.graph).summary()["peak_bytes"] + 4096):
            stowage.plan(self.graph, budget)
        for path in (Path(os.environ["STOWAGE_CACHE"]) / "plans").iterdir():
            head, plan = zlib.decompress(path.read_bytes().partition(b"\n")[2]).split(b"\n", 1)
            self.entries.append((json.loads(head)["key"], json.loads(head), json.loads(plan)))

    def make(self, rng: random.Random) -> tuple[str, bytes, int | None]:
        key, head, plan = rng.choice(self.entries)
        budget = head["summary"]["budget_bytes"]
        for _ in range(rng.randint(0, 2)):
            head = changed(rng, head)
        for _ in range(rng.randint(0, 2)):
            plan = changed(rng, plan)
        body = encoded(rng, head) + (b"" if rng.random() < 0.02 else b"\n") + encoded(rng, plan)
        body = zlib.compress(body, 1)
        if rng.random() < 0.1:
            body = changed_bytes(rng, body)
        content = _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        return key, changed_bytes(rng, content) if rng.random() < 0.05 else content, budget

    def judge(self, key: str, content: bytes, budget: int | None) -> bool:
        try:
            entry = plan_cache._read(content, key, self.graph, budget)
        except (MemoryError, SystemExit, KeyboardInterrupt):
            raise
        except Exception:  # the caller takes any for "absent"
            return False
        assert _core.check(self.graph, entry.plan) == entry.summary["peak_bytes"], (
            "a plan that is taken passes the checker"
        )
        assert budget is None or self.graph.resident_bytes + entry.plan.arena_bytes <= budget, "and keeps the budget"
        assert len(entry.costs_ns) == self.graph.ops and json.dumps(entry.summary), "and has its figures"
        return True


class Costs:
    """A file of costs, changed: what is taken are numbers of nanoseconds, and a save then leaves a file that is read
    again."""

    def __init__(self):
        self.path = Path(os.environ["STOWAGE_CACHE"]) / "costs-fuzz.json"
        self.good = {
            "format": "stowage-costs",
            "version": 1,
            "machine": _MACHINE,
            "ops": {"aten::mm|f32": [5, 6, 7], "aten::add|f32": [1] * 8},
            "link_gbps": {"memory": 11.5},
        }

    def make(self, rng: random.Random) -> bytes:
        value = self.good
        for _ in range(rng.randint(1, 3)):
            value = changed(rng, value)
        return encoded(rng, value)

    def judge(self, content: bytes, save: bool) -> bool:
        self.path.write_bytes(content)
        costs = CostFile(self.path, _MACHINE)
        for key, samples in costs.ops.items():
            assert (
                type(key) is str
                and 0 < len(samples) <= 8
                and all(type(ns) is int and 0 <= ns <= 1 << 53 for ns in samples)
            ), "costs are times"
            assert costs.cost_ns(key) in samples
        assert all(0 < gbps <= 1e6 for gbps in costs.link_gbps.values()), "a link has a speed"
        if save:
            costs.add([("new", 3)])
            costs.save()
            assert CostFile(self.path, _MACHINE).cost_ns("new") is not None, "what is saved is read again"
        return bool(costs.ops)


def main() -> None:
    seed = int(os.environ.get("STOWAGE_SEED", "1"))
    runs = int(os.environ.get("STOWAGE_FUZZ_RUNS", "0"))
    print(f"cache_readers: STOWAGE_SEED={seed}", flush=True)
    rng = random.Random(seed)
    plans, costs = Plans(), Costs()
    started, done, slowest, taken, content = time.monotonic(), 0, 0.0, 0, b""
    warnings.simplefilter("ignore")
    try:
        while done < runs if runs else time.monotonic() < started + 1:
            of_plans = rng.random() < 0.7
            made = plans.make(rng) if of_plans else (costs.make(rng),)
            content = made[1] if of_plans else made[0]
            begin = time.process_time()
            taken += plans.judge(*made) if of_plans else costs.judge(content, save=rng.random() < 0.1)
            slowest = max(slowest, time.process_time() - begin)
            assert slowest < _MOST_SECONDS, "an execution took too long"
            done += 1
    except BaseException:
        Path("cache_readers.input").write_bytes(content)
        print(f"cache_readers: input of {len(content)} bytes kept in cache_readers.input", file=sys.stderr)
        raise
    print(
        f"cache_readers: {done} executions, {taken} taken, in {time.monotonic() - started:.1f} s; the slowest {slowest:.3f} s"
    )


if __name__ == "__main__":
    main()
