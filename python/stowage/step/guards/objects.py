"""Objects by their attributes: an instance, and its class.

    instance    attributes and slots, each an edge by its name; its class; what of it is C (memory.py)
    class       its namespace by name, its bases, its metaclass; special methods always, as they are read without being named

Objects of the standard library, torch and NumPy may keep caches and counters: their attributes are entered only when code
reads their name; those of torch's that the user holds (optimizers, data sets) also when code reads names that it does not
show. O(attributes)."""

from __future__ import annotations

import array
import collections
import types
import weakref
from typing import Any

import torch

from stowage._core import class_dict, python_class, slot_offset
from stowage.step.guards.blind import module_of, type_name
from stowage.step.guards.callbacks import callbacks
from stowage.step.guards.graph import Graph
from stowage.step.guards.memory import opaque
from stowage.step.guards.reads import is_standard

_OPEN_STANDARD = {
    "argparse",
    "types",
    "collections",
    "configparser",
    "enum",
    "dataclasses",
    "os",
    "string",
    "contextlib",
    "functools",
    "copy",
}
_VISIBLE_BASES = {
    object,
    list,
    dict,
    tuple,
    set,
    frozenset,
    collections.deque,
    collections.OrderedDict,
    collections.defaultdict,
    int,
    float,
    str,
    bytes,
    complex,
    BaseException,
    Exception,
    types.ModuleType,
    type,
    torch.Tensor,
    torch._C.TensorBase,
    types.SimpleNamespace,
    bytearray,
    array.array,
}


class Shape:
    """What is common to the objects of a class."""

    def __init__(self, cls: type):
        self.standard = is_standard(module_of(cls)) and module_of(cls).split(".")[0] not in _OPEN_STANDARD
        if issubclass(cls, (torch.nn.Module,)):
            self.standard = False
        self.of_torch = module_of(cls).split(".")[0] == "torch"
        self.slots: list[tuple[str, int]] = []
        self.reads_itself = False
        for base in cls.__mro__:
            if not python_class(base):
                continue
            own = class_dict(base)
            for name, member in list(own.items()):
                offset = slot_offset(member)
                if offset >= 0:
                    self.slots.append((name, offset))
            if not is_standard(module_of(base)) and ("__getattribute__" in own or "__getattr__" in own):
                self.reads_itself = True
        c_base: type | None = cls
        while c_base is not None and python_class(c_base):
            c_base = c_base.__base__
        self.c_base = None if c_base is None or c_base in _VISIBLE_BASES else c_base


_shapes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def shape_of(cls: type) -> Shape:
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = Shape(cls)
    return shape


def enter_object(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """An instance of any other class: its attributes, its slots, its class, and what of it is C."""
    attributes(graph, i, value, path, trusted)
    shape = shape_of(type(value))
    if shape.c_base is not None:
        opaque(graph, i, value, shape.c_base, path, trusted)


def attributes(
    graph: Graph, i: int, value: Any, path: str, trusted: bool, quiet: bool = False, skip: tuple = ()
) -> None:
    cls = type(value)
    shape = shape_of(cls)
    standard = shape.standard or trusted
    if trusted or (shape.standard and not shape.of_torch):
        graph.standard.add(i)
    if shape.reads_itself:
        graph.whole.add(i)
    if isinstance(value, types.SimpleNamespace):
        graph.namespaces.add(i)
    quiet = quiet or standard
    if not shape.standard:
        graph.add(i, graph.guard.of_class(value, path), trusted)
    namespace = dict_of(value)
    if namespace is not None:
        graph.add(i, graph.guard.dict(namespace, True, quiet, path), trusted)
        if not standard:
            graph.add(i, graph.guard.own_dict(value, path))
        for name, item in list(namespace.items()):
            if name not in skip:
                graph.attribute(i, name, item, path, quiet, trusted)
                for inner in callbacks([item]) if quiet and not trusted else ():
                    graph.reach(i, name, inner, f"{path}.{name}", trusted)
    if shape.slots:
        graph.add(i, graph.guard.slots(value, shape.slots, quiet, path), trusted)
        for name, _ in shape.slots:
            try:
                item = object.__getattribute__(value, name)
            except AttributeError:
                continue
            graph.attribute(i, name, item, path, quiet, trusted)
    graph.reach(i, None, cls, type_name(cls), trusted)


def enter_class(graph: Graph, i: int, cls: type, path: str, trusted: bool) -> None:
    graph.setting(i, module_of(cls))
    if cls in (object, type) or not cls.__flags__ & (1 << 9):  # types of C cannot be changed
        return
    standard = is_standard(module_of(cls))
    if standard:
        graph.standard.add(i)
    namespace = class_dict(cls)
    graph.add(i, graph.guard.dict(namespace, True, standard, path), standard)
    graph.add(i, graph.guard.bases(cls, path))
    for base in cls.__bases__:
        graph.reach(i, None, base, type_name(base), standard)
    if type(cls) is not type:
        graph.reach(i, None, type(cls), type_name(type(cls)), True)
    if namespace.get("_is_protocol", False):  # isinstance() looks for its attributes by their names
        graph.read_attributes(protocol_names(cls))
    for name, value in list(namespace.items()):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            for part in (value.fget, value.fset):
                graph.attribute(i, name, part, path, True, standard)
            continue
        if name in ("__dict__", "__weakref__", "__doc__", "__module__"):
            continue
        if name.startswith("__") and isinstance(value, types.WrapperDescriptorType):  # as that of any type of C
            continue
        # Special methods are read without being named
        if name.startswith("__") and isinstance(value, types.FunctionType) and not standard:
            graph.reach(i, None, value, f"{path}.{name}", standard)
        else:
            graph.attribute(i, name, value, path, True, standard)


def protocol_names(cls: type) -> set[str]:
    """Of a typing.Protocol: those that an object has which counts as one of it."""
    names: set[str] = set()
    for own in (class_dict(base) for base in cls.__mro__ if python_class(base)):
        if own.get("_is_protocol", False):
            names |= {*own, *own.get("__annotations__", ())}
    return {name for name in names if not name.startswith(("__", "_abc_"))}


def dict_of(value: Any) -> dict | None:
    try:
        namespace = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return namespace if isinstance(namespace, dict) else None


def enter_nothing(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    pass


__all__ = ["Shape", "attributes", "dict_of", "enter_class", "enter_nothing", "enter_object", "shape_of"]
