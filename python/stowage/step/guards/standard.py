"""Objects of Python's library and of NumPy that keep their state in a way of their own: each is compared by what can be asked
of it.

    weak reference          its referent, over an edge that counts only where a library keeps that alive
    context, thread local   the values of this thread
    logger, exception       what decides whether and what they tell
    iterators               what they hold; where they stand cannot be seen
    random generators       the memory that is their state
    decimal, NumPy          never change themselves, but work by their library's settings (settings.py)"""

from __future__ import annotations

import contextvars
import functools
import gc
import logging
import threading
import types
from typing import Any

from stowage._core import python_class
from stowage.step.guards.blind import module_of, type_name
from stowage.step.guards.edges import Weak
from stowage.step.guards.graph import Graph
from stowage.step.guards.memory import enter_buffer, memory, opaque
from stowage.step.guards.objects import attributes
from stowage.step.guards.settings import context_content, decimal_context

ITERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def enter_reference(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    graph.add(i, graph.guard.referent(value, path), trusted)
    referent = value()
    if referent is not None:
        lasts = trusted or isinstance(referent, (type, types.FunctionType, types.ModuleType))
        graph.referred.setdefault(id(referent), path)
        graph.reach(i, None if lasts else Weak, referent, path, trusted)


def enter_proxy(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    graph.hidden[i] = f"'{path}' is a {type_name(type(value))}, which keeps its state to itself"
    graph.edges[i].append((Weak, i))


def enter_context_variable(graph: Graph, i: int, value: contextvars.ContextVar, path: str, trusted: bool) -> None:
    graph.add(
        i, graph.guard.call(functools.partial(_set_or_default, value), trusted, f"context variable '{path}'"), trusted
    )
    graph.reach(i, None, _set_or_default(value), path, trusted)


def _set_or_default(variable: contextvars.ContextVar) -> Any:
    try:
        return variable.get()
    except LookupError:
        return None


def enter_context(graph: Graph, i: int, value: contextvars.Context, path: str, trusted: bool) -> None:
    graph.add(i, graph.guard.call(functools.partial(context_content, value), trusted, f"'{path}'"), trusted)
    for held in value.values():
        graph.reach(i, None, held, path, trusted)


def _identity_of_namespace(value: threading.local) -> int:
    return id(value.__dict__)


def enter_thread_local(graph: Graph, i: int, value: threading.local, path: str, trusted: bool) -> None:
    namespace = value.__dict__
    whose = functools.partial(_identity_of_namespace, value)  # each thread has its own
    graph.add(i, graph.guard.call(whose, trusted, f"'{path}'"), trusted)
    graph.add(i, graph.guard.dict(namespace, True, True, path), trusted)
    for name, item in list(namespace.items()):
        graph.attribute(i, name, item, path, True, trusted)
    if type(value) is not threading.local:
        graph.reach(i, None, type(value), type_name(type(value)), trusted)


def enter_logger(graph: Graph, i: int, value: logging.Logger, path: str, trusted: bool) -> None:
    """Whether it is heard follows from levels of its own, of loggers above it and of all, and is remembered. Who hears
    it counts where something is told."""
    for name in ("level", "disabled"):
        graph.name(i, None, value.__dict__, name, f"'{path}.{name}'", path, True)
    graph.name(i, None, value.manager.__dict__, "_disable", "what logging.disable() has set", path, True)
    graph.name(i, "propagate", value.__dict__, "propagate", f"'{path}.propagate'", path, True)
    for name in ("handlers", "filters"):
        graph.attribute(i, name, value.__dict__[name], path, True, False)
    graph.reach(i, None, value.parent, f"{path}.parent", trusted)
    graph.reach(i, None, type(value), type_name(type(value)), trusted)


def enter_exception(graph: Graph, i: int, value: BaseException, path: str, trusted: bool) -> None:
    attributes(graph, i, value, path, trusted)
    graph.add(i, graph.guard.getter(value, "args", trusted, path), trusted)
    graph.reach(i, None, value.args, f"{path}.args", trusted)


def enter_generator(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    for inner in gc.get_referents(value):
        graph.reach(i, None, inner, path, trusted)


def enter_draws(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """Its state counts when it is drawn from: called()."""
    attributes(graph, i, value, path, False)


def enter_numpy_generator(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    memory(graph, i, value, type(value), "the state of NumPy's random generator", False)
    bits = getattr(value, "_bit_generator", None) if not hasattr(value, "bit_generator") else value.bit_generator
    if bits is not None:
        graph.reach(i, None, bits, path, trusted)


def enter_array(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """Of NumPy."""
    graph.setting(i, "numpy")
    enter_buffer(graph, i, value, path, trusted)
    if python_class(type(value)):
        attributes(graph, i, value, path, trusted)


def enter_array_iterator(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """Of NumPy: where it stands cannot be seen, and it looks into arrays."""
    opaque(graph, i, value, type(value), path, trusted)
    for held in (getattr(value, "base", None), *getattr(value, "iters", ()), *_operands(value)):
        graph.reach(i, None, held, path, trusted)


def _operands(iterator: Any) -> tuple:
    try:
        return getattr(iterator, "operands", ())
    except ValueError:  # of one that is closed
        return ()


def enter_of_c(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """It never changes itself, but what it does depends on its library's settings."""
    graph.setting(i, module_of(type(value)))
    if python_class(type(value)):
        attributes(graph, i, value, path, trusted)


def enter_decimal_context(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    graph.add(i, graph.guard.call(functools.partial(decimal_context, value), trusted, f"'{path}'"), trusted)


__all__ = [
    "ITERATORS",
    "enter_array",
    "enter_array_iterator",
    "enter_context",
    "enter_context_variable",
    "enter_decimal_context",
    "enter_draws",
    "enter_exception",
    "enter_generator",
    "enter_logger",
    "enter_numpy_generator",
    "enter_of_c",
    "enter_proxy",
    "enter_reference",
    "enter_thread_local",
]
