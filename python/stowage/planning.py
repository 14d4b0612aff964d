"""Planning in process: Graph in, Plan out."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Sequence

from stowage import _core
from stowage._core import Graph
from stowage.cache import plan_cache
from stowage.errors import Error, Infeasible
from stowage.report.notebook import plan_html
from stowage.report.progress import shown
from stowage.report.reports import write_report
from stowage.sizes import in_words, parse_bytes


class Plan:
    """What runs when, and where each buffer lies, with the proof of how good it is. Made by stowage.plan, or read by
    Plan.load."""

    def __init__(self, plan: _core.Plan, summary: dict, graph: Graph | None = None, link_gbps: float | None = None,
                 from_cache: bool = False):  # fmt: skip
        self._plan = plan
        self._summary = summary
        self._graph = graph
        self._link_gbps = link_gbps
        self.from_cache = from_cache  # made by an earlier process; see cache/plan_cache.py

    @classmethod
    def load(cls, path: str) -> Plan:
        """Reads a plan's file.

        Args:
            path: a ``*.plan.json`` file, or ``.gz``.

        Returns:
            The plan. Its summary is empty: the file does not hold one.

        Raises:
            InvalidPlan: the file is no plan; the message names the file and the rule.
        """
        return cls(_core.Plan.load(str(path)), {})

    def summary(self) -> dict:
        """Outcome, peak, lower bound, gap, arena, times: the object that ``stowage plan --json`` prints. Names that end
        in ``_bytes`` are bytes, in ``_ns`` nanoseconds; ``gap`` is a fraction of the bound."""
        return dict(self._summary)

    def explain(self, graph: Graph | None = None, *, prices: bool = True, width: int = 100) -> str:
        """One screen of text: where the bytes go, what holds the peak, what other budgets cost, what to change in the
        code.

        Args:
            graph: the plan's own, needed for a plan that was read from a file.
            prices: plan a few other budgets. Those that would take more than seconds are left out, and it says so.
            width: columns of the text.

        Raises:
            TypeError: a plan from a file, without its graph.
        """
        graph = graph or self._graph
        if graph is None:
            raise TypeError("a plan from a file needs its graph: plan.explain(graph)")
        with shown("planning other budgets and changes"):
            return _core.explain(graph, self._plan, self._summary.get("budget_bytes"), self._link_gbps, prices, width)

    def report(self, path: str, graph: Graph | None = None, **sections) -> None:
        """Writes the plan as a file to look at.

        Args:
            path: one page (``.html``), a trace (``.perfetto.json``) or a snapshot for PyTorch's memory_viz
                (``.pickle``).
            graph: the plan's own, needed for a plan that was read from a file.
            sections: ``ledger`` and ``timeline``, shown on the page besides; see stowage.report.reports.write_report.

        Raises:
            TypeError: a plan from a file, without its graph.
        """
        graph = graph or self._graph
        if graph is None:
            raise TypeError("a plan from a file needs its graph: plan.report(path, graph)")
        bound = self._summary.get("lower_bound_bytes")
        write_report(
            path, graph, self._plan, budget_bytes=self._summary.get("budget_bytes"), link_gbps=self._link_gbps,
            lower_bound_bytes=graph.lower_bound_bytes() if bound is None else bound, **sections,
        )  # fmt: skip

    def save(self, path: str) -> None:
        """Writes the plan; compressed when the name ends in ``.gz``."""
        self._plan.save(str(path))

    def with_costs_of(self, graph: Graph) -> Plan:
        """The same plan, which neither recomputes nor swaps, for the same graph with other costs."""
        step_ns = graph.program_step_ns
        return Plan(
            self._plan.of_graph(graph),
            {**self._summary, "program_step_ns": step_ns, "step_ns": step_ns},
            graph,
            self._link_gbps,
            self.from_cache,
        )

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena: the step's own bytes, without residents."""
        return self._plan.arena_bytes

    def _repr_html_(self) -> str:
        return plan_html(self, self._graph)

    def __repr__(self) -> str:
        s = self._summary
        if not s:
            return f"<stowage.Plan: arena {self.arena_bytes} bytes>"
        return f"<stowage.Plan: {s['outcome']}, peak {s['peak_bytes']} bytes, bound {s['lower_bound_bytes']}, arena {s['arena_bytes']}>"


def plan(
    graph: Graph,
    budget: int | str | None = None,
    *,
    keep_order: bool = False,
    in_place_reuse: bool = True,
    takeover: bool | None = None,
    time_limit: float = 0.0,
    seed: int = 0,
    threads: int = 1,
    link_gbps: float | None = None,
    method: str = "stowage",
    roam_without: Sequence[str] = (),
    progress: Callable | bool | None = None,
) -> Plan:
    """Decides the order of the ops and the address of every buffer.

    Plans are kept on disk (cache/plan_cache.py). The same graph and options give a plan of before, unless the
    environment has STOWAGE_PLAN_CACHE=off.

    Args:
        graph: the step, from stowage.capture or Graph.load.
        budget: what residents and arena together may take, in bytes or as "2GiB"; None: no limit.
        keep_order: the ops stay in the program's order.
        in_place_reuse: a result may be placed over an input that dies there, where the graph says that the kernel
            allows it.
        takeover: the older name of in_place_reuse.
        time_limit: outer stop in seconds, 0 for none. The search itself counts nodes, so that results repeat.
        seed: of the search's random choices.
        threads: kept for older scripts; planning uses one thread.
        link_gbps: speed of the link to the host, in 10^9 bytes a second each way; 0: recomputation alone.
        method: "stowage", or "roam": the published system (arXiv 2310.19295), as a rival; it needs highspy.
        roam_without: parts of roam to switch off, of "segments", "tree", "order-ilp", "updates", "layout-ilp",
            "activation-stack", "concatenation".
        progress: called with (what, fraction done or None) as planning goes on; False: nothing is shown; None: shown on
            a terminal and in notebooks when it takes longer than a second.

    Returns:
        The plan, which the independent checker has passed.

    Raises:
        Infeasible: no plan fits the budget.
        Error: none was found within the limits, or the solver is missing.
    """
    if method == "roam" and keep_order:
        raise ValueError("method 'roam' decides the order: keep_order does not go with it")
    budget_bytes = parse_bytes(budget)
    library = highs_library() if method == "roam" else ""
    in_place_reuse = in_place_reuse if takeover is None else takeover
    options = plan_options(budget_bytes, keep_order, in_place_reuse, time_limit, seed, link_gbps)
    if method == "stowage" and (kept := _kept(graph, options, link_gbps)):
        return kept
    with shown("planning", progress) as report:
        planned = _core.plan(
            graph,
            budget_bytes,
            keep_order,
            in_place_reuse,
            time_limit,
            seed,
            link_gbps,
            method,
            list(roam_without),
            library,
            report,
        )
    if planned.plan is not None:
        if method == "stowage":
            plan_cache.keep(graph, options, plan_cache.Entry(planned.plan, planned.summary, graph.costs_ns))
        return Plan(planned.plan, planned.summary, graph, link_gbps)
    if planned.outcome == "infeasible":
        raise infeasible(f"graph '{graph.name}'", budget_bytes or 0, planned.smallest_bytes, planned.budget_bound_bytes)
    smallest = f"; the smallest found needs {in_words(planned.smallest_bytes, 1)}" if planned.smallest_bytes else ""
    raise Error(f"graph '{graph.name}': no plan within {in_words(budget_bytes or 0)} was found{smallest}")


def infeasible(what: str, budget_bytes: int, smallest_bytes: int, bound_bytes: int) -> Infeasible:
    """The error, in the units that a person thinks in. The smallest budget is told to the byte, to be copied."""
    budget, bound = in_words(budget_bytes), in_words(bound_bytes, -1)
    if budget == bound:
        budget, bound = f"{budget_bytes:,} bytes", f"{bound_bytes:,} bytes"
    if budget_bytes < bound_bytes:
        text = f"{what} needs at least {bound} (proven); the budget is {budget}"
    else:
        text = f"{what}: no plan was found within {budget}; below {bound} there is none (proven)"
    works = f"; the smallest that works: {in_words(smallest_bytes, 1)} ({smallest_bytes} bytes)"
    return Infeasible(text + works, smallest_bytes, bound_bytes)


def plan_options(
    budget_bytes: int | None, keep_order: bool = False, in_place_reuse: bool = True, time_limit: float = 0.0, seed: int = 0,
    link_gbps: float | None = None,
) -> dict:  # fmt: skip
    """What a plan depends on besides its graph, as the plan cache files it."""
    return {
        "budget_bytes": budget_bytes,
        "keep_order": keep_order,
        "takeover": in_place_reuse,
        "time_limit": time_limit,
        "seed": seed,
        "link_gbps": link_gbps if budget_bytes is not None else None,
    }


def _kept(graph: Graph, options: dict, link_gbps: float | None) -> Plan | None:
    """The plan that an earlier process made, if one did."""
    start = time.perf_counter()
    entry = plan_cache.find(graph, options)
    if entry is None:
        return None
    if entry.costs_ns != graph.costs_ns:  # of no consequence without a budget, but the predicted time is of these
        entry.summary["program_step_ns"] = entry.summary["step_ns"] = graph.program_step_ns
    load = time.perf_counter() - start
    entry.summary["seconds"] = {**dict.fromkeys(entry.summary["seconds"], 0.0), "load": load, "total": load}
    return Plan(entry.plan, entry.summary, graph, link_gbps, from_cache=True)


def check(graph: Graph, plan: Plan) -> int:
    """Verifies a plan independently of the planner.

    Returns:
        The plan's peak, in bytes.

    Raises:
        InvalidPlan: the message names the broken rule.
    """
    return _core.check(graph, plan._plan)


def highs_library() -> str:
    """Path of the solver's shared library in this environment's highspy, which is not imported; empty when the core
    must look itself."""
    if os.environ.get("STOWAGE_HIGHS"):
        return ""
    spec = importlib.util.find_spec("highspy")
    path = os.path.join(os.path.dirname(spec.origin), "libhighs.so.1") if spec and spec.origin else ""
    return path if os.path.exists(path) else ""
