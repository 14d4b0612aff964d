"""What is set for a whole library of Python's or for NumPy, and kept in C: operators look at it without any call that could be
noted.

    decimal     the context of this thread: precision, rounding, traps
    NumPy       what a division by zero and the like do
    abc         the classes that are registered with abstract ones: isinstance() and issubclass() look there

Each reads what is set now as a value of plain numbers and strings. O(1)."""

from __future__ import annotations

import abc
import contextvars
import sys
from typing import Any


def decimal_context(context: Any = None) -> tuple:
    """Of this thread, or a given one. Not its flags: each operator sets them, and none reads them."""
    c = sys.modules["decimal"].getcontext() if context is None else context
    return c.prec, c.rounding, c.Emin, c.Emax, c.clamp, c.capitals, tuple(c.traps.values())


def numpy_errors() -> tuple:
    numpy = sys.modules["numpy"]
    return (*numpy.geterr().values(), numpy.geterrcall())


def context_content(context: contextvars.Context) -> tuple:
    return tuple(context.values())


SETTINGS = {
    "abc": ("what is registered with abstract classes", abc.get_cache_token),
    "decimal": ("decimal's context", decimal_context),
    "numpy": ("what NumPy does about errors (numpy.seterr)", numpy_errors),
}

__all__ = ["SETTINGS", "context_content", "decimal_context", "numpy_errors"]
