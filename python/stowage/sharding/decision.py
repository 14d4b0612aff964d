"""A limit of bytes per rank, met by placement, order and layout, recomputation and copies to the host as one decision.

    sweep.py: placements ──► rank_graph.py: what a rank then runs ──► the budget planner: order, addresses, what runs again, what
                                                  │                   waits on the host; what that costs, and what needs most
                                                  └──── those that could be fastest first ◀── until no other could be faster

A placement's own time is a bound: nothing that recomputation or copies add makes a step shorter. So placements are planned in
the order of their own times, and the first that is as fast as the best plan so far ends it. The answer is the fastest over
all placements of the sweep. The placements do not depend on the limit, nor does the ladder of limits that the planner looks at
(src/budget/ladder.h): a larger limit is never slower.

The peak is what the plan of the rank's graph takes: residents and arena, padded and laid out. Time is modelled: kernels and
collectives as in the sharding plan, one after another; a run again costs what it cost; a copy that is late is waited for."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property

from stowage._core import Graph
from stowage.errors import Error, Infeasible
from stowage.planning import Plan, infeasible, plan
from stowage.sharding.placements import ShardingPlan, says_where, solve
from stowage.sharding.program import Program
from stowage.sharding.rank_graph import rank_graph
from stowage.sharding.sweep import Sweep, least_bytes, sweep

LINK_GBPS = 12.0  # to the host, where nobody says
_POINTS = 6  # of a frontier whose limits are not given


@dataclass
class Contender:
    """One placement, and the plans of its rank that have been asked for."""

    sharding: ShardingPlan
    graph: Graph
    plans: dict[tuple[int | None, float], Plan | Infeasible] = field(default_factory=dict)  # by limit and link

    @property
    def own_ns(self) -> int:
        return self.graph.program_step_ns

    @cached_property
    def floor_bytes(self) -> int:
        """No plan needs less: residents, and at each op what it touches (a result may lie over an input)."""
        document = json.loads(self.graph.to_json())
        align, buffers, most = document["align"], document["buffers"], 0
        padded = [0 if b.get("resident") else -(-b["bytes"] // align) * align for b in buffers]
        for op in document["ops"]:
            over = {created for _, created in op.get("takeover", ())}
            touched = {b for key in ("reads", "writes", "creates") for b in op.get(key, ())}
            most = max(most, sum(padded[b] for b in touched - over))
        return self.graph.resident_bytes + most

    def within(self, limit: int | None, link_gbps: float) -> Plan | None:
        """The fastest plan within the limit, of those made for it and for smaller ones."""
        self._answer(limit, link_gbps)
        made = [
            made
            for (within, gbps), made in self.plans.items()
            if gbps == link_gbps and isinstance(made, Plan) and (limit is None or held_bytes(made) <= limit)
            and (within is None) == (limit is None)
        ]  # fmt: skip
        return min(made, key=lambda made: made.summary()["step_ns"], default=None)

    def smallest_bytes(self, link_gbps: float) -> int:
        answer = self._answer(1, link_gbps)
        assert isinstance(answer, Infeasible)
        return answer.smallest_bytes

    def _answer(self, limit: int | None, link_gbps: float) -> Plan | Infeasible:
        key = limit, link_gbps
        if key not in self.plans:
            try:
                self.plans[key] = plan(self.graph, limit, link_gbps=link_gbps)
            except Infeasible as error:
                self.plans[key] = error.with_traceback(None)
        return self.plans[key]


@dataclass(frozen=True)
class Decision:
    """The plan of a limit: where tensors live, and what a rank runs."""

    limit_bytes: int | None
    contender: Contender
    memory: Plan
    bound_ns: float  # no plan of any placement is faster
    contenders: int
    fastest: bool  # the placement is that of the fastest plan without a limit
    link_gbps: float

    @property
    def step_ns(self) -> int:
        return self.memory.summary()["step_ns"]

    def figures(self) -> dict:
        """The key `budget` of a sharding plan: docs/formats.md, section 5."""
        s, sharding = self.memory.summary(), self.contender.sharding.document
        collectives = round(sharding["communication_ns"])
        time = {
            "compute_ns": s["program_step_ns"] - collectives,
            "collectives_ns": collectives,
            "recompute_ns": s["recompute_ns"],
            "host_ns": s["step_ns"] - s["program_step_ns"] - s["recompute_ns"],
        }
        return {
            "limit_bytes": self.limit_bytes,
            "link_gbps": self.link_gbps,
            "outcome": "optimal" if s["step_ns"] <= self.bound_ns * 1.0001 else "feasible",
            "step_ns": s["step_ns"],
            "bound_ns": self.bound_ns,
            "placement_bound_ns": s["step_bound_ns"] or s["program_step_ns"],
            "resident_bytes": s["resident_bytes"],
            "arena_bytes": s["arena_bytes"],
            "bytes": bytes_by_part(self.contender.graph, self.memory),
            "time": time,
            "means": self.means(),
            "recomputed_ops": s["recomputed_ops"],
            "swapped_bytes": s["swapped_bytes"],
            "placements": self.contenders,
        }

    def means(self) -> list[str]:
        """By what the limit is met, beyond what the fastest placement does in the program's order."""
        s = self.memory.summary()
        in_order = s["resident_bytes"] + s["program_peak_bytes"]
        used = {
            "placement": not self.fastest,
            "order": self.limit_bytes is not None and in_order > self.limit_bytes,
            "recomputation": s["recomputed_ops"] > 0,
            "host": s["swapped_bytes"] > 0,
        }
        return [name for name, is_used in used.items() if is_used]

    def plan(self) -> ShardingPlan:
        """The sharding plan with `budget`."""
        sharding = self.contender.sharding
        document = {**sharding.document, "budget": self.figures()}
        ops = document.pop("ops")
        text = json.dumps({**document, "ops": ops}, separators=(",", ":"))
        return ShardingPlan(sharding.program, text, sharding.mesh, self.contender.graph, self.memory)


def decisions(
    program: Program, mesh: dict, sizes: tuple[int, ...], options: dict, link_gbps: float | None = None
) -> Decisions:
    """``options``: of the solver. Where they have eps or a limit on the modelled peak, these choose the placement, and a
    budget is met by the rest."""
    if options.get("overlap"):
        raise Error("a budget is met for steps as they run now, without overlap: leave overlap=True out")
    if says_where(options):
        given = ShardingPlan(program, solve(program.to_json(), mesh, options), sizes)
        placements = Sweep([given], given.document["time"]["bound"])
    else:
        placements = sweep(program, mesh, sizes, options)
    return Decisions(program, sizes, placements, link_gbps)


class Decisions:
    """Of one program on one mesh, for any number of limits."""

    def __init__(self, program: Program, sizes: tuple[int, ...], placements: Sweep, link_gbps: float | None = None):
        self._program, self._sizes, self._bound_ns = program, sizes, placements.bound_ns
        self.link_gbps = LINK_GBPS if link_gbps is None else link_gbps
        self.contenders = [Contender(p, rank_graph(p)) for p in placements.plans]
        if not self.contenders:
            raise Infeasible("no split of all ops was found", 0, 0)
        self.contenders.sort(key=lambda c: c.own_ns)

    def best(self, limit: int | None) -> Decision:
        """Raises Infeasible where no placement of the sweep has a plan within the limit."""
        found = self.fastest(limit, self.link_gbps)
        if found is None:
            assert limit is not None
            what = f"'{self._program.name}' on a mesh of {self.contenders[0].sharding.mesh_text()}: a rank"
            raise infeasible(what, limit, self.smallest_bytes(), self.least_bytes())
        return self._decision(limit, *found)

    def among(self, contenders: list[Contender], limit: int) -> Decision | None:
        found = self.fastest(limit, self.link_gbps, contenders)
        return None if found is None else self._decision(limit, *found)

    def _decision(self, limit: int | None, contender: Contender, memory: Plan) -> Decision:
        fastest = contender is self.contenders[0]
        return Decision(limit, contender, memory, self._bound_ns, len(self.contenders), fastest, self.link_gbps)

    def least_bytes(self) -> int:
        """Proven: no placement whatever meets less."""
        return least_bytes(self._program, self._sizes)

    def fastest(
        self, limit: int | None, link_gbps: float, among: list[Contender] | None = None, alone: bool = False
    ) -> tuple[Contender, Plan] | None:
        """``alone``: placements that meet the limit without recomputation and copies."""
        best: tuple[Contender, Plan] | None = None
        for contender in self.contenders if among is None else among:
            if best is not None and best[1].summary()["step_ns"] <= contender.own_ns:
                break
            if limit is not None and contender.floor_bytes > limit:
                continue
            memory = contender.within(None if alone else limit, link_gbps)
            if alone and memory is not None and limit is not None and held_bytes(memory) > limit:
                continue
            if memory is not None and (best is None or memory.summary()["step_ns"] < best[1].summary()["step_ns"]):
                best = contender, memory
        return best

    def smallest_bytes(self) -> int:
        """The least limit that is met: best() of it has a plan."""
        least = math.inf
        for contender in sorted(self.contenders, key=lambda c: c.floor_bytes):
            if contender.floor_bytes >= least:
                break
            least = min(least, contender.smallest_bytes(self.link_gbps))
        return int(least)

    def unlimited_bytes(self) -> int:
        """What the fastest placement needs so that nothing is computed again and nothing waits on the host."""
        memory = self.contenders[0].within(None, self.link_gbps)
        assert memory is not None
        return held_bytes(memory)

    # ---- The frontier

    def frontier(self, limits: list[int] | None = None) -> list[dict]:
        """For each limit the figures of its plan, largest limit first; and `without`: the step time where one of the means
        may not be used, null where the limit is then not met."""
        if limits is None:
            top, bottom = self.unlimited_bytes(), self.smallest_bytes()
            limits = [round(top * (bottom / top) ** (i / (_POINTS - 1))) for i in range(_POINTS - 1)] + [bottom]
        return [self._point(limit) for limit in sorted(set(limits))][::-1]

    def _point(self, limit: int) -> dict:
        try:
            decision = self.best(limit)
        except Infeasible as error:
            return {"limit_bytes": limit, "outcome": "infeasible", "smallest_bytes": error.smallest_bytes, "bound_bytes": error.bound_bytes}  # fmt: skip
        without = {
            "placement": self.fastest(limit, self.link_gbps, self.contenders[:1]),
            "recomputation and host": self.fastest(limit, self.link_gbps, alone=True),
            "host": self.fastest(limit, 0.0),
        }
        return {
            **decision.figures(),
            "without": {k: None if v is None else v[1].summary()["step_ns"] for k, v in without.items()},
        }


class Choice:
    """The placement of a step that runs, for one limit: what is modelled first, then what its recordings say.

    limit ──best()──▶ placement ──recorded──▶ fits: done
              ▲                       │ needs more: by that ratio all are expected to. Where none of them fits then, it may be
              └── among the others ◀──┘ this placement's alone: the one that is to need least is tried
    """

    def __init__(self, made: Decisions, limit: int):
        self._made, self._limit = made, limit
        self._ratio = 1.0  # of what recordings need to what was modelled; 1 at least
        self._tried: list[Contender] = []

    def first(self) -> ShardingPlan:
        """The plan of best(). Where none is found, and none is proven impossible: the placement that needs least. What a
        rank then records, which knows its kernels, is the judge. Raises Infeasible where nothing can meet the limit."""
        try:
            decision = self._made.best(self._limit)
        except Infeasible as error:
            if self._limit < error.bound_bytes:
                raise
            self._tried.append(min(self._made.contenders, key=self._smallest))
            return self._tried[-1].sharding
        self._tried.append(decision.contender)
        return decision.plan()

    def next(self, needed: int) -> ShardingPlan | None:
        """After a rank's recording needed so many bytes: the best of the other placements; None where none can be expected to
        fit."""
        self._ratio = max(self._ratio, needed / max(1, self._smallest(self._tried[-1])))
        others = [c for c in self._made.contenders if not any(c is tried for tried in self._tried)]
        decision = self._made.among(others, int(self._limit / self._ratio))
        if decision is None and others:
            decision = self._made.among([min(others, key=self._smallest)], self._limit)
        if decision is None:
            return None
        self._tried.append(decision.contender)
        return decision.plan()

    def _smallest(self, contender: Contender) -> int:
        return contender.smallest_bytes(self._made.link_gbps)


def held_bytes(memory: Plan) -> int:
    s = memory.summary()
    return s["resident_bytes"] + s["arena_bytes"]


_PARTS = {
    "parameter": "parameters",
    "optimizer_state": "optimizer_state",
    "module_buffer": "buffers",
    "input": "inputs",
    "constant": "inputs",
    "gradient": "gradients",
    "activation": "activations",
    "output": "activations",
    "temporary": "copies",
}


def bytes_by_part(graph: Graph, memory: Plan) -> dict[str, int]:
    """What a rank holds at the fullest moment, by kind. `copies`: of tensors brought to other placements, and what kernels
    need inside; `unused`: the rest of the arena."""
    document, planned = json.loads(graph.to_json()), json.loads(memory._plan.to_json())
    buffers, ops = document["buffers"], document["ops"]
    parts = dict.fromkeys((*_PARTS.values(), "unused"), 0)
    for b in buffers:
        if b.get("resident"):
            parts[_PARTS[b["kind"]]] += b["bytes"]
    steps = planned["steps"]
    change: list[list[tuple[str, int]]] = [[] for _ in range(len(steps) + 1)]
    for p in planned["placements"]:
        b = buffers[p["buffer"]]
        change[p["from"]].append((_PARTS[b["kind"]], b["bytes"]))
        change[p["to"]].append((_PARTS[b["kind"]], -b["bytes"]))
    live: dict[str, int] = {}
    fullest: dict[str, int] = {}
    begins = {(p["buffer"], p["from"]): p["offset"] for p in planned["placements"]}
    ends = {(p["buffer"], p["to"]): p["offset"] for p in planned["placements"]}
    for i, step in enumerate(steps):
        for part, count in change[i]:
            live[part] = live.get(part, 0) + count
        op = ops[step["op"]] if "op" in step else {}
        now = {**live, "copies": live.get("copies", 0) + sum(s["bytes"] for s in op.get("scratch", ()))}
        for read, made in op.get("takeover", ()):  # the result lies over the input: once
            if (at := begins.get((made, i))) is not None and at == ends.get((read, i + 1)):
                now[_PARTS[buffers[made]["kind"]]] -= buffers[made]["bytes"]
        if sum(now.values()) > sum(fullest.values()):
            fullest = now
    for part, count in fullest.items():
        parts[part] += count
    parts["unused"] = max(0, planned["arena_bytes"] - sum(fullest.values()))
    return parts


__all__ = ["LINK_GBPS", "Choice", "Contender", "Decision", "Decisions", "bytes_by_part", "decisions", "held_bytes"]
