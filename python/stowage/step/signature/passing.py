"""What comes anew with each call of a step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

_MOST_GROWING = 64
_MOST_LOOKED_AT = 256  # elements
_STILL = 16  # calls in which its length stays: it is told by what it holds again


class Passing:
    """What comes anew with each call of one step.

    An object is known by which one it is, until a call gives another one of its kind: a lambda that stands in the call, a
    loss that is made for it. From then on such objects are known by what they hold, and the guards do not enter
    them.

    A container is known by what it holds, until the step itself has made it longer or shorter (a list that takes the losses),
    or has put something there that cannot be an argument. From then on it is known by its type alone, and the step's Python
    runs in each call."""

    def __init__(self) -> None:
        self.met: list[int] = []  # identities of the tensors, containers and objects that are told by what they hold
        self.arrays: list[Any] = []  # among the arguments of the latest call; tensors may lie over them
        self.unseen = ""  # what among its arguments is known by its type alone, and why
        self._kinds: set[Any] = set()  # of which calls give ever others
        self._before: dict[Any, list[Any]] = {}  # by kind: references to those of the call before
        self._now: dict[Any, list[Any]] = {}
        # Among the arguments: with their lengths, and what they held as the call began
        self._containers: list[tuple[Any, int, list | None]] = []
        # By identity: the length after the latest call, and how many calls have left it. Not held: another one with its
        # identity and that length makes the step's Python run, as it would for this one
        self._growing: dict[int, tuple[int, int]] = {}

    def begin(self) -> None:
        """Of a call."""
        self._before, self._now = self._now, {}
        self.end()

    def end(self) -> None:
        """Lets go of the call's arguments."""
        for container, length, held in self._containers:
            _, still = self._growing.pop(id(container), (0, _STILL))
            still = 0 if len(container) != length or _holds_its_own(container, held, still) else still + 1
            if still < _STILL:
                self._growing[id(container)] = (len(container), still)
        while len(self._growing) > _MOST_GROWING:
            del self._growing[next(iter(self._growing))]
        self.arrays, self.unseen, self._containers, self.met = [], "", [], []

    def is_growing(self, container: Any) -> bool:
        """Does the step itself put things into it, or take them out?"""
        self._containers.append((container, len(container), _held(container)))
        length, _ = self._growing.get(id(container), (-1, 0))
        if length != len(container):
            return False
        self.unseen = f"a {type(container).__name__} is passed that the step makes longer or shorter"
        return True

    def is_other(self, kind: Any, value: Any) -> bool:
        """Do calls give ever others of the kind, as this one does?"""
        self._now.setdefault(kind, []).append(_reference(value))
        if kind in self._before and all(known() is not value for known in self._before[kind]):
            self._kinds.add(kind)
        return kind in self._kinds


def _held(container: Any) -> list | None:
    """What may matter beside its length; None where that is too much to be looked at."""
    if len(container) > _MOST_LOOKED_AT:
        return None
    values = container.values() if isinstance(container, dict) else container
    return [(value, _form(value)) for value in values if not isinstance(value, (int, float, str))]


def _holds_its_own(container: Any, before: list | None, still: int) -> bool:
    """Has the call put something there that no argument can be (a tensor with a graph, an array of another form)? Of a
    container that is known to change, anything."""
    now = _held(container)
    if before is None or now is None or len(before) != len(now):
        return False
    return any(
        new is not old and (still < _STILL or getattr(new, "requires_grad", False) or form != known)
        for (old, known), (new, form) in zip(before, now)
    )


def _form(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    return (value.shape, value.dtype) if numpy is not None and isinstance(value, numpy.ndarray) else None


def _reference(value: Any) -> Callable[[], Any]:
    """Weak where its type allows, as torch.Generator does not with PyTorch 2.11. Those live a call longer."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


__all__ = ["Passing"]
