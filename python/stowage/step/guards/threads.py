"""Which tensors other threads may come to: by what one is handed (a function, a bound method, a thread, any object), or by what
those that run have at hand.

    function ──▶ closure, defaults, globals and modules that its code names
    object ──▶ attributes that such code reads, methods that are called without being named
    partial, bound method ──▶ what it calls, and on what            list, dict, view, weak reference, ... ──▶ items
    object of a library in C, of Python's own or PyTorch's ──▶ whatever it holds

Modules of libraries are left out. O(objects)."""

from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import functools
import gc
import importlib.util
import itertools
import operator
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from stowage._core import class_dict, python_class
from stowage.step.guards.blind import module_of
from stowage.step.guards.objects import dict_of, shape_of
from stowage.step.guards.reads import is_library, is_library_module, is_standard, reads


def _code(function: Any) -> types.CodeType:
    return function.__code__


_MOST_OBJECTS = 20_000
# Of one container: the others are taken for the same kind. A checkpoint that is handed over may hold thousands
_MOST_ITEMS_HANDED, _MOST_ITEMS_AT_HAND = 4096, 256
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, set, frozenset, collections.deque)
_NOT_OF_OBJECTS = (
    "__init__",
    "__new__",
    "__del__",
    "__class_getitem__",
    "__init_subclass__",
    "__module__",
    "__dict__",
    "__weakref__",
)
_WAIT = _code(threading.Condition.wait)
_JOINS = {
    _code(f) for f in (threading.Thread.join, getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join))
}
_NAMESPACES = (argparse.Namespace, types.SimpleNamespace)  # of which code reads some
_ALL_OF_MODULE = frozenset(("globals", "eval", "exec"))
_ANYTHING = frozenset(("get_objects", "get_referrers", "modules", "f_locals"))


def tensors_within_reach(values: Iterable[Any]) -> list[torch.Tensor] | None:
    """With their gradients, and those that modules and optimizers hold. None where that cannot be told: too many objects, code
    that looks through all of them."""
    search = _Search(_MOST_ITEMS_HANDED)
    search.add(*values)
    return search.tensors if search.ends() else None


def other_threads() -> Iterator[tuple[tuple[int, int], list[types.FrameType]]]:
    """Those that run code of the program's: by thread and outermost frame, its frames."""
    for thread, innermost in sys._current_frames().items():
        frame: types.FrameType | None = innermost if thread != threading.get_ident() else None
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        if not all(is_library(each.f_code) for each in frames):
            yield (thread, id(frames[-1])), frames


def concerns(thread: int, frames: Iterable[types.FrameType], by: Any, wakes: bool) -> bool:
    """Does what happens by this object concern a thread, whose frames are these, the innermost first? Where it ``wakes``, not one
    that waits for something else."""
    if isinstance(by, threading.Thread):
        return by.ident == thread
    for frame in itertools.takewhile(lambda frame: wakes and is_library(frame.f_code), frames):
        if frame.f_code in _JOINS:
            return False
        if frame.f_code is _WAIT:
            condition = frame.f_locals.get("self")
            return condition is by or any(part is condition for part in vars(by).values())
    return True


def known_to_others(by: Any) -> bool:
    """May code of the program's that another thread runs come to this object?"""
    for _, frames in other_threads():
        search = _at_hand(frames)
        if not search.ends() or search.met(by):
            return True
    return False


def _at_hand(frames: Iterable[types.FrameType]) -> _Search:
    search = _Search(_MOST_ITEMS_AT_HAND)
    for frame in frames:
        if is_library(frame.f_code):
            search.add(*frame.f_locals.values())
        else:
            search.frame(frame)
    return search


def tensors_at_hand(frames: Iterable[types.FrameType], by: Any) -> list[torch.Tensor] | None:
    """As tensors_within_reach(), of code that runs; none where that cannot come to ``by``."""
    search = _at_hand(frames)
    told = search.ends()
    if search.is_whole and not isinstance(by, threading.Thread) and not search.met(by):
        return []
    return search.tensors if told else None


class _Search:
    def __init__(self, most_items: int) -> None:
        self._most_items = most_items
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, Any] = {}  # with the object, whose id stays its own
        self._classes: set[type] = set()  # of objects
        self._todo: list[Any] = []
        self._names: set[str] = set()  # of attributes that code which was met reads
        self._any_name = False
        self._waiting: dict[str, list[Any]] = {}  # attributes that no such code has read so far
        self._lost = False  # any object may be reached
        self.is_whole = True  # there were not too many

    def add(self, *values: Any) -> None:
        for value in values:
            if type(value) not in _PLAIN and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._todo.append(value)

    def met(self, value: Any) -> bool:
        return id(value) in self._seen

    def ends(self) -> bool:
        while self._todo:
            if len(self._seen) > _MOST_OBJECTS:
                self.is_whole = False
                return False
            self._look_into(self._todo.pop())
        return not self._lost

    def frame(self, frame: types.FrameType) -> None:
        self._code(frame.f_code, frame.f_globals)
        self.add(*frame.f_locals.values())

    def _look_into(self, value: Any) -> None:
        cls = type(value)  # isinstance() may ask the object
        if issubclass(cls, torch.Tensor):
            self.tensors.append(value)
            if value.is_leaf and value.grad is not None:
                self.add(value.grad)
        elif issubclass(cls, torch.nn.Module):
            self.add(*torch.nn.Module.parameters(value), *torch.nn.Module.buffers(value))
            self._attributes(value)
        elif issubclass(cls, torch.optim.Optimizer):
            self.add(value.param_groups, *value.state.values())
            self._attributes(value)
        elif issubclass(cls, types.FunctionType):
            self._function(value)
        elif issubclass(cls, types.MethodType):
            self.add(value.__func__, value.__self__)
        elif issubclass(cls, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self.add(value.__self__)
        elif issubclass(cls, functools.partial):
            self.add(value.func, value.args, value.keywords)
        elif (kind := next((each for each in _CONTAINERS if issubclass(cls, each)), None)) is not None:
            items = dict.values(value) if kind is dict else kind.__iter__(value)
            self.add(*itertools.islice(items, self._most_items))
            if python_class(cls) and not is_standard(module_of(cls)):
                self._attributes(value)
            elif issubclass(cls, collections.defaultdict):
                self.add(value.default_factory)
        elif issubclass(cls, threading.Thread):
            self.add(*vars(value).values())
            self._class(cls)
        elif issubclass(cls, (types.GeneratorType, types.CoroutineType)):
            frame = value.gi_frame if issubclass(cls, types.GeneratorType) else value.cr_frame
            if frame is not None:
                self.frame(frame)
        elif issubclass(cls, type):
            self._class(value, made=True)
        elif issubclass(cls, types.ModuleType):
            if not is_standard(value.__name__) and not is_library_module(value):
                self._named(list(vars(value).items()))
        elif issubclass(cls, weakref.ReferenceType):
            self.add(value())
        elif issubclass(cls, weakref.ProxyTypes):  # which do not tell what they stand for
            self._lost = True
        elif issubclass(cls, weakref.finalize):
            self.add(*(value.peek() or ()))
        elif issubclass(cls, contextvars.ContextVar):
            with contextlib.suppress(LookupError):
                self.add(value.get())
        elif issubclass(cls, (operator.attrgetter, operator.methodcaller)):
            given = value.__reduce__()[1]
            self._read(part for name in given if isinstance(name, str) for part in name.split("."))
            self.add(*given)
        else:
            self._attributes(value)

    def _function(self, function: types.FunctionType) -> None:
        self.add(*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self.add(*(_content(cell) for cell in function.__closure__ or ()))
        self._code(function.__code__, function.__globals__)

    def _code(self, code: types.CodeType, names: dict) -> None:
        read = reads(code)
        self._read(read.attributes)
        if (read.dynamic or read.names_copiers) and not read.library:
            self._any_name = True
            self._read(list(self._waiting))
        if is_library(code):
            return
        called = read.globals | read.attributes
        self._lost = self._lost or not _ANYTHING.isdisjoint(called)
        self.add(*(names[name] for name in read.globals if name in names))
        if not _ALL_OF_MODULE.isdisjoint(called if read.evaluates else called - {"eval"}):
            self.add(*names.values())
        for name, level in read.imports:
            whole = importlib.util.resolve_name("." * level + name, names.get("__package__")) if level else name
            self.add(*(sys.modules.get(whole[: end or None]) for end in (0, *_dots(whole))))
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._code(inner, names)

    def _class(self, cls: type, made: bool = False) -> None:
        """Of an object, or ``made``: objects of it are made."""
        if type(cls) is not type:
            self._attributes(cls)
        for base in cls.__mro__:
            if not python_class(base) or is_standard(module_of(base)):
                continue
            own = list(class_dict(base).items())
            self.add(*(_function_of(value) for name, value in own if _is_called(cls, name) or made))
            self._named((name, _function_of(value)) for name, value in own)

    def _attributes(self, value: Any) -> None:
        cls = type(value)
        if (is_standard(module_of(cls)) or not python_class(cls)) and cls not in _NAMESPACES:
            self._whatever_it_holds(value)
            if "numpy" in sys.modules and issubclass(cls, sys.modules["numpy"].ndarray) and value.dtype.hasobject:
                self.add(*itertools.islice(value.flat, self._most_items))
        else:
            shape = shape_of(cls)
            self._named(list((dict_of(value) or {}).items()))
            self._named(_in_slots(value, shape.slots))
            if shape.c_base is not None and not issubclass(cls, _CONTAINERS):
                self._whatever_it_holds(value)
        if cls not in self._classes:
            self._classes.add(cls)
            self._class(cls)

    def _whatever_it_holds(self, value: Any) -> None:
        held = itertools.islice(gc.get_referents(value), self._most_items) if not issubclass(type(value), type) else ()
        self.add(*(part for part in held if not issubclass(type(part), (type, types.ModuleType, types.CodeType))))

    def _named(self, items: Iterable[tuple[str, Any]]) -> None:
        for name, value in items:
            if self._any_name or name in self._names:
                self.add(value)
            else:
                self._waiting.setdefault(name, []).append(value)

    def _read(self, names: Iterable[str]) -> None:
        for name in names:
            self._names.add(name)
            self.add(*self._waiting.pop(name, ()))


_PLAIN = {
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    bytearray,
    range,
    slice,
    type(None),
    type(...),
    torch.Size,
    torch.dtype,
    torch.device,
    types.FrameType,
    types.TracebackType,
}


def _is_called(cls: type, name: str) -> bool:
    """Of its objects, without being named: special methods, and those of a library's class that it stands for."""
    if name.startswith("__") and name.endswith("__"):
        return name not in _NOT_OF_OBJECTS
    return any(base is not object and is_standard(module_of(base)) and name in vars(base) for base in cls.__mro__)


def _dots(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "."]


def _function_of(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    return member.fget if isinstance(member, property) else member


def _in_slots(value: Any, slots: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Any]]:
    for name, _ in slots:
        try:
            yield name, object.__getattribute__(value, name)
        except AttributeError:
            continue


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


__all__ = ["concerns", "known_to_others", "other_threads", "tensors_at_hand", "tensors_within_reach"]
