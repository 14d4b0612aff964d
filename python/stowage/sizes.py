"""Bytes as people write and read them."""

from __future__ import annotations

from stowage import _core


def parse_bytes(value: int | str | None) -> int | None:
    """As an int, or as text such as "2GiB"; None stays None. Raises TypeError, ValueError, or Error naming the text."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"bytes must be an int or a string such as '2GiB', not {type(value).__name__}")
    if isinstance(value, str):
        return _core.parse_bytes(value)
    if value < 0:
        raise ValueError(f"bytes must not be negative: {value}")
    return value


def in_words(bytes_: int, direction: int = 0) -> str:
    """Such as "66.0 MiB". direction: 1 rounds up, -1 down, 0 to the nearest."""
    return _core.in_words(bytes_, direction)
