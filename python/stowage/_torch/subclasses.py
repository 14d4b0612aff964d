"""Subclasses of Tensor that have a __torch_function__ of their own: it is told of what the user's code asks, not of what this package
does with its tensors.

    with unheard():                 the package's work: shapes of arguments, addresses
        ...
        heard(function, …)          the user's code within it

C++ calls this package in the midst of what a mode hears (a number that backward asks for): unheard(modes=True)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _Thread(threading.local):
    hushed = 0  # blocks that are open, of those that have made a difference


_thread = _Thread()


@contextlib.contextmanager
def unheard(modes: bool = False) -> Iterator[None]:
    """Where the user has disabled them, or another block has, they stay so. modes: TorchFunctionModes hear nothing, too."""
    if not torch._C._is_torch_function_enabled():
        yield
        return
    _thread.hushed += 1
    try:
        with torch._C.DisableTorchFunction() if modes else torch._C.DisableTorchFunctionSubclass():
            yield
    finally:
        _thread.hushed -= 1


def heard(function: Callable, args: tuple, kwargs: dict) -> Any:
    """function(*args, **kwargs), as if it were called outside of the thread's block."""
    if not _thread.hushed:
        return function(*args, **kwargs)
    with torch._C._EnableTorchFunction():
        return function(*args, **kwargs)


__all__ = ["heard", "unheard"]
