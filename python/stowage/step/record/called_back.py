"""Python of the user's that PyTorch calls while one of its functions runs.

    F.triplet_margin_with_distance_loss(..., distance_function=mine)      a function that it is given
    torch.tensor(numbers), x[index]                                       methods of an object
    torch.sum(duck)                                                       __torch_function__ of a class

A mode that was told of the function is off the stack meanwhile: it does not hear what such Python asks of tensors past the
dispatcher. So the methods and functions that read tensors are replaced by ones that tell it, for as long as the function runs, and for
this thread alone. O(1) a call."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from stowage.step.record import tensor_of
from stowage.step.record.content import POINTERS, TOLD, WHOLE

_PLAIN = {
    *(torch.Tensor, torch.nn.Parameter, torch.Size, torch.Generator, torch.dtype, torch.device, torch.layout),
    *(int, float, bool, str, complex, type(None), slice, type(...), list, tuple, torch.memory_format),
}
_FUNCTIONS = (types.FunctionType, types.MethodType)
_KNOWN = ("builtins", "torch", "numpy")  # packages
_READERS: tuple[tuple[Any, str], ...] = tuple(
    (owner, name)
    for owner, names in ((torch.Tensor, (*TOLD, *WHOLE, *POINTERS, *tensor_of.FUNCTIONS)), (torch, tensor_of.FUNCTIONS))
    for name in dict.fromkeys(names)
    if hasattr(owner, name)
)

Tell = Callable[[Any, tuple, dict], Any]

_lock = threading.Lock()
_open: dict[int, list[Tell]] = {}  # by thread
_replaced: list[tuple[Any, str, Any]] = []  # while one is open: what stood there, None where nothing did


def calls_others(name: str, args: tuple, kwargs: dict | None) -> bool:
    """May PyTorch's function of this name, with these arguments, call Python that is not PyTorch's?"""
    values = [*args, *kwargs.values()] if kwargs else args
    kinds = {*map(type, values)}
    for value in values:
        if type(value) in (list, tuple):
            kinds.update(map(type, value))
    return not kinds <= _PLAIN and not name.startswith("register_") and any(map(_is_others, kinds - _PLAIN))


def _is_others(kind: type) -> bool:
    return kind in _FUNCTIONS or kind.__module__.partition(".")[0] not in _KNOWN


class Fence:
    """From rises() to falls(), tell(method, args, kwargs) stands for what reads tensors, on the thread that has made this. Each of
    the two is called where no interrupt comes; falls() also where rises() has not been."""

    def __init__(self, tell: Tell):
        self._tell, self._thread = tell, threading.get_ident()

    def rises(self) -> None:
        with _lock:
            _open.setdefault(self._thread, []).append(self._tell)
            if not _replaced:
                _replaced.extend((owner, name, vars(owner).get(name)) for owner, name in _READERS)
                for owner, name, _ in _replaced:
                    setattr(owner, name, _telling(getattr(owner, name)))

    def falls(self) -> None:
        with _lock:
            known = _open.get(self._thread, [])
            if self._tell in known:
                known.remove(self._tell)
            if not known:
                _open.pop(self._thread, None)
            if not _open:
                for owner, name, before in _replaced:
                    if before is not None:
                        setattr(owner, name, before)
                    elif name in vars(owner):
                        delattr(owner, name)
                _replaced.clear()


def _telling(method: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def told(*args: Any, **kwargs: Any) -> Any:
        known = _open.get(threading.get_ident())
        return known[-1](method, args, kwargs) if known else method(*args, **kwargs)

    return told


__all__ = ["Fence", "calls_others"]
