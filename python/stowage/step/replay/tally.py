"""What the calls of a step have shown so far: how many were planned, their times, and whether all went as planned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stowage.errors import AFTER, Error, say, warn

_RECENT = 100  # times that medians are of


class Tally:
    """Eager calls, planned ones and rehearsals are counted by whoever makes them; times are in ns."""

    def __init__(self, strict: bool | str):
        self.eager_steps = 0
        self.planned_steps = 0
        self.misses = 0
        self.measured_peak_bytes = 0
        self._strict = strict
        self._eager_ns: list[int] = []
        self._planned_ns: list[int] = []
        self._stall_ns: list[int] = []
        self._check_ns: list[int] = []
        self.checked_steps = 0

    @contextmanager
    def eager_call(self) -> Iterator[None]:
        """Counted when it goes through."""
        start = time.perf_counter_ns()
        yield
        self._add(self._eager_ns, time.perf_counter_ns() - start)
        self.eager_steps += 1

    @contextmanager
    def check(self) -> Iterator[None]:
        """The user's Python over shells; counted when it goes through."""
        start = time.perf_counter_ns()
        yield
        self._add(self._check_ns, time.perf_counter_ns() - start)
        self.checked_steps += 1

    def planned_call(self, run, *args) -> Any:
        """run(*args), timed and counted."""
        start = time.perf_counter_ns()
        result = run(*args)
        self._add(self._planned_ns, time.perf_counter_ns() - start)
        self.planned_steps += 1
        return result

    def account(self, run) -> None:
        """Of a planned step (an executor's Run). Raises Error in strict mode when an allocation was not as planned."""
        self.misses += run.misses
        self.measured_peak_bytes = run.peak_bytes
        self._add(self._stall_ns, run.stall_ns)
        if run.rescued_bytes:
            warn(f"{run.rescued_bytes} bytes could not be written to the host store; they waited in memory")
        if self._strict and (run.misses or run.escaped_blocks):
            what = f"{run.misses} allocations were not as planned, {run.escaped_blocks} outlived the step (strict mode)"
            raise say(Error(what), AFTER)

    @property
    def eager_ns(self) -> int:
        return _median(self._eager_ns)

    @property
    def planned_ns(self) -> int:
        return _median(self._planned_ns)

    @property
    def check_ns(self) -> int:
        return _median(self._check_ns)

    @property
    def stall_ns(self) -> int:
        return _median(self._stall_ns)

    @staticmethod
    def _add(times: list[int], ns: int) -> None:
        times.append(ns)
        del times[:-_RECENT]


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0
