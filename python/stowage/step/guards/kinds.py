"""How the objects of a class are entered: the first row of _BY_BASE that fits, NumPy and the like by what is loaded, else as any
object. Each function is called enter(graph, i, value, path, trusted)."""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import gc
import logging
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stowage._core import python_class
from stowage.by_class import ByClass
from stowage.step.guards.blind import module_of, type_name
from stowage.step.guards.callables import (
    CACHED,
    enter_builtin,
    enter_cached,
    enter_descriptor,
    enter_getter,
    enter_held,
    enter_method,
    enter_partial,
    enter_slice,
    enter_super,
    enter_unbound,
    enter_wrapper,
)
from stowage.step.guards.code import enter_namespace, enter_python_function
from stowage.step.guards.containers import enter_dict, enter_elements, enter_list, enter_mapping_proxy, enter_tuple
from stowage.step.guards.graph import Graph
from stowage.step.guards.memory import enter_buffer
from stowage.step.guards.objects import attributes, enter_class, enter_nothing, enter_object
from stowage.step.guards.reads import is_standard
from stowage.step.guards.standard import (
    ITERATORS,
    enter_array,
    enter_array_iterator,
    enter_context,
    enter_context_variable,
    enter_decimal_context,
    enter_draws,
    enter_exception,
    enter_generator,
    enter_logger,
    enter_numpy_generator,
    enter_of_c,
    enter_proxy,
    enter_reference,
    enter_thread_local,
)
from stowage.step.guards.training import (
    enter_module,
    enter_optimizer,
    enter_scaler,
    enter_scheduler,
    enter_tensor,
    enter_torch_generator,
)


def _container(content):
    """Content, and attributes where a class of the user's adds some."""

    def enter(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
        content(graph, i, value, path, trusted)
        if python_class(type(value)):
            attributes(graph, i, value, path, trusted)

    return enter


def _enter_compiled(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """A step of stowage.compile: its attributes are those of its function."""
    graph.reach(i, None, value.__wrapped__, path, trusted)


def _enter_ufunc(graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """Of NumPy's own, or numpy.frompyfunc()'s."""
    enter_of_c(graph, i, value, path, trusted)
    for function in gc.get_referents(value):
        graph.reach(i, None, function, path, trusted)


_BY_BASE = (
    (torch.Tensor, enter_tensor),
    (torch.nn.Module, enter_module),
    (Optimizer, enter_optimizer),
    (LRScheduler, enter_scheduler),
    (torch.amp.GradScaler, enter_scaler),
    (types.FunctionType, enter_python_function),
    (types.MethodType, enter_method),
    (types.BuiltinFunctionType, enter_builtin),
    (types.MethodWrapperType, enter_wrapper),
    ((types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType), enter_unbound),
    ((types.MemberDescriptorType, types.GetSetDescriptorType), enter_descriptor),
    (functools.partial, enter_partial),
    ((operator.attrgetter, operator.methodcaller), enter_getter),
    (types.ModuleType, enter_namespace),
    (type, enter_class),
    (super, enter_super),
    (slice, enter_slice),
    (ITERATORS, enter_generator),
    (weakref.ReferenceType, enter_reference),
    (weakref.ProxyTypes, enter_proxy),
    (dict, _container(enter_dict)),
    (list, _container(enter_list)),
    (tuple, _container(enter_tuple)),
    ((set, frozenset, collections.deque), _container(enter_elements)),
    ((bytearray, array.array, memoryview), _container(enter_buffer)),
    (types.MappingProxyType, enter_mapping_proxy),
    (CACHED, enter_cached),
    (contextvars.ContextVar, enter_context_variable),
    (contextvars.Context, enter_context),
    (threading.local, enter_thread_local),
    (logging.Logger, enter_logger),
    (BaseException, enter_exception),
    (torch.Generator, enter_torch_generator),
    ((property, staticmethod, classmethod, types.GenericAlias), enter_held),
    (torch.cuda.Stream, enter_nothing),
)


@ByClass
def how_to_enter(cls: type) -> Callable[..., None]:
    enter = _by_class(cls)
    if enter is not enter_object and _is_user_s(cls) and not issubclass(cls, torch.Tensor):
        return functools.partial(_enter_with_class, enter)
    return enter


def _is_user_s(cls: type) -> bool:
    return bool(cls.__flags__ & _OF_PYTHON) and not is_standard(module_of(cls))


_OF_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _enter_with_class(enter: Callable[..., None], graph: Graph, i: int, value: Any, path: str, trusted: bool) -> None:
    """Of a class that is derived from one which is entered in its own way: what is read of the object may be its class's."""
    graph.reach(i, None, type(value), type_name(type(value)), trusted)
    enter(graph, i, value, path, trusted)


def _by_class(cls: type):
    if module_of(cls).split(".")[0] == "stowage":  # recording's own objects come and go
        return _enter_compiled if hasattr(cls, "_WITHOUT_PLAN") else enter_nothing
    for base, enter in _BY_BASE:
        if issubclass(cls, base):
            return enter
    module = module_of(cls)
    if module.startswith("numpy"):
        import numpy

        if issubclass(cls, numpy.ndarray):
            return enter_array
        if issubclass(cls, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)):
            return enter_numpy_generator
        if issubclass(cls, (numpy.flatiter, numpy.nditer, numpy.broadcast)):
            return enter_array_iterator
        if issubclass(cls, numpy.void):  # of a structured array, over its memory
            return enter_array
        if issubclass(cls, numpy.ufunc):
            return _enter_ufunc
        if issubclass(cls, numpy.generic):
            return enter_of_c
        if issubclass(cls, numpy.dtype):
            return enter_nothing
    loaded = sys.modules.get("numpy")
    if loaded is not None and issubclass(cls, loaded.ndarray):
        return enter_array
    random = sys.modules.get("_random")
    if random is not None and issubclass(cls, random.Random):
        return enter_draws
    decimal = sys.modules.get("decimal")
    if decimal is not None and issubclass(cls, decimal.Decimal):
        return enter_of_c
    if decimal is not None and issubclass(cls, decimal.Context):
        return enter_decimal_context
    return enter_object


__all__ = ["how_to_enter"]
