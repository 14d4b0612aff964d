"""What a step's Python has to do with other threads. They see memory as it is: over shells there is none, and what lasts is as
before the call until that has been executed. So no plan serves what follows where the step, after an operator,

    hands work to a thread      Thread(target=save).start(), pool.submit(function), queue.put(tensor): by which it may come to
                                tensors that the step has touched
    wakes one, or waits         event.set(), queue.put(1), queue.get(), thread.join(), while a thread runs code of the program's that
                                may come to such tensors

Python's own functions for that are replaced by ones that tell the step which runs on their thread, once and for all: whether a
step will call one is not known before. Elsewhere they do what they did. Not seen: locks, pipes and variables that threads
look at by themselves. O(what is handed over, or what other threads have at hand)."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import functools
import multiprocessing.pool
import multiprocessing.queues
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stowage.step.guards.blind import HANDS_TO_THREAD, WAITS_FOR_THREAD
from stowage.step.guards.threads import tensors_of_other_threads, tensors_within_reach

_THE_OTHERS = slice(1, None)  # arguments that are handed over, of a method of what hands them
_ALL = slice(0, None)
_HANDS: tuple[tuple[Any, str, slice], ...] = (
    (threading.Thread, "start", _ALL),
    (_thread, "start_new_thread", _ALL),
    (_thread, "start_joinable_thread", _ALL),  # from Python 3.13 on
    (concurrent.futures.ThreadPoolExecutor, "submit", _THE_OTHERS),
    (concurrent.futures.ProcessPoolExecutor, "submit", _THE_OTHERS),
    (queue.Queue, "put", _THE_OTHERS),
    (multiprocessing.queues.Queue, "put", _THE_OTHERS),  # pickled by a thread
    (multiprocessing.queues.JoinableQueue, "put", _THE_OTHERS),
    (multiprocessing.pool.Pool, "apply_async", _THE_OTHERS),
    (multiprocessing.pool.Pool, "_map_async", _THE_OTHERS),
    (multiprocessing.pool.Pool, "imap", _THE_OTHERS),
    (multiprocessing.pool.Pool, "imap_unordered", _THE_OTHERS),
    (asyncio.BaseEventLoop, "call_soon_threadsafe", _THE_OTHERS),
)
# All that wakes or waits consists of these: events, queues, semaphores, barriers, futures
_WAKES_OR_WAITS: tuple[tuple[Any, str], ...] = (
    (threading.Condition, "notify"),
    (threading.Condition, "wait"),
    (threading.Thread, "join"),
)


class Listener:
    """Of one step on one thread. tell(reason): no plan serves what follows; "" says that other threads are used, each time.
    touched(tensor): has the step read or written it so far, or made it? ops(): how many operators has it run?"""

    def __init__(self, tell: Callable[[str], None], touched: Callable[[torch.Tensor], bool], ops: Callable[[], int]):
        self._tell, self._touched, self._ops = tell, touched, ops
        self._within = False  # one of Python's functions calls others

    def hears(self) -> None:
        """From here on, on this thread. An interrupt may come between this and ends(): what has ended touches nothing."""
        _listening[threading.get_ident()] = self

    def ends(self) -> None:
        if _listening.get(threading.get_ident()) is self:
            del _listening[threading.get_ident()]

    def within(self, call: Callable[[], Any], name: str, handed: Iterable[Any] | None) -> Any:
        """call(), of a function of Python's, which hands these over, or wakes or waits for others."""
        if self._within:
            return call()
        self._within = True
        try:
            self._tell(self._reason(name, handed))
            return call()
        finally:
            self._within = False

    def _reason(self, name: str, handed: Iterable[Any] | None) -> str:
        if self._ops() <= 0:
            return ""
        if handed is not None and self._may_touch(tensors_within_reach(handed)):
            return f"{HANDS_TO_THREAD} ({name})"
        if self._may_touch(tensors_of_other_threads()):
            return f"{WAITS_FOR_THREAD} ({name})"
        return ""

    def _may_touch(self, reached: list[torch.Tensor] | None) -> bool:
        return reached is None or any(t.layout == torch.strided and self._touched(t) for t in reached)


_listening: dict[int, Listener] = {}


def _telling(original: Any, name: str, which: slice | None) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        listener = _listening.get(threading.get_ident())
        if listener is None:
            return original(*args, **kwargs)
        handed = None if which is None else [*args[which], *kwargs.values()]
        return listener.within(lambda: original(*args, **kwargs), name, handed)

    return function


@functools.cache
def install() -> None:
    """Before what is watched is looked at. O(1)."""
    for owner, name, which in (each for each in _HANDS if hasattr(each[0], each[1])):
        setattr(owner, name, _telling(getattr(owner, name), f"{owner.__name__}.{name}", which))
    for owner, name in _WAKES_OR_WAITS:
        setattr(owner, name, _telling(getattr(owner, name), f"{owner.__name__}.{name}", None))


__all__ = ["Listener", "install"]
