"""What a step's Python has to do with other threads. They see memory as it is: over shells there is none, and what lasts is as
before the call until that has been executed. So a step is not planned that

    hands a tensor to a thread      queue.put(tensor), pool.submit(function, tensor), Thread(target=what holds a model)
    waits for one after kernels     queue.join(), event.wait(): a thread that was there before reads what lasts

O(what is handed over)."""

from __future__ import annotations

import concurrent.futures as futures
import functools
import queue
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

HANDS_TO_THREAD = "hands a tensor to another thread"
WAITS_FOR_THREAD = "waits for another thread in mid-step"
_DEEPEST = 4


def _code(function: Callable) -> types.CodeType:
    return function.__code__  # type: ignore[attr-defined]


_START = _code(threading.Thread.start)  # waits until the thread runs
_HANDS = {_START, *(_code(f) for f in (queue.Queue.put, futures.ThreadPoolExecutor.submit))}
_WAITS = {_code(f) for f in (queue.Queue.join, threading.Event.wait, threading.Barrier.wait)}


def between_threads(code: types.CodeType, frame: types.FrameType, ops: int) -> str:
    """Why no plan can be, or "": ``code`` is about to run in ``frame``, after so many operators of the step."""
    name = getattr(code, "co_qualname", code.co_name)
    caller = frame.f_back
    if code in _WAITS and ops > 0 and (caller is None or caller.f_code is not _START):
        return f"{WAITS_FOR_THREAD} ({name})"
    if code in _HANDS and _holds_tensor(dict(frame.f_locals), 0):
        return f"{HANDS_TO_THREAD} ({name})"
    return ""


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
        return True
    if depth >= _DEEPEST:
        return False
    if isinstance(value, types.FunctionType):
        parts = [*(value.__defaults__ or ()), *(_content(cell) for cell in value.__closure__ or ())]
    elif isinstance(value, types.MethodType):
        parts = [value.__func__]
    elif isinstance(value, threading.Thread):
        parts = [getattr(value, name, None) for name in ("_target", "_args", "_kwargs")]
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        parts = list(value)
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    else:
        return False
    return any(_holds_tensor(part, depth + 1) for part in parts)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


__all__ = ["HANDS_TO_THREAD", "WAITS_FOR_THREAD", "between_threads"]
