"""The walk over what Python can reach: a graph of objects whose edges say when they count, and a Guard node for each
object.

    step ──▶ closure, defaults       counts when that function has run
         ──▶ globals by name         counts when code that names them has run
    object ──▶ attribute             counts when code that ran reads an attribute of that name (any object's)
    list, dict, tuple, set ──▶ item  always counts

The graph grows while the step is recorded: each function is told to note() before its body runs, so that what it reads
is remembered as it was before. Attributes of objects of the standard library, torch and NumPy are entered only when
code reads their name. What has run is known at the end: finish() keeps what can be reached over edges that count.
Iterative, without a limit of depth; O(objects and edges), and a guard that has met _MOST_OBJECTS says that it cannot
see the rest. Of what belongs to torch, NumPy or Python itself _MOST_OF_LIBRARIES are met."""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import functools
import gc
import logging
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stowage._core import Guard, buffer_digest, buffer_memory, class_dict, python_class, slot_offset
from stowage._torch.private import global_hooks
from stowage.step.guards.blind import draws, is_quiet, matters, module_of, type_name, why
from stowage.step.guards.given import ByContent
from stowage.step.guards.reads import is_library, is_library_module, is_own, is_standard, reads
from stowage.step.guards.settings import context_content, decimal_context, numpy_errors

_MOST_OBJECTS = 30_000
_MOST_OF_LIBRARIES = 10_000  # parts of torch and the like: tables of theirs that are larger hold what is theirs
_LARGE = 4096  # of larger containers the elements are not entered
_MOST_POINTERS = 16_384  # of the lists that are compared element by element
_MOST_BYTES = 1 << 18  # of all arrays that are compared
_MOST_DIGESTED = 1 << 28  # of those that are looked at before and after the recorded call
_ATOMS = {
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    types.CodeType,
}
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
_TENSOR_BYTES = torch._C.TensorBase.__basicsize__
_HEAD_BYTES = object.__basicsize__
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_ITERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
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
_SETTINGS = {
    "decimal": ("decimal's context", decimal_context),
    "numpy": ("what NumPy does about errors (numpy.seterr)", numpy_errors),
}
_SETTINGS_OF_SYS = {"argv", "path", "warnoptions"}  # lists that programs change in place


class Found:
    """What training needs to know of, in the order in which it was found."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.optimizers: list[Optimizer] = []
        self.schedulers: list[LRScheduler] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: list[torch.Generator] = []
        self.meets_generator: Callable[[torch.Generator], None] = lambda generator: None  # another one
        self.compiled: str | None = None  # name of a torch.compile'd function or module, if one is reachable


class _Key(str):
    """Of an edge: counts when the user's code that ran has this string as a constant."""


class _Own(frozenset):
    """Of an edge: counts when the user's own code that ran reads an attribute of one of these names."""


_ASKS_FOR_PLACE = _Own(("stride", "storage_offset", "is_contiguous"))


class _Weak:
    """Of an edge: a weak reference of the user's. A guard holds what it watches, and must not keep that alive."""


class Walk:
    """The graph, from ``root`` and ``given`` on. note() and called() take what runs; finish() makes the guard ready."""

    def __init__(self, root: Any, path: str, found: Found, given: Iterable[Any] = ()):
        self.guard = Guard()
        self.found = found
        self.names: set[str] = set()  # attributes that code which ran reads
        self.own_names: set[str] = set()  # of those, that the user's own code reads
        self._leaves: list[tuple[int, torch.Tensor]] = []  # with a node of the graph for their .grad
        self.keys: set[str] = set()  # string constants of the user's code that ran
        self.ran: set[types.CodeType] = set()
        self.dynamic = False
        self.catches = False  # code that ran has handlers of exceptions
        self.noted = False
        self._told: list[str] = []  # why the guard is blind, met while the step ran
        self._edges: list[list[tuple[Any, int]]] = []
        self._nodes: list[list[int]] = []  # of the guard, by object
        self._hidden: dict[int, str] = {}  # object -> what of it cannot be seen
        self._standard: set[int] = set()  # objects of libraries whose state is known
        self._whole: set[int] = set()  # objects whose attributes are read by names that code does not show
        self.weak = False  # the guard watches weak references of the user's
        self._referred: dict[int, str] = {}  # object -> a weak reference to it
        self._trusted: list[int] = []  # nodes of the guard that libraries may change by themselves
        self._index: dict[Any, int] = {}
        self._kept: list[Any] = []  # so that ids stay theirs
        self._of_libraries: set[int] = set()  # met as a part of a library, which may change it by itself
        self._waiting: dict[str, list[tuple[int, Any, str, bool]]] = {}
        self._functions: dict[types.CodeType, list[int]] = {}
        self._unrun: dict[types.CodeType, list[tuple[int, Any, str]]] = {}
        self._queue: collections.deque = collections.deque()
        self._of_modules: set[int] = set()  # parameters and buffers that were found in their modules alone
        self._entered: set[int] = set()  # submodules of modules that were found
        self._nested: set[types.CodeType] = set()  # code that code which ran may have made functions of
        # Objects of the buffer protocol, and what was in them; None: not known
        self._memories: list[tuple[int, str, Any, tuple[int, int] | None]] = []
        self._digested = 0
        self._facts = 0  # nodes of the graph that are no objects
        # Of those what counts, and has it changed meanwhile; known at the end
        self.arrays: list[tuple[str, Any, bool]] = []
        self._bytes = 0
        self._pointers = 0
        self._full = False
        self._root = self._new(root)
        for hooks in global_hooks():  # as they are now: recording adds some of its own for a while
            self._reach(self._root, None, hooks, "hooks of all modules or optimizers", True)
        self._reach(self._root, None, root, path, False)
        self._passing = [value.function for value in given if isinstance(value, ByContent)]
        for value in given:
            if isinstance(value, ByContent):
                continue
            self._reach(
                self._root, None, value, type_name(value) if isinstance(value, type) else _argument_name(value), False
            )
        self._run()

    def reached(self) -> list[Any]:
        """What has been met so far, but for parts of libraries."""
        return [value for i, value in enumerate(self._kept) if i not in self._of_libraries]

    # ---- What runs

    def reach(self, values: Iterable[Any]) -> None:
        """What code that is about to run has at hand."""
        for value in values:
            self._reach(self._root, None, value, _argument_name(value), False)
        self._run()

    def made_within(self, code: types.CodeType) -> bool:
        """Of a function that code which ran may have made."""
        return code in self._nested

    def note(self, code: types.CodeType, function: Any, globals_: dict) -> None:
        """``code`` is about to run for the first time, as the body of ``function`` where that is known."""
        read = reads(code)
        self.ran.add(code)
        self.keys |= read.constants
        self.dynamic |= read.dynamic
        self.catches |= read.catches
        for name in sorted(read.internals):
            where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            self.tell(f"looks into functions or namespaces ({name}), which cannot be compared, at {where}")
        self._read_attributes(read.attributes)
        if not read.library:
            self.own_names |= read.attributes
        if read.globals or not read.library:
            self._edges[self._root].append((None, self._code(code, globals_)))
        self._nested.update(c for c in code.co_consts if isinstance(c, types.CodeType))
        # A function made within the step holds what the step has made: only functions that were there before are kept.
        kept = function is not None and code not in self._nested and all(f is not function for f in self._passing)
        if kept and function.__closure__:
            self._reach(self._root, None, function, function.__qualname__, read.library)
        for index, fn, path in self._unrun.pop(code, ()):
            self._enter_function(index, fn, path)
        self._run()

    def _read_attributes(self, names: Set[str]) -> None:
        for name in names - self.names:
            for parent, value, path, trusted in self._waiting.pop(name, ()):
                self._reach(parent, name, value, path, trusted)
        self.names |= names

    def take_for_run(self) -> None:
        """Where what runs is not noted: functions of the user's count as run, as far as they are reached."""
        while reached := [code for code in self._functions if code not in self.ran and not is_library(code)]:
            for code in reached:
                self.note(code, None, self._kept[self._functions[code][0]].__globals__)

    def arrays_met(self, counts: Callable[[int], bool] = lambda i: True) -> list[tuple[str, Any, bool]]:
        """See World.arrays."""
        return [(path, a, was is None or buffer_digest(a) != was) for i, path, a, was in self._memories if counts(i)]

    def matters(self, function: Any) -> bool:
        return matters(function)

    def called(self, function: Any, caller: types.CodeType) -> None:
        owner = getattr(function, "__self__", None)
        if draws(owner):
            self._drawn_from(owner)
            return
        self.tell(why(function, caller))

    def _drawn_from(self, generator: Any) -> None:
        key = ("drawn from", id(generator))
        if key not in self._index:
            index = self._index[key] = self._new(generator)
            self._memory(index, generator, sys.modules["_random"].Random, "the state of the random generator", False)
            self._edges[self._root].append((None, index))

    def tell(self, reason: str) -> None:
        """A reason why the guard is blind."""
        if reason and reason not in self._told:
            self._told.append(reason)

    # ---- The end

    def finish(self) -> tuple[str, list[str]]:
        """Narrows the guard to what code that ran can read. Returns what the step itself has changed of what it can
        reach, or "", and why the guard is blind."""
        changed = self.guard.changed()
        trained = {id(p) for o in self.found.optimizers for group in o.param_groups for p in group["params"]}
        for index, leaf in self._leaves:
            if id(leaf) in trained:  # whose .grad is watched as those of parameters (Gradients)
                self._nodes[index], self._edges[index] = [], []
        active = self._active(weak=False)
        self.arrays = self.arrays_met(active.__contains__)
        passing = self._active(weak=True) - active
        whole = [n for i in active if self._all_names(i) for n in self._nodes[i]]
        kept = [n for i in active for n in self._nodes[i]]
        self.guard.forget_changed(list(self._trusted))
        self.guard.finish(kept, self.names, whole)
        blind = list(self._told)
        for i in sorted(active):
            if i in self._hidden and self._hidden[i] not in blind:
                blind.append(self._hidden[i])
        for i in active:
            value = self._kept[i]
            if isinstance(value, _ITERATORS) and _code_of(value) in self.ran:
                blind.append(f"the {type(value).__name__} '{value.__name__}': where it stands cannot be seen")
        if passing:
            names = (self._referred.get(id(self._kept[i])) for i in sorted(passing))
            name = next(filter(None, names), "an object")
            blind.append(f"what '{name}' refers to is held by weak references alone: a guard would keep it alive")
        if self._full:
            blind.append(f"the step reaches more than {_MOST_OBJECTS} objects")
        self._kept, self._waiting, self._index, self._unrun, self._functions = [], {}, {}, {}, {}
        self._memories = []
        return changed or self.guard.changed(), blind

    def _all_names(self, i: int) -> bool:
        return i in self._whole or (self.dynamic and i not in self._standard)

    def _active(self, weak: bool) -> set[int]:
        """What can be reached over edges that count; ``weak``: and over weak references."""
        roots = [self._root] + [i for code in self.ran for i in self._functions.get(code, ())]
        active = set(roots)
        stack = list(roots)
        while stack:
            i = stack.pop()
            everything = self._all_names(i)
            for condition, child in self._edges[i]:
                self.weak |= condition is _Weak
                if child in active:
                    continue
                if condition is None:
                    counts = True
                elif condition is _Weak:
                    counts = weak
                elif type(condition) is types.CodeType:
                    counts = condition in self.ran
                elif type(condition) is _Key:
                    counts = condition in self.keys
                elif type(condition) is _Own:
                    counts = not condition.isdisjoint(self.own_names)
                else:
                    counts = everything or condition in self.names
                if counts:
                    active.add(child)
                    stack.append(child)
        return active

    # ---- The graph

    def _new(self, value: Any) -> int:
        self._edges.append([])
        self._nodes.append([])
        self._kept.append(value)
        return len(self._edges) - 1

    def _reach(self, parent: int, condition: Any, value: Any, path: str, trusted: bool) -> None:
        if type(value) not in _ATOMS:
            self._queue.append((parent, condition, value, path, trusted))

    def _run(self) -> None:
        while self._queue:
            parent, condition, value, path, trusted = self._queue.popleft()
            key = id(value)
            index = self._index.get(key)
            if index is None:
                if trusted and len(self._of_libraries) >= _MOST_OF_LIBRARIES:
                    continue
                if len(self._edges) - self._facts >= _MOST_OBJECTS:
                    self._full = True
                    self._queue.clear()
                    return
                index = self._index[key] = self._new(value)
                self._enter(index, value, path, trusted)
            elif index in self._of_modules:  # the step holds it by itself, too
                self._of_modules.discard(index)
                self.found.tensors.append((path, value))
            self._edges[parent].append((condition, index))

    def _add(self, i: int, node: int, trusted: bool = False) -> None:
        self._nodes[i].append(node)
        if trusted:
            self._trusted.append(node)

    def _enter(self, i: int, value: Any, path: str, trusted: bool) -> None:
        if trusted:
            self._of_libraries.add(i)
        cls = type(value)
        enter = _ENTER.get(cls)
        if enter is None:
            enter = _ENTER[cls] = _how_to_enter(cls)
        try:
            # A library's, but what changes in it counts
            enter(self, i, value, path, trusted and value is not os.environ)
        except Exception as error:  # of an object of somebody else's; the step must not fail by being looked at
            self.tell(
                f"'{path}' cannot be looked into ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
            )

    # ---- Code and its globals

    def _code(self, code: types.CodeType, globals_: dict) -> int:
        key = ("code", id(code), id(globals_))
        if key in self._index:
            return self._index[key]
        i = self._index[key] = self._new((code, globals_))
        read = reads(code)
        standard = is_standard(str(globals_.get("__name__", "")))
        present = {name for name in read.globals if name in globals_} if read.library else read.globals
        for name in sorted(present):
            there = name in globals_
            self._name(i, None, globals_, name, f"global '{name}'", name, standard and read.library)
            if not there and not read.library:
                self._name(i, None, builtins.__dict__, name, f"builtin '{name}'", name, True)
            value = globals_.get(name) if there else None
            if isinstance(value, types.ModuleType):
                self._module_names(i, value, read, name, set())
        for name, level in read.imports:
            self._imported(i, name, level, globals_, read)
        if read.imports_by_name:
            for name in sorted(c for c in read.constants if c and c not in sys.modules):
                self._name(i, None, sys.modules, name, f"module '{name}'", name, False)
            for name, module in list(sys.modules.items()):
                if isinstance(module, types.ModuleType) and not is_standard(name) and not is_library_module(module):
                    self._name(i, None, sys.modules, name, f"module '{name}'", name, False)
                    self._reach(i, None, module, name, False)
        return i

    def _imported(self, i: int, name: str, level: int, globals_: dict, read: Any) -> None:
        """An import statement within a function: it finds what was imported before."""
        package = str(globals_.get("__package__") or "")
        for _ in range(level - 1):
            package = package.rpartition(".")[0]
        full = f"{package}.{name}".strip(".") if level else name
        parts = full.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            module = sys.modules.get(part)
            if isinstance(module, types.ModuleType):
                self._name(i, None, sys.modules, part, f"module '{part}'", part, is_standard(part))
                self._module_names(i, module, read, part, set())

    def _name(
        self, parent: int, condition: Any, namespace: dict, name: str, what: str, path: str, trusted: bool
    ) -> None:
        """An edge to one name of a namespace, and on to its value."""
        key = (id(namespace), name)
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = self._new(namespace)
            self._add(index, self.guard.name(namespace, name, trusted, what), trusted)
            value = namespace.get(name)
            if not isinstance(value, types.ModuleType):
                self._reach(index, None, value, path, trusted)
        self._edges[parent].append((condition, index))

    def _module_names(self, i: int, module: types.ModuleType, read: Any, path: str, seen: set[int]) -> None:
        """Of a module that code names: the attributes that this code may read, and those of modules in it. Code of the
        user's may hand the module on, as any object, to what reads others."""
        if id(module) in seen or module is sys.modules:
            return
        seen.add(id(module))
        standard = is_standard(module.__name__)
        namespace = module.__dict__
        if not standard and not read.library:
            self._reach(i, None, module, path, False)
        for name in sorted(read.attributes):
            if name not in namespace:
                if not standard and not read.library:
                    self._name(i, None, namespace, name, f"'{path}.{name}'", f"{path}.{name}", False)
                continue
            if namespace[name] is sys.modules:
                continue
            known = standard and not (module is sys and name in _SETTINGS_OF_SYS)
            self._name(i, None, namespace, name, f"'{path}.{name}'", f"{path}.{name}", known)
            if isinstance(namespace[name], types.ModuleType):
                self._module_names(i, namespace[name], read, f"{path}.{name}", seen)

    def _enter_python_function(self, i: int, fn: types.FunctionType, path: str, trusted: bool) -> None:
        code = fn.__code__
        if is_own(code):
            return
        if _is_compiled(fn):
            self.found.compiled = path
            self._reach(i, None, fn.__dict__["_torchdynamo_orig_callable"], path, trusted)
            return
        self._functions.setdefault(code, []).append(i)
        if is_library(code) and code not in self.ran:
            self._add(i, self.guard.function(fn, path))
            self._unrun.setdefault(code, []).append((i, fn, path))
            return
        self._add(i, self.guard.function(fn, path))
        self._enter_function(i, fn, path)

    def _enter_function(self, i: int, fn: types.FunctionType, path: str) -> None:
        code = fn.__code__
        for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
            self._cell(i, code, cell, f"'{name}' in the closure of {path}", name)
        for part in (fn.__defaults__, fn.__kwdefaults__):
            self._reach(i, code, part, path, False)
        if not is_library(code) or fn.__dict__:
            self._add(i, self.guard.dict(fn.__dict__, True, is_library(code), path))
            for name, value in list(fn.__dict__.items()):
                self._reach(i, name, value, f"{path}.{name}", False)
        if not is_library(code):
            for part in _with_nested(code):
                self._edges[i].append((part, self._code(part, fn.__globals__)))

    def _cell(self, i: int, condition: Any, cell: Any, what: str, path: str) -> None:
        index = self._index.get(id(cell))
        if index is None:
            index = self._index[id(cell)] = self._new(cell)
            self._add(index, self.guard.cell(cell, what))
            try:
                self._reach(index, None, cell.cell_contents, path, False)
            except ValueError:  # not yet assigned
                pass
        self._edges[i].append((condition, index))

    # ---- Containers

    def _enter_tuple(self, i: int, value: tuple | list, path: str, trusted: bool) -> None:
        for at, item in enumerate(tuple(value[:_LARGE])):
            self._reach(i, None, item, f"{path}[{at}]", trusted)
        self._too_large(i, value, path)

    def _enter_list(self, i: int, value: list, path: str, trusted: bool) -> None:
        self._pointers += len(value)
        if self._pointers > _MOST_POINTERS and len(value) > 64:
            self._add(i, self.guard.size(value, path), trusted)
            if not trusted:
                self._hidden[i] = f"'{path}' has {len(value)} elements, too many to compare in each call"
        else:
            self._add(i, self.guard.list(value, path), trusted)
        self._enter_tuple(i, value, path, trusted)

    def _enter_dict(self, i: int, value: dict, path: str, trusted: bool) -> None:
        self._add(i, self.guard.dict(value, False, trusted, path), trusted)
        if isinstance(value, collections.OrderedDict) and len(value) > 1:
            self._add(i, self.guard.elements(value, path), trusted)
        if isinstance(value, collections.defaultdict):
            self._reach(i, None, value.default_factory, path, trusted)
        if len(value) <= _LARGE:
            for key, item in list(value.items()):
                self._reach(
                    i,
                    None,
                    item,
                    f"{path}.{key}" if type(key) is str else f"{path}[{key!r}]" if type(key) is int else f"{path}[...]",
                    trusted,
                )
                self._reach(i, None, key, f"a key of {path}", trusted)
        self._too_large(i, value, path)

    def _enter_elements(self, i: int, value: Any, path: str, trusted: bool) -> None:
        if not isinstance(value, frozenset):
            if len(value) > _MOST_POINTERS:
                self._hidden[i] = f"'{path}' has {len(value)} elements, too many to compare in each call"
                self._add(i, self.guard.size(value, path), trusted)
            else:
                self._add(i, self.guard.elements(value, path), trusted)
        if len(value) <= _LARGE:
            for item in list(value):
                self._reach(i, None, item, f"an element of {path}", trusted)
        self._too_large(i, value, path)

    def _too_large(self, i: int, value: Any, path: str) -> None:
        if len(value) > _LARGE and i not in self._hidden:
            items = value.values() if isinstance(value, dict) else value
            if any(type(item) not in _ATOMS for item in items):
                self._hidden[i] = f"'{path}' has {len(value)} elements, which are not looked into"

    def _enter_mapping_proxy(self, i: int, value: Any, path: str, trusted: bool) -> None:
        for inner in gc.get_referents(value):
            self._reach(i, None, inner, path, trusted)

    def _enter_buffer(self, i: int, value: Any, path: str, trusted: bool) -> None:
        try:
            size = memoryview(value).nbytes
        except (TypeError, ValueError, BufferError):
            self._opaque(i, value, type(value), path, trusted)
            return
        self._note_memory(i, value, path)
        self._bytes += size
        if self._bytes > _MOST_BYTES and size > 4096:
            self._hidden[i] = f"'{path}' is an array of {size} bytes, too many to compare in each call"
            return
        self._add(i, self.guard.buffer(value, path), trusted)
        if getattr(value, "dtype", None) is not None and value.dtype.hasobject:
            for at, item in enumerate(value.ravel().tolist()[:_LARGE]):
                self._reach(i, None, item, f"{path}[{at}]", trusted)

    def _note_memory(self, i: int, value: Any, path: str) -> None:
        """Of the buffer protocol: as it is now, unless it is large, or a file."""
        begin, end = buffer_memory(value)
        self._digested += end - begin
        if end > begin:
            known = self._digested <= _MOST_DIGESTED and type(value).__name__ not in ("memmap", "mmap")
            self._memories.append((i, path, value, buffer_digest(value) if known else None))

    def _enter_array(self, i: int, value: Any, path: str, trusted: bool) -> None:
        """Of NumPy."""
        self._setting(i, "numpy")
        self._enter_buffer(i, value, path, trusted)
        if python_class(type(value)):
            self._attributes(i, value, path, trusted)

    # ---- Objects

    def _enter_object(self, i: int, value: Any, path: str, trusted: bool) -> None:
        """An instance of any other class: its attributes, its slots, its class, and what of it is C."""
        self._attributes(i, value, path, trusted)
        shape = _shape(type(value))
        if shape.c_base is not None:
            self._opaque(i, value, shape.c_base, path, trusted)

    def _attributes(self, i: int, value: Any, path: str, trusted: bool, quiet: bool = False, skip: tuple = ()) -> None:
        cls = type(value)
        shape = _shape(cls)
        standard = shape.standard or trusted
        if standard:
            self._standard.add(i)
        if shape.reads_itself:
            self._whole.add(i)
        quiet = quiet or standard
        if not standard:
            self._add(i, self.guard.of_class(value, path))
        namespace = _dict_of(value)
        if namespace is not None:
            self._add(i, self.guard.dict(namespace, True, quiet, path), trusted)
            if not standard:
                self._add(i, self.guard.own_dict(value, path))
            for name, item in list(namespace.items()):
                if name not in skip:
                    self._attribute(i, name, item, path, quiet, trusted)
        if shape.slots:
            self._add(i, self.guard.slots(value, shape.slots, quiet, path), trusted)
            for name, _ in shape.slots:
                try:
                    item = object.__getattribute__(value, name)
                except AttributeError:
                    continue
                self._attribute(i, name, item, path, quiet, trusted)
        self._reach(i, None, cls, type_name(cls), trusted)

    def _attribute(self, i: int, name: Any, value: Any, path: str, later: bool, trusted: bool) -> None:
        if type(value) in _ATOMS:
            return
        where = f"{path}.{name}"
        if not later or name in self.names or type(name) is not str:
            self._queue.append((i, name, value, where, trusted))
        else:
            self._waiting.setdefault(name, []).append((i, value, where, trusted))

    def _setting(self, i: int, module: str) -> None:
        """What C keeps for the whole of a library that counts wherever one of its own is used."""
        known = _SETTINGS.get(module.split(".")[0])
        if known is None:
            return
        what, read = known
        index = self._index.get(read)
        if index is None:
            index = self._index[read] = self._new(read)
            self._add(index, self.guard.call(read, True, what), True)
        self._edges[i].append((None, index))

    def _enter_class(self, i: int, cls: type, path: str, trusted: bool) -> None:
        self._setting(i, module_of(cls))
        if cls in (object, type) or not cls.__flags__ & (1 << 9):  # types of C cannot be changed
            return
        standard = is_standard(module_of(cls))
        if standard:
            self._standard.add(i)
        namespace = class_dict(cls)
        self._add(i, self.guard.dict(namespace, True, standard, path), standard)
        self._add(i, self.guard.bases(cls, path))
        for base in cls.__bases__:
            self._reach(i, None, base, type_name(base), standard)
        if type(cls) is not type:
            self._reach(i, None, type(cls), type_name(type(cls)), True)
        for name, value in list(namespace.items()):
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            elif isinstance(value, property):
                for part in (value.fget, value.fset):
                    self._attribute(i, name, part, path, True, standard)
                continue
            if name in ("__dict__", "__weakref__", "__doc__", "__module__"):
                continue
            # Special methods are read without being named
            if name.startswith("__") and isinstance(value, types.FunctionType) and not standard:
                self._reach(i, None, value, f"{path}.{name}", standard)
            else:
                self._attribute(i, name, value, path, True, standard)

    def _enter_namespace(self, i: int, module: types.ModuleType, path: str, trusted: bool) -> None:
        """A module that is reached as a value: by the names that code reads of anything."""
        standard = is_standard(module.__name__)
        if standard:
            self._standard.add(i)
            if module is sys:
                for name in sorted(_SETTINGS_OF_SYS):
                    self._attribute(i, name, getattr(sys, name), path, True, False)
            return
        self._add(i, self.guard.dict(module.__dict__, True, True, path))
        for name, value in list(module.__dict__.items()):
            if not name.startswith("__"):
                self._attribute(i, name, value, path, True, trusted)

    def _enter_method(self, i: int, value: Any, path: str, trusted: bool) -> None:
        if _is_own_object(value.__self__):
            return
        self._reach(i, None, value.__self__, path, trusted)
        self._reach(i, None, value.__func__, path, trusted)

    def _enter_builtin(self, i: int, value: Any, path: str, trusted: bool) -> None:
        owner = getattr(value, "__self__", None)
        self._setting(i, getattr(value, "__module__", None) or "")
        if owner is not None and not isinstance(owner, types.ModuleType):
            if draws(owner):
                return  # its state counts when it is drawn from: called()
            self._reach(i, None, owner, path, trusted)

    def _enter_partial(self, i: int, value: functools.partial, path: str, trusted: bool) -> None:
        self._memory(i, value, functools.partial, path, trusted)
        for part in (value.func, value.args, value.keywords):
            self._reach(i, None, part, path, trusted)
        self._attributes(i, value, path, True)

    def _enter_cached(self, i: int, value: Any, path: str, trusted: bool) -> None:
        """functools.lru_cache: what it remembers, and the function. What a library's function remembers it would work
        out again."""
        own = value.__dict__
        code = getattr(value.__wrapped__, "__code__", None)
        parts = (own, value.__wrapped__, type(value.cache_info()))
        for inner in gc.get_referents(value) if code is None or not is_library(code) else ():
            if any(inner is part for part in parts) or (type(inner) is type and inner.__name__ == "_lru_list_elem"):
                continue
            if type(inner) is dict:  # by arguments
                self._add(i, self.guard.dict(inner, False, True, f"what '{path}' has cached"), True)
                # Those hold what is seen below
                for result in [v for v in list(inner.values())[:_LARGE] if type(v).__name__ != "_lru_list_elem"]:
                    self._reach(i, None, result, f"what '{path}' has cached", trusted)
            else:  # results
                self._reach(i, None, inner, f"what '{path}' has cached", trusted)
        for name, item in list(own.items()):
            self._attribute(i, name, item, path, True, trusted)
        self._reach(i, None, value.__wrapped__, path, trusted)

    def _enter_reference(self, i: int, value: Any, path: str, trusted: bool) -> None:
        self._add(i, self.guard.referent(value, path), trusted)
        referent = value()
        if referent is not None:
            lasts = trusted or isinstance(referent, (type, types.FunctionType, types.ModuleType))
            self._referred.setdefault(id(referent), path)
            self._reach(i, None if lasts else _Weak, referent, path, trusted)

    def _enter_proxy(self, i: int, value: Any, path: str, trusted: bool) -> None:
        self._hidden[i] = f"'{path}' is a {type_name(type(value))}, which keeps its state to itself"
        self._edges[i].append((_Weak, i))

    def _enter_context_variable(self, i: int, value: contextvars.ContextVar, path: str, trusted: bool) -> None:
        absent = ("absent",)
        self._add(
            i, self.guard.call(functools.partial(value.get, absent), trusted, f"context variable '{path}'"), trusted
        )
        self._reach(i, None, value.get(absent), path, trusted)

    def _enter_context(self, i: int, value: contextvars.Context, path: str, trusted: bool) -> None:
        self._add(i, self.guard.call(functools.partial(context_content, value), trusted, f"'{path}'"), trusted)
        for held in value.values():
            self._reach(i, None, held, path, trusted)

    def _enter_of_c(self, i: int, value: Any, path: str, trusted: bool) -> None:
        """It never changes itself, but what it does depends on its library's settings."""
        self._setting(i, module_of(type(value)))
        if python_class(type(value)):
            self._attributes(i, value, path, trusted)

    def _enter_getter(self, i: int, value: Any, path: str, trusted: bool) -> None:
        """operator.attrgetter and methodcaller: C reads attributes by the names that they hold."""
        maker, arguments, *_ = value.__reduce__()
        if isinstance(maker, functools.partial):  # methodcaller's, with keywords
            arguments = (*maker.args, *arguments, *maker.keywords.values())
        names = {part for name in arguments if isinstance(name, str) for part in name.split(".")}
        self._read_attributes(names)
        self.own_names |= names
        for part in arguments:
            self._reach(i, None, part, path, trusted)

    def _enter_decimal_context(self, i: int, value: Any, path: str, trusted: bool) -> None:
        self._add(i, self.guard.call(functools.partial(decimal_context, value), trusted, f"'{path}'"), trusted)

    def _enter_thread_local(self, i: int, value: threading.local, path: str, trusted: bool) -> None:
        namespace = value.__dict__
        self._add(i, self.guard.dict(namespace, True, True, path), trusted)
        for name, item in list(namespace.items()):
            self._attribute(i, name, item, path, True, trusted)
        if type(value) is not threading.local:
            self._reach(i, None, type(value), type_name(type(value)), trusted)

    def _enter_logger(self, i: int, value: logging.Logger, path: str, trusted: bool) -> None:
        """Whether it is heard follows from levels of its own, of loggers above it and of all, and is remembered. Who hears
        it counts where something is told."""
        for name in ("level", "disabled"):
            self._name(i, None, value.__dict__, name, f"'{path}.{name}'", path, True)
        self._name(i, None, value.manager.__dict__, "_disable", "what logging.disable() has set", path, True)
        self._name(i, "propagate", value.__dict__, "propagate", f"'{path}.propagate'", path, True)
        for name in ("handlers", "filters"):
            self._attribute(i, name, value.__dict__[name], path, True, False)
        self._reach(i, None, value.parent, f"{path}.parent", trusted)
        self._reach(i, None, type(value), type_name(type(value)), trusted)

    def _enter_exception(self, i: int, value: BaseException, path: str, trusted: bool) -> None:
        self._attributes(i, value, path, trusted)
        self._add(i, self.guard.getter(value, "args", trusted, path), trusted)
        self._reach(i, None, value.args, f"{path}.args", trusted)

    def _enter_nothing(self, i: int, value: Any, path: str, trusted: bool) -> None:
        pass

    def _enter_generator(self, i: int, value: Any, path: str, trusted: bool) -> None:
        for inner in gc.get_referents(value):
            self._reach(i, None, inner, path, trusted)

    def _enter_draws(self, i: int, value: Any, path: str, trusted: bool) -> None:
        """Its state counts when it is drawn from: called()."""
        self._attributes(i, value, path, False)

    def _enter_numpy_generator(self, i: int, value: Any, path: str, trusted: bool) -> None:
        self._memory(i, value, type(value), "the state of NumPy's random generator", False)
        bits = getattr(value, "_bit_generator", None) if not hasattr(value, "bit_generator") else value.bit_generator
        if bits is not None:
            self._reach(i, None, bits, path, trusted)

    def _enter_torch_generator(self, i: int, value: torch.Generator, path: str, trusted: bool) -> None:
        """What it holds is told by what is drawn from it."""
        self.found.generators.append(value)
        self.found.meets_generator(value)

    def _memory(self, i: int, value: Any, cls: type, what: str, trusted: bool) -> None:
        """The numbers in the fixed part of a C object, but for its dict and its weak references."""
        cuts = sorted(o for o in (cls.__dictoffset__, cls.__weakrefoffset__) if o > 0)
        begin = _HEAD_BYTES
        for cut in [*cuts, cls.__basicsize__]:
            if cut > begin:
                self._add(i, self.guard.memory(value, begin, cut, trusted, what), trusted)
            begin = cut + 8

    def _opaque(self, i: int, value: Any, cls: type, path: str, trusted: bool) -> None:
        if is_quiet(cls) or trusted:
            return
        self._note_memory(i, value, path)
        if cls.__basicsize__ > _HEAD_BYTES:
            self._memory(i, value, cls, f"'{path}'", trusted)
        known = type_name(cls).startswith(("itertools.", "builtins.")) or module_of(cls) == "builtins"
        if not known:
            self._hidden[i] = f"'{path}' is a {type_name(cls)}, which keeps its state to itself"
        for inner in gc.get_referents(value) if gc.is_tracked(value) else ():
            if inner is not type(value) and not isinstance(inner, types.ModuleType):
                self._reach(i, None, inner, path, trusted)

    # ---- Training

    def _enter_tensor(self, i: int, value: torch.Tensor, path: str, trusted: bool) -> None:
        if not trusted and path:
            self.found.tensors.append((path, value))
        self._enter_parameter(i, value, path, trusted)
        if trusted or value.layout != torch.strided:
            return
        for name in ("shape", "dtype"):  # Python may look, without any operator
            self._add(i, self.guard.getter(value, name, trusted, path), trusted)
        place = functools.partial(_place, value)
        self._fact(i, _ASKS_FOR_PLACE, self.guard.call(place, True, f"strides of '{path}'"))
        if isinstance(value, torch.nn.Parameter) or not value.is_leaf:
            return
        grad = value.grad
        if grad is not None or value.requires_grad:
            index = self._fact(i, "grad", self.guard.getter(value, "grad", True, path))
            self._leaves.append((index, value))
            if grad is not None:
                self._reach(index, None, grad, f"{path}.grad", trusted)

    def _fact(self, i: int, condition: Any, node: int) -> int:
        """Something that counts where code that ran reads it."""
        self._facts += 1
        index = self._new(node)
        self._add(index, node)
        self._edges[i].append((condition, index))
        return index

    def _enter_parameter(self, i: int, value: torch.Tensor, path: str, trusted: bool) -> None:
        self._add(i, self.guard.memory(value, _HEAD_BYTES, _TENSOR_BYTES, trusted, f"hooks of '{path}'"), trusted)
        self._add(i, self.guard.getter(value, "requires_grad", trusted, path), trusted)
        self._add(i, self.guard.of_class(value, path))
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(value, name)
            self._reach(i, None, hooks, f"{path}.{name}", trusted)
        namespace = _dict_of(value)
        if namespace is not None:
            self._add(i, self.guard.dict(namespace, True, trusted, path), trusted)
            for name, item in list(namespace.items()):
                self._attribute(i, name, item, path, trusted, trusted)

    def _enter_module(self, i: int, value: torch.nn.Module, path: str, trusted: bool) -> None:
        if _is_compiled(value):
            self.found.compiled = path
            self._reach(i, None, value._modules["_orig_mod"], path, trusted)
            return
        if id(value) not in self._entered:
            self.found.modules.append((path, value))
            self._entered.update(id(m) for m in value.modules())
        self._attributes_of_module(i, value, path)
        shape = _shape(type(value))
        if shape.c_base is not None:
            self._opaque(i, value, shape.c_base, path, trusted)

    def _attributes_of_module(self, i: int, module: torch.nn.Module, path: str) -> None:
        cls = type(module)
        shape = _shape(cls)
        if shape.reads_itself:
            self._whole.add(i)
        self._add(i, self.guard.of_class(module, path))
        namespace = module.__dict__
        self._add(i, self.guard.dict(namespace, True, False, path))
        for name, value in list(namespace.items()):
            if name in _MODULE_DICTS:
                self._children(i, value, path)
            else:
                self._attribute(i, name, value, path, False, False)
        if shape.slots:
            self._add(i, self.guard.slots(module, shape.slots, False, path))
            for name, _ in shape.slots:
                self._attribute(i, name, getattr(module, name, None), path, False, False)
        self._reach(i, None, cls, type_name(cls), False)

    def _children(self, i: int, children: dict, path: str) -> None:
        """Of a module: parameters, buffers or modules by name. Entered at once, as they are no constants of the
        step."""
        if not isinstance(children, dict):
            self.tell(f"'{path}' is a scripted module")
            return
        index = self._index[id(children)] = self._new(children)
        self._add(index, self.guard.dict(children, False, False, path))
        self._edges[i].append((None, index))
        for name, child in list(children.items()):
            if not isinstance(child, torch.Tensor):
                self._reach(index, None, child, f"{path}.{name}", False)
                continue
            at = self._index.get(id(child))
            if at is None:
                at = self._index[id(child)] = self._new(child)
                self._of_modules.add(at)
                self._enter_parameter(at, child, f"{path}.{name}", False)
            self._edges[index].append((None, at))

    def _enter_optimizer(self, i: int, value: Optimizer, path: str, trusted: bool) -> None:
        """Its step() runs in each call; what else reads it is watched by name, hyperparameters by the keys that code
        has, and which parameters it has in any case: zero_grad() goes through them."""
        self.found.optimizers.append(value)
        self._attributes(i, value, path, False, quiet=True, skip=("param_groups", "state", "defaults"))
        self._add(i, self.guard.list(value.param_groups, f"'{path}.param_groups'"))
        for at, group in enumerate(value.param_groups):
            if type(group.get("params")) is list:
                self._add(i, self.guard.list(group["params"], f"'{path}.param_groups[{at}].params'"))
            for key, item in list(group.items()):
                if key != "params" and not isinstance(item, torch.Tensor):
                    self._name_key(i, _Key(key), group, key, f"'{path}.param_groups[{at}].{key}'")

    def _name_key(self, i: int, condition: Any, namespace: dict, key: str, what: str) -> None:
        index = self._index[id(namespace), key] = self._new(namespace)
        self._add(index, self.guard.name(namespace, key, True, what))
        self._edges[i].append((condition, index))

    def _enter_scheduler(self, i: int, value: LRScheduler, path: str, trusted: bool) -> None:
        self.found.schedulers.append(value)
        self._attributes(i, value, path, False, quiet=True)

    def _enter_scaler(self, i: int, value: torch.amp.GradScaler, path: str, trusted: bool) -> None:
        self.found.scalers.append(value)
        self._enter_object(i, value, path, trusted)


def _place(tensor: torch.Tensor) -> tuple:
    return tensor.stride(), int(tensor.storage_offset())


def _argument_name(value: Any) -> str:
    return str(getattr(value, "__name__", None) or type(value).__name__).lower()


class _Shape:
    """What is common to the objects of a class."""

    def __init__(self, cls: type):
        self.standard = is_standard(module_of(cls)) and module_of(cls).split(".")[0] not in _OPEN_STANDARD
        if issubclass(cls, (torch.nn.Module,)):
            self.standard = False
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


def _shape(cls: type) -> _Shape:
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = _Shape(cls)
    return shape


def _dict_of(value: Any) -> dict | None:
    try:
        namespace = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return namespace if isinstance(namespace, dict) else None


def _with_nested(code: types.CodeType):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_nested(constant)


def _is_own_object(value: Any) -> bool:
    return module_of(type(value)).split(".")[0] == "stowage"


def _code_of(value: Any) -> types.CodeType | None:
    return getattr(value, "gi_code", None) or getattr(value, "cr_code", None) or getattr(value, "ag_code", None)


def _is_compiled(value: Any) -> bool:
    """torch.compile'd, told without importing the compiler."""
    if isinstance(value, torch.nn.Module):
        return type(value).__name__ == "OptimizedModule"
    return (
        isinstance(value, types.FunctionType)
        and "_torchdynamo_orig_callable" in value.__dict__
        and not value.__dict__.get("_torchdynamo_disable")  # what torch._dynamo.disable gives runs as it is
    )


def _container(content):
    """Content, and attributes where a class of the user's adds some."""

    def enter(walk: Walk, i: int, value: Any, path: str, trusted: bool) -> None:
        content(walk, i, value, path, trusted)
        if python_class(type(value)):
            walk._attributes(i, value, path, trusted)

    return enter


def _how_to_enter(cls: type):
    if module_of(cls).split(".")[0] == "stowage":  # recording's own objects come and go
        return Walk._enter_nothing
    for base, enter in _BY_BASE:
        if issubclass(cls, base):
            return enter
    module = module_of(cls)
    if module.startswith("numpy"):
        import numpy

        if issubclass(cls, numpy.ndarray):
            return Walk._enter_array
        if issubclass(cls, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)):
            return Walk._enter_numpy_generator
        if issubclass(cls, (numpy.generic, numpy.ufunc)):
            return Walk._enter_of_c
        if issubclass(cls, numpy.dtype):
            return Walk._enter_nothing
    loaded = sys.modules.get("numpy")
    if loaded is not None and issubclass(cls, loaded.ndarray):
        return Walk._enter_array
    random = sys.modules.get("_random")
    if random is not None and issubclass(cls, random.Random):
        return Walk._enter_draws
    decimal = sys.modules.get("decimal")
    if decimal is not None and issubclass(cls, decimal.Decimal):
        return Walk._enter_of_c
    if decimal is not None and issubclass(cls, decimal.Context):
        return Walk._enter_decimal_context
    return Walk._enter_object


_ENTER: dict[type, Any] = {}
_BY_BASE = (
    (torch.Tensor, Walk._enter_tensor),
    (torch.nn.Module, Walk._enter_module),
    (Optimizer, Walk._enter_optimizer),
    (LRScheduler, Walk._enter_scheduler),
    (torch.amp.GradScaler, Walk._enter_scaler),
    (types.FunctionType, Walk._enter_python_function),
    (types.MethodType, Walk._enter_method),
    (types.BuiltinFunctionType, Walk._enter_builtin),
    (functools.partial, Walk._enter_partial),
    ((operator.attrgetter, operator.methodcaller), Walk._enter_getter),
    (types.ModuleType, Walk._enter_namespace),
    (type, Walk._enter_class),
    (_ITERATORS, Walk._enter_generator),
    (weakref.ReferenceType, Walk._enter_reference),
    (weakref.ProxyTypes, Walk._enter_proxy),
    (dict, _container(Walk._enter_dict)),
    (list, _container(Walk._enter_list)),
    (tuple, _container(Walk._enter_tuple)),
    ((set, frozenset, collections.deque), _container(Walk._enter_elements)),
    ((bytearray, array.array, memoryview), _container(Walk._enter_buffer)),
    (types.MappingProxyType, Walk._enter_mapping_proxy),
    (type(functools.lru_cache(lambda: None)), Walk._enter_cached),
    (contextvars.ContextVar, Walk._enter_context_variable),
    (contextvars.Context, Walk._enter_context),
    (threading.local, Walk._enter_thread_local),
    (logging.Logger, Walk._enter_logger),
    (BaseException, Walk._enter_exception),
    (torch.Generator, Walk._enter_torch_generator),
    ((property, staticmethod, classmethod, types.GenericAlias, torch.cuda.Stream), Walk._enter_nothing),
)

__all__ = ["Found", "Walk"]
