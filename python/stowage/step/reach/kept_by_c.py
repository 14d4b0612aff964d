"""What objects of C keep to themselves, and whether a run of Python has moved it on.

    was = state_of(value)          iterators: where they are; generators: where they wait, and with what; queues: how much they
    ... the run ...                hold; files: where they are read and written; functools.lru_cache: what it remembers
    same(value, was)

Iterators over sequences and caches without a bound can be set back: way_back(). O(1) an object, but for iterators over iterators
and what caches hold."""

from __future__ import annotations

import contextlib
import contextvars
import io
import operator
import queue
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from stowage.step.guards.callables import CACHED, remembered

_WAITING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_SEQUENCES: tuple[Any, ...] = ([], (), range(0), "", b"", bytearray(), range(1 << 70))
_OF_SEQUENCES = (*(type(iter(of)) for of in _SEQUENCES), type(reversed([])))
_DEEPEST = 8  # iterators over iterators


def is_kept(value: Any) -> bool:
    cls = type(value)
    if isinstance(value, CACHED):
        return True
    if isinstance(value, (*_WAITING, io.IOBase, queue.SimpleQueue)):
        return all(value is not stream for stream in (sys.stdout, sys.stderr, sys.stdin))
    return hasattr(cls, "__next__") and not cls.__flags__ & (1 << 9)  # a type of C


def state_of(value: Any) -> Any:
    try:
        return _state_of(value, 0)
    except Exception:  # closed, detached; or an object of somebody's that does not answer
        return None


def same(value: Any, was: Any) -> bool:
    return _equal(state_of(value), was)


def way_back(value: Any) -> Callable[[], object] | None:
    """To where it is now."""
    return _cache_back(value) if isinstance(value, CACHED) else _iterator_back(value)


def _cache_back(cached: Any) -> Callable[[], object] | None:
    if cached.cache_info().maxsize is not None:
        return None
    kept = dict(remembered(cached))

    def back() -> None:
        now = remembered(cached)
        if not _equal(_pairs(now), _pairs(kept)):
            now.clear()
            now.update(kept)

    return back


def _pairs(known: dict) -> tuple:
    return *known, *known.values()


def _iterator_back(iterator: Any) -> Callable[[], object] | None:
    """That over a sequence can go there as long as it has not come to its end."""
    if not isinstance(iterator, _OF_SEQUENCES):
        return None
    value: Any = iterator

    def place() -> Any:
        state = value.__reduce__()
        return state[2] if len(state) > 2 else None

    at = place()
    if at is None:  # at its end; or later Pythons', which tell what is left
        return None

    def back() -> None:
        if place() not in (None, at):
            value.__setstate__(at)

    return back


def _state_of(value: Any, depth: int) -> Any:
    if isinstance(value, CACHED):
        return _pairs(remembered(value))
    if isinstance(value, types.GeneratorType):
        return _of_frame(value.gi_frame, value.gi_yieldfrom, depth)
    if isinstance(value, types.CoroutineType):
        return _of_frame(value.cr_frame, value.cr_await, depth)
    if isinstance(value, types.AsyncGeneratorType):
        return _of_frame(value.ag_frame, value.ag_await, depth)
    if isinstance(value, io.IOBase):
        return None if value.closed or not value.seekable() else value.tell()
    if isinstance(value, queue.SimpleQueue):
        return value.qsize()
    if isinstance(value, contextvars.ContextVar):
        return value.get(None)
    # Of dicts and sets, whose rest would be copied
    if hasattr(value, "__length_hint__") and not hasattr(value, "__setstate__"):
        return operator.length_hint(value, -1)
    with _no_warning(value):
        try:
            parts = value.__reduce__()
        except TypeError:  # not by iterators of later Pythons
            parts = (repr(value), operator.length_hint(value, -1))
    if depth >= _DEEPEST:
        return None
    return _flat(parts, depth)


@contextlib.contextmanager
def _no_warning(value: Any) -> Iterator[None]:
    """That itertools will not tell their state any more: of Python 3.12 and 3.13."""
    if sys.version_info < (3, 12) or type(value).__module__ != "itertools":
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _flat(parts: Any, depth: int) -> Any:
    if isinstance(parts, tuple):
        return tuple(_flat(part, depth + 1) for part in parts) if depth < _DEEPEST else None
    return _state_of(parts, depth + 1) if is_kept(parts) else parts


def _of_frame(frame: types.FrameType | None, waits_for: Any, depth: int) -> Any:
    """``None``: it has come to its end."""
    return None if frame is None else _flat((frame.f_lasti, waits_for, *frame.f_locals.values()), depth)


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(type(a) is type(b) and isinstance(a, (int, float, str, bytes, range)) and a == b)


__all__ = ["is_kept", "same", "state_of", "way_back"]
