"""When an edge of the graph counts: by what the code that ran can read.

    edge's condition    counts when
    None                always
    a name              code that ran reads an attribute of that name, of any object
    a code object       that code has run
    GroupKey            code that ran reads this key of an optimizer's parameter groups, or may read any
    Own                 the user's own code that ran reads an attribute of one of these names
    Weak                never: only a weak reference of the user's leads there. A guard keeps alive what it watches

Ran grows while the step runs. O(1) for each edge."""

from __future__ import annotations

import types
from typing import Any

from stowage.step.guards.group_keys import ANY
from stowage.step.guards.reads import EXITS, Reads


class GroupKey(str):
    """Of an edge: counts when code that ran reads this key of an optimizer's parameter groups, or may read any."""


class Own(frozenset):
    """Of an edge: counts when the user's own code that ran reads an attribute of one of these names."""


ASKS_FOR_PLACE = Own(("stride", "storage_offset", "is_contiguous"))


class Weak:
    """Of an edge: a weak reference of the user's. A guard holds what it watches, and must not keep that alive."""


class Ran:
    """The code that ran, and what it can read."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        self.names: set[str] = set()  # attributes that code which ran reads
        self.own_names: set[str] = set()  # of those, that the user's own code reads
        self.group_keys: set[str] = set()  # of parameter groups, that code which ran reads; may hold ANY
        self.dynamic = False  # some of it reads attributes by names that code does not show
        self.bypasses = False  # and some of that without asking the objects (computed_names.py)
        self.compares = False  # some of the user's compares objects, or makes texts of them
        self.catches = False  # code that ran has handlers of exceptions
        self.leaves_blocks = False  # of that code, some has handlers for what is in the ``with`` that it belongs to

    def add(self, code: types.CodeType, read: Reads) -> None:
        """``code`` runs. The names that it reads are added where the graph grows by them: Graph.read_attributes()."""
        self.codes.add(code)
        self.group_keys |= read.group_keys
        self.dynamic |= read.dynamic
        self.bypasses |= read.bypasses
        self.compares |= read.compares
        self.catches |= read.catches
        self.leaves_blocks |= read.catches and (read.generates or code.co_name in EXITS)

    def counts(self, condition: Any, all_names: bool, weak: bool) -> bool:
        """``all_names``: any attribute of the object counts; ``weak``: weak references count, too."""
        if condition is None:
            return True
        if condition is Weak:
            return weak
        if type(condition) is types.CodeType:
            return condition in self.codes
        if type(condition) is GroupKey:
            return condition in self.group_keys or ANY in self.group_keys or (self.dynamic and self.bypasses)
        if type(condition) is Own:
            return not condition.isdisjoint(self.own_names)
        return all_names or condition in self.names


__all__ = ["ASKS_FOR_PLACE", "GroupKey", "Own", "Ran", "Weak"]
