"""Modes of torch functions, opened and closed where no interrupt can come between.

    within_function_mode(mode, call)    call(), whose functions of torch go through the mode
      └── heard_by(mode, inner)         inner(), within a function that the mode was told of
      └── aside(mode) ... back(mode)    the mode off the stack for a while

- ``torch._C._push_on_torch_function_stack``, ``_pop_torch_function_stack``, ``_len_torch_function_stack``,
  ``_get_function_stack_at``: what a TorchFunctionMode calls.
- ``torch.overrides.has_torch_function``, ``torch.autograd._engine_run_backward``: what asks, and what takes modes off."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stowage.errors import PACKAGE_FOLDER

_function_modes = torch._C._len_torch_function_stack


def asking_frame(depth: int) -> types.FrameType:
    """Whose call has come to a mode of ours, past other modes of ours that heard of it first. ``depth``: of the
    frame that called the mode, as sys._getframe() counts from here."""
    frame = sys._getframe(depth)
    while frame.f_code.co_name == "__torch_function__" and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def heard_by(mode: torch.overrides.TorchFunctionMode, call: Callable[[], Any]) -> Any:
    """call(), within a function that ``mode`` was told of, and that it is not told of what that one calls."""
    before = _function_modes()
    try:
        torch._C._push_on_torch_function_stack(mode)
        return call()
    finally:
        while _function_modes() > before:
            torch._C._pop_torch_function_stack()


def aside(mode: torch.overrides.TorchFunctionMode) -> bool:
    """Takes ``mode`` off the thread's stack, where it is the innermost. False where it is not."""
    count = _function_modes()
    if count == 0 or torch._C._get_function_stack_at(count - 1) is not mode:
        return False
    torch._C._pop_torch_function_stack()
    return True


def back(mode: torch.overrides.TorchFunctionMode) -> None:
    """After aside()."""
    torch._C._push_on_torch_function_stack(mode)


def within_function_mode(mode: torch.overrides.TorchFunctionMode, call: Callable[[], Any]) -> Any:
    """call(), whose functions of torch go through ``mode``. By functions of C: an interrupt cannot come between the
    call and what it does, as it can in the mode's own methods. It can come while PyTorch has taken modes off the stack;
    the thread's state brings them back, and the end of the call's turn takes off what a suspended generator of
    PyTorch's puts there later."""
    before = _function_modes()
    opened = (threading.get_ident(), mode)
    try:
        torch._C._push_on_torch_function_stack(mode)
        _within.append(opened)
        torch.overrides.has_torch_function = _has_torch_function_of_others
        torch.autograd._engine_run_backward = _run_backward_within
        return call()
    finally:
        if opened in _within:
            _within.remove(opened)
        if not _within:
            torch.overrides.has_torch_function = _has_torch_function
            torch.autograd._engine_run_backward = _run_backward
        if _within:  # another thread's since
            torch.overrides.has_torch_function = _has_torch_function_of_others
            torch.autograd._engine_run_backward = _run_backward_within
        while _function_modes() > before:
            torch._C._pop_torch_function_stack()


_within: list[tuple[int, Any]] = []  # threads and the modes that they have open


def open_mode() -> Any:
    """The innermost that this thread has opened by within_function_mode(), on the stack or aside; None where there is none."""
    thread = threading.get_ident()
    return next((mode for opened_by, mode in reversed(_within) if opened_by == thread), None)


_run_backward = torch.autograd._engine_run_backward


def _run_backward_within(*args: Any, **kwargs: Any) -> Any:
    """A mode is off the stack while it calls loss.backward(). The program's own functions of that pass (autograd.Function,
    hooks) call functions of torch, too."""
    before, mode = _function_modes(), open_mode()
    on = [torch._C._get_function_stack_at(i) for i in range(before)]
    if mode is None or any(other is mode for other in on):
        return _run_backward(*args, **kwargs)
    try:
        torch._C._push_on_torch_function_stack(mode)
        return _run_backward(*args, **kwargs)
    finally:
        while _function_modes() > before:
            torch._C._pop_torch_function_stack()


_has_torch_function = torch.overrides.has_torch_function


def _has_torch_function_of_others(args: Iterable[Any]) -> bool:
    """As if no mode of Stowage's were open. torch.nn asks, and takes its fast paths only where the answer is no."""
    if _function_modes() == 0 or not type(torch._C._get_function_stack_at(_function_modes() - 1)).__module__.startswith(
        "stowage."
    ):
        return _has_torch_function(args)
    mode = torch._C._pop_torch_function_stack()
    try:
        return _has_torch_function(args)
    finally:
        torch._C._push_on_torch_function_stack(mode)


def take_off(mode: torch.overrides.TorchFunctionMode) -> None:
    """Takes this mode off the thread's stack, for good; the others stay."""
    above = []
    while _function_modes():
        top = torch._C._pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)


__all__ = [
    "aside",
    "asking_frame",
    "back",
    "heard_by",
    "open_mode",
    "take_off",
    "within_function_mode",
]
