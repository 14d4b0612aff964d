"""The graph that the walk grows: objects, edges that say when they count, and the nodes of the guard that watch them.

    objects[i] ──(condition)──▶ objects[j]      edges[i]: when an edge counts, see edges.py
        │
        └─▶ nodes of the guard                   nodes[i]: what is compared in each call

reach() queues an edge, and grow() works through the queue. An object that is met for the first time is entered: a function of
its class (kinds.py) adds its nodes and reaches what it holds. An edge by a name that no code has read so far waits until code
reads that name.

Iterative, without a limit of depth. O(objects and edges), of at most MOST_OBJECTS and, of libraries, _MOST_OF_LIBRARIES
objects."""

from __future__ import annotations

import collections
import operator
import os
import types
from collections.abc import Callable, Set
from typing import Any

import torch

from stowage._core import Guard
from stowage.step.guards.edges import Ran
from stowage.step.guards.found import Found
from stowage.step.guards.scalars import SCALARS
from stowage.step.guards.settings import SETTINGS

MOST_OBJECTS = 30_000
_MOST_OF_LIBRARIES = 10_000  # parts of torch and the like: tables of theirs that are larger hold what is theirs
LARGE = 4096  # of larger containers the elements are not entered
# Objects of exactly these classes never change, nor does what they hold.
IMMUTABLE = {*SCALARS, type(...), type(NotImplemented), range, torch.Size, types.CodeType}
_WITHOUT_ATTRIBUTES = IMMUTABLE | {list, tuple, dict, set, frozenset, bytearray, torch.Tensor, torch.nn.Parameter, type}
# Functions that read by names which they are given. Who holds one calls it by another name; code that names them: reads.py
_READERS = frozenset(
    map(
        id,
        (
            getattr,
            hasattr,
            setattr,
            delattr,
            vars,
            dir,
            eval,
            exec,
            globals,
            operator.attrgetter,
            operator.methodcaller,
        ),
    )
)
_ASKERS = frozenset(map(id, (getattr, hasattr, setattr, delattr, vars, dir)))  # they ask the object itself


class Graph:
    """The functions of kinds.py are called enter(graph, i, value, path, trusted): ``i`` is the object's number, ``path`` names
    it in messages, and ``trusted`` says that it is a part of a library, which may change it by itself."""

    def __init__(self, found: Found, how_to_enter: Callable[[type], Callable[..., None]]):
        self.guard = Guard()
        self.found = found
        self.ran = Ran()
        self.how_to_enter = how_to_enter
        # By object
        self.objects: list[Any] = []  # kept, so that ids stay theirs
        self.edges: list[list[tuple[Any, int]]] = []
        self.nodes: list[list[int]] = []  # of the guard
        self.hidden: dict[int, str] = {}  # object -> what of it cannot be seen
        self.by_address: dict[int, str] = {}  # object -> why it may reach the memory of tensors
        self.standard: set[int] = set()  # objects of libraries whose state is known; not torch's that the user holds
        self.namespaces: set[int] = set()  # of types.SimpleNamespace: C compares and shows all their attributes
        self.whole: set[int] = set()  # objects whose attributes are read by names that code does not show
        # Of those that tell what they are asked for (computed_names.py): asked for nothing by such code; ids of the others
        self.unasked: set[int] = set()
        self.asked: set[int] = set()
        self.of_libraries: set[int] = set()  # met as a part of a library, which may change it by itself
        self.referred: dict[int, str] = {}  # id of an object -> a weak reference to it
        # Growing
        self.index: dict[Any, int] = {}
        self.queue: collections.deque = collections.deque()
        self.waiting: dict[str, list[tuple[int, Any, str, bool]]] = {}
        self.facts = 0  # nodes of the graph that are no objects
        self.full = False
        self.trusted: list[int] = []  # nodes of the guard that libraries may change by themselves
        self.told: list[str] = []  # why the guard is blind, met while the step ran
        # Functions (code.py)
        self.functions: dict[types.CodeType, list[int]] = {}
        self.unrun: dict[types.CodeType, list[tuple[int, Any, str]]] = {}
        self.any_modules: set[int] = set()  # ids of modules that code may import by any name
        # Modules and tensors (training.py)
        self.leaves: list[tuple[int, torch.Tensor]] = []  # with a node of the graph for their .grad
        self.of_modules: set[int] = set()  # parameters and buffers that were found in their modules alone
        self.entered: set[int] = set()  # submodules of modules that were found
        # Lists (containers.py), and what is compared by its bytes (memory.py)
        self.pointers = 0
        self.bytes = 0
        self.digested = 0
        # Objects of the buffer protocol, and what was in them; None: not known
        self.memories: list[tuple[int, str, Any, tuple[int, int] | None]] = []

    def new(self, value: Any) -> int:
        self.edges.append([])
        self.nodes.append([])
        self.objects.append(value)
        return len(self.edges) - 1

    def reach(self, parent: int, condition: Any, value: Any, path: str, trusted: bool) -> None:
        if type(value) not in IMMUTABLE:
            self.queue.append((parent, condition, value, path, trusted))

    def add(self, i: int, node: int, trusted: bool = False) -> None:
        self.nodes[i].append(node)
        if trusted:
            self.trusted.append(node)

    def name(
        self, parent: int, condition: Any, namespace: dict, name: str, what: str, path: str, trusted: bool
    ) -> None:
        """An edge to one name of a namespace, and on to its value."""
        key = (id(namespace), name)
        index = self.index.get(key)
        if index is None:
            index = self.index[key] = self.new(namespace)
            self.add(index, self.guard.name(namespace, name, trusted, what), trusted)
            value = namespace.get(name)
            if not isinstance(value, types.ModuleType):
                self.reach(index, None, value, path, trusted)
        self.edges[parent].append((condition, index))

    def attribute(self, i: int, name: Any, value: Any, path: str, later: bool, trusted: bool) -> None:
        if type(value) in IMMUTABLE:
            return
        where = f"{path}.{name}"
        read = name in self.ran.names or (self.ran.dynamic and self._may_be_read(i, trusted))
        if not later or read or type(name) is not str:
            self.queue.append((i, name, value, where, trusted))
        else:
            self.waiting.setdefault(name, []).append((i, value, where, trusted))

    def fact(self, i: int, condition: Any, node: int) -> int:
        """Something that counts where code that ran reads it."""
        self.facts += 1
        index = self.new(node)
        self.add(index, node)
        self.edges[i].append((condition, index))
        return index

    def setting(self, i: int, module: str) -> None:
        """What C keeps for the whole of a library that counts wherever one of its own is used."""
        known = SETTINGS.get(module.split(".")[0])
        if known is None:
            return
        what, read = known
        index = self.index.get(read)
        if index is None:
            index = self.index[read] = self.new(read)
            self.add(index, self.guard.call(read, True, what), True)
        self.edges[i].append((None, index))

    def look_up(self, names: Set[str]) -> None:
        """Attributes that are read."""
        for name in names - self.ran.names:
            for parent, value, path, trusted in self.waiting.pop(name, ()):
                self.reach(parent, name, value, path, trusted)

    def look_ahead(self, names: Set[str]) -> None:
        """Attributes that may be read. Of modules that code may import by names which it works out, and that are all of the
        program's, they wait until it has run."""
        for name in names - self.ran.names:
            waiting = self.waiting.pop(name, [])
            self.waiting[name] = [edge for edge in waiting if id(self.objects[edge[0]]) in self.any_modules]
            for parent, value, path, trusted in waiting:
                if id(self.objects[parent]) not in self.any_modules:
                    self.reach(parent, name, value, path, trusted)

    def read_attributes(self, names: Set[str]) -> None:
        """Attributes that code which runs reads."""
        self.look_up(names)
        self.ran.names |= names

    def reads_unnamed(self, bypasses: bool = True) -> None:
        """Code that runs does not show the names of what it reads, or C reads it that the user holds. ``bypasses``: it need not ask
        the objects."""
        self.ran.bypasses |= bypasses
        if not self.ran.dynamic:
            self._read_any_attributes()
            self.ran.dynamic = True

    def _read_any_attributes(self) -> None:
        for name, waiting in self.waiting.items():
            self.waiting[name] = []
            for edge in waiting:
                parent, value, path, trusted = edge
                if self._may_be_read(parent, trusted):
                    self.reach(parent, name, value, path, trusted)
                else:
                    self.waiting[name].append(edge)

    def _may_be_read(self, i: int, trusted: bool) -> bool:
        """An attribute of the object, by code that shows no names?"""
        return not trusted and i not in self.standard

    def reads_all_of(self, value: Any) -> None:
        """Code that runs reads all attributes of it, whatever their names. Where it is none of what was found, those of all that was
        found: it may hold any."""
        if type(value) in _WITHOUT_ATTRIBUTES:
            return
        i = self.index.get(id(value))
        if i is None:
            self.reads_unnamed()
        elif i not in self.whole:
            self.whole.add(i)
            for name, waiting in self.waiting.items():
                if any(edge[0] == i for edge in waiting):
                    self.waiting[name] = [edge for edge in waiting if edge[0] != i]
                    for parent, inner, path, trusted in waiting:
                        if parent == i:
                            self.reach(parent, name, inner, path, trusted)

    def tells_questions(self, i: int) -> None:
        """The object tells what it is asked for."""
        if id(self.objects[i]) not in self.asked:
            self.unasked.add(i)

    def is_asked(self, value: Any) -> None:
        """For an attribute, by a name that code does not show."""
        self.asked.add(id(value))
        self.unasked.discard(self.index.get(id(value), -1))

    def tell(self, reason: str) -> None:
        """A reason why the guard is blind."""
        if reason and reason not in self.told:
            self.told.append(reason)

    def all_names(self, i: int) -> bool:
        return (
            i in self.whole
            or (self.ran.dynamic and i not in self.standard and (i not in self.unasked or self.ran.bypasses))
            or (self.ran.compares and i in self.namespaces)
        )

    def grow(self) -> None:
        while self.queue:
            parent, condition, value, path, trusted = self.queue.popleft()
            if not trusted and id(value) in _READERS:
                self.reads_unnamed(bypasses=id(value) not in _ASKERS)
            key = id(value)
            index = self.index.get(key)
            if index is None:
                if trusted and len(self.of_libraries) >= _MOST_OF_LIBRARIES:
                    continue
                if len(self.edges) - self.facts >= MOST_OBJECTS:
                    self.full = True
                    self.queue.clear()
                    return
                index = self.index[key] = self.new(value)
                self._enter(index, value, path, trusted)
            elif index in self.of_modules:  # the step holds it by itself, too
                self.of_modules.discard(index)
                self.found.tensors.append((path, value))
            self.edges[parent].append((condition, index))

    def _enter(self, i: int, value: Any, path: str, trusted: bool) -> None:
        if trusted:
            self.of_libraries.add(i)
        enter = self.how_to_enter(type(value))
        try:
            # A library's, but what changes in it counts
            enter(self, i, value, path, trusted and value is not os.environ)
        except Exception as error:  # of an object of somebody else's; the step must not fail by being looked at
            self.tell(
                f"'{path}' cannot be looked into ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
            )

    def holders_of(self, ids: Set[int]) -> dict[int, list[Any]]:
        """By id: the objects with an edge to it."""
        wanted = {self.index[key]: key for key in ids if key in self.index}
        found: dict[int, dict[int, Any]] = {key: {} for key in wanted.values()}
        for parent, edges in zip(self.objects, self.edges):
            for _, child in edges:
                if child in wanted:
                    found[wanted[child]][id(parent)] = parent
        return {key: list(holders.values()) for key, holders in found.items()}

    def forget(self) -> None:
        """The objects, which the guard holds as far as they count."""
        self.objects, self.waiting, self.index, self.unrun, self.functions = [], {}, {}, {}, {}
        self.memories = []


__all__ = ["IMMUTABLE", "LARGE", "MOST_OBJECTS", "Graph"]
