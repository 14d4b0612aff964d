"""What is known of classes, worked out once for each and kept as long as it lives: classes that a program makes for one training
hold all that their methods and closures do. O(1) a question; a class is asked for by its address."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_NOTHING: Any = object()


class ByClass(Generic[_T]):
    """``work_out(cls)``, which must hold no reference to the class."""

    def __init__(self, work_out: Callable[[type], _T]):
        self._work_out = work_out
        self._known: dict[int, _T] = {}
        self._living: dict[int, weakref.ref[type]] = {}
        functools.update_wrapper(self, work_out)

    def __call__(self, cls: type) -> _T:
        found = self._known.get(id(cls), _NOTHING)
        if found is _NOTHING:
            found = self._work_out(cls)
            self._living[id(cls)] = weakref.ref(cls, functools.partial(self._has_gone, id(cls)))
            self._known[id(cls)] = found
        return found

    def _has_gone(self, key: int, _: weakref.ref[type]) -> None:
        self._known.pop(key, None)
        self._living.pop(key, None)


__all__ = ["ByClass"]
