"""Tells recordings and budgets of each optimizer step. PyTorch's own registry of hooks is entered once and for good: it must
not change while another thread is in an optimizer's step, which goes through it.

Steps that torch.compile has compiled are not told: a listener must not change what is compiled, as Dynamo's guards would
see it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Hook = Callable[[Any, tuple, dict], None]

_lock = threading.Lock()
_listening: tuple[tuple[object, Hook, Hook], ...] = ()  # another tuple after each change


def listen(key: object, before: Hook, after: Hook) -> None:
    """Until forget(key): before(optimizer, args, kwargs) and after(...), in the thread that steps."""
    global _listening
    with _lock:
        _listening += ((key, before, after),)


def forget(key: object) -> None:
    """Whether or not it listens."""
    global _listening
    with _lock:
        _listening = tuple(heard for heard in _listening if heard[0] is not key)


@contextlib.contextmanager
def heard(before: Hook, after: Hook) -> Iterator[None]:
    """Of the steps within the block."""
    key = object()
    listen(key, before, after)
    try:
        yield
    finally:
        forget(key)


def only_torchs(optimizer: Any) -> bool:
    """Does its step run Python of PyTorch alone, but for a closure?"""
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    of_all = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    known = type(optimizer).__module__.startswith("torch.optim.") and "step" not in optimizer.__dict__
    return known and not any(hooks) and all(len(registered) == 1 for registered in of_all)


def _before(optimizer: Any, args: tuple, kwargs: dict) -> None:
    if torch.compiler.is_compiling():
        return
    for _, before, _ in _listening:
        before(optimizer, args, kwargs)


def _after(optimizer: Any, args: tuple, kwargs: dict) -> None:
    if torch.compiler.is_compiling():
        return
    for _, _, after in _listening:
        after(optimizer, args, kwargs)


register_optimizer_step_pre_hook(_before)
register_optimizer_step_post_hook(_after)

__all__ = ["forget", "heard", "listen", "only_torchs"]
