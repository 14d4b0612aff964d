"""What comes anew with each call of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Passing:
    """What comes anew with each call of one step.

    An object is known by which one it is, until a call gives another one of its kind: a lambda that stands in the call, a
    loss that is made for it. From then on such objects are known by what they hold, and the guards do not enter
    them."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []  # among the arguments of the latest call; tensors may lie over them
        self.iterator = ""  # the type of one among its arguments that is known by its type alone
        self._kinds: set[Any] = set()  # of which calls give ever others
        self._before: dict[Any, list[Any]] = {}  # by kind: references to those of the call before
        self._now: dict[Any, list[Any]] = {}

    def begin(self) -> None:
        """Of a call."""
        self._before, self._now = self._now, {}
        self.end()

    def end(self) -> None:
        """Lets go of the call's arguments."""
        self.arrays, self.iterator = [], ""

    def is_other(self, kind: Any, value: Any) -> bool:
        """Do calls give ever others of the kind, as this one does?"""
        self._now.setdefault(kind, []).append(_reference(value))
        if kind in self._before and all(known() is not value for known in self._before[kind]):
            self._kinds.add(kind)
        return kind in self._kinds


def _reference(value: Any) -> Callable[[], Any]:
    """Weak where its type allows, as torch.Generator does not with PyTorch 2.11. Those live a call longer."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


__all__ = ["Passing"]
