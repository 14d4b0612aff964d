"""The walk over what Python can reach: a graph of objects whose edges say when they count, and a node of the guard for
each object.

    step ──▶ closure, defaults       counts when that function has run
         ──▶ globals by name         counts when code that names them has run
    object ──▶ attribute             counts when code that ran reads an attribute of that name (any object's)
    list, dict, tuple, set ──▶ item  always counts

The graph grows while the step is recorded: each function is told to note() before its body runs, so that what it reads
is remembered as it was before. What has run is known at the end: finish() keeps what can be reached over edges that
count.

    graph.py      the graph itself               edges.py        when an edge counts
    kinds.py      which class is entered how     found.py        modules, optimizers, ... that the walk meets
      code.py       functions: closure, globals, imported modules
      callables.py  methods, functions of C, partials, caches     callbacks.py  the user's functions in what libraries hold
      containers.py lists, dicts, sets           objects.py      instances and classes: attributes, slots
      memory.py     arrays, objects of C         training.py     tensors, modules, optimizers
      standard.py   what of Python's library and NumPy has a way of its own; their settings: settings.py
    reads.py      which names code reads         computed_names.py   what is asked by names that no code shows
    blind.py      what no guard can see

O(objects and edges)."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from stowage._core import buffer_digest
from stowage._torch.private import global_hooks
from stowage.step.guards.blind import (
    HANDS_TO_THREAD,
    REACHES_MEMORY,
    draws,
    knows_tensors,
    matters,
    pickles,
    reaches_memory,
    type_name,
    why,
)
from stowage.step.guards.code import enter_code, enter_function
from stowage.step.guards.edges import Weak
from stowage.step.guards.found import Found
from stowage.step.guards.given import ByContent
from stowage.step.guards.graph import MOST_OBJECTS, Graph
from stowage.step.guards.group_keys import ANY
from stowage.step.guards.kinds import how_to_enter
from stowage.step.guards.memory import memory
from stowage.step.guards.reads import is_library, reads
from stowage.step.guards.standard import ITERATORS
from stowage.step.guards.threads import known_to_others

# Methods of the user's that PyTorch calls by name.
_CALLED_BY_TORCH = ("forward", "backward", "setup_context", "step", "get_lr")
_NO_CODE: Mapping[types.CodeType, int] = types.MappingProxyType({})


class Walk:
    """The graph, from ``root`` and ``given`` on. note() and called() take what runs; finish() makes the guard ready."""

    def __init__(self, root: Any, path: str, found: Found, given: Iterable[Any] = ()):
        self.graph = Graph(found, how_to_enter)
        self.guard = self.graph.guard
        self.found = found
        self.ran = self.graph.ran
        self.noted = False
        self.ops: Callable[[], int] = lambda: 0  # that have run so far; -1: one does
        # What code of kernels, which runs with those of planned calls, too, has at hand
        self._kernels: dict[types.CodeType, int] = {}
        self._ops_before = 0  # ... before the function of C whose end matters
        self.weak = False  # the guard watches weak references of the user's; known at the end
        # Of arrays: name, array, has it changed meanwhile? Those that count; known at the end
        self.arrays: list[tuple[str, Any, bool]] = []
        self.objects_read: set[int] = set()  # ids of what counts; known at the end
        self._nested: set[types.CodeType] = set()  # code that code which ran may have made functions of
        self._root = self.graph.new(root)
        for hooks in global_hooks():  # as they are now: recording adds some of its own for a while
            self._reach(hooks, "hooks of all modules or optimizers", trusted=True)
        self._reach(torch.Tensor, "Tensor")  # a budget replaces some of its methods for a while
        self._reach(root, path)
        self._passing = [value.function for value in given if isinstance(value, ByContent)]
        for value in given:
            if not isinstance(value, ByContent):
                self._reach(value, type_name(value) if isinstance(value, type) else _argument_name(value))
        self.graph.grow()
        if root is not None:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Finds what the step will find for certain, or most likely: it runs, and calls methods by their names. A model that were
        found as it runs would be declared to no recorder."""
        looked_at: set[types.CodeType] = set()
        names = set(_CALLED_BY_TORCH)
        objects = 0
        while objects < len(self.graph.edges):
            objects = len(self.graph.edges)
            found = [each for each in self.graph.functions if each not in looked_at]
            looked_at.update(found)
            names.update(*(reads(each).attributes for each in found if not is_library(each)))
            self.graph.look_ahead(names)
            self.graph.grow()

    def _reach(self, value: Any, path: str, trusted: bool = False) -> None:
        self.graph.reach(self._root, None, value, path, trusted)

    def reached(self) -> list[Any]:
        """What has been met so far, but for parts of libraries."""
        return [value for i, value in enumerate(self.graph.objects) if i not in self.graph.of_libraries]

    # ---- What runs

    def reach(self, values: Iterable[Any]) -> None:
        """What code that is about to run has at hand."""
        for value in values:
            self._reach(value, _argument_name(value))
        self.graph.grow()

    def made_within(self, code: types.CodeType) -> bool:
        """Of a function that code which ran may have made."""
        return code in self._nested

    def note(self, code: types.CodeType, function: Any, globals_: dict) -> bool:
        """``code`` is about to run for the first time, as the body of ``function`` where that is known. True where each of its
        calls is to be told: copies()."""
        read = reads(code)
        if read.dynamic:
            self.graph.reads_unnamed(read.bypasses)
        self.ran.add(code, read)
        for name in sorted(read.internals):
            where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            self.tell(f"looks into functions or namespaces ({name}), which cannot be compared, at {where}")
        in_kernel = self.ops() < 0
        if not in_kernel and (reason := reaches_memory(code, globals_)):
            self.tell(reason)
        self.graph.read_attributes(read.attributes)
        if not read.library:
            self.ran.own_names |= read.attributes
        if read.globals or not read.library:
            at_hand = enter_code(self.graph, code, globals_)
            self.graph.edges[self._root].append((None, at_hand))
            if in_kernel:
                self._kernels[code] = at_hand
        self._nested.update(c for c in code.co_consts if isinstance(c, types.CodeType))
        # A function made within the step holds what the step has made: only functions that were there before are kept.
        kept = function is not None and code not in self._nested and all(f is not function for f in self._passing)
        if kept and function.__closure__:
            self._reach(function, function.__qualname__, trusted=read.library)
        for index, fn, path in self.graph.unrun.pop(code, ()):
            enter_function(self.graph, index, fn, path)
        self.graph.grow()
        return read.copies

    def copies(self, code: types.CodeType, given: dict) -> None:
        """A call of code that reads all of its first argument, and nothing else."""
        self.graph.reads_all_of(given[code.co_varnames[0]])
        self.graph.grow()

    def asks(self, held: Any) -> None:
        """A scheduler, or an optimizer."""
        self.graph.is_asked(held)
        if isinstance(held, Optimizer):
            self.ran.group_keys.add(ANY)

    def take_for_run(self) -> None:
        """Where what runs is not noted: functions of the user's count as run, as far as they are reached."""
        functions = self.graph.functions
        self.ran.bypasses = True  # nobody listens to what schedulers are asked, either
        while reached := [code for code in functions if code not in self.ran.codes and not is_library(code)]:
            for code in reached:
                if reads(code).names_copiers:
                    self.graph.reads_unnamed()
                self.note(code, None, self.graph.objects[functions[code][0]].__globals__)

    def arrays_met(self, counts: Callable[[int], bool] = lambda i: True) -> list[tuple[str, Any, bool]]:
        """See World.arrays."""
        memories = self.graph.memories
        return [(path, a, was is None or buffer_digest(a) != was) for i, path, a, was in memories if counts(i)]

    def matters(self, function: Any) -> bool:
        return matters(function)

    def called(self, function: Any, caller: types.CodeType) -> bool:
        """Matters its end?"""
        owner = getattr(function, "__self__", None)
        if draws(owner):
            self._drawn_from(owner)
            return False
        if pickles(function):
            self.graph.reads_unnamed()
            self.graph.grow()
            return False
        ops, reason = self.ops(), why(function, caller)
        if reason.startswith(HANDS_TO_THREAD) and (ops <= 0 or not known_to_others(owner)):
            reason = "uses other threads"
        self.tell("" if ops < 0 and reason.startswith(REACHES_MEMORY) else reason)
        waits = ops > 0 and knows_tensors(function)
        self._ops_before = ops if waits else self._ops_before
        return waits

    def returned(self, function: Any) -> None:
        """Of an extension of PyTorch's: where it has asked for no operator, it has looked into memory itself. That is
        behind where its Python runs over shells, unless no operator ran before."""
        if self.ops() == self._ops_before:
            self.tell(f"{REACHES_MEMORY} ({function.__module__}.{function.__name__}, an extension in C++)")

    def _drawn_from(self, generator: Any) -> None:
        key = ("drawn from", id(generator))
        if key not in self.graph.index:
            index = self.graph.index[key] = self.graph.new(generator)
            cls = sys.modules["_random"].Random
            memory(self.graph, index, generator, cls, "the state of the random generator", False)
            self.graph.edges[self._root].append((None, index))

    def tell(self, reason: str) -> None:
        """A reason why the guard is blind."""
        self.graph.tell(reason)

    # ---- The end

    def finish(self) -> tuple[str, list[str]]:
        """Narrows the guard to what code that ran can read. Returns what the step itself has changed of what it can
        reach, or "", and why the guard is blind."""
        graph = self.graph
        changed = self.guard.changed()
        parameters = {id(p) for p in self.found.parameters()}
        for index, leaf in graph.leaves:
            if id(leaf) in parameters:  # whose .grad is watched by Gradients
                graph.nodes[index], graph.edges[index] = [], []
        active = self._active(weak=False)
        self.arrays = self.arrays_met(active.__contains__)
        objects = [graph.objects[i] for i in active]
        passing = self._active(weak=True) - active
        whole = [n for i in active if graph.all_names(i) for n in graph.nodes[i]]
        kept = [n for i in active for n in graph.nodes[i]]
        self.guard.forget_changed(list(graph.trusted))
        self.guard.finish(kept, self.ran.names, whole)
        blind = self._blind(active, passing)
        graph.forget()
        self.objects_read = _ids_of_lasting(objects)
        return changed or self.guard.changed(), blind

    def _blind(self, active: set[int], passing: set[int]) -> list[str]:
        """Why the guard is blind, of what counts; ``passing``: what only weak references of the user's hold."""
        graph = self.graph
        blind = list(graph.told)
        beside_kernels = self._active(weak=False, but=self._kernels) if graph.by_address else set()
        blind += [path for i, path in graph.by_address.items() if i in beside_kernels]
        for i in sorted(active):
            if i in graph.hidden and graph.hidden[i] not in blind:
                blind.append(graph.hidden[i])
        for i in active:
            value = graph.objects[i]
            if isinstance(value, ITERATORS) and _code_of(value) in self.ran.codes:
                blind.append(f"the {type(value).__name__} '{value.__name__}': where it stands cannot be seen")
        if passing:
            names = (graph.referred.get(id(graph.objects[i])) for i in sorted(passing))
            name = next(filter(None, names), "an object")
            blind.append(f"what '{name}' refers to is held by weak references alone: a guard would keep it alive")
        if graph.full:
            blind.append(f"the step reaches more than {MOST_OBJECTS} objects")
        return blind

    def _active(self, weak: bool, but: Mapping[types.CodeType, int] = _NO_CODE) -> set[int]:
        """What can be reached over edges that count; ``weak``: and over weak references. ``but``: not by this code."""
        graph = self.graph
        roots = [self._root] + [i for code in self.ran.codes if code not in but for i in graph.functions.get(code, ())]
        active = set(roots)
        active.update(i for code in but for i in graph.functions.get(code, ()))
        active.update(but.values())
        stack = list(roots)
        while stack:
            i = stack.pop()
            all_names = graph.all_names(i)
            for condition, child in graph.edges[i]:
                self.weak |= condition is Weak
                if child not in active and self.ran.counts(condition, all_names, weak):
                    active.add(child)
                    stack.append(child)
        return active


def _argument_name(value: Any) -> str:
    return str(getattr(value, "__name__", None) or type(value).__name__).lower()


def _code_of(value: Any) -> types.CodeType | None:
    return getattr(value, "gi_code", None) or getattr(value, "cr_code", None) or getattr(value, "ag_code", None)


def _ids_of_lasting(objects: list[Any]) -> set[int]:
    """But for those that the walk alone has made and held (views, copies, bound methods): an argument of a later call may come
    to lie where they have been. Empties the list."""
    ids = set()
    while objects:
        value = objects.pop()
        if sys.getrefcount(value) > 2:  # the name here, and the argument
            ids.add(id(value))
    return ids


__all__ = ["Walk"]
