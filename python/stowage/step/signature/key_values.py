"""Values, objects and arrays as parts of a signature's key."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

from stowage._core import buffer_digest, same_bits

_MOST_COMPARED_BYTES = 1 << 20  # of an array


class Value:
    """A value as part of a key. Equal only to one of the same bits and types: 0.0 is not -0.0, 1 is not True, (2,) is
    not (2.0,)."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any):
        self.value = value
        # NaNs hash by their address, though their bits may be equal; objects that cannot be hashed are equal to
        # themselves alone.
        try:
            self._hash = 0 if value != value else hash(value)
        except (TypeError, RuntimeError, ValueError):
            self._hash = id(type(value))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is Value and same_bits(self.value, other.value)

    def __repr__(self) -> str:
        return repr(self.value)


class Same:
    """An object as part of a key: equal to itself alone. Does not keep it alive where that can be helped."""

    __slots__ = ("_get", "_hash")

    def __init__(self, value: Any):
        self._hash = id(value)
        try:
            self._get: Any = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and self._get() is other._get() and self._get() is not None


class Content:
    """Of an array, as part of a key: it may be another one in each call of a signature. Too large to be compared, it is
    like no other."""

    __slots__ = ("_digest",)

    def __init__(self, array: Any):
        self._digest = buffer_digest(array) if memoryview(array).nbytes <= _MOST_COMPARED_BYTES else None

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return type(other) is Content and self._digest is not None and self._digest == other._digest


def loosened(key: Any) -> Any:
    """The signature without the values of Python's own numbers and strings, and without what arrays hold: a step number
    that is passed in, or the name of a file, is another one in every call."""
    if not isinstance(key, tuple):
        return key
    if len(key) == 2 and isinstance(key[0], type) and (key[0] in (int, float, str, bytes) or key[0] in numpy_numbers()):
        return key[:1]
    return tuple(loosened(part) for part in key if type(part) is not Content)


def numpy_numbers() -> frozenset[type]:
    numpy = sys.modules.get("numpy")
    return frozenset() if numpy is None or not hasattr(numpy, "float32") else _numbers_of(numpy)


@functools.cache
def _numbers_of(numpy: Any) -> frozenset[type]:
    return frozenset(t for t in vars(numpy).values() if isinstance(t, type) and issubclass(t, numpy.number))


__all__ = ["Content", "Same", "Value", "loosened", "numpy_numbers"]
