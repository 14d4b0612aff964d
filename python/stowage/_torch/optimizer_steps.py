"""Tells recordings and budgets of each optimizer step, and the mode in which the step's Python runs over shells. PyTorch's own registry of hooks is entered once and for good: it must
not change while another thread is in an optimizer's step, which goes through it.

Steps that torch.compile has compiled are not told: a listener must not change what is compiled, as Dynamo's guards would
see it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import typing_extensions  # which torch needs
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stowage._torch.function_modes import open_mode
from stowage._torch.replaced import is_of_python, is_of_torch

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
    """Does its step run Python of PyTorch and of Python's own library alone, but for a closure?"""
    cls: Any = type(optimizer)
    if cls.__module__.partition(".")[0] != "torch" or "step" in optimizer.__dict__:
        return False
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    if any(hooks) or len(_global_optimizer_pre_hooks) > 1 or len(_global_optimizer_post_hooks) > 1:
        return False
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    if not all(type(p) in (torch.Tensor, torch.nn.Parameter) for p in parameters):
        return False
    functions = (f for holder in _holders(cls) for f in vars(holder).values() if type(f) is types.FunctionType)
    return all(f in _known or _is_known(f) for f in functions)


_known: set[types.FunctionType] = set()
_OF_DECORATORS = typing_extensions.__file__  # PyTorch's own functions are deprecated by it


def _is_known(function: types.FunctionType) -> bool:
    inner: Any = function
    while inner is not None:  # what decorates it, and what that decorates
        code = getattr(inner, "__code__", None)
        if code is None or not (is_of_torch(code) or is_of_python(code) or code.co_filename == _OF_DECORATORS):
            return False
        inner = getattr(inner, "__wrapped__", None)
    _known.add(function)
    return True


@functools.cache
def _holders(cls: Any) -> tuple[Any, ...]:
    """Of what its step calls: classes and modules."""
    classes = [base for base in cls.__mro__ if base is not object]
    modules = {inspect.getmodule(getattr(base.__dict__.get("step"), "__wrapped__", base)) for base in classes}
    return (*classes, *filter(None, modules), sys.modules[torch.optim.Optimizer.__module__])


def _before(optimizer: Any, args: tuple, kwargs: dict) -> None:
    if torch.compiler.is_compiling():
        return
    if (told := getattr(open_mode(), "before_optimizer", None)) is not None:
        told(optimizer, args, kwargs)
    for _, before, _ in _listening:
        before(optimizer, args, kwargs)


def _after(optimizer: Any, args: tuple, kwargs: dict) -> None:
    if torch.compiler.is_compiling():
        return
    for _, _, after in _listening:
        after(optimizer, args, kwargs)
    if (told := getattr(open_mode(), "after_optimizer", None)) is not None:
        told()


register_optimizer_step_pre_hook(_before)
register_optimizer_step_post_hook(_after)

__all__ = ["forget", "heard", "listen", "only_torchs"]
