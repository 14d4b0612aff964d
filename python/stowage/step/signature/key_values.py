"""Values, objects and arrays as parts of a signature's key."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import sys
import uuid
import weakref
from typing import Any

import torch

from stowage._core import buffer_digest, same_bits

_MOST_COMPARED_BYTES = 1 << 20  # of an array
_CHOICES = (bool, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
# Whose text says all
_STANDARD = (
    decimal.Decimal, fractions.Fraction, uuid.UUID, datetime.date, datetime.timedelta, datetime.datetime, datetime.time,
    pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath,
)  # fmt: skip


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
    """The signature without the values of Python's own numbers, strings, dates and the like, and without what arrays hold: a
    step number that is passed in, or the name of a file, is another one in every call. What is one of a few stays."""
    if not isinstance(key, tuple):
        return key
    if len(key) == 2 and isinstance(key[0], type) and type(key[1]) is Value and not _is_choice(key[0]):
        return key[:1]
    return tuple(loosened(part) for part in key if type(part) is not Content)


def _is_choice(cls: type) -> bool:
    return (
        cls in _CHOICES
        or issubclass(cls, enum.Enum)
        or (cls.__module__ == "numpy" and cls.__name__ in ("bool", "bool_"))
    )


def numpy_numbers() -> frozenset[type]:
    numpy = sys.modules.get("numpy")
    return frozenset() if numpy is None or not hasattr(numpy, "float32") else _numbers_of(numpy)


@functools.cache
def _numbers_of(numpy: Any) -> frozenset[type]:
    return frozenset(t for t in vars(numpy).values() if isinstance(t, type) and issubclass(t, numpy.number))


def told_by_text(value: Any) -> bool:
    """A value of the standard library's or of NumPy's that nobody changes, and that its repr() tells whole."""
    cls = type(value)
    if cls in _STANDARD:
        zone = getattr(value, "tzinfo", None)
        return zone is None or type(zone) is datetime.timezone
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None and isinstance(value, numpy.generic) and cls.__module__ == "numpy" and cls is not numpy.void
    )


__all__ = ["Content", "Same", "Value", "loosened", "numpy_numbers", "told_by_text"]
