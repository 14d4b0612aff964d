"""What a notebook shows of a plan, a compiled step and a budget: a headline, figures, a picture, and what holds the peak.

    address ▲  ┌─────┐ ┌──────┐      a plan: each buffer from its first step to its last, over its addresses,
            │  └─────┘ │      │              coloured by kind; the largest areas, at most 400 of them
            └──────────┴──────┴─► step

    live    ▲    ╱╲_╱╲                a budget: live bytes over time, below the limit
            └───────────────► time

Inline SVG without scripts, colours that are legible on light and dark pages, all text escaped. O(buffers + steps)."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from stowage._core import Graph
from stowage.sizes import in_words

WIDTH, HEIGHT = 760, 220
MOST_BOXES = 400
_MOST_OPS_EXPLAINED = 5_000  # beyond, it takes seconds
_COLORS = {
    "activation": "#4f8fc4",
    "gradient": "#dd8a3c",
    "temporary": "#98a2ad",
    "output": "#2f9d78",
    "other": "#b9a44a",
}


def plan_html(plan: Any, graph: Graph | None) -> str:
    """plan: a stowage.Plan; graph: what it is a plan of, None when only the plan's file is at hand."""
    summary = plan.summary()
    if not summary or graph is None:
        return _page(f"A plan with an arena of {in_words(plan.arena_bytes)}", [])
    proven = "proven: no order has a smaller peak" if summary["outcome"] == "optimal" else f"{summary['outcome']}, at most {summary['gap']:.1%} above the best"  # fmt: skip
    if summary["recomputed_ops"] or summary["swapped_bytes"]:
        proven = f"{summary['recomputed_ops']:,} ops run again, {in_words(summary['swapped_bytes'])} wait on the host"
    figures = [
        ("residents", in_words(summary["resident_bytes"])),
        ("arena", in_words(summary["arena_bytes"])),
        ("in program order", in_words(summary["program_peak_bytes"])),
        *([("budget", in_words(summary["budget_bytes"]))] if summary["budget_bytes"] is not None else []),
        ("ops", f"{summary['ops']:,}"),
    ]
    headline = f"{graph.name}: {in_words(summary['resident_bytes'] + summary['arena_bytes'])} ({proven})"
    parts = [_figures(figures), _map(json.loads(plan._plan.to_json()), json.loads(graph.to_json()))]
    if graph.ops <= _MOST_OPS_EXPLAINED:
        parts.append(_fold("Where the bytes go", plan.explain(graph, prices=False)))
    return _page(headline, parts)


def step_html(step: Any) -> str:
    """step: a stowage.CompiledStep."""
    stats = step.stats()
    calls = f"{stats['planned_steps']:,} planned calls, {stats['eager_steps']:,} eager ones"
    if step.plan is None:
        why = step.refusal or "nothing is planned yet: call the step three times"
        return _page(f"A step that is not planned; {calls}", [f"<p>{html.escape(why)}</p>"])
    ratio = stats["step_ns"] / stats["eager_step_ns"] if stats["step_ns"] and stats["eager_step_ns"] else 0
    time = f"; {ratio:.2f} of eager's time" if ratio else ""
    parts = [plan_html(step.plan, step.graph)]
    if words := step.tiles_in_words().strip():
        parts.insert(0, f"<p>{html.escape(words)}</p>")
    return _page(f"A planned step: {calls}{time}", parts)


def budget_html(block: Any) -> str:
    """block: a stowage.budget."""
    stats = block.stats()
    lost = stats["recompute_ns"] + stats["stall_ns"] + stats["evict_ns"]
    figures = [
        ("limit", in_words(stats["limit_bytes"])),
        ("most live", in_words(stats["peak_bytes"])),
        ("let go", f"{stats['evictions']:,} tensors"),
        ("time for that", f"{lost / 1e9:.2f} s"),
    ]
    live = [(entry["t_ns"], entry["bytes"]) for entry in block.timeline() if entry["event"] == "live"]
    name = f"A limit of {in_words(stats['limit_bytes'])} on {block.device}"
    return _page(name, [_figures(figures), _curve(live, stats["limit_bytes"])])


def _page(headline: str, parts: Iterable[str]) -> str:
    style = f"max-width:{WIDTH}px;font-variant-numeric:tabular-nums"
    return f'<div style="{style}"><p style="margin:4px 0"><b>{html.escape(headline)}</b></p>{"".join(parts)}</div>'


def _figures(pairs: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<span style="margin-right:22px"><span style="opacity:.7">{html.escape(name)}</span> {html.escape(value)}</span>'
        for name, value in pairs
    )
    return f'<p style="margin:4px 0">{cells}</p>'


def _fold(title: str, text: str) -> str:
    pre = f'<pre style="overflow-x:auto;font-size:12px">{html.escape(text)}</pre>'
    return f"<details><summary>{html.escape(title)}</summary>{pre}</details>"


def _map(plan: dict, graph: dict) -> str:
    steps, arena, buffers = len(plan["steps"]), plan["arena_bytes"], graph["buffers"]
    if not steps or not arena:
        return ""
    boxes = [(p, buffers[p["buffer"]]) for p in plan["placements"]]
    boxes.sort(key=lambda box: -(box[0]["to"] - box[0]["from"]) * box[1]["bytes"])
    drawn, kinds = [], []
    for p, buffer in boxes[:MOST_BOXES]:
        kind = buffer["kind"] if buffer["kind"] in _COLORS else "other"
        if kind not in kinds:
            kinds.append(kind)
        x, width = p["from"] / steps * WIDTH, (p["to"] - p["from"]) / steps * WIDTH
        height = buffer["bytes"] / arena * HEIGHT
        y = HEIGHT - p["offset"] / arena * HEIGHT - height
        title = f"{buffer['name']}: {in_words(buffer['bytes'])}, steps {p['from']} to {p['to']}"
        drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{max(height, 0.5):.1f}" '
            f'fill="{_COLORS[kind]}" fill-opacity=".85"><title>{html.escape(title)}</title></rect>'
        )
    legend = "".join(
        f'<span style="margin-right:14px"><span style="color:{_COLORS[kind]}">■</span> {html.escape(kind)}</span>'
        for kind in kinds
    )
    left = len(boxes) - MOST_BOXES
    rest = f'<span style="opacity:.7">{left:,} smaller ones are not drawn</span>' if left > 0 else ""
    note = f'<p style="margin:2px 0;font-size:12px">address over steps: {legend}{rest}</p>'
    return _svg("Where each buffer lies, over the steps", "".join(drawn)) + note


def _curve(live: list[tuple[int, int]], limit_bytes: int) -> str:
    if len(live) < 2:
        return ""
    begin, end = live[0][0], live[-1][0]
    top = max(limit_bytes, max(size for _, size in live))
    points = " ".join(
        f"{(at - begin) / max(end - begin, 1) * WIDTH:.1f},{HEIGHT - size / top * HEIGHT:.1f}" for at, size in live
    )
    at_limit = HEIGHT - limit_bytes / top * HEIGHT
    line = f'<polyline points="{points}" fill="none" stroke="{_COLORS["activation"]}" stroke-width="1.2"/>'
    limit = (
        f'<line x1="0" x2="{WIDTH}" y1="{at_limit:.1f}" y2="{at_limit:.1f}" stroke="#b3372b" stroke-dasharray="5 4"/>'
    )
    return _svg("Live bytes over time, and the limit", line + limit)


def _svg(title: str, content: str) -> str:
    return (
        f'<svg viewBox="0 -2 {WIDTH} {HEIGHT + 4}" width="100%" role="img" aria-label="{html.escape(title)}" '
        f'style="border-bottom:1px solid #98a2ad;border-left:1px solid #98a2ad">{content}</svg>'
    )


__all__ = ["budget_html", "plan_html", "step_html"]
