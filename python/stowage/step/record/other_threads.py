"""What a step's Python has to do with other threads. They see memory as it is: over shells there is none, and what lasts is as
before the call until that has been executed. So no plan serves what follows where the step, after an operator,

    hands work to a thread      Thread(target=save).start(), pool.submit(function), queue.put(tensor): by which it may come to
                                tensors that the step has made or written
    wakes one, or waits         event.set(), queue.put(1), queue.get(), thread.join(), where a thread runs code of the program's that
                                may come to such tensors, and to that event, queue, ...

What it has only read may be handed on: where another thread writes it then, the call ends with an error, or the recording is
refused.

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

from stowage.step.guards.blind import HANDS_TO_THREAD
from stowage.step.guards.threads import concerns, other_threads, tensors_at_hand, tensors_within_reach

# Methods by which work is handed over, and functions, by where that begins among their arguments
_HANDS: tuple[tuple[Any, str, int], ...] = (
    (threading.Thread, "start", 0),
    (_thread, "start_new_thread", 0),
    (_thread, "start_joinable_thread", 0),  # from Python 3.13 on
    (concurrent.futures.ThreadPoolExecutor, "submit", 1),
    (concurrent.futures.ProcessPoolExecutor, "submit", 1),
    (queue.Queue, "put", 1),
    (multiprocessing.queues.Queue, "put", 1),  # pickled by a thread
    (multiprocessing.queues.JoinableQueue, "put", 1),
    (multiprocessing.pool.Pool, "apply_async", 1),
    (multiprocessing.pool.Pool, "_map_async", 1),
    (multiprocessing.pool.Pool, "imap", 1),
    (multiprocessing.pool.Pool, "imap_unordered", 1),
    (asyncio.BaseEventLoop, "call_soon_threadsafe", 1),
)
# Of these consist events, queues, semaphores, barriers, futures
_WAKES: tuple[tuple[Any, str], ...] = ((queue.Queue, "put"), (threading.Condition, "notify"))
_WAITS: tuple[tuple[Any, str], ...] = ((threading.Condition, "wait"), (threading.Thread, "join"))
WAITS_FOR_THREAD = "wakes or waits for a thread that may read its tensors"
WRITTEN_MEANWHILE = "another thread has written to a tensor that the step had read before"
_LOOKED_AT_EVERY = 16  # times: a search takes milliseconds where a thread has much at hand
_MOST_HARMLESS = 256


class Listener:
    """Of one step on one thread. tell(reason): no plan serves what follows; "" says that other threads are used, each time.
    made(tensor): has the step written it so far, or made it? read(tensor): has it read it? ops(): how many operators has it run?
    harmless: threads that could come to none that was made, and how often they need not be looked at; kept between calls."""

    def __init__(
        self,
        tell: Callable[[str], None],
        made: Callable[[torch.Tensor], bool],
        read: Callable[[torch.Tensor], bool],
        ops: Callable[[], int],
        harmless: dict[tuple[int, ...], int] | None = None,
    ):
        self._tell, self._made, self._read, self._ops = tell, made, read, ops
        self._versions: list[tuple[torch.Tensor, int]] = []  # of what it has only read, and a thread may come to
        self._harmless = {} if harmless is None else harmless
        self._within = False  # one of Python's functions calls others

    def hears(self) -> None:
        """From here on, on this thread. An interrupt may come between this and ends(): what has ended touches nothing."""
        _listening[threading.get_ident()] = self

    def ends(self) -> None:
        if _listening.get(threading.get_ident()) is self:
            del _listening[threading.get_ident()]

    def within(self, call: Callable[[], Any], name: str, handed: Iterable[Any], by: Any, wakes: bool) -> Any:
        """call(), of a function of Python's, which hands these over, or wakes or waits for threads ``by`` this object; None: does not."""
        if self._within:
            return call()
        self._within = True
        try:
            try:
                with torch._C.DisableTorchFunction():  # modes hear what the step asks, not this
                    reason = self._reason(name, handed, by, wakes)
            except Exception:  # of an object that does not let itself be looked into
                reason = f"{HANDS_TO_THREAD} ({name})"
            self._tell(reason)
            return call()
        finally:
            self._within = False

    def _reason(self, name: str, handed: Iterable[Any], by: Any, wakes: bool) -> str:
        if self._ops() <= 0:
            return ""
        reached = tensors_within_reach(handed)
        self._versions += [(t, t._version) for t in reached or () if not t.is_inference() and self._read(t)]
        if self._may_touch(reached):
            return f"{HANDS_TO_THREAD} ({name})"
        for thread, frames in other_threads() if by is not None else ():
            key = (*thread, id(by))
            if not concerns(thread[0], frames, by, wakes):
                continue
            if self._harmless.get(key, 0) > 0:
                self._harmless[key] -= 1
            elif self._may_touch(tensors_at_hand(frames, by)):
                return f"{WAITS_FOR_THREAD} ({name})"
            elif not isinstance(by, threading.Thread):
                if len(self._harmless) >= _MOST_HARMLESS:
                    self._harmless.clear()
                self._harmless[key] = _LOOKED_AT_EVERY
        return ""

    def _may_touch(self, reached: list[torch.Tensor] | None) -> bool:
        return reached is None or any(t.layout == torch.strided and self._made(t) for t in reached)

    def has_written(self) -> bool:
        """At the end: has another thread written what the step had read when it handed work over? Kernels that wait until now
        would read that."""
        with torch._C.DisableTorchFunction():
            return any(t._version != version and not self._made(t) for t, version in self._versions)


_listening: dict[int, Listener] = {}


def _telling(owner: Any, name: str, first: int | None) -> Callable[..., Any]:
    original, said = getattr(owner, name), f"{owner.__name__}.{name}"
    wakes = (owner, name) in _WAKES
    takes_part = wakes or (owner, name) in _WAITS

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        listener = _listening.get(threading.get_ident())
        if listener is None:
            return original(*args, **kwargs)
        handed = () if first is None else (*args[first:], *kwargs.values())
        by = args[0] if takes_part and args else None
        return listener.within(lambda: original(*args, **kwargs), said, handed, by, wakes)

    return function


@functools.cache
def install() -> None:
    """Before what is watched is looked at. O(1)."""
    hands = {(owner, name): first for owner, name, first in _HANDS}
    for owner, name in dict.fromkeys((*hands, *_WAKES, *_WAITS)):
        if hasattr(owner, name):
            setattr(owner, name, _telling(owner, name, hands.get((owner, name))))


__all__ = ["WRITTEN_MEANWHILE", "Listener", "install"]
