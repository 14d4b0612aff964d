"""What stowage run says: a line while it runs, a screen when it is over."""

from __future__ import annotations

import linecache
import os
import shutil
import sys
import time
from dataclasses import dataclass
from typing import Any

from stowage.sizes import in_words

_ROWS = 10
_LEAST_SHARE = 0.005
_PHASES = ("set-up", "forward", "backward", "update")


@dataclass
class Ending:
    """``peak``: of _runtime.owners_peak(). ``needed_bytes``: what a request that did not fit asked for at least; 0:
    all fitted. ``cost_ns``: of the time, for tensors that were let go. ``who``: among several processes."""

    peak: dict[str, Any]
    peak_bytes: int
    limit_bytes: int | None
    needed_bytes: int
    steps: int
    took_ns: int
    evictions: int
    cost_ns: int
    who: str

    def rows(self) -> list[dict]:
        """What held the peak, largest first."""
        return [
            {
                "line": place(held["file"], held["line"]),
                "source": source_of(held),
                "phase": held["phase"],
                "bytes": held["bytes"],
            }
            for held in self.peak["held"]
        ]

    def rest_bytes(self) -> int:
        """Live at the peak without a line: small tensors, and what was made before torch was watched."""
        return max(self.peak["bytes"] - sum(held["bytes"] for held in self.peak["held"]), 0)

    def as_json(self) -> dict:
        return {
            "limit_bytes": self.limit_bytes,
            "peak_bytes": self.peak_bytes,
            "needed_bytes": self.needed_bytes,
            "phase": self.peak["phase"],
            "line": place(self.peak["file"], self.peak["line"]),
            "phase_peak_bytes": self.peak["of_phase"],
            "optimizer_steps": self.steps,
            "took_ns": self.took_ns,
            "evictions": self.evictions,
            "lost_ns": self.cost_ns,
            "held": self.rows(),
            "rest_bytes": self.rest_bytes(),
        }


def source_of(held: dict[str, Any]) -> str:
    """The line's own text."""
    return linecache.getline(held["file"], held["line"]).strip() if held["file"] else ""


def screen(ending: Ending) -> str:
    lines = [_first_line(ending)]
    if ending.limit_bytes is not None:
        lines.append(_cost_line(ending))
    if ending.needed_bytes:
        lines.append(f"a request did not fit: the limit must be at least {in_words(ending.needed_bytes)} for that one")
    rows = ending.rows()
    if rows:
        lines += ["", f"{'held then':>12}  {'':>6}  {'made in':<8}  line", *_table(rows, ending)]
        lines += ["", "most in each phase"]
        lines += [f"{in_words(most):>12}  {phase}" for phase in _PHASES if (most := ending.peak["of_phase"][phase])]
    return "\n".join(lines) + "\n"


def brief(ending: Ending) -> str:
    return _first_line(ending) + (f"; {_cost_line(ending)}" if ending.limit_bytes is not None else "") + "\n"


def _first_line(ending: Ending) -> str:
    who = f" {ending.who}:" if ending.who else ""
    limit = f", limit {in_words(ending.limit_bytes)}" if ending.limit_bytes is not None else ""
    phase = {"set-up": "set-up", "update": "the optimizer's update"}.get(
        ending.peak["phase"], f"the {ending.peak['phase']} pass"
    )
    where_asked = place(ending.peak["file"], ending.peak["line"])
    where = f" in {phase}" + (f", at {where_asked}" if where_asked else "")
    steps = f"{ending.steps:,} optimizer step{'' if ending.steps == 1 else 's'}, {_seconds(ending.took_ns)}"
    return f"stowage run:{who} peak {in_words(ending.peak_bytes)}{limit}{where}; {steps}"


def _cost_line(ending: Ending) -> str:
    if ending.evictions == 0:
        return "nothing had to leave memory"
    share = ending.cost_ns / max(ending.took_ns, 1)
    return f"{ending.evictions:,} tensors let go, {_seconds(ending.cost_ns)} lost for that ({share:.1%} of the time)"


def _table(rows: list[dict], ending: Ending) -> list[str]:
    width = max(shutil.get_terminal_size((110, 24)).columns, 60)
    shown = [row for row in rows[:_ROWS] if row["bytes"] >= ending.peak["bytes"] * _LEAST_SHARE] or rows[:1]
    rest = sum(row["bytes"] for row in rows[len(shown) :]) + ending.rest_bytes()
    longest = max(len(row["line"]) for row in shown)
    lines = []
    for row in shown:
        text = f"{row['line']:<{longest}}  {row['source']}" if row["source"] else row["line"]
        lines.append(_row(row["bytes"], ending, row["phase"], text)[:width].rstrip())
    if rest:
        lines.append(_row(rest, ending, "", "all else").rstrip())
    return lines


def _row(bytes_: int, ending: Ending, phase: str, text: str) -> str:
    return f"{in_words(bytes_):>12}  {bytes_ / max(ending.peak['bytes'], 1):>6.1%}  {phase:<8}  {text}"


def place(file: str, line: int | str) -> str:
    """As short as it can be and still be found: from here on, or from the package on."""
    if not file:
        return ""
    for folder in sorted((f for f in sys.path if f), key=len, reverse=True):
        if "-packages" in folder and file.startswith(folder + os.sep):
            return f"{file[len(folder) + 1 :]}:{line}"
    here = os.getcwd() + os.sep
    return f"{file[len(here) :] if file.startswith(here) else file}:{line}"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.1f} s" if ns >= 1e8 else f"{ns / 1e6:.1f} ms"


class LiveLine:
    """At the right edge of the terminal's line, so that what the script prints at the left can be read; drawn after
    optimizer steps, and only where stderr is a terminal."""

    EVERY_S = 0.2

    def __init__(self):
        self._last_s = time.monotonic()
        self._drawn = False

    def due(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s < self.EVERY_S:
            return False
        self._last_s = now_s
        return _is_terminal()

    def draw(
        self, device: Any, steps: int, limit_bytes: int | None, evictions: int, cost_ns: int, took_ns: int
    ) -> None:
        from stowage import _runtime

        live = f"{_runtime.live_bytes(str(device or 'cpu')) / 2**20:,.0f}"
        text = f"step {steps:,}: {live} MiB live"
        if limit_bytes is not None:
            share = cost_ns / max(took_ns, 1)
            text = f"step {steps:,}: {live} of {limit_bytes / 2**20:,.0f} MiB, {evictions:,} let go, {share:.0%} lost"
        columns = _columns()
        text = f" {text} "[: columns - 1]
        # Save the cursor, write at the right edge, put the cursor back
        self._write(f"\x1b7\x1b[{columns - len(text)}G\x1b[2m{text}\x1b[0m\x1b8")
        self._drawn = True

    def erase(self) -> None:
        if self._drawn and _is_terminal():
            self._write("\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        try:
            os.write(2, text.encode())
        except OSError:
            pass


def _is_terminal() -> bool:
    try:
        return os.isatty(2)
    except OSError:
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


__all__ = ["Ending", "LiveLine", "brief", "place", "screen", "source_of"]
