"""Checks a sharding plan for a budget, sharing nothing with what made it but the program's own form.

    program ──┐
    plan    ──┼── walked op by op: which buffer holds which tensor, at which placement, and is it the newest content?
    graph   ──┘          and is each buffer as large as the part is on the fullest rank?
    memory plan ── stowage.check ── and the limit, on every rank; and do the figures of the plan add up?

A rank's graph is right when each kernel of the program runs once (once for each element of lists), reads each argument at the
placement that the plan gives it, in its newest content; when each move begins where the tensor is; when what needs other ranks
says so (`effect`); and when at the end all state is at home, with its newest content. O(tensors + ops + ranks * state)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

from stowage.errors import InvalidPlan
from stowage.planning import check
from stowage.sharding.placements import ShardingPlan
from stowage.sharding.program import tensor_ids

_HOMES = ("parameter", "gradient", "optimizer_state", "module_buffer")


def check_rank(plan: ShardingPlan) -> None:
    """Of a plan with ``graph`` and ``memory``. Raises InvalidPlan, which names what is wrong."""
    if plan.graph is None or plan.memory is None:
        raise InvalidPlan("the plan was not made for a budget: it has no graph of a rank")
    _Walk(plan).run()
    check(plan.graph, plan.memory)
    _check_figures(plan)


def part_bytes(tensor: dict, placement: str, sizes: list[int], coordinate: tuple[int, ...]) -> int:
    """By slicing ranges, as torch.chunk would."""
    ranges = [range(n) for n in tensor["shape"]]
    for axis, part in enumerate(placement.split(",")):
        if part[0] == "S":
            d = int(part[1:])
            rows = math.ceil(len(ranges[d]) / sizes[axis])
            ranges[d] = ranges[d][rows * coordinate[axis] : rows * (coordinate[axis] + 1)]
    return math.prod(len(r) for r in ranges) * tensor["item_bytes"]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvalidPlan(f"rank's graph: {what}")


class _Walk:
    def __init__(self, plan: ShardingPlan):
        assert plan.graph is not None
        self._program, self._document, self._sizes = plan.program, plan.document, plan.sizes()
        graph = json.loads(plan.graph.to_json())
        self._buffers, self._ops = graph["buffers"], graph["ops"]
        self._homes = [t["placement"] for t in plan.document["tensors"]]
        self._whole = ",".join(["R"] * len(self._sizes))
        self._version: dict[int, int] = {}  # of a storage: how often it was written
        self._holds: dict[tuple[int, int, str], int] = {}  # buffer, tensor, placement -> version
        self._ran: set[tuple[int, int]] = set()

    def run(self) -> None:
        self._begin()
        self._walk_views(0)
        for op in self._ops:
            meta = op["meta"]
            self._walk_views(meta["op"])
            getattr(self, "_kernel" if meta["part"] == "kernel" else "_move")(op, meta)
        self._walk_views(len(self._program.ops))
        self._end()

    # ---- What is where

    def _root(self, t: int) -> int:
        return self._program.tensors[t].get("alias_of", t)

    def _now(self, t: int) -> int:
        return self._version.get(self._root(t), 0)

    def _put(self, b: int, t: int, at: str) -> None:
        self._holds[b, t, at] = self._now(t)

    def _has(self, b: int, t: int, at: str) -> bool:
        return self._holds.get((b, t, at)) == self._now(t)

    def _first(self, t: int, at: str) -> int:
        """Bytes of the fullest rank's part."""
        tensor = self._program.tensors[t]
        return max(part_bytes(tensor, at, self._sizes, c) for c in itertools.product(*(range(n) for n in self._sizes)))

    def _begin(self) -> None:
        made = {o for op in self._program.ops for o in op["outputs"] if o is not None}
        there = [t for t in range(len(self._program.tensors)) if t not in made]
        residents = [b for b, entry in enumerate(self._buffers) if entry.get("resident")]
        own = [t for t in there if self._root(t) == t or self._root(t) in made]
        _require(len(own) == len(residents), f"{len(residents)} residents, where the program has {len(own)}")
        for b, t in zip(residents, own):
            at = self._homes[t] if self._program.tensors[t]["kind"] in _HOMES else self._whole
            _require(
                self._buffers[b]["bytes"] == self._first(t, at), f"resident {b} is not as large as tensor {t} at {at}"
            )
            for other in there:
                if self._root(other) == t or other == t:
                    self._put(
                        b, other, self._homes[other] if self._program.tensors[other]["kind"] in _HOMES else self._whole
                    )

    def _end(self) -> None:
        for k in range(len(self._program.ops)):
            for element, _, _ in self._elements(k):
                _require((k, element) in self._ran or self._is_view(k), f"op {k} does not run")
        for t, tensor in enumerate(self._program.tensors):
            if tensor["kind"] in ("parameter", "optimizer_state", "module_buffer"):
                home = any(h[1:] == (t, self._homes[t]) and self._has(*h) for h in list(self._holds))
                _require(home, f"tensor {t} is not at home when the step ends")
            if t in self._program.left:
                stays = (h for h in list(self._holds) if h[1] == t and self._has(*h))
                kept = any(self._buffers[b].get("returned") or self._buffers[b].get("resident") for b, _, _ in stays)
                _require(kept, f"gradient {t} is not there when the step has ended")

    # ---- Ops

    def _elements(self, k: int) -> Iterator[tuple[int, list[int], list]]:
        op = self._program.ops[k]
        lists = [v for v in op["args"].values() if isinstance(v, list)]
        name = op["target"].split(".")[1]
        if (
            not lists
            or not name.startswith(("_foreach_", "_fused_"))
            or not isinstance(next(iter(op["args"].values())), list)
        ):
            yield 0, tensor_ids(op), op["outputs"]
            return
        count = len(next(iter(op["args"].values())))
        for i in range(count):
            ids = []
            for value in op["args"].values():
                if isinstance(value, list):
                    ids += [value[i]] if len(value) == count else value
                else:
                    ids.append(value)
            yield i, ids, [op["outputs"][i]] if len(op["outputs"]) == count else []

    def _is_view(self, k: int) -> bool:
        op = self._program.ops[k]
        roots = {self._root(t) for t in tensor_ids(op)}
        outputs = [o for o in op["outputs"] if o is not None]
        return not op.get("writes") and all(self._root(o) in roots and self._root(o) != o for o in outputs)

    def _walk_views(self, end: int) -> None:
        """Results that share an argument's storage are there as soon as it is: those of ops before ``end``."""
        for k in range(getattr(self, "_seen", 0), end):
            self._see_views(k)
        self._seen = max(getattr(self, "_seen", 0), end)

    def _see_views(self, k: int) -> None:
        op, planned = self._program.ops[k], self._document["ops"][k]
        ids, in_optimizer = tensor_ids(op), op["phase"] == "optimizer"
        for o, computed in zip(op["outputs"], planned["computed"]):
            if o is None or self._root(o) == o:
                continue
            for i, t in enumerate(ids):
                if self._root(t) != self._root(o):
                    continue
                at = None if in_optimizer else planned["inputs"][i]
                for (b, held, place), version in list(self._holds.items()):
                    if held == t and (at is None or place in (at, self._whole)) and version == self._now(t):
                        self._holds[
                            b, o, self._homes[o] if in_optimizer else self._whole if place != at else computed
                        ] = version
                break

    def _kernel(self, op: dict, meta: dict) -> None:
        k = meta["op"]
        program_op, planned = self._program.ops[k], self._document["ops"][k]
        touched = [*op.get("reads", ()), *op.get("writes", ())]
        random = "rng" in op.get("traits", ())
        left = (e for e in self._elements(k) if (k, e[0]) not in self._ran)
        element, ids, outputs = next(left, (-1, [], []))
        _require(element >= 0, f"op {k} runs more often than the program has it")
        self._ran.add((k, element))
        if program_op["phase"] == "optimizer":
            wants: list[Any] = [None] * len(ids)
        else:
            wants = [self._whole if random else want for want in planned["inputs"]]
        written = set(program_op.get("writes", ()))
        if touched or not op.get("creates"):
            for t, want in zip(ids, wants):
                among = op.get("writes", ()) if t in written else touched
                found = [
                    b for b in among if any(self._has(b, t, at) for at in ([want] if want else self._placements(b, t)))
                ]
                _require(bool(found), f"op {k}: tensor {t} is not there at {want or 'any placement'}, or not as new")
        for t in dict.fromkeys(t for t in ids if t in written):
            before = [h for h in self._holds if h[0] in op.get("writes", ()) and self._root(h[1]) == self._root(t)]
            before = [h for h in before if self._has(*h)]
            self._version[self._root(t)] = self._now(t) + 1
            for b, held, at in before:
                self._put(b, held, at)
        created = iter(op.get("creates", ()))
        computed_of = dict(zip(program_op["outputs"], planned["computed"]))
        roots = {self._root(t) for t in ids}
        for o in outputs:
            if o is None or (self._root(o) != o and self._root(o) in roots):
                continue
            at = self._whole if random else self._homes[o] if program_op["phase"] == "optimizer" else computed_of[o]
            b = next(created, -1)
            _require(b >= 0, f"op {k} does not make tensor {o}")
            _require(
                self._buffers[b]["bytes"] == self._first(o, at), f"buffer {b} is not as large as tensor {o} at {at}"
            )
            self._put(b, o, at)
        _require(next(created, None) is None, f"op {k} makes more than the program does")
        self._see_views(k)
        recipe = planned.get("recipe", "")
        if recipe and recipe not in ("rows_of_part", "classes_of_part"):
            _require("effect" in op.get("traits", ()), f"op {k} needs other ranks, and may be made again")

    def _placements(self, b: int, t: int) -> list[str]:
        return [at for holder, held, at in self._holds if holder == b and held == t]

    def _move(self, op: dict, meta: dict) -> None:
        t, before, after = meta["tensor"], meta["from"], meta["to"]
        if meta["part"] == "settle":  # of a result that is a view, which no kernel makes
            self._see_views(meta["op"])
        _require(
            self._has(op["reads"][0], t, before), f"tensor {t} is moved from {before}, where it is not, or not as new"
        )
        if not _keeps_a_part(before, after):
            _require("effect" in op.get("traits", ()), f"a move of tensor {t} needs other ranks, and may be made again")
        (into,) = op.get("creates", []) + op.get("writes", [])
        if op.get("creates"):
            _require(
                self._buffers[into]["bytes"] == self._first(t, after),
                f"buffer {into} is not as large as tensor {t} at {after}",
            )
        self._put(into, t, after)
        shape, returns = self._program.tensors[t]["shape"], meta["part"] == "return"
        for other, entry in enumerate(self._program.tensors):  # others in its storage, as large
            if returns and self._root(other) == self._root(t) and entry["shape"] == shape:
                self._put(into, other, after)


def _keeps_a_part(before: str, after: str) -> bool:
    """Each rank has what it is to have: nothing but whole axes change, and those cut what no later axis cuts."""
    a, b = before.split(","), after.split(",")
    return all(x == y or (x == "R" and y not in a[i + 1 :]) for i, (x, y) in enumerate(zip(a, b)))


def _check_figures(plan: ShardingPlan) -> None:
    assert plan.graph is not None and plan.memory is not None
    figures, summary = plan.document["budget"], plan.memory.summary()
    held = plan.graph.resident_bytes + plan.memory.arena_bytes
    limit = figures["limit_bytes"]
    _require(limit is None or held <= limit, f"{held} bytes, where the limit is {limit}")
    _require(
        sum(figures["bytes"].values()) == held,
        f"its parts are {sum(figures['bytes'].values())} bytes, all of it {held}",
    )
    _require(sum(figures["time"].values()) == summary["step_ns"] == figures["step_ns"], "its times do not add up")
    _require(min(figures["time"].values()) >= 0, "a time is negative")
    modelled = plan.document["compute_ns"] + plan.document["communication_ns"]
    _require(
        abs(plan.graph.program_step_ns - modelled) <= 2,
        f"costs are {plan.graph.program_step_ns} ns, the plan's {modelled:.0f}",
    )
    sizes, tensors = plan.sizes(), plan.program.tensors
    made = {o for op in plan.program.ops for o in op["outputs"] if o is not None}
    state = [t for t in range(len(tensors)) if t not in made and tensors[t].get("alias_of", t) == t]
    for coordinate in itertools.product(*(range(n) for n in sizes)):
        mine = sum(
            part_bytes(tensors[t], plan.document["tensors"][t]["placement"], sizes, coordinate)
            if tensors[t]["kind"] in _HOMES
            else math.prod(tensors[t]["shape"]) * tensors[t]["item_bytes"]
            for t in state
        )
        _require(mine <= plan.graph.resident_bytes, f"the rank at {coordinate} holds {mine} bytes, more than the first")


__all__ = ["check_rank", "part_bytes"]
