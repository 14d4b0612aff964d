"""What a framework's training tells of its planned steps: figures for its loggers, one line for ``logging``."""

from __future__ import annotations

import logging
from typing import Any

from stowage import _runtime
from stowage.sizes import in_words
from stowage.step.compiled import CompiledStep

LOG = logging.getLogger("stowage")


def scalars(step: CompiledStep) -> dict[str, float]:
    """For TensorBoard and the like. Before a plan is there only the counts are."""
    stats = step.stats()
    found: dict[str, float] = {
        "stowage/planned_steps": stats["planned_steps"],
        "stowage/eager_steps": stats["eager_steps"],
        "stowage/misses": stats["misses"],
    }
    if stats["planned_steps"]:
        found |= {
            "stowage/arena_bytes": stats["arena_bytes"],
            "stowage/peak_bytes": stats["measured_peak_bytes"],
            "stowage/resident_bytes": stats["resident_bytes"],
            "stowage/stall_ms": stats["stall_ns"] / 1e6,
        }
    return found


def in_a_line(step: CompiledStep | None, refusal: str = "") -> str:
    """How the training went: planned, or why not."""
    if step is None:
        return f"runs eagerly: {refusal}" if refusal else "has not begun"
    stats: dict[str, Any] = step.stats()
    planned, eager = stats["planned_steps"], stats["eager_steps"]
    if planned + eager == 0:
        return (
            "no update was planned: a stowage.budget block is around all" if _runtime.budget_active() else "no update"
        )
    counts = f"{planned} of {planned + eager} updates planned"
    reason = f"; runs eagerly: {step.refusal}" if step.refusal else ""
    if not planned:
        return counts + reason
    return (
        f"{counts}, arena {in_words(stats['arena_bytes'])} beside {in_words(stats['resident_bytes'])} of parameters, "
        f"state and batch, {stats['misses']} misses, {stats['stall_ns'] / 1e6:.1f} ms of waiting for copies in an update"
        f"{reason}"
    )


__all__ = ["LOG", "in_a_line", "scalars"]
