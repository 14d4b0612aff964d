"""What is being done, while it takes longer than a second: recording, planning, rehearsing, fitting, building.

    with shown("planning") as report:          on a terminal or in a notebook:     stowage: planning, order  40 %  0:00:03
        report("order", 0.4)                   elsewhere:                          nothing

Drawn by rich, on stderr, and taken away when it is over. The library itself prints nothing: where a function has a
``progress`` argument, a callable given there is called with (what, fraction or None) instead, and False keeps silent.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

Report = Callable[[str, "float | None"], None]
PATIENCE_S = 1.0
_outer: contextvars.ContextVar[_Line | None] = contextvars.ContextVar("stowage_progress", default=None)


def visible() -> bool:
    """Somebody looks: stderr is a terminal, or this is a notebook."""
    try:
        return sys.stderr.isatty() or "ipykernel" in sys.modules
    except (AttributeError, ValueError):  # replaced, or closed
        return False


@contextlib.contextmanager
def shown(what: str, progress: Callable | bool | None = None) -> Iterator[Report]:
    """Shows ``what`` while the block runs longer than PATIENCE_S. Within another one, it is told on that one's line."""
    if callable(progress):
        report = progress

        def told(phase: str, fraction: float | None = None) -> None:
            report(f"{what}, {phase}" if phase else what, fraction)

        yield told
        return
    outer = _outer.get()
    if outer is not None:
        with outer.within(what):
            yield outer.report
        return
    if progress is False or not visible():
        yield _untold
        return
    line = _Line(what)
    token = _outer.set(line)
    try:
        yield line.report
    finally:
        _outer.reset(token)
        line.stop()


def _untold(phase: str, fraction: float | None = None) -> None:
    pass


class _Line:
    """One line, drawn by a thread once a second has passed."""

    def __init__(self, what: str):
        self._stack = [what]
        self._phase = ""
        self._fraction: float | None = None
        self._drawn: Any = None
        self._task: Any = None
        self._stopped = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_S, self._start)
        self._timer.daemon = True
        self._timer.start()

    def report(self, phase: str, fraction: float | None = None) -> None:
        with self._lock:
            self._phase, self._fraction = phase, fraction
            self._tell()

    @contextlib.contextmanager
    def within(self, what: str) -> Iterator[None]:
        self._stack.append(what)
        self.report("")
        try:
            yield
        finally:
            self._stack.pop()
            self.report("")

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._stopped = True
            if self._drawn is not None:
                self._drawn.stop()

    def _start(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        with self._lock:
            if self._stopped:
                return
            console = Console(stderr=True)
            columns = (SpinnerColumn(), TextColumn("stowage: {task.description}", markup=False), TimeElapsedColumn())
            self._drawn = Progress(*columns, console=console, transient=True)
            self._task = self._drawn.add_task("")
            self._tell()
            self._drawn.start()

    def _tell(self) -> None:
        if self._drawn is None:
            return
        percent = f" {100 * self._fraction:.0f} %" if self._fraction is not None and 0 < self._fraction < 1 else ""
        self._drawn.update(
            self._task, description=", ".join([*self._stack, *([self._phase] if self._phase else [])]) + percent
        )


__all__ = ["PATIENCE_S", "Report", "shown", "visible"]
