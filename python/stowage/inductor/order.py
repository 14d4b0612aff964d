"""Whether the order that Inductor chose for a program, or what it makes wait for reuse, can be beaten.

Inductor picks the best of a few heuristics for the kernels of forward, and of backward. The planner orders the same
kernels, with the same in-place reuse, and has a lower bound that no order goes below: where Inductor's peak meets it,
its order is optimal, and that is a proof.

    buf3 ████ waits ▒▒▒▒▒▒▒▒▒▒ ████ buf9      Inductor keeps a dead buffer for a later one of its size, where its estimate of the
                  peak ▲                      peak allows it. The estimate is too high, so that peaks rise: the true one is its limit"""

from __future__ import annotations

import dataclasses
import json

from stowage._core import Graph
from stowage.errors import Error
from stowage.inductor import private
from stowage.inductor.kernels import program_text
from stowage.inductor.program import Program
from stowage.planning import Plan, plan
from stowage.sizes import in_words

MOST_KERNELS = 5_000  # beyond, planning takes longer than lowering


@dataclasses.dataclass
class Proof:
    name: str  # "forward" or "backward"
    inductor_peak_bytes: int  # of its kernels in its order, without the pool's waiting buffers
    best_peak_bytes: int  # of the order that the planner found
    bound_bytes: int  # no order has less

    @property
    def optimal(self) -> bool:
        return self.inductor_peak_bytes <= self.bound_bytes

    def words(self) -> str:
        if self.optimal:
            return f"{self.name}: Inductor's order is optimal, proven ({in_words(self.inductor_peak_bytes)})"
        if self.best_peak_bytes >= self.inductor_peak_bytes:
            return f"{self.name}: no better order than Inductor's was found ({in_words(self.inductor_peak_bytes)}; bound {in_words(self.bound_bytes, -1)})"
        return (
            f"{self.name}: another order of the same kernels takes {in_words(self.best_peak_bytes)}, Inductor's"
            f" {in_words(self.inductor_peak_bytes)} (bound {in_words(self.bound_bytes, -1)})"
        )


def proof(name: str, graph_text: str) -> Proof:
    graph = Graph.parse(graph_text, name)
    kept = plan(graph, keep_order=True, progress=False).summary()
    try:
        best = plan(graph, progress=False).summary()
    except Error:
        best = kept
    bound = max(kept["lower_bound_bytes"], best["lower_bound_bytes"])
    return Proof(name, kept["peak_bytes"], min(best["peak_bytes"], kept["peak_bytes"]), bound)


def better(program: Program, made: dict[str, private.Made]) -> private.Wanted | None:
    """How the program has a smaller peak; None: nothing was found, or nothing can be."""
    if len(program.kernels) > MOST_KERNELS:
        return None
    graph = Graph.parse(program_text(program, made), "program")
    bound = graph.lower_bound_bytes()
    if program.peak_bytes <= bound:
        return None
    try:
        kept_bytes = plan(graph, keep_order=True, progress=False).summary()["peak_bytes"]
        found = plan(graph, progress=False) if kept_bytes > bound else None
    except Error:
        return None
    best_bytes = min(kept_bytes, found.summary()["peak_bytes"]) if found is not None else kept_bytes
    if best_bytes >= program.peak_bytes:
        return None
    return private.Wanted(_ranks(found, program) if found is not None and best_bytes < kept_bytes else {}, best_bytes)


def _ranks(found: Plan, program: Program) -> dict[str, int]:
    ranks = {}
    for rank, step in enumerate(json.loads(found._plan.to_json())["steps"]):
        if step.get("op", 0) > 0:
            for b in program.kernels[step["op"] - 1].makes:
                for name in (program.buffers[b].name.split("[")[0], *program.buffers[b].aliases):
                    ranks[name] = rank
    return ranks


__all__ = ["Proof", "better", "proof"]
