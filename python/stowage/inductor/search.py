"""The cheapest partition whose programs keep a byte limit.

    level   0 ├───┬───┬───┬─ … ─┬───┤ 64      limits for the planner, between the least it can do and Inductor's default
                          ▲     ╰ budget
                          ╰ planned; lowered again by Inductor: does it keep the budget? else further down

The levels do not depend on the budget, so a larger budget can only find a partition of a higher level, which recomputes
less. What the planner predicts is of the default's kernels; after the partition has changed Inductor fuses anew, so only
the programs of a second lowering, read to the byte, confirm a candidate.

Complexity: at most TRIES plans and lowerings, and those of LAST where the budget is too small; each takes what Inductor's
lowering takes without the text of kernels. Known weakness: below the lowest level nothing is tried; that
PyTorch copies gradients (trial.py) is confirmed, not planned for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from stowage.errors import Error, Infeasible
from stowage.inductor.joint import Joint
from stowage.inductor.trial import Trial, each_program
from stowage.planning import plan

LEVELS = 64
TRIES = 6
LAST = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1, 0)  # tried before it is said that nothing keeps the budget


@dataclasses.dataclass
class Candidate:
    """saved: nodes of the joint graph; None: what Inductor saves by itself."""

    saved: tuple[str, ...] | None
    peak_bytes: int
    recompute_ns: int
    level: int
    bound_bytes: int  # no partition needs less
    nameless_bytes: int = 0
    programs: tuple[tuple[str, str], ...] = ()  # ("forward", its graph as text), ("backward", ...)


@dataclasses.dataclass
class _Planned:
    names: tuple[str, ...]  # what is saved
    nameless_bytes: int
    recompute_ns: int


class Ladder:
    """Of one joint graph. evaluate(saved): the trial of a partition, and what it really saves. masks: see masks.made_again()."""

    def __init__(self, default: Trial, evaluate: Callable[[tuple[str, ...]], tuple[Trial, tuple[str, ...]]],
                 masks: Mapping[str, tuple[str, ...]]):  # fmt: skip
        self.trial, self.masks = default, masks
        self.evaluate = evaluate
        self.bound_bytes = default.backward.end_bytes + default.outside_bytes
        self.default = Candidate(
            None, default.peak_bytes, 0, LEVELS, self.bound_bytes, programs=each_program(default)
        )  # fmt: skip
        self.joint: Joint | None = None
        self.plans: dict[int, _Planned | None] = {}
        self.levels: dict[int, Candidate | None] = {}
        self.by_saved: dict[tuple[str, ...], Candidate] = {}
        self.least_bytes = 0
        self.trials = 1

    def choose(self, budget_bytes: int) -> Candidate:
        """Raises Infeasible (of the package's own class) with the smallest peak that was found."""
        if self.default.peak_bytes <= budget_bytes:
            return self.default
        self._begin()
        found = self._near(budget_bytes) if self.bound_bytes <= budget_bytes else None
        if found is not None:
            return found
        smallest = self.default.peak_bytes
        for level in LAST:
            candidate = self.at(level)
            if candidate is not None:
                if candidate.peak_bytes <= budget_bytes:
                    return candidate
                smallest = min(smallest, candidate.peak_bytes)
        raise Infeasible("", smallest, self.bound_bytes)

    def _near(self, budget_bytes: int) -> Candidate | None:
        """From the level of the budget down until one keeps it; then up, below those that did not, while that saves time."""
        level, found, failed = self._level_of(budget_bytes), None, LEVELS
        for _ in range(TRIES):
            candidate = self.at(level)
            if candidate is not None and candidate.peak_bytes <= budget_bytes:
                if found is None or candidate.level > found.level:
                    found = candidate
            elif found is not None or level == 0:
                break
            else:
                above = candidate.peak_bytes - budget_bytes if candidate is not None else 0
                failed = level
                level = min(level - 1, self._level_of(self._asked(level) - above))
                continue
            level = self._level_of(self._asked(found.level) + budget_bytes - found.peak_bytes)
            if level >= failed:
                level = (found.level + failed) // 2
            if level <= found.level or level in self.levels or not self._worth(found, level):
                break
        kept = [c for c in self.levels.values() if c is not None and c.peak_bytes <= budget_bytes]
        return max(kept, key=lambda c: c.level, default=None)  # another budget may have found a better one

    def _worth(self, found: Candidate, level: int) -> bool:
        """A trial of this level may save a hundredth of the kernels' time."""
        assert self.joint is not None
        least = self.joint.cost_ns // 100
        if found.recompute_ns < least:
            return False
        planned = self._planned(level)
        return planned is not None and planned.recompute_ns + least <= found.recompute_ns

    def known(self) -> list[Candidate]:
        """What was tried, the cheapest first."""
        found = {c.peak_bytes: c for c in self.levels.values() if c is not None}
        return [self.default, *sorted(found.values(), key=lambda c: -c.level)]

    def at(self, level: int) -> Candidate | None:
        if level not in self.levels:
            self.levels[level] = self._make(level)
        return self.levels[level]

    def _begin(self) -> None:
        if self.joint is not None:
            return
        self.joint = Joint(self.trial, self.masks)
        try:
            plan(self.joint.graph, self.bound_bytes, keep_order=True, link_gbps=0.0, progress=False)
            self.least_bytes = self.bound_bytes
        except Infeasible as error:
            self.least_bytes = error.smallest_bytes
        except Error:
            self.least_bytes = self.bound_bytes

    def _asked(self, level: int) -> int:
        return self.least_bytes + (self.default.peak_bytes - self.least_bytes) * level // LEVELS

    def _level_of(self, limit_bytes: int) -> int:
        """The highest whose limit is no higher."""
        room = self.default.peak_bytes - self.least_bytes
        if room <= 0 or limit_bytes <= self.least_bytes:
            return 0
        level = min(LEVELS - 1, (limit_bytes - self.least_bytes) * LEVELS // room)
        while level > 0 and self._asked(level) > limit_bytes:
            level -= 1
        return level

    def _make(self, level: int) -> Candidate | None:
        planned = self._planned(level)
        if planned is None:
            return None
        if planned.names in self.by_saved:
            return dataclasses.replace(self.by_saved[planned.names], level=level)
        self.trials += 1
        trial, saved = self.evaluate(planned.names)
        self.by_saved[planned.names] = found = Candidate(
            saved, trial.peak_bytes, planned.recompute_ns, level, self.bound_bytes, planned.nameless_bytes,
            each_program(trial),
        )  # fmt: skip
        return found

    def _planned(self, level: int) -> _Planned | None:
        """None: no plan was found."""
        assert self.joint is not None
        if level not in self.plans:
            try:
                made = plan(self.joint.graph, self._asked(level), keep_order=True, link_gbps=0.0, progress=False)
                names, nameless = self.joint.saved_by(made._plan)
                self.plans[level] = _Planned(tuple(names), nameless, made.summary()["recompute_ns"])
            except Error:  # Infeasible too: the planner's least may not be reached at once
                self.plans[level] = None
        return self.plans[level]


__all__ = ["Candidate", "Ladder"]
