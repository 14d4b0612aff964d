"""Plans with recomputation and swaps, made by hand from plans without: what the executor's tests run, whatever the
planner can do.

``Steps`` is a list of steps that is edited (run op k again before step i, swap a buffer out and in), from which
``plan`` derives placements by liveness, lays them out first-fit, and has the result checked by stowage.check.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict

import stowage


def _padded(n: int, align: int) -> int:
    return (n + align - 1) // align * align


class Steps:
    """A step is ("op", k), ("out", b, token) or ("in", b, token); ("due", token) marks where the copy must be
    complete."""

    def __init__(self, graph: stowage.Graph, order: list[int]):
        self.graph = graph
        self.data = json.loads(graph.to_json())
        self.ops = self.data["ops"]
        self.buffers = self.data["buffers"]
        self.steps: list[tuple] = [("op", k) for k in order]
        self.tokens = 0

    @classmethod
    def of(cls, graph: stowage.Graph, plan: stowage.Plan) -> Steps:
        return cls(graph, [s["op"] for s in json.loads(plan._plan.to_json())["steps"]])

    def copy(self) -> Steps:
        other = object.__new__(Steps)
        other.__dict__.update(self.__dict__)
        other.steps = list(self.steps)
        return other

    def creator(self, buffer: int) -> int:
        return next(k for k, op in enumerate(self.ops) if buffer in op.get("creates", []))

    def writers(self, buffer: int) -> list[int]:
        return [k for k, op in enumerate(self.ops) if buffer in op.get("writes", [])]

    def touches(self, buffer: int) -> list[int]:
        """Steps that run an op on the buffer."""
        found = []
        for i, step in enumerate(self.steps):
            if step[0] == "op" and any(
                buffer in self.ops[step[1]].get(key, []) for key in ("reads", "writes", "creates")
            ):
                found.append(i)
        return found

    def recompute(self, buffer: int, before: int) -> None:
        """Runs what makes the buffer again: its creator and every op that writes it in place before the step
        ``before``."""
        done = {s[1] for s in self.steps[:before] if s[0] == "op"}
        chain = sorted([self.creator(buffer), *(k for k in self.writers(buffer) if k in done)])
        self.steps[before:before] = [("op", k) for k in chain]

    def swap(self, buffer: int, after: int, before: int, out_steps: int = 1, in_steps: int = 1) -> None:
        """Out after step ``after``, in again before step ``before``; each copy may take that many steps."""
        out, back = self.tokens, self.tokens + 1
        self.tokens += 2
        start_in = max(after + 1 + out_steps, before - in_steps)
        self.steps.insert(before, ("due", back))
        self.steps.insert(start_in, ("in", buffer, back))
        self.steps.insert(after + 1 + out_steps, ("due", out))
        self.steps.insert(after + 1, ("out", buffer, out))

    # ---- Plan

    def plan(self, join_side_results: bool = False) -> stowage.Plan:
        """join_side_results: a buffer that an op makes anew while it is still needed keeps its placement."""
        due, steps = {}, []
        for step in self.steps:
            if step[0] == "due":
                due[step[1]] = len(steps)
            else:
                steps.append(step)
        spans = self._spans(steps, due, join_side_results)
        scratch = [
            (i, j) for i, s in enumerate(steps) if s[0] == "op" for j in range(len(self.ops[s[1]].get("scratch", [])))
        ]
        offsets, arena = self._layout(steps, spans, scratch)
        data = {
            "format": "stowage-plan",
            "version": 1,
            "graph_sha256": self.graph.sha256,
            "align": self.graph.align,
            "arena_bytes": arena,
            "steps": [self._step(s, due) for s in steps],
            "placements": [
                {"buffer": b, "from": f, "to": t, "offset": offsets[n]} for n, (b, f, t) in enumerate(spans)
            ],
            "scratch": [{"step": i, "index": j, "offset": offsets[len(spans) + n]} for n, (i, j) in enumerate(scratch)],
        }
        plan = stowage.Plan(stowage._core.Plan.parse(json.dumps(data)), {})
        peak = stowage.check(self.graph, plan)
        again = len([s for s in steps if s[0] == "op"]) - len(self.ops)
        plan._summary = {
            "arena_bytes": arena,
            "peak_bytes": peak,
            "resident_bytes": self.graph.resident_bytes,
            "recomputed_ops": again,
        }
        return plan

    @staticmethod
    def _step(step: tuple, due: dict) -> dict:
        if step[0] == "op":
            return {"op": step[1]}
        return {"swap_out" if step[0] == "out" else "swap_in": step[1], "until": due[step[2]]}

    def _spans(self, steps: list[tuple], due: dict, join: bool) -> list[tuple[int, int, int]]:
        """(buffer, from, to): a placement begins wherever content is given, and ends after the last use before the next
        such step."""
        events = defaultdict(list)  # buffer -> (step, gives content, held until)
        for i, step in enumerate(steps):
            if step[0] == "op":
                op = self.ops[step[1]]
                for b in op.get("creates", []):
                    events[b].append((i, True, i + 1))
                for b in {*op.get("reads", []), *op.get("writes", [])}:
                    events[b].append((i, False, i + 1))
            else:
                events[step[1]].append((i, step[0] == "in", due[step[2]]))
        spans = []
        for b, touched in sorted(events.items()):
            if self.buffers[b].get("resident"):
                continue
            for i, gives, until in touched:
                needed_later = any(not g and j > i for j, g, _ in touched)
                if gives and not (join and spans and spans[-1][0] == b and needed_later and steps[i][0] == "op"):
                    spans.append((b, i, until))
                else:
                    spans[-1] = (b, spans[-1][1], max(until, spans[-1][2]))
            if self.buffers[b].get("returned"):
                spans[-1] = (b, spans[-1][1], len(steps))
        return spans

    def _layout(self, steps, spans, scratch) -> tuple[list[int], int]:
        align = self.graph.align
        rects = [(f, t, _padded(self.buffers[b]["bytes"], align)) for b, f, t in spans]
        rects += [(i, i + 1, _padded(self.ops[steps[i][1]]["scratch"][j]["bytes"], align)) for i, j in scratch]
        offsets = [0] * len(rects)
        placed: list[int] = []
        for n in sorted(range(len(rects)), key=lambda n: (-rects[n][2], n)):
            lower, upper, size = rects[n]
            taken = sorted(
                (offsets[m], offsets[m] + rects[m][2]) for m in placed if rects[m][0] < upper and lower < rects[m][1]
            )
            at = 0
            for lo, hi in taken:
                if at + size <= lo:
                    break
                at = max(at, hi)
            offsets[n] = at
            placed.append(n)
        return offsets, max((offsets[n] + rects[n][2] for n in range(len(rects))), default=0)


def _valid(steps: Steps, join: bool) -> bool:
    try:
        steps.plan(join)
    except stowage.InvalidPlan:
        return False
    return True


def transformed(
    graph: stowage.Graph, plan: stowage.Plan, seed: int, recomputations: int, swaps: int, join: bool = False
) -> stowage.Plan:
    """The plan with that many random recomputations and swaps, each kept only if the checker accepts it."""
    rng = random.Random(seed)
    steps = Steps.of(graph, plan)
    mine = [b for b, buffer in enumerate(steps.buffers) if not buffer.get("resident") and buffer["bytes"] > 0]
    for wanted, edit in ((recomputations, _try_recompute), (swaps, _try_swap)):
        made = 0
        for _ in range(wanted * 8):
            if made == wanted:
                break
            trial = steps.copy()
            if edit(trial, rng.choice(mine), rng) and _valid(trial, join):
                steps, made = trial, made + 1
        assert made >= (wanted + 1) // 2, f"seed {seed}: only {made} of {wanted} edits by {edit.__name__} are valid"
    return steps.plan(join)


def _try_recompute(steps: Steps, buffer: int, rng: random.Random) -> bool:
    touches = steps.touches(buffer)
    if len(touches) < 2:
        return False
    steps.recompute(buffer, rng.choice(touches[1:]))
    return True


def _try_swap(steps: Steps, buffer: int, rng: random.Random) -> bool:
    touches = steps.touches(buffer)
    gaps = [(a, b) for a, b in itertools.pairwise(touches) if b - a > 3]
    if not gaps:
        return False
    after, before = rng.choice(gaps)
    steps.swap(buffer, after, before, rng.randint(1, 2), rng.randint(1, 3))
    return True
