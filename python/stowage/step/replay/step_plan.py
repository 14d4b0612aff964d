"""The plan of one recorded step, and its executor: made when the step has been recorded, and anew when more is known.

    tape ── lower ──▶ graph ── plan ──▶ plan ── check ──▶ executor
              ▲ kernels that work row by row, tiles,        │
              │ ops that no plan makes again                │ a rehearsal sees other allocations, other bits, true costs
              └─────────────────────────────────────────────┘

Where the plan made anew cannot be had, the one before stays."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from stowage import _core, _runtime
from stowage.cache import plan_cache
from stowage.cache.costs import cost_file
from stowage.errors import Error, Infeasible, InvalidGraph, InvalidPlan, UnsupportedWarning, warn
from stowage.planning import Plan, check, plan, plan_options
from stowage.report.progress import shown
from stowage.step.replay.room import Room

_TIMED_RUNS = 4  # the rehearsal and the first planned steps
_GUESSED_ENOUGH = 0.02  # share of the step's cost


@dataclass(frozen=True)
class StepOptions:
    """Of stowage.compile(), as far as plans depend on them."""

    budget: int | None = None  # bytes
    in_place_reuse: bool = True
    lean_kernels: bool = True
    leaving: bool = False  # residents may wait on the host
    tile_loss: bool = False
    tile_mlp: bool = False
    graphs: bool = False  # pieces of the plan as graphs of the device


class StepPlan:
    """``replaced``, ``products``, ``tiled``: how many ops stand for chains of kernels, may take the memory of their operand,
    run on tiles."""

    def __init__(self, tape: _runtime.Tape, room: Room, name: str, options: StepOptions):
        """Raises what plan() raises."""
        self._tape, self._room, self._name, self._options = tape, room, name, options
        # Why what was to be tiled is not
        self.tile_refusal = ""
        self.tile_error = self.tile_largest_error = 0.0
        # By more than roundings do; "" where not
        self.tiles_wrong = ""
        self._tiling = _tiling(options.tile_loss, options.tile_mlp)
        # Why the plan has the recorded kernels alone, though others were asked for
        self.replacement_refusal = ""
        # Why the plan copies nothing to the host, though copies were faster
        self.host_refusal = ""
        self._slicing = _slicing(options.lean_kernels)
        self._costs = cost_file(_runtime.kernel_threads()[1])
        self._cost_keys = tape.cost_keys()
        self._timed_runs = 0
        self._rehearsed = False
        self._looks = room.looks
        self._once: set[str] = set()  # kinds of ops that no plan makes again
        self._results_stay = True  # in the arena, those that the next call lets go of unread
        self._asked_to_part = False
        self.make()

    def make(self) -> None:
        """Raises what plan() raises, and the plan before stays."""
        options = self._options
        self._guessed = self._costs.price(self._tape)
        if options.leaving and self._tape.device != "cpu":
            raise Error(f"residents='leave' is for the CPU; this step runs on {self._tape.device}: leave it out")
        lowered = self._lower()
        link_gbps = self._lane_gbps(lowered.graph)
        asked = plan_options(options.budget, in_place_reuse=options.in_place_reuse, link_gbps=link_gbps)
        if options.budget is not None:
            self._take_kept_costs(lowered, asked)
        graph = lowered.graph
        planned, executor = self._executable(lowered, link_gbps)
        if options.budget is not None and self._guessed >= _GUESSED_ENOUGH and not planned.from_cache:
            provisional = plan_cache.Entry(planned._plan, planned.summary(), graph.costs_ns, provisional=True)
            plan_cache.keep(graph, asked, provisional)
        self.host_refusal = _host_refusal(executor)
        if self.host_refusal:
            try:
                planned, executor = self._executable(lowered, 0.0)
            except (InvalidGraph, InvalidPlan):
                raise
            except Error:  # nothing fits without copies: the call says what the host lacks
                self.host_refusal = ""
        self.graph, self.plan, self.executor = graph, planned, executor
        self.replaced, self.products, self.tiled = lowered.replaced, lowered.products, lowered.tiled
        if lowered.tile_refusal:
            self._refuse_tiles(lowered.tile_refusal)
        self.look_closely(self._looks)

    def _lower(self) -> _runtime.Lowered:
        return _runtime.lower(
            self._tape,
            self._name,
            self._slicing,
            self._options.leaving,
            self._tiling,
            once=self._once,
            in_results=True,
            stay=self._results_stay,
        )

    def _executable(self, lowered: Any, link_gbps: float | None) -> tuple[Plan, Any]:
        budget, reuse = self._options.budget, self._options.in_place_reuse
        planned = plan(lowered.graph, budget, in_place_reuse=reuse, link_gbps=link_gbps)
        with shown("checking the plan and making it executable"):
            check(lowered.graph, planned)
            return planned, _runtime.Executor(self._tape, lowered, planned._plan, self._room.arena, self._room.host)

    def _take_kept_costs(self, lowered: Any, options: dict) -> None:
        """Under a budget the plan depends on costs. Those of a plan that an earlier process made serve as well as new
        ones where they are near, and then that plan does too. Guesses are not taken where costs have been measured,
        except for what is only rehearsed."""
        kept = plan_cache.kept_costs(lowered.graph, options, measured=self._guessed < _GUESSED_ENOUGH)
        if kept is None:
            return
        costs_ns, provisional = kept
        if not provisional:
            lowered.set_costs_ns(costs_ns)
        elif not self._rehearsed:
            lowered.set_costs_ns(costs_ns)
            self._guessed = 1.0

    def _lane_gbps(self, graph: _core.Graph) -> float | None:
        budget, room = self._options.budget, self._room
        if room.link_gbps is not None or budget is None:
            return room.link_gbps
        with shown("measuring copies to the host"):
            if self._tape.device == "cpu":
                return self._costs.lane_gbps(room.host, room.store)
            return self._costs.lane_gbps(room.host, room.store, self._tape.device, budget - graph.resident_bytes)

    # ---- Made anew

    def make_once(self, kinds: set[str]) -> bool:
        """From now on no plan makes ops of these kinds again. True where the one at hand did: it has been made anew. Raises
        what plan() raises where none does without within the budget; then this one stays."""
        fresh = kinds - self._once
        before = self._once
        self._once = before | fresh
        if not fresh & self.executor.made_again:
            return False
        try:
            self.make()
        except BaseException:
            self._once = before
            raise
        return True

    @property
    def may_part_from_results(self) -> bool:
        return not self._asked_to_part and self.executor.has_staying_results

    def part_from_results(self) -> bool:
        """From now on no result stays in the arena, as somebody still has one when the arena is needed. True where the plan at
        hand has such results: it has been made anew. Where none does without within the budget, this one stays, and takes
        another arena whenever that is so."""
        if not self.may_part_from_results:
            return False
        self._asked_to_part, self._results_stay = True, False
        try:
            self.make()
        except Infeasible:
            self._results_stay = True
        return not self._results_stay

    def drop_replacements(self, why: str) -> bool:
        """From now on without tiles; where the plan has none, without products over their operands; where it has none
        either, the recorded kernels alone: planned anew. False where the plan has no others. Raises what plan() raises."""
        if not self.replaced and not self.products and not self.tiled:
            return False
        if self.tiled:
            self._tiling = _tiling(False, False)
            self.tile_error = self.tile_largest_error = 0.0
            self.tiles_wrong = ""
            self._refuse_tiles(why)
        else:
            self.replacement_refusal = why
            # Those whose bits depend on how a library splits its sums go first
            self._slicing = _slicing(True, 0) if self.products else _slicing(False)
        self.make()
        return True

    def learn_costs(self) -> None:
        """After one of the first runs, which are timed."""
        self._costs.add((self._cost_keys[op], ns) for op, ns in self.executor.op_times())
        self._timed_runs += 1
        if self._timed_runs == _TIMED_RUNS:
            self._costs.save_in_time()

    @property
    def is_timed(self) -> bool:
        """The next run."""
        return self._timed_runs < _TIMED_RUNS

    @property
    def wants_graphs(self) -> bool:
        """Before the next run of a plan that is trusted. Times are those of kernels that run one by one."""
        return self._options.graphs and not self.is_timed and self.executor.wants_graphs

    def replan_if_learned(self) -> bool:
        """After a rehearsal. Plans again when it saw other allocations than the plan was made for, or when, under a
        budget, the plan rests on costs that nobody had measured. (Without a budget costs decide nothing.)

        Raises Infeasible when nothing fits what it saw. A plan for other costs that cannot be found is no reason to
        give up this one, which keeps the budget whatever its ops cost."""
        self._rehearsed = True
        if self.executor.learned_something:
            self.make()
            return True
        if self._guessed < _GUESSED_ENOUGH:
            return False
        if self._options.budget is not None:
            with contextlib.suppress(Infeasible):
                self.make()
                return True
        self._guessed = self._costs.price(self._tape)
        self.graph = self._lower().graph
        self.plan = self.plan.with_costs_of(self.graph)
        return False

    def look_closely(self, looks: str) -> None:
        """What rehearsals look at: see Room.looks."""
        self._looks = looks
        self.executor.look_closely(bool(looks), looks == "paranoid")

    # ---- Tiles

    def _refuse_tiles(self, why: str) -> None:
        if why == self.tile_refusal:
            return
        self.tile_refusal = why
        asked = {"tile_loss=True": self._options.tile_loss, "tile_mlp=True": self._options.tile_mlp}
        options = " and ".join(option for option, on in asked.items() if on)
        what = (
            "a part of this step is not tiled, and"
            if self.tiled
            else f"{options}: nothing in this step is tiled, and all of it"
        )
        warn(f"{what} stays exact: {why}", UnsupportedWarning)

    def note_tile_error(self, relative: float, absolute: float, where: str, too_large: bool) -> None:
        """After a rehearsal and the same step by the recorded kernels: see Matcher.tile_error."""
        if not self.tiled:
            return
        self.tile_error = max(self.tile_error, relative)
        self.tile_largest_error = max(self.tile_largest_error, absolute)
        if too_large:
            self.tiles_wrong = (
                f"the tiles' result of {where} differs by {relative:.2g} of its largest number, "
                "more than sums in another order may"
            )

    # ---- In words

    def host_in_words(self) -> str:
        return f"\nNo copies to the host: {self.host_refusal}\n" if self.host_refusal else ""

    def tiles_in_words(self) -> str:
        if not self.tiled:
            return f"\nNo tiles: {self.tile_refusal}\n" if self.tile_refusal else ""
        return (
            f"\n{self.tiled} kernels run on tiles of rows: their results differ from those of all rows at once "
            f"by at most {self.tile_error:.2g} of a result's largest number ({self.tile_largest_error:.2g})\n"
        )


def figures(planned: StepPlan | None) -> dict:
    """Those of CompiledStep.stats() that a plan decides; as of nothing where there is none."""
    summary = planned.plan.summary() if planned else {}
    names = ("resident_bytes", "recomputed_ops", "away_bytes", "fetched_bytes")
    return {
        **{name: summary.get(name, 0) for name in names},
        "gap": summary.get("gap", 0.0),
        "plan_from_cache": bool(planned and planned.plan.from_cache),
        "swapped_bytes": planned.executor.swapped_bytes if planned else 0,  # that a step moves to the host
        "host_bytes": planned.executor.host_bytes if planned else 0,  # that these need there
        "host_refusal": planned.host_refusal if planned else "",
        "replaced_ops": planned.replaced if planned else 0,
        "replacement_refusal": planned.replacement_refusal if planned else "",
        "tiled_ops": planned.tiled if planned else 0,
        "tile_error": planned.tile_error if planned else 0.0,
        "tile_largest_error": planned.tile_largest_error if planned else 0.0,
        "tile_refusal": planned.tile_refusal if planned else "",
        "graph_ops": planned.executor.graph_ops if planned else 0,
        "graph_refusal": planned.executor.graph_refusal if planned else "",
    }


def _host_refusal(executor: _runtime.Executor) -> str:
    """Why what the plan sends to the host cannot wait there; "" where it can."""
    try:
        executor.reserve_host()
    except Error as error:
        return str(error)
    return ""


def _slicing(on: bool, product_columns: int | None = None) -> _runtime.RowSlicing:
    if product_columns is None:
        return _runtime.RowSlicing(on=on)
    return _runtime.RowSlicing(on=on, product_columns=product_columns)


def _tiling(loss: bool, mlp: bool) -> _runtime.TileOptions:
    return _runtime.TileOptions(loss=loss, mlp=mlp)


__all__ = ["StepOptions", "StepPlan", "figures"]
