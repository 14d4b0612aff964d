"""Which tensors another thread may come to by what it is handed: a function, a bound method, a thread, any object.

    function ──▶ closure, defaults, globals that its code names       object ──▶ attributes that such code reads
    partial, bound method ──▶ what it calls, and on what              list, dict, ... ──▶ items

What libraries keep for themselves is left out. O(objects)."""

from __future__ import annotations

import collections
import functools
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from stowage._core import class_dict, python_class
from stowage.step.guards.blind import module_of
from stowage.step.guards.objects import dict_of, shape_of
from stowage.step.guards.reads import is_library, is_library_module, is_standard, reads

_MOST_OBJECTS = 20_000
_ITEMS = (list, tuple, set, frozenset, collections.deque)
_CALLED = ("__call__", "__enter__", "__exit__", "run")  # of an object, without being named
_CALLED_OF_CLASS = ("__init__", "__new__", *_CALLED)


def tensors_within_reach(values: Iterable[Any]) -> list[torch.Tensor] | None:
    """With their gradients, and those that modules and optimizers hold. None where that are too many objects to tell."""
    search = _Search()
    search.add(*values)
    return search.tensors if search.ends() else None


class _Search:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, Any] = {}  # with the object, whose id stays its own
        self._classes: set[type] = set()  # of objects
        self._todo: list[Any] = []
        self._names: set[str] = set()  # of attributes that code which was met reads
        self._any_name = False
        self._waiting: dict[str, list[Any]] = {}  # attributes that no such code has read so far

    def add(self, *values: Any) -> None:
        for value in values:
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._todo.append(value)

    def ends(self) -> bool:
        while self._todo:
            if len(self._seen) > _MOST_OBJECTS:
                return False
            self._look_into(self._todo.pop())
        return True

    def _look_into(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            if value.is_leaf and value.grad is not None:
                self.add(value.grad)
        elif isinstance(value, torch.nn.Module):
            self.add(*value.parameters(), *value.buffers())
            self._attributes(value)
        elif isinstance(value, torch.optim.Optimizer):
            self.add(value.param_groups, *value.state.values())
            self._attributes(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__, value.__self__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self.add(value.__self__)
        elif isinstance(value, functools.partial):
            self.add(value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            self.add(*value.values())
            self._attributes(value)
        elif isinstance(value, _ITEMS):
            self.add(*value)
            self._attributes(value)
        elif isinstance(value, threading.Thread):
            self.add(*vars(value).values())
            self._class(type(value), _CALLED)
        elif isinstance(value, (types.GeneratorType, types.CoroutineType)):
            frame = value.gi_frame if isinstance(value, types.GeneratorType) else value.cr_frame
            self._code(frame.f_code, frame.f_globals) if frame is not None else None
            self.add(*(frame.f_locals.values() if frame is not None else ()))
        elif isinstance(value, type):
            self._class(value, _CALLED_OF_CLASS)
        elif isinstance(value, types.ModuleType):
            if not is_standard(value.__name__) and not is_library_module(value):
                self._named(vars(value).items())
        else:
            self._attributes(value)

    def _function(self, function: types.FunctionType) -> None:
        self.add(*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self.add(*(_content(cell) for cell in function.__closure__ or ()))
        self._code(function.__code__, function.__globals__)

    def _code(self, code: types.CodeType, names: dict) -> None:
        read = reads(code)
        self._read(read.attributes)
        if read.dynamic and not read.library:
            self._any_name = True
            self._read(list(self._waiting))
        if is_library(code):
            return
        self.add(*(names[name] for name in read.globals if name in names))
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._code(inner, names)

    def _class(self, cls: type, called: tuple[str, ...]) -> None:
        for base in cls.__mro__:
            if not python_class(base) or is_standard(module_of(base)):
                continue
            own = class_dict(base)
            self.add(*(_function_of(own[name]) for name in called if name in own))
            self._named((name, _function_of(value)) for name, value in list(own.items()))

    def _attributes(self, value: Any) -> None:
        shape = shape_of(type(value))
        if shape.standard and not shape.of_torch:
            return
        self._named(list((dict_of(value) or {}).items()))
        self._named(_in_slots(value, shape.slots))
        if (cls := type(value)) not in self._classes:
            self._classes.add(cls)
            self._class(cls, _CALLED)

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


__all__ = ["tensors_within_reach"]
