"""Reports: what a plan does, where sharding is redundant, what the eager budget did. A page, a trace, or a memory
snapshot."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from stowage import _core
from stowage._core import Graph
from stowage.errors import Error

_LEDGER_FIELDS = ("tensor", "bytes", "placement", "local_bytes", "redundant_bytes", "why")
_HOLDER_FIELDS = ("line", "source", "phase", "bytes")
_EVENT_FIELDS = ("t_ns", "event", "bytes", "op")


def write_report(
    path: str | os.PathLike,
    graph: Graph | None = None,
    plan: _core.Plan | None = None,
    *,
    budget_bytes: int | None = None,
    lower_bound_bytes: int | None = None,
    link_gbps: float | None = None,
    ledger: Iterable[Mapping[str, Any]] | None = None,
    devices: int | None = None,
    timeline: Iterable[Mapping[str, Any]] | None = None,
    limit_bytes: int | None = None,
    holders: Iterable[Mapping[str, Any]] | None = None,
) -> None:
    """Writes what the end of ``path`` says: ``.html``, or of a plan also ``.perfetto.json`` (``.gz``) and ``.pickle``
    for PyTorch's memory_viz.

    A page shows what is given: a plan with its graph; a sharding ledger, its rows with tensor, bytes, placement,
    local_bytes, redundant_bytes and why; an eager budget's timeline, its entries with t_ns, event, bytes and op, where
    event "live" tells live bytes; beside it holders of the peak, each with line, source, phase and bytes."""
    if (graph is None) != (plan is None):
        raise TypeError("a graph and its plan go together")
    if graph is None and ledger is None and timeline is None:
        raise TypeError("nothing to report: give a graph and its plan, a ledger, or a timeline")
    if graph is None and not str(path).endswith(".html"):
        raise Error(f"{path}: without a plan a report's name must end in .html")
    ledger_json = timeline_json = ""
    if ledger is not None:
        rows = [{field: row[field] for field in _LEDGER_FIELDS} for row in ledger]
        ledger_json = json.dumps({"rows": rows, **({} if devices is None else {"devices": devices})})
    if timeline is not None:
        timeline_json = _timeline_json(list(timeline), limit_bytes, holders)
    _core.report(str(path), graph, plan, budget_bytes, lower_bound_bytes, link_gbps, ledger_json, timeline_json)


def _timeline_json(
    entries: list[Mapping[str, Any]], limit_bytes: int | None, holders: Iterable[Mapping[str, Any]] | None
) -> str:
    start = min((entry["t_ns"] for entry in entries), default=0)  # clocks count from anywhere
    events, live = [], []
    for entry in entries:
        row = {field: entry[field] for field in _EVENT_FIELDS}
        row["t_ns"] -= start
        if row["event"] == "live":
            live.append({"t_ns": row["t_ns"], "bytes": row["bytes"]})
        else:
            row["op"] = row["op"] or ""
            events.append(row)
    told: dict[str, Any] = {"events": events, "live": live}
    if limit_bytes is not None:
        told["limit_bytes"] = limit_bytes
    if holders is not None:
        told["holders"] = [{field: row[field] for field in _HOLDER_FIELDS} for row in holders]
    return json.dumps(told)
