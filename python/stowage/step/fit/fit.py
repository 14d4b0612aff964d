"""stowage.max_batch, max_length: the largest batch, or the longest sequence, whose step a byte limit holds, found without
making the model.

    size      1   2       22   29 30 31      on a line through what the sizes before need (size_search.py): 30 fits, 31 does not

A size fits when its planned step does, and the eager calls that come before it: a compiled step runs eagerly to be
recorded and to be compared, within the same limit. There everything may leave but what one op touches, what no op has
touched yet and what is too small to leave; and no result lies over an input, so one op may need more than any plan
does. What kernels allocate for themselves is measured, each alone; 1/128 of the limit is left to what that does not see.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any, NoReturn

from stowage.errors import Error, Infeasible, say
from stowage.planning import Graph, Plan, infeasible, plan
from stowage.report.progress import shown
from stowage.sizes import in_words, parse_bytes
from stowage.step.fit.made_step import MakeStep
from stowage.step.fit.size_search import largest_size
from stowage.step.fit.sized_step import SizedSteps

_MOST = {"batch": 1 << 20, "length": 1 << 24}
_PARAMETERS = {"batch": "batch_size", "length": "length"}  # of make_step
# The part of the limit that is left to what kernels allocate for themselves.
_SCRATCH_PART = 128
# What stays on the device in eager calls: runtime/evict/value.h.
_SMALL_BYTES, _SMALL_NUMBERS_BYTES = 2048, 64 << 10


@dataclasses.dataclass(frozen=True)
class _Sized:
    """``axis``: "batch" or "length"; the size is also found under that name."""

    axis: str
    size: int

    @property
    def batch(self) -> int:
        return self._of("batch")

    @property
    def length(self) -> int:
        return self._of("length")

    def _of(self, axis: str) -> int:
        if self.axis != axis:
            raise AttributeError(f"this is a {self.axis}, not a {axis}")
        return self.size


@dataclasses.dataclass(frozen=True)
class Trial(_Sized):
    """One size. ``slowdown``: predicted step over that without a limit; None when no plan fits.
    ``smallest_bytes``: the least budget that a plan was found for, when this one was not met. ``eager_bytes``: what the
    calls that run eagerly need at least."""

    fits: bool
    outcome: str
    resident_bytes: int
    program_peak_bytes: int
    arena_bytes: int | None
    step_ns: int | None
    slowdown: float | None
    smallest_bytes: int | None
    eager_bytes: int
    capture_s: float
    plan_s: float


@dataclasses.dataclass(frozen=True)
class Fit(_Sized):
    """The largest size that fits, its graph and plan, and all that was tried.

    Args:
        axis: "batch" (of max_batch) or "length" (of max_length).
        size: the largest that fits; ``batch``, or ``length``, is the same number.
        budget_bytes: the budget, in bytes.
        slowdown: the predicted step over the step without a limit.
        graph: of the step at that size.
        plan: of that graph, within the budget.
        tried: each size that was planned, by growing size.
    """

    budget_bytes: int
    slowdown: float
    graph: Graph
    plan: Plan
    tried: tuple[Trial, ...]

    def summary(self) -> dict:
        """The plan's summary; see Plan.summary()."""
        return self.plan.summary()

    def __repr__(self) -> str:
        return (
            f"<stowage.Fit: {self.axis} {self.size} in {self.budget_bytes} bytes, predicted step x {self.slowdown:.3f}>"
        )


def max_batch(
    make_step: Callable[[int], tuple[Callable, Any]],
    budget: int | str,
    *,
    start: int = 1,
    most: int = _MOST["batch"],
    multiple_of: int = 1,
    max_slowdown: float | None = None,
    link_gbps: float | None = None,
    time_limit: float = 0.0,
) -> Fit:
    """The largest batch size whose planned step fits ``budget`` bytes, parameters and optimizer state included.

    It runs under FakeTensorMode: tensors have shapes but no memory, so the model may be larger than this machine. Costs
    are estimates from shapes, and so is the slowdown. Kernels of the CPU that may allocate for themselves run once,
    alone, on zeros. The calls that run eagerly, to be recorded, fit too.

    Args:
        make_step: make_step(batch_size) builds the model and the optimizer and returns (train_step, batch): the
            training step as for stowage.compile, and its arguments, a tuple (or one argument that is no tuple). It must
            build everything anew, and must not read tensors' values. Other parameters need defaults.
        budget: bytes, or "2GiB".
        start: the first batch size tried.
        most: the last.
        multiple_of: only multiples of it.
        max_slowdown: the predicted step may take at most this many times the step without a limit; None: any.
        link_gbps: speed of the link to the host, in 10^9 bytes a second each way; 0: recomputation alone.
        time_limit: of each plan, in seconds; 0 for none.

    Returns:
        A Fit.

    Raises:
        Infeasible: not even ``start`` fits.
        Error: the same, where that is not proven.
        Unsupported: the step cannot be recorded.
        Exception: what the step raises; at ``start`` with a note that says so.
    """
    return _largest(
        "batch", make_step, budget, (start, most, multiple_of), max_slowdown, link_gbps, time_limit
    )  # fmt: skip


def max_length(
    make_step: Callable[[int], tuple[Callable, Any]],
    budget: int | str,
    *,
    start: int = 1,
    most: int = _MOST["length"],
    multiple_of: int = 1,
    max_slowdown: float | None = None,
    link_gbps: float | None = None,
    time_limit: float = 0.0,
) -> Fit:
    """The longest sequence whose planned step fits ``budget`` bytes, parameters and optimizer state included.

    As max_batch, but for what make_step is asked. A table of positions is looked up without being read, so a model that
    knows at most 1024 positions needs ``most=1024``, or a make_step that builds the table for each length.

    Args:
        make_step: make_step(length) builds the model and the optimizer and returns (train_step, batch), with sequences
            of that length; see max_batch.
        budget, max_slowdown, link_gbps, time_limit: as for max_batch.
        start, most, multiple_of: of lengths, as there of batch sizes.

    Returns:
        A Fit.

    Raises:
        Infeasible: not even ``start`` fits.
        Error: the same, where that is not proven.
        Unsupported: the step cannot be recorded.
        Exception: what the step raises; at ``start`` with a note that says so.
    """
    return _largest(
        "length", make_step, budget, (start, most, multiple_of), max_slowdown, link_gbps, time_limit
    )  # fmt: skip


def _largest(
    axis: str,
    make_step: Callable,
    budget: int | str,
    sizes: tuple[int, int, int],
    max_slowdown: float | None,
    link_gbps: float | None,
    time_limit: float,
) -> Fit:
    budget_bytes = parse_bytes(budget)
    if budget_bytes is None:
        raise TypeError(f"max_{axis}() needs a budget")
    start, most, unit = sizes
    _check_sizes(start, most, unit)
    search = _Search(axis, make_step, budget_bytes, max_slowdown, link_gbps, time_limit)
    least = -(-start // unit)

    def fits(units: int) -> bool:
        try:
            return search.fits(units * unit)
        except Exception as error:
            if units == least and not isinstance(error, Error):  # of the step's own, which may need more (batch norm)
                first = f"stowage: with {axis} {units * unit}, the first that max_{axis}() tries"
                say(error, f"{first}; start= names another")
            raise

    def need(units: int) -> int | None:
        return search.need(units * unit)

    found = largest_size(fits, need, budget_bytes, least, least, most // unit)
    if found is None:
        search.raise_too_small(least * unit)
    return search.result(found * unit)


def _check_sizes(start: int, most: int, multiple_of: int) -> None:
    for name, value in (("start", start), ("most", most), ("multiple_of", multiple_of)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1: {value}")
    if most // multiple_of < -(-start // multiple_of):
        raise ValueError(f"no multiple of {multiple_of} lies between start ({start}) and most ({most})")


class _Search:
    """Captures and plans sizes; remembers the largest that fits."""

    def __init__(
        self,
        axis: str,
        make_step: Callable,
        budget_bytes: int,
        max_slowdown: float | None,
        link_gbps: float | None,
        time_limit: float,
    ):
        self._axis = axis
        self._made = MakeStep(make_step, _PARAMETERS[axis])
        self._steps = SizedSteps(self._made)
        self._budget_bytes = budget_bytes
        self._plan_bytes = without_scratch(budget_bytes)
        self._max_slowdown = max_slowdown
        self._link_gbps = link_gbps
        self._time_limit = time_limit
        self._tried: dict[int, Trial] = {}
        self._reasons: dict[int, Error] = {}
        self._best: tuple[int, Graph, Plan] | None = None

    def fits(self, size: int) -> bool:
        with shown(f"{self._axis} {size}"):
            return self._fits(size)

    def _fits(self, size: int) -> bool:
        start = time.perf_counter()
        sizes = self._made.sizes({_PARAMETERS[self._axis]: size})
        graph, as_recorded = self._steps.at(sizes).graphs(f"{self._axis}-{size}")
        captured = time.perf_counter()
        planned: Plan | None = None
        reason: Error | None = None
        eager_bytes = _with_scratch(least_eager_bytes(as_recorded))
        try:
            planned = plan(graph, self._plan_bytes, link_gbps=self._link_gbps, time_limit=self._time_limit)
        except Infeasible as error:
            smallest, bound = (_with_scratch(n) for n in (error.smallest_bytes, error.bound_bytes))
            reason = infeasible(f"graph '{graph.name}'", self._budget_bytes, smallest, bound)
        except Error as error:
            reason = error
        if planned is not None and eager_bytes > self._budget_bytes:
            why = f"the first calls run eagerly, to be recorded, and there one op needs {in_words(eager_bytes, 1)}"
            reason = Infeasible(f"graph '{graph.name}': {why}", eager_bytes, eager_bytes)
        finished = time.perf_counter()
        summary = planned.summary() if planned else {}
        slowdown = _slowdown(summary) if planned else None
        slow = slowdown is not None and self._max_slowdown is not None and slowdown > self._max_slowdown
        fits = reason is None and not slow
        self._tried[size] = Trial(
            axis=self._axis,
            size=size,
            fits=fits,
            outcome="infeasible" if isinstance(reason, Infeasible) else summary["outcome"] if planned else "unknown",
            resident_bytes=graph.resident_bytes,
            program_peak_bytes=graph.program_peak_bytes,
            arena_bytes=summary.get("arena_bytes"),
            step_ns=summary.get("step_ns"),
            slowdown=slowdown,
            smallest_bytes=getattr(reason, "smallest_bytes", None),
            eager_bytes=eager_bytes,
            capture_s=captured - start,
            plan_s=finished - captured,
        )
        if fits and planned is not None:
            self._best = (size, graph, planned)
        elif reason is not None:
            self._reasons[size] = reason
        return fits

    def need(self, size: int) -> int | None:
        """The least limit that is known to do for it; None where that does not tell whether it fits."""
        if self._max_slowdown is not None:
            return None
        trial = self._tried[size]
        if not trial.fits:
            return max(trial.smallest_bytes, trial.eager_bytes) if trial.smallest_bytes is not None else None
        assert self._best is not None
        try:
            plan(self._best[1], 1, link_gbps=self._link_gbps, time_limit=self._time_limit)
        except Infeasible as error:
            return max(_with_scratch(error.smallest_bytes), trial.eager_bytes)
        except Error:
            pass
        return None

    def raise_too_small(self, size: int) -> NoReturn:
        reason, what = self._reasons.get(size), f"{self._axis} {size}"
        if reason is None:
            slowdown = self._tried[size].slowdown
            raise Error(
                f"{what} fits {self._budget_bytes} bytes, but at {slowdown:.3f} times the step without a limit"
            )  # fmt: skip
        if isinstance(reason, Infeasible):
            raise Infeasible(f"not even {what} fits: {reason}", reason.smallest_bytes, reason.bound_bytes) from None
        raise Error(f"no plan was found for {what}: {reason}") from None

    def result(self, size: int) -> Fit:
        assert self._best is not None
        largest, graph, planned = self._best
        assert largest == size
        tried = tuple(self._tried[each] for each in sorted(self._tried))
        return Fit(self._axis, size, self._budget_bytes, _slowdown(planned.summary()), graph, planned, tried)


def without_scratch(budget_bytes: int) -> int:
    """What of a limit is left to a plan that was made without seeing what kernels allocate for themselves."""
    return budget_bytes - budget_bytes // _SCRATCH_PART


def _with_scratch(plan_bytes: int) -> int:
    """The least limit that leaves ``plan_bytes`` to a plan."""
    return plan_bytes + (plan_bytes - 1) // (_SCRATCH_PART - 1) if plan_bytes > 0 else plan_bytes


def least_eager_bytes(graph: Graph) -> int:
    """Bytes that running the graph eagerly needs at least, with everything that may leave the device gone: what the
    largest op touches and makes, its scratch, and what stays meanwhile: residents that no op has touched yet, and
    whatever is too small to leave."""
    step = json.loads(graph.to_json())
    buffers, ops = step["buffers"], step["ops"]
    bytes_ = [b["bytes"] for b in buffers]
    small = [n < (_SMALL_NUMBERS_BYTES if b["kind"] == "input" else _SMALL_BYTES) for b, n in zip(buffers, bytes_)]
    touches = [{b for field in ("reads", "writes", "creates") for b in op.get(field, ())} for op in ops]
    last = {b: i for i, ids in enumerate(touches) for b in ids}
    stays = {b for b, buffer in enumerate(buffers) if buffer.get("resident") and buffer["kind"] != "output"}
    most = staying = sum(bytes_[b] for b in stays)
    for i, (op, ids) in enumerate(zip(ops, touches)):
        here = staying + sum(bytes_[b] for b in ids - stays)
        live = [(s.get("from", 0), s.get("to", 1), s["bytes"]) for s in op.get("scratch", ())]
        most = max(most, here + max((sum(n for a, b, n in live if a <= tick < b) for tick, _, _ in live), default=0))
        for b in ids:
            forever = buffers[b].get("resident") or buffers[b].get("returned")
            keep = small[b] and (forever or last[b] > i)
            staying += bytes_[b] * (keep - (b in stays))
            (stays.add if keep else stays.discard)(b)
    return most


def _slowdown(summary: dict) -> float:
    return summary["step_ns"] / summary["program_step_ns"] if summary["program_step_ns"] else 1.0
