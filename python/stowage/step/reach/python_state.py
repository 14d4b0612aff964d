"""What a function's Python can reach, as it is before a run that is not to count: put back after it.

    state = PythonState(world)     containers, attributes, slots, cells, arrays, global generators, environment: by identity, one level each
    ... the run ...
    left = state.put_back()        in place: whoever holds a container sees it. What could not be: a file that was written

What C keeps to itself is put back where it can be (iterators over sequences, caches without a bound), else compared where it can be (generators,
other iterators, queues, files). O(objects)."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import os
import queue
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stowage._core import without_collections
from stowage._torch.fakes import is_fake
from stowage._torch.subclasses import unheard
from stowage.step.guards.blind import module_of
from stowage.step.guards.reads import is_library, is_library_module, is_standard
from stowage.step.reach import kept_by_c
from stowage.step.reach.world import World

_MOST_ARRAY_BYTES = 1 << 20  # larger arrays are not copied
_CONTAINERS = (dict, list, set, collections.deque, collections.defaultdict, collections.OrderedDict)
_HOLDERS = (
    types.FunctionType,
    torch.nn.Module,
    torch.Tensor,
    torch.optim.Optimizer,
)  # whose parts are reached by themselves
_MOST_ELEMENTS = 1 << 12  # of a library's containers
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # of tensors
_ABSENT = object()


class PythonState:
    def __init__(self, world: World | None = None, of_libraries: bool = False):
        """``of_libraries``: what a library's objects hold as well, where nobody notes which of their code runs."""
        self._of_libraries = of_libraries
        self._back: list[Callable[[], object]] = []
        self._kept_by_c: list[tuple[Any, Any]] = []
        if world is not None:
            without_collections(lambda: self.keep(world.reached()))
        self._environment = dict(os.environ)
        self._random = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def put_back(self) -> str:
        """The type of the first object that is not as it was, or ""."""
        for back in self._back:
            back()
        for name in os.environ.keys() | self._environment.keys():
            _set_item(os.environ, name, self._environment.get(name, _ABSENT))
        random.setstate(self._random)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        return next((type(value).__name__ for value, was in self._kept_by_c if not kept_by_c.same(value, was)), "")

    def keep(self, values: Iterable[Any]) -> None:
        for value in values:
            self._keep(value)

    def _keep(self, value: Any) -> None:
        if type(value) in weakref.ProxyTypes:  # what it stands for is reached by itself, or gone
            return
        if value is sys.modules:  # what is imported stays imported
            return
        if isinstance(value, dict):
            if _is_namespace(value):
                if not _of_library(value):
                    self._keep_namespace(value)
            else:
                self._keep_dict(value)
                if isinstance(value, collections.defaultdict):
                    self._keep_attribute(value, "default_factory")
        elif isinstance(value, (list, bytearray)):
            self._keep_elements(value, list(value), lambda old: value.__setitem__(slice(None), old))
        elif isinstance(value, array.array):
            self._keep_elements(
                value, list(value), lambda old: value.__setitem__(slice(None), array.array(value.typecode, old))
            )
        elif isinstance(value, (set, collections.deque)):
            add = value.update if isinstance(value, set) else value.extend
            self._keep_elements(value, list(value), lambda old: (value.clear(), add(old)))
        elif isinstance(value, types.CellType):
            self._keep_cell(value)
        elif isinstance(value, contextvars.ContextVar):
            self._keep_variable(value)
        elif isinstance(value, memoryview) or _of_ctypes(value):
            self._keep_bytes(value)
        elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
            state = value.getstate()
            self._back.append(lambda: value.setstate(state))
        elif isinstance(value, types.BuiltinMethodType):
            if isinstance(value.__self__, random.Random):
                self._keep(value.__self__)
        elif isinstance(value, types.FunctionType):
            for name in ("__code__", "__defaults__", "__kwdefaults__") if not is_library(value.__code__) else ():
                self._keep_attribute(value, name)
        elif isinstance(value, BaseException):
            self._keep_attribute(value, "args")
        elif isinstance(value, queue.Queue):
            self._keep(value.queue)
        elif isinstance(value, type):
            self._keep_class(value)
        elif isinstance(value, torch.Tensor):
            self._keep_tensor(value)
        elif kept_by_c.is_kept(value):
            self._kept_by_c.append((value, kept_by_c.state_of(value)))
            if (back := kept_by_c.way_back(value)) is not None:
                self._back.append(back)
        if isinstance(value, types.ModuleType):
            if not is_standard(value.__name__) and not is_library_module(value):
                self._keep_namespace(vars(value))
        elif not isinstance(value, type):
            self._keep_object(value)

    def _keep_elements(self, value: Any, kept: list, back: Callable[[list], object]) -> None:
        self._back.append(lambda: None if _same(list(value), kept) else back(kept))

    def _keep_dict(self, value: dict) -> None:
        # That one has an order of its own
        kind = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        kept = list(kind.items(value))

        def back() -> None:
            if _same([x for item in kind.items(value) for x in item], [x for item in kept for x in item]):
                return
            if any(_is_fake(v) for _, v in kept):
                return  # somebody else's, for a while
            kind.clear(value)
            kind.update(value, kept)

        self._back.append(back)

    def _keep_namespace(self, namespace: dict) -> None:
        """A module's: name by name, as other threads' code may run there. Modules that have been imported since stay."""
        kept = dict(namespace)

        def back() -> None:
            for name in [name for name in namespace if name not in kept]:
                if not isinstance(namespace[name], types.ModuleType):
                    del namespace[name]
            for name, value in kept.items():
                if namespace.get(name, _ABSENT) is not value and not _is_fake(value):
                    namespace[name] = value

        self._back.append(back)

    def _keep_cell(self, cell: Any) -> None:
        try:
            kept = cell.cell_contents
        except ValueError:  # not yet assigned
            return

        def back() -> None:
            cell.cell_contents = kept

        self._back.append(back)

    def _keep_variable(self, variable: contextvars.ContextVar) -> None:
        try:
            kept = variable.get()  # or what it is by default
        except LookupError:  # only who sets it can take that back
            self._kept_by_c.append((variable, kept_by_c.state_of(variable)))
            return
        self._back.append(lambda: None if variable.get() is kept else variable.set(kept))

    def _keep_bytes(self, value: Any) -> None:
        """Of what shows memory as bytes. That of a pointer of ctypes is the address."""
        try:
            with memoryview(value) as view:
                kept = None if view.readonly or not 0 < view.nbytes <= _MOST_ARRAY_BYTES else view.tobytes()
        except ValueError:  # it was released
            return
        if kept is not None:
            self._back.append(lambda: _put_bytes(value, kept))

    def _keep_class(self, cls: type) -> None:
        if not _is_user_s(cls):  # a type of C; a library's
            return
        kept = dict(cls.__dict__)

        def back() -> None:
            for name in kept.keys() | cls.__dict__.keys():
                if cls.__dict__.get(name, _ABSENT) is not kept.get(name, _ABSENT):
                    # As the class's own class may forbid
                    type.__setattr__(cls, name, kept[name]) if name in kept else type.__delattr__(cls, name)

        self._back.append(back)

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        """Beside its content: whether it takes gradients, and its hooks."""
        with unheard(modes=True):
            asks = tensor.requires_grad
            hooks = [(name, dict(getattr(tensor, name, None) or {})) for name in _HOOKS]

        def back() -> None:
            with unheard(modes=True):
                if tensor.is_leaf and tensor.requires_grad != asks:
                    tensor.requires_grad_(asks)
                for name, kept in hooks:
                    known = getattr(tensor, name, None)
                    if known is not None and not _same([*known], [*kept]):
                        known.clear()
                        known.update(kept)

        self._back.append(back)

    def _keep_object(self, value: Any) -> None:
        own = getattr(value, "__dict__", None)
        if type(own) is dict:
            self._keep_dict(own)
            if _is_user_s(type(value)) or isinstance(value, torch.nn.Module):  # which a parametrization gives another
                self._keep_attribute(value, "__class__")
            if _is_user_s(type(value)):
                self._keep_attribute(value, "__dict__")
            elif self._of_libraries and not isinstance(value, _HOLDERS):
                self._keep_containers(own.values())
        if isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)):
            self._keep(vars(value)["data"])
        if isinstance(value, torch.optim.Optimizer):
            self.keep((value.param_groups, *value.param_groups, *(group["params"] for group in value.param_groups)))
        if "numpy" in sys.modules:
            self._keep_of_numpy(value)
        for cls in type(value).__mro__:
            if "__slots__" not in vars(cls):  # members of types of C are C's own; some are made anew when they are read
                continue
            for name, part in vars(cls).items():
                if isinstance(part, types.MemberDescriptorType):
                    self._keep_attribute(value, name)

    def _keep_containers(self, values: Iterable[Any], levels: int = 3) -> None:
        """Of a library's object (GradScaler)."""
        for value in values:
            if type(value) in _CONTAINERS and len(value) <= _MOST_ELEMENTS:
                self._keep(value)
                if levels > 1:
                    self._keep_containers(value.values() if isinstance(value, dict) else value, levels - 1)

    def _keep_of_numpy(self, value: Any) -> None:
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.ndarray) and value.flags.writeable and value.nbytes <= _MOST_ARRAY_BYTES:
            kept = value.copy()

            def back() -> None:
                if value.shape == kept.shape and value.dtype == kept.dtype:
                    numpy.copyto(value, kept)
                else:  # resized: said by its type
                    self._kept_by_c.append((value, None))

            self._back.append(back)
        elif isinstance(value, numpy.void) and value.dtype.names and value.flags.writeable:
            fields = {name: copy.copy(value[name]) for name in value.dtype.names}
            self._back.append(lambda: [value.__setitem__(name, field) for name, field in fields.items()])
        elif isinstance(value, numpy.random.Generator):
            state = value.bit_generator.state
            self._back.append(lambda: setattr(value.bit_generator, "state", state))
        elif isinstance(value, numpy.random.BitGenerator):
            state = value.state
            self._back.append(lambda: setattr(value, "state", state))
        elif isinstance(value, numpy.random.RandomState):
            state = value.get_state()
            self._back.append(lambda: value.set_state(state))

    def _keep_attribute(self, value: Any, name: str) -> None:
        kept = getattr(value, name, _ABSENT)

        def back() -> None:
            if getattr(value, name, _ABSENT) is kept:
                return
            # As the program's class may forbid
            object.__delattr__(value, name) if kept is _ABSENT else object.__setattr__(value, name, kept)

        self._back.append(back)


def _is_user_s(cls: type) -> bool:
    return bool(cls.__flags__ & (1 << 9)) and not is_standard(module_of(cls))


def _of_ctypes(value: Any) -> bool:
    ctypes = sys.modules.get("ctypes")
    return ctypes is not None and isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array))


def _put_bytes(value: Any, kept: bytes) -> None:
    """Formats of ctypes are none that a memoryview writes by."""
    import ctypes

    try:
        with memoryview(value) as view:
            if view.tobytes() != kept and view.c_contiguous:
                (ctypes.c_char * len(kept)).from_buffer(view).raw = kept
    except ValueError:  # it was released
        pass


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_fake(value)


def _same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b))


def _set_item(mapping: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        mapping.pop(name, None)
    elif mapping.get(name) != value:
        mapping[name] = value


def _is_namespace(value: dict) -> bool:
    """The globals of a module."""
    return "__spec__" in value and "__name__" in value


def _of_library(namespace: dict) -> bool:
    """Of a module that is not the user's."""
    module = sys.modules.get(str(namespace["__name__"]))
    return module is not None and (is_standard(module.__name__) or is_library_module(module))


__all__ = ["PythonState"]
