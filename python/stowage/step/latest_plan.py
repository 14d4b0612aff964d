"""What a compiled step tells of its latest plan: the graph, the plan, its figures, a screen of text, a page."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stowage.errors import Error
from stowage.report.notebook import step_html
from stowage.step.life_cycle import LifeCycle
from stowage.step.replay import step_plan
from stowage.step.replay.replay import Replay
from stowage.step.replay.room import Room


class LatestPlan(LifeCycle):
    """Of a step whose plans share a room."""

    def __init__(self, train_step: Callable, budget: int | None, strict: bool | str, room: Room):
        super().__init__(train_step, budget, strict)
        self._room = room
        self._latest: Replay | None = None

    @property
    def graph(self):
        """Graph of the latest signature, or None before anything was recorded."""
        return self._latest.graph if self._latest else None

    @property
    def plan(self):
        """Plan of the latest signature, or None before anything was recorded."""
        return self._latest.plan if self._latest else None

    def _latest_difference(self) -> str:
        """What made the latest recording necessary, or ""."""
        return next((e.wanted_because for e in reversed(self._entries.values()) if e.wanted_because), "")

    def explain(self, *, prices: bool = True, width: int = 100) -> str:
        """One screen of text on the latest plan; see Plan.explain().

        Raises:
            Error: nothing is planned yet, or the step was refused; the message says why.
        """
        if self._latest is None:
            return (
                f"Nothing is planned: {self.refusal}\n"
                if self.refusal
                else "Nothing is planned yet: call the step three times\n"
            )
        words = self.plan.explain(self.graph, prices=prices, width=width)
        return words + self._latest.planned.host_in_words() + self.tiles_in_words()

    def tiles_in_words(self) -> str:
        """What tile_loss=True and tile_mlp=True have come to in the latest plan; "" without it."""
        return self._latest.planned.tiles_in_words() if self._latest else ""

    def report(self, path: str, **sections) -> None:
        """Writes the latest plan as a page, a trace or a memory snapshot; see Plan.report().

        Raises:
            Error: nothing is planned yet, or the step was refused; the message says why.
        """
        if self._latest is None:
            raise Error(f"nothing to report: {self.refusal or 'nothing is planned yet; call the step three times'}")
        self.plan.report(path, self.graph, **sections)

    def _repr_html_(self) -> str:
        return step_html(self)

    def stats(self) -> dict:
        """Figures of the latest plan. Names that end in ``_bytes`` are bytes, of the arena unless named otherwise; in
        ``_ns`` nanoseconds, medians of the last steps; in ``_steps`` counts of calls."""
        latest = self._latest
        return {
            **self._figures(latest),
            **step_plan.figures(latest.planned if latest else None),
            "eager_steps": self._tally.eager_steps,
            "eager_step_ns": self._tally.eager_ns,
            "home_bytes": self._room.host.home_bytes,
            "stall_ns": self._tally.stall_ns,
            "checked_steps": self._tally.checked_steps,
            "check_ns": self._tally.check_ns,
            "unrepeatable_op": latest.repetition.accepted if latest else "",
            **(_device_bytes(latest) if latest else {}),
        }


def _device_bytes(replay: Replay) -> dict:
    """What the plan takes of an accelerator, and what the process holds there now; nothing on the CPU."""
    device = replay.recording.tape.device
    if device == "cpu":
        return {}
    summary = replay.plan.summary()
    return {
        "planned_bytes": summary["resident_bytes"] + summary["arena_bytes"],
        "allocated_bytes": torch.accelerator.memory_allocated(device),
        "reserved_bytes": torch.accelerator.memory_reserved(device),
    }


__all__ = ["LatestPlan"]
