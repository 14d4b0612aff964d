"""Errors, all of them ``stowage.Error``, and warnings, which are shown at the user's own line."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TypeVar

from stowage._core import Error, InvalidGraph, InvalidPlan

_E = TypeVar("_E", bound="BaseException | None")


class Infeasible(Error):
    """No plan fits the budget.

    Args:
        smallest_bytes: the smallest budget for which a plan was found, in bytes.
        bound_bytes: proven: nothing fits below so many bytes.
    """

    def __init__(self, message: str, smallest_bytes: int, bound_bytes: int):
        super().__init__(message)
        self.smallest_bytes = smallest_bytes
        self.bound_bytes = bound_bytes

    def __reduce__(self) -> tuple:  # copied where it is raised again, and pickled by process pools
        return type(self), (str(self), self.smallest_bytes, self.bound_bytes)


class Unsupported(Error):
    """The step does something that a replay cannot reproduce. The message names it, with the source line where
    known."""


class UnsupportedWarning(UserWarning):
    """A step cannot be planned and runs eagerly; the message says why."""


PACKAGE_FOLDER = os.path.dirname(__file__) + os.sep
_OURS = (PACKAGE_FOLDER, contextlib.__file__)


class _Waiting(threading.local):
    errors: list[Warning] | None = None


_waiting = _Waiting()


@contextlib.contextmanager
def warnings_wait(errors: list[Warning]) -> Iterator[None]:
    """Warnings that the user's filters make errors of go into ``errors``: a call that trains is not to be ended by one."""
    before, _waiting.errors = _waiting.errors, errors
    try:
        yield
    finally:
        _waiting.errors = before


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """At the line that called into this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    try:
        warnings.warn(f"stowage: {message}", category, stacklevel=level)
    except Warning as error:
        if _waiting.errors is None:
            raise
        _waiting.errors.append(error.with_traceback(None))


# Whether a call that raised has happened: below the error's message, where a user sees it.
BEFORE = "stowage: nothing of this step has happened: model, optimizer and generator are as before it"
AFTER = "stowage: this step has been finished: model, optimizer and generator are as after it"


def say(error: _E, note: str) -> _E:
    """Notes it on the error, once, and returns that: in ``raise say(...)`` no frame holds what holds the frame. Python 3.10 keeps
    what is noted on an error, and does not print it."""
    notes = getattr(error, "__notes__", ())
    if error is not None and note not in notes:
        error.__notes__ = [*notes, note]
    return error


__all__ = [
    "Error",
    "Infeasible",
    "InvalidGraph",
    "InvalidPlan",
    "Unsupported",
    "UnsupportedWarning",
    "say",
    "warn",
    "warnings_wait",
]
