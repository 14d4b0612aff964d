"""Python of the user's that PyTorch calls while one of its functions runs.

    F.triplet_margin_with_distance_loss(..., distance_function=mine)      a function that it is given
    torch.tensor(numbers), x[index]                                       methods of an object
    torch.sum(duck)                                                       __torch_function__ of a class
    any operator, within saved_tensors_hooks() or a TorchDispatchMode     what these call

A mode that was told of the function is off the stack meanwhile: it does not hear what such Python asks of tensors past the
dispatcher. So the methods and functions that read tensors are replaced by ones that tell it, for as long as the function runs, and for
this thread alone. O(1) a call."""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stowage._torch.private import dispatch_mode_active
from stowage._torch.replaced import is_torchs
from stowage._torch.settings import hooks_of_saved_tensors
from stowage._torch.stand_ins import StandIn, original
from stowage.step.record import tensor_of
from stowage.step.record.content import POINTERS, TOLD, WHOLE

_PLAIN = {
    *(torch.Tensor, torch.nn.Parameter, torch.Size, torch.Generator, torch.dtype, torch.device, torch.layout),
    *(int, float, bool, str, complex, type(None), slice, type(...), list, tuple, torch.memory_format),
}
_FUNCTIONS = (types.FunctionType, types.MethodType)
_DEEPEST, _MOST_ITEMS = 3, 64
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
_stand_ins: list[StandIn] = []  # while one is open


def calls_others(name: str, args: tuple, kwargs: dict | None) -> bool:
    """May PyTorch's function of this name, with these arguments, call Python that is not PyTorch's?"""
    if name.startswith("register_"):
        return False
    kinds: set[type] = set()
    _add_kinds(kinds, [*args, *kwargs.values()] if kwargs else args, 0)
    return not kinds <= _PLAIN and any(map(_is_others, kinds - _PLAIN))


def _add_kinds(kinds: set[type], values: Iterable[Any], depth: int) -> None:
    for value in values:
        kind = type(value)
        if kind is slice:
            _add_kinds(kinds, (value.start, value.stop, value.step), depth)
        elif kind in (list, tuple, dict) and depth < _DEEPEST:
            # The first ones: a long list is of numbers, all of one kind
            inner = value.values() if kind is dict else value
            _add_kinds(kinds, itertools.islice(inner, _MOST_ITEMS), depth + 1)
        else:
            kinds.add(kind)


def _is_others(kind: type) -> bool:
    # A module of PyTorch's may have hooks of the program's
    of_known = kind.__module__.partition(".")[0] in _KNOWN and not issubclass(kind, torch.nn.Module)
    return kind in _FUNCTIONS or not of_known


def within_operators(split: bool) -> bool:
    """Does Python of the program's run while operators do: hooks of saved tensors (PyTorch's own look into none), a dispatch mode?
    ``split``: the one mode there is splits the step."""
    hooks = hooks_of_saved_tensors()
    own = hooks is None or all(is_torchs(getattr(hook, "original", hook)) for hook in hooks)
    return not own or (not split and dispatch_mode_active())


def replaced_reader() -> str:
    """A method that reads tensors in whose place the program has put its own, which a stand-in would hide; "" where there is none."""
    return next((name for owner, name in _READERS if not is_torchs(original(owner, name))), "")


class Fence:
    """From rises() to falls(), tell(method, args, kwargs) stands for what reads tensors, on the thread that has made this. Each of
    the two is called where no interrupt comes; falls() also where rises() has not been."""

    def __init__(self, tell: Tell):
        self._tell, self._thread = tell, threading.get_ident()

    def rises(self) -> None:
        with _lock:
            _open.setdefault(self._thread, []).append(self._tell)
            if not _stand_ins:
                _stand_ins.extend(StandIn(owner, name, _telling) for owner, name in _READERS)
                for each in _stand_ins:
                    each.comes()

    def falls(self) -> None:
        with _lock:
            known = _open.get(self._thread, [])
            if self._tell in known:
                known.remove(self._tell)
            if not known:
                _open.pop(self._thread, None)
            if not _open:
                for each in reversed(_stand_ins):
                    each.leaves()
                _stand_ins.clear()


def _telling(method: Any) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        known = _open.get(threading.get_ident())
        return known[-1](method, args, kwargs) if known else method(*args, **kwargs)

    return told


__all__ = ["Fence", "calls_others", "replaced_reader", "within_operators"]
