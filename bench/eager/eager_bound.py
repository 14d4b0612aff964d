"""How fast can a step be under a limit and a link, whatever the policy of `stowage.budget`? A bound below, from the
step's graph.

    ops      ··· i ─────────────── j ···        what ops i to j read, was there before i, and cannot be made again, has to be in memory
    reads        w1  w2  m1 v1 ...  m9           by then: at most `limit` of it is at i, the rest comes over the link meanwhile

So ops i to j take at least (need(i, j) - limit) / bandwidth, and what that is above their own time is lost. The sum
over disjoint intervals that is largest, by dynamic programming: O(ops^2). Values that forward makes count nothing, as
they may be made again for nothing; latency, copies out, sizes of a few bytes and the insides of ops count nothing
either: the true optimum lies above.

Parameters, optimizer state and what backward makes cannot be made again: ops in place do not repeat, and Stowage's
runtime, on which all policies run, remembers no recipe of what backward makes."""

from __future__ import annotations

import numpy

_OVERWRITES = ("aten::copy_", "aten::fill_", "aten::zero_")


class StepBound:
    """Of one captured step, which follows itself again and again."""

    def __init__(self, graph: dict):
        self._ops, self._buffers = graph["ops"], graph["buffers"]
        self._ends_ns = numpy.cumsum([0] + [op.get("cost_ns", 0) for op in self._ops])
        backward = next((i for i, op in enumerate(self._ops) if "backward" in op.get("target", "")), len(self._ops))
        # For each op and buffer that it reads: may its content be made again?
        self._fixed = [buffer.get("resident", False) for buffer in self._buffers]
        self._fixed_after = [
            dict.fromkeys(op.get("writes", []), True) | dict.fromkeys(op.get("creates", []), i >= backward)
            for i, op in enumerate(self._ops)
        ]
        self._need = numpy.array([self._needs_from(i) for i in range(len(self._ops))])

    def _needs_from(self, first: int) -> list[int]:
        """need(first, j) for all j; 0 before."""
        fixed = list(self._fixed)
        for made in self._fixed_after[:first]:
            for buffer, is_fixed in made.items():
                fixed[buffer] = is_fixed
        seen: set[int] = set()
        needs, need = [0] * first, 0
        for op in self._ops[first:]:
            reads = op.get("reads", []) + ([] if op.get("target", "").startswith(_OVERWRITES) else op.get("writes", []))
            for buffer in reads:
                if buffer not in seen and fixed[buffer]:
                    need += self._buffers[buffer]["bytes"]
            seen.update(op.get("reads", []), op.get("writes", []), op.get("creates", []))
            needs.append(need)
        return needs

    def lost_s(self, limit_bytes: int, gbps: float) -> float:
        """Seconds beyond the step's own that any policy loses."""
        best = numpy.zeros(len(self._ops) + 1)
        for end in range(1, len(best)):
            lost = (self._need[:end, end - 1] - limit_bytes) / gbps - (self._ends_ns[end] - self._ends_ns[:end])
            best[end] = max(best[end - 1], (best[:end] + numpy.maximum(lost, 0)).max())
        return float(best[-1]) / 1e9
