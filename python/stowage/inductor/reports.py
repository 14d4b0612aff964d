"""What was chosen for each graph of a compiled model, as text and as a page."""

from __future__ import annotations

import dataclasses
import html
from typing import Any

from stowage.inductor import private
from stowage.inductor.order import Proof, proof
from stowage.inductor.partitioner import NO_LIMIT, Record
from stowage.sizes import in_words


@dataclasses.dataclass
class GraphReport:
    """Of one compiled graph. Bytes are above parameters and inputs, of forward and backward together."""

    number: int
    reason: str  # why Inductor's own partition was taken unseen; empty: it was not
    budget_bytes: int | None
    predicted_peak_bytes: int
    bound_bytes: int  # proven: no partition of this graph needs less
    default_peak_bytes: int  # with Inductor's own partition
    recompute_ms: float  # estimated, more than Inductor's own partition recomputes
    saved_tensors: int | None  # None: as Inductor chooses
    others: list[tuple[int, float]]  # (peak bytes, recomputed ms) of the other partitions that were tried
    orders: list[Proof]
    seconds: float  # that the choice took


class Report:
    """str(report) is text; a notebook shows a page; save(path) writes it. report.graphs has the figures."""

    def __init__(self, records: list[Record]):
        self.graphs = [_of(record) for record in records]

    def __str__(self) -> str:
        if not self.graphs:
            return (
                "No graph was planned in this process: nothing was compiled yet, nothing trains, or what was compiled came"
                " from torch.compile's cache, planned by an earlier process."
            )
        lines = []
        for g in self.graphs:
            lines += _text(g)
        if len(self.graphs) > 1:
            lines.append("Several graphs: each keeps the budget by itself, which is no limit for the step.")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<pre style="line-height:1.35">{html.escape(str(self))}</pre>'

    def save(self, path: str) -> None:
        """Writes a page of HTML."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                '<!doctype html><html lang="en"><meta charset="utf-8"><title>Compiled model</title>'
                '<body style="font-family:system-ui;margin:2em;color-scheme:light dark"><h1>Compiled model: memory of its graphs</h1>'
                f"{''.join(_page(g) for g in self.graphs) or html.escape(str(self))}</body></html>\n"
            )


def records_of(model: Any) -> list[Record] | None:
    """None: it was not compiled with a budget of ours."""
    options = model if isinstance(model, dict) else _options(private.options_of(model))
    partitioner = (options or {}).get("custom_partitioner_fn")
    return getattr(partitioner, "records", None)


def _options(backend: Any) -> dict | None:
    config = getattr(backend, "config", None)  # of torch.compile(options=...)
    if isinstance(config, dict):
        return config
    kwargs = getattr(backend, "kwargs", None)  # of torch.compile(backend="stowage", options=...)
    return kwargs.get("options") if isinstance(kwargs, dict) else None


def _of(record: Record) -> GraphReport:
    budget = None if record.budget_bytes == NO_LIMIT else record.budget_bytes
    chosen, ladder = record.chosen, record.ladder
    if chosen is None or ladder is None:
        return GraphReport(record.number, record.reason, budget, 0, 0, 0, 0.0, None, [], [], record.seconds)
    others = [(c.peak_bytes, c.recompute_ns / 1e6) for c in ladder.known() if c is not chosen]
    orders = [proof(name, graph) for name, graph in chosen.programs]
    return GraphReport(
        record.number, "", budget, chosen.peak_bytes, chosen.bound_bytes, ladder.default.peak_bytes,
        chosen.recompute_ns / 1e6, None if chosen.saved is None else len(chosen.saved), others, orders, record.seconds,
    )  # fmt: skip


def _text(g: GraphReport) -> list[str]:
    if g.reason:
        return [f"Graph {g.number}: partitioned by Inductor as always: {g.reason}."]
    budget = "no budget" if g.budget_bytes is None else f"budget {in_words(g.budget_bytes)}"
    lines = [
        f"Graph {g.number}: forward and backward take {in_words(g.predicted_peak_bytes)} above parameters and inputs ({budget};"
        f" Inductor's own partition: {in_words(g.default_peak_bytes)}; no partition takes less than {in_words(g.bound_bytes, -1)})",
        f"  recomputes {g.recompute_ms:.3f} ms more than Inductor's own partition, estimated"
        if g.saved_tensors is not None
        else "  saves what Inductor chooses",
    ]
    lines += [f"  {order.words()}" for order in g.orders]
    if g.others:
        lines.append("  other partitions that were tried:")
        lines += [f"    {in_words(peak):>10}  recomputes {ms:.3f} ms" for peak, ms in g.others]
    return lines


def _page(g: GraphReport) -> str:
    rows = [("this", g.predicted_peak_bytes, g.recompute_ms)] + [("", peak, ms) for peak, ms in g.others]
    most = max((peak for _, peak, _ in rows), default=1) or 1
    bars = "".join(
        f"<tr><td>{in_words(peak)}</td><td><div style='background:{'#2f9d78' if which else '#98a2ad'};height:.8em;"
        f"width:{20 * peak / most:.2f}em'></div></td><td>{ms:.3f} ms recomputed</td></tr>"
        for which, peak, ms in sorted(rows, key=lambda r: -r[1])
    )
    text = html.escape("\n".join(_text(g)))
    return f"<h2>Graph {g.number}</h2><pre>{text}</pre><table>{'' if g.reason else bars}</table>"


__all__ = ["GraphReport", "Report", "records_of"]
