"""Where in the step's own code the ops of a recording were called from, however deep.

    def step(x, y):
        loss = f(model(x), y)      ops 0 to 40
        loss.backward()            ops 41 to 120
        opt.step()                 ops 121 to 130, a step of an optimizer's
        log.append(loss.item())    op 131

Told at each function of torch's that Python calls. O(frames between) each."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_MOST_FRAMES = 128


@dataclass
class CallsOfStep:
    """``code``: the step's own; None for what is no function. ``ops``: (offset in it, the first op since the call before), in the
    order of the calls. ``steps``: offsets at which a step of an optimizer's or a scheduler's was called. ``drew``: from Python's or
    NumPy's random numbers, before the last of these."""

    code: types.CodeType | None
    ops: list[tuple[int, int]] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)
    drew: bool = False
    _generators: tuple = field(default_factory=lambda: _generators())

    @staticmethod
    def of(step: Callable) -> CallsOfStep:
        return CallsOfStep(getattr(getattr(step, "__func__", step), "__code__", None))

    def note(self, op: int) -> None:
        """A function of torch's is called. ``op``: the next."""
        at = self._offset()
        if at >= 0 and (not self.ops or self.ops[-1][0] != at):
            self.ops.append((at, op))

    def note_step(self) -> None:
        self.steps.add(self._offset())

    def note_draws(self) -> None:
        """After a step of an optimizer's, while nobody notes what is called."""
        self.drew = self.drew or self._generators != _generators()

    def _offset(self) -> int:
        """In the step's code; -1 where it is not below."""
        frame: types.FrameType | None = sys._getframe(2) if self.code is not None else None
        for _ in range(_MOST_FRAMES):
            if frame is None or frame.f_code is self.code:
                return -1 if frame is None else frame.f_lasti
            frame = frame.f_back
        return -1


def _generators() -> tuple:
    numpy: Any = sys.modules.get("numpy.random")
    _, key, place, *rest = numpy.get_state() if numpy is not None else (None, b"", 0)
    return random.getstate(), bytes(key), place, *rest


__all__ = ["CallsOfStep"]
