"""stowage.will_it_fit: what a training step needs, before there is memory for it.

    make_step ──on fakes──▶ trace of eager, kernels' own bytes        what eager takes: its peak, by kind and by line
                      └───▶ graph ──plan──▶ without a limit           what a plan takes
                                     └────▶ least limit that works    the floor, and below what nothing can work (proven)

             proven bound    least found      plan       eager
    ─────────────┼───────────────┼─────────────┼───────────┼──────▶ bytes of the device
     does not fit│    unknown    │with a budget│with a plan│ fits

The largest batch and length are searched on the same numbers (size_search.py)."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

from stowage.errors import Error, Infeasible, Unsupported
from stowage.planning import Graph, plan
from stowage.report.progress import shown
from stowage.sizes import parse_bytes
from stowage.step.fit.fit import least_eager_bytes, without_scratch
from stowage.step.fit.made_step import MakeStep
from stowage.step.fit.size_search import largest_size
from stowage.step.fit.sized_step import SizedStep, SizedSteps

FITS, WITH_PLAN, WITH_BUDGET = "fits", "fits with a plan", "fits with a budget"
DOES_NOT, UNKNOWN = "does not fit", "unknown"
_LARGEST = {"batch_size": 1 << 20, "length": 1 << 24}
_LINES = 8  # of the peak that are named


@dataclasses.dataclass(frozen=True)
class Holder:
    """Bytes at eager's peak that one line of the user's code has made, of one kind."""

    line: str
    kind: str
    bytes: int
    tensors: int


@dataclasses.dataclass(frozen=True)
class Largest:
    """The largest size that fits, or None when not even 1 does; ``bounded``: larger ones were not allowed."""

    eager: int | None
    budget: int | None
    bounded: bool


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What will_it_fit() has found. All sizes in bytes, of the device that holds the parameters.

    Args:
        outcome: "fits" (plain eager), "fits with a plan" (stowage.compile), "fits with a budget" (stowage.compile with
            ``budget_bytes``), "does not fit" (proven: ``bound_bytes`` is more than the device has), "unknown" (neither
            a plan was found, nor a proof).
        device_bytes: what the device has.
        sizes: batch_size and length that the question is about.
        eager_bytes: eager's peak.
        planned_bytes: residents and arena of a plan without a limit; None when the step cannot be recorded.
        least_bytes: the least budget that a plan was found for; None likewise.
        bound_bytes: no plan works below it; None likewise.
        budget_bytes: the budget to give to stowage.compile.
        slowdown: predicted, of the step within ``budget_bytes``, over the step without a limit.
        by_kind: bytes at eager's peak, by kind (parameters, gradients, optimizer state, activations, temporary).
        by_line: the same, by line of the user's code.
        peak_line, peak_op: where eager's peak is.
        largest: the largest size that fits, by size that make_step takes.
        device: whose memory it is.
        refusal: why the step cannot be recorded, or "".
        guessed: lines that read a number of the data, such as loss.item(); it was taken as 1.0. Such steps are not
            planned.
    """

    outcome: str
    device_bytes: int
    sizes: dict[str, int]
    eager_bytes: int
    planned_bytes: int | None
    least_bytes: int | None
    bound_bytes: int | None
    budget_bytes: int | None
    slowdown: float | None
    by_kind: dict[str, int]
    by_line: tuple[Holder, ...]
    peak_line: str
    peak_op: str
    largest: dict[str, Largest]
    device: str
    refusal: str
    guessed: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """In one of the three ways."""
        return self.outcome in (FITS, WITH_PLAN, WITH_BUDGET)

    def summary(self) -> dict:
        """As plain data: what ``stowage fit --model-from ... --json`` prints."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """The summary as one JSON object."""
        return json.dumps(self.summary())

    def __str__(self) -> str:
        from stowage.step.fit.prediction_text import as_text

        return as_text(self)


def will_it_fit(
    make_step: Callable[..., tuple[Callable, Any]],
    device: int | str,
    *,
    batch_size: int | None = None,
    length: int | None = None,
    largest: bool = True,
    link_gbps: float | None = None,
    time_limit: float = 0.0,
) -> Prediction:
    """Will the training step fit into ``device`` bytes, and in which way? Needs no memory for it.

    1/128 of the device is left to what cannot be seen. Kernels of the CPU that may allocate for themselves run once,
    alone, on zeros.

    Args:
        make_step: make_step(batch_size=..., length=...) builds the model, the optimizer and the arguments, and returns
            (train_step, arguments): the training step as for stowage.compile, and a tuple (or one argument that is no
            tuple). It takes one of the two sizes, both, or none; any other parameter needs a default. It runs under
            FakeTensorMode, and must build everything anew.
        device: bytes, or "24GiB".
        batch_size, length: at which the question is asked; default: make_step's own defaults, else 1.
        largest: also search the largest batch and length, each with the other as it is.
        link_gbps, time_limit: of plans within a budget; see stowage.plan.

    Returns:
        A Prediction.

    Raises:
        Unsupported, Error: the step cannot run without values; one line says where.
    """
    device_bytes = parse_bytes(device)
    if device_bytes is None:
        raise TypeError("will_it_fit() needs the bytes of the device")
    made = make_step if isinstance(make_step, MakeStep) else MakeStep(make_step)
    sizes = made.sizes({"batch_size": batch_size, "length": length})
    asked = _Asked(made, device_bytes, link_gbps, time_limit)
    with shown("looking at the step"):
        at = asked.at(sizes)
        found = asked.largest(sizes) if largest else {}
    outcome, budget, slowdown = asked.verdict(at)
    step, peak = at.step, at.step.moment
    return Prediction(
        outcome=outcome, device_bytes=device_bytes, sizes=sizes, eager_bytes=peak.bytes,
        planned_bytes=at.planned_bytes, least_bytes=at.least_bytes, bound_bytes=at.bound_bytes, budget_bytes=budget,
        slowdown=slowdown, by_kind=_by_kind(step), by_line=_by_line(step), peak_line=step.trace.ops[peak.op].line,
        peak_op=step.trace.ops[peak.op].name, largest=found, device=step.device, refusal=at.refusal,
        guessed=tuple(step.trace.guessed),
    )  # fmt: skip


def eager_bytes(make_step: Callable[..., tuple[Callable, Any]], **sizes: int) -> int:
    """Eager's peak alone, of which will_it_fit() tells more."""
    made = MakeStep(make_step)
    return SizedSteps(made).at(made.sizes(sizes)).moment.bytes


@dataclasses.dataclass
class _Needs:
    """What the step needs at some sizes, beside eager's peak."""

    step: SizedStep
    graph: Graph | None = None
    refusal: str = ""  # why there is no graph
    planned_bytes: int | None = None
    least_bytes: int | None = None
    bound_bytes: int | None = None
    eager_bytes: int = 0  # of the calls that run eagerly, at least


class _Asked:
    """Plans sizes, each once."""

    def __init__(self, made: MakeStep, device_bytes: int, link_gbps: float | None, time_limit: float):
        self.steps = SizedSteps(made)
        self._device_bytes = device_bytes
        self._plan_options: dict[str, Any] = {"link_gbps": link_gbps, "time_limit": time_limit}
        self._planned: dict[tuple, _Needs] = {}

    def at(self, sizes: dict[str, int]) -> _Needs:
        key = tuple(sizes.items())
        if key not in self._planned:
            self._planned[key] = self._plan(self.steps.at(sizes))
        return self._planned[key]

    def _plan(self, step: SizedStep) -> _Needs:
        try:
            graph, as_recorded = step.graphs()
        except Unsupported as error:
            return _Needs(step, refusal=str(error))
        needs = _Needs(step, graph)
        summary = plan(graph, **{k: v for k, v in self._plan_options.items() if k == "time_limit"}).summary()
        needs.planned_bytes = summary["resident_bytes"] + summary["arena_bytes"]
        needs.eager_bytes = eager_bytes = least_eager_bytes(as_recorded)
        try:
            plan(graph, 1, **self._plan_options)
        except Infeasible as error:
            least, bound = error.smallest_bytes, error.bound_bytes
        except Error as error:
            least, bound = needs.planned_bytes, graph.resident_bytes
            needs.refusal = str(error)
        needs.least_bytes = max(min(least, needs.planned_bytes), eager_bytes)
        needs.bound_bytes = max(bound, eager_bytes)
        return needs

    def verdict(self, at: _Needs) -> tuple[str, int | None, float | None]:
        """The outcome, the budget to train with, and how slow that will be."""
        limit = without_scratch(self._device_bytes)
        if at.step.moment.bytes <= limit:
            return FITS, None, None
        if at.graph is None:
            return UNKNOWN, None, None
        assert at.planned_bytes is not None and at.least_bytes is not None and at.bound_bytes is not None
        if max(at.planned_bytes, at.eager_bytes) <= limit:
            return WITH_PLAN, self._device_bytes, 1.0
        if at.least_bytes <= limit:
            try:
                summary = plan(at.graph, limit, **self._plan_options).summary()
            except Error:
                return UNKNOWN, None, None
            return WITH_BUDGET, self._device_bytes, summary["step_ns"] / max(summary["program_step_ns"], 1)
        return (DOES_NOT if at.bound_bytes > self._device_bytes else UNKNOWN), None, None

    # ---- the largest

    def largest(self, sizes: dict[str, int]) -> dict[str, Largest]:
        limit = without_scratch(self._device_bytes)
        found = {}
        for name in sizes:

            def by_eager(size: int, name: str = name) -> int:
                with shown(f"{name} {size}"):
                    return self.steps.at({**sizes, name: size}).moment.bytes

            def by_budget(size: int, name: str = name) -> int:
                with shown(f"{name} {size}, planning"):
                    return self.at({**sizes, name: size}).least_bytes or 0

            most = _LARGEST[name]
            plainly = largest_within(by_eager, limit, sizes[name], most)
            planned = None
            if self.at(sizes).graph is not None:
                planned = largest_within(by_budget, limit, plainly or sizes[name], most)
            found[name] = Largest(plainly, planned, most in (plainly, planned))
        return found


def largest_within(need: Callable[[int], int], limit: int, start: int, most: int) -> int | None:
    """The largest size with need(size) <= limit, where need() grows. None: not even 1."""
    need = functools.cache(need)
    return largest_size(lambda size: need(size) <= limit, need, limit, 1, start, most)


# ---- what the peak consists of


def _by_kind(at: SizedStep) -> dict[str, int]:
    kinds: collections.Counter[str] = collections.Counter()
    for number in at.moment.live:
        kinds[at.trace.kind_of(number)] += at.trace.storages[number].bytes
    kinds["temporary"] += at.moment.inside_bytes
    return {kind: bytes_ for kind, bytes_ in kinds.most_common() if bytes_}


def _by_line(at: SizedStep) -> tuple[Holder, ...]:
    bytes_: collections.Counter[tuple[str, str]] = collections.Counter()
    tensors: collections.Counter[tuple[str, str]] = collections.Counter()
    for number in at.moment.live:
        key = (at.trace.storages[number].line, at.trace.kind_of(number))
        bytes_[key] += at.trace.storages[number].bytes
        tensors[key] += 1
    return tuple([Holder(*key, sum_, tensors[key]) for key, sum_ in bytes_.most_common(_LINES) if sum_])
