"""Functions that stand for PyTorch's methods for a while: a budget's, which bring memory back, and a planned call's, which tell
what a tensor will hold. Each calls the one before it; they leave in any order.

    Tensor.tolist     original ◄── a budget's ◄── a call's          leaves: a budget's
                      original ◄── a call's

What the program itself has set meanwhile stays: the stand-ins call that, and it is there when all have left. O(those that
stand for the same method) to come and to leave."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any


class StandIn:
    """``instead_of(function)`` for ``owner.name``, between comes() and leaves(). The former may be interrupted; the latter then takes
    back what there is, and may be called again where it was interrupted itself."""

    def __init__(self, owner: Any, name: str, instead_of: Callable[[Any], Any]):
        self.instead_of = instead_of
        self._owner, self._name = owner, name

    def comes(self) -> None:
        with _lock:
            place = _places.setdefault((self._owner, self._name), _Place(self._owner, self._name))
            place.those.append(self)
            place.settle()

    def leaves(self) -> None:
        with _lock:
            if place := _places.get((self._owner, self._name)):
                place.those = [each for each in place.those if each is not self]
                place.settle()


class _Place:
    def __init__(self, owner: Any, name: str):
        self._owner, self._name = owner, name
        self.those: list[StandIn] = []  # oldest first
        self._made: list[Any] = []  # one of these stands there, unless the program has set another

    def original(self) -> Any:
        there = vars(self._owner).get(self._name, _NOTHING)
        if not any(there is function for function in self._made):
            self._own, self._original = there is not _NOTHING, getattr(self._owner, self._name)
        return self._original

    def settle(self) -> None:
        owner, name = self._owner, self._name
        function = original = self.original()
        if self.those:
            for each in self.those:
                function = functools.update_wrapper(each.instead_of(function), function)
            self._made.append(function)  # before it is set: an interrupt may come between
            setattr(owner, name, function)
            self._made = [function]
            return
        if self._own:
            setattr(owner, name, original)
        elif name in vars(owner):
            delattr(owner, name)
        del _places[owner, name]


def original(owner: Any, name: str) -> Any:
    """What is there but for stand-ins."""
    with _lock:
        place = _places.get((owner, name))
        return getattr(owner, name) if place is None else place.original()


def with_stand_ins(owner: Any, name: str, function: Any) -> Any:
    """``function``, PyTorch's own, as it were there without the program's: for what is asked on nobody's behalf."""
    with _lock:
        place = _places.get((owner, name))
        for each in place.those if place else ():
            function = each.instead_of(function)
    return function


def _anew() -> None:
    """In a child, which has no thread that holds it."""
    global _lock
    _lock = threading.RLock()


_NOTHING = object()
_lock = threading.RLock()
_places: dict[tuple[Any, str], _Place] = {}
os.register_at_fork(after_in_child=_anew)


__all__ = ["StandIn", "original", "with_stand_ins"]
