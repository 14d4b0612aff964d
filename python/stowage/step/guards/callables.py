"""What can be called and is no Python function.

    method                  its object and its function
    of a type of C          its object; where it reads names that it is given, any attribute
    descriptor, super()     the attribute that it names; the classes in which attributes are looked up
    function of C           the object that it belongs to; what else it reads is told when it is called (blind.py)
    functools.partial       the function and the arguments that it holds
    functools.lru_cache     the function, and what it remembers
    operator.attrgetter     the attributes that it names count as read, as if code had read them

O(what they hold)."""

from __future__ import annotations

import functools
import gc
import types
from typing import Any

from stowage.step.guards.blind import draws, module_of
from stowage.step.guards.graph import LARGE, Graph
from stowage.step.guards.group_keys import ANY, GROUPS
from stowage.step.guards.memory import memory
from stowage.step.guards.objects import attributes
from stowage.step.guards.reads import IDENTIFIER, is_library

_FORMATS = ("format", "format_map")  # of strings: the attributes that those name
# These, and methods of C that every object has: they read, or set, attributes that no code names
_READ_ANY = (
    *_FORMATS,
    "__getattribute__",
    "__setattr__",
    "__delattr__",
    "__eq__",
    "__ne__",
    "__repr__",
    "__str__",
    "__format__",
    "__hash__",
    "__reduce_ex__",
    "__dir__",
)
# ... of any object, without asking it
_PAST_OBJECTS = ("__getattribute__", "__setattr__", "__delattr__", "__reduce_ex__")


def enter_method(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    if _is_own_object(value.__self__):
        return
    graph.reach(i, None, value.__self__, path, trusted)
    graph.reach(i, None, value.__func__, path, trusted)


def enter_builtin(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    owner = getattr(value, "__self__", None)
    graph.setting(i, getattr(value, "__module__", None) or "")
    if owner is not None and not isinstance(owner, types.ModuleType):
        if draws(owner):
            return  # its state counts when it is drawn from: called()
        _may_read_any(graph, value, trusted)
        if isinstance(owner, str) and value.__name__ in _FORMATS:
            _reads(graph, set(IDENTIFIER.findall(owner)))
        graph.reach(i, None, owner, path, trusted)


def enter_wrapper(graph: Graph, i: int, value: types.MethodWrapperType, path: str, trusted: bool) -> None:
    """d.__getitem__, o.__getattribute__"""
    _may_read_any(graph, value, trusted)
    graph.reach(i, None, value.__self__, path, trusted)


def enter_unbound(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """object.__getattribute__ or str.format, as a value."""
    _may_read_any(graph, value, trusted, but=())


def enter_descriptor(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """Of a slot: whoever holds it reads that attribute."""
    _reads(graph, {value.__name__})


def enter_super(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    for part in (value.__self__, value.__self_class__, value.__thisclass__):
        graph.reach(i, None, part, path, trusted)


def enter_slice(graph: Graph, i: int, value: slice, path: str, trusted: bool) -> None:
    for part in (value.start, value.stop, value.step):
        graph.reach(i, None, part, path, trusted)


def enter_held(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """What stands in the namespace of a class, by itself: a property, a static method, list[int]."""
    for name in ("fget", "fset", "__func__", "__origin__", "__args__"):
        if (part := getattr(value, name, None)) is not None:
            graph.reach(i, None, part, path, trusted)


def enter_partial(graph: Graph, i: int, value: functools.partial, path: str, trusted: bool) -> None:
    memory(graph, i, value, functools.partial, path, trusted)
    for part in (value.func, value.args, value.keywords):
        graph.reach(i, None, part, path, trusted)
    attributes(graph, i, value, path, True)


CACHED = type(functools.lru_cache(lambda: None))


def remembered(cached: Any) -> dict:
    """What functools.lru_cache has, by arguments: results, or where it is bounded, elements of a list of C's."""
    inner = (part for part in gc.get_referents(cached) if type(part) is dict and part is not cached.__dict__)
    return next(inner, {})


def enter_cached(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """functools.lru_cache: what it remembers, and the function. What a library's function remembers it would work
    out again."""
    own, cache = value.__dict__, remembered(value)
    code = getattr(value.__wrapped__, "__code__", None)
    parts = (own, value.__wrapped__, type(value.cache_info()))
    for inner in gc.get_referents(value) if code is None or not is_library(code) else ():
        if any(inner is part for part in parts) or (type(inner) is type and inner.__name__ == "_lru_list_elem"):
            continue
        if inner is cache:
            graph.add(i, graph.guard.dict(inner, False, True, f"what '{path}' has cached"), True)
            # Those hold what is seen below
            for result in [v for v in list(inner.values())[:LARGE] if type(v).__name__ != "_lru_list_elem"]:
                graph.reach(i, None, result, f"what '{path}' has cached", trusted)
        else:  # results
            graph.reach(i, None, inner, f"what '{path}' has cached", trusted)
    for name, item in list(own.items()):
        graph.attribute(i, name, item, path, True, trusted)
    graph.reach(i, None, value.__wrapped__, path, trusted)


def enter_getter(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """operator.attrgetter and methodcaller: C reads attributes by the names that they hold."""
    maker, arguments, *_ = value.__reduce__()
    if isinstance(maker, functools.partial):  # methodcaller's, with keywords
        arguments = (*maker.args, *arguments, *maker.keywords.values())
    _reads(graph, {part for name in arguments if isinstance(name, str) for part in name.split(".")})
    for part in arguments:
        graph.reach(i, None, part, path, trusted)


def _may_read_any(graph: Graph, method: Any, trusted: bool, but: tuple[str, ...] = _FORMATS) -> None:
    """``but``: of these the names are known."""
    if not trusted and method.__name__ in _READ_ANY and method.__name__ not in but:
        past_it = method.__name__ in _PAST_OBJECTS and getattr(method, "__objclass__", object) in (object, type)
        graph.reads_unnamed(bypasses=past_it)


def _reads(graph: Graph, names: set[str]) -> None:
    """C reads attributes of these names, as if code of the user's had."""
    graph.read_attributes(names)
    graph.ran.own_names |= names
    if GROUPS in names:
        graph.ran.group_keys.add(ANY)


def _is_own_object(value: Any) -> bool:
    return module_of(type(value)).split(".")[0] == "stowage"


__all__ = [
    "CACHED",
    "enter_builtin",
    "enter_cached",
    "enter_descriptor",
    "enter_getter",
    "enter_held",
    "enter_method",
    "enter_partial",
    "enter_slice",
    "enter_super",
    "enter_unbound",
    "enter_wrapper",
    "remembered",
]
