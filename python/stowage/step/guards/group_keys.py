"""Which keys of an optimizer's parameter groups a code object reads: a scheduler sets ``lr`` in every call, and a step that
reads only ``params`` need not look again.

    for group in optimizer.param_groups:          a load of param_groups, then GET_ITER, FOR_ITER, STORE_FAST group
        clip(group["params"])                     each load of ``group``: a constant and a subscript
    rate = optimizer.param_groups[0]["lr"]        or both after one another

Whatever is done otherwise with the groups or with one of them (it is passed on, iterated over, kept in a closure, read by a
key that the code does not show) may read any key: ANY. What is not understood is ANY, too. O(length of the code)."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

ANY = "any key"  # no identifier, so nobody's key by chance
GROUPS = "param_groups"
_IGNORED = {"CACHE", "NOP", "EXTENDED_ARG", "RESUME", "PRECALL", "NOT_TAKEN"}
_ATTRIBUTE_LOADS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_SUBSCRIPTS = {"BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "COPY", "DUP_TOP_TWO"}  # the latter: group["lr"] *= 2
_CONSTANTS = {"LOAD_CONST", "LOAD_SMALL_INT"}
_INLINED = {"LOAD_FAST_AND_CLEAR", "SWAP", "BUILD_LIST", "BUILD_SET", "BUILD_MAP"}  # a comprehension begins so (3.12)
_LOADS = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"}
_ITERATED = ".0"  # what a comprehension is given


def group_keys(code: types.CodeType) -> frozenset[str]:
    """Keys that the code reads of groups that it takes from an attribute; {ANY} where it may be any."""
    if any(c == GROUPS or (isinstance(c, tuple) and GROUPS in c) for c in code.co_consts):  # getattr(), match
        return frozenset({ANY})
    return _read(code, "") if GROUPS in code.co_names else frozenset()


class _Any(Exception):
    pass


def _read(code: types.CodeType, iterator: str) -> frozenset[str]:
    """iterator: the variable that holds one over groups, "" for none."""
    try:
        return frozenset(_Uses(code, iterator).keys())
    except _Any:
        return frozenset({ANY})


class _Uses:
    def __init__(self, code: types.CodeType, iterator: str):
        self._code = code
        self._steps = list(_simple(code))
        self._iterator = iterator
        self._groups: set[str] = set()  # variables that hold all groups
        self._group: set[str] = set()  # that hold one
        self._keys: set[str] = set()

    def keys(self) -> set[str]:
        for at, (name, what) in enumerate(self._steps):
            if name in _ATTRIBUTE_LOADS and what == GROUPS:
                self._of_groups(at + 1)
        before = -1
        while before != (before := len(self._groups) + len(self._group)):
            for at, what in ((at, what) for at, (name, what) in enumerate(self._steps) if name in _LOADS):
                if what == self._iterator:
                    self._of_iterator(at + 1)
                if what in self._groups:
                    self._of_groups(at + 1)
                if what in self._group:
                    self._of_group(at + 1)
        return self._keys

    def _of_groups(self, at: int) -> None:
        """All groups are on top of the stack before this step."""
        if self._is_subscript(at, int):
            self._of_group(at + 2)
        elif self._step(at)[0] == "GET_ITER" and self._step(at + 1)[0].startswith("CALL"):
            self._of_comprehension()
        elif self._step(at)[0] == "GET_ITER":
            self._of_iterator(at + 1)
        else:
            self._groups.add(self._stored(at))

    def _of_iterator(self, at: int) -> None:
        while self._step(at)[0] in _INLINED:
            at += 1
        if self._step(at)[0] != "FOR_ITER":
            raise _Any
        self._group.add(self._stored(at + 1))

    def _of_group(self, at: int) -> None:
        if self._is_subscript(at, str):
            self._keys.add(self._step(at)[1])
        else:
            self._group.add(self._stored(at))

    def _of_comprehension(self) -> None:
        """[group["lr"] for group in o.param_groups], whose code is one of those within this code."""
        for made in self._code.co_consts:
            if isinstance(made, types.CodeType) and _ITERATED in made.co_varnames:
                self._keys |= _read(made, _ITERATED)

    def _is_subscript(self, at: int, kind: type) -> bool:
        name, what = self._step(at)
        return name in _CONSTANTS and type(what) is kind and self._step(at + 1)[0] in _SUBSCRIPTS

    def _stored(self, at: int) -> str:
        """The variable that takes what is on top of the stack."""
        name, what = self._step(at)
        if name != "STORE_FAST" or what in self._code.co_cellvars:
            raise _Any
        return what

    def _step(self, at: int) -> tuple[str, Any]:
        return self._steps[at] if at < len(self._steps) else ("", None)


def _simple(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Instructions and their arguments, those that do two things as two."""
    for i in dis.get_instructions(code):
        if i.opname in _IGNORED:
            continue
        if isinstance(i.argval, tuple) and i.opname.count("_FAST") == 2:  # LOAD_FAST_LOAD_FAST and the like
            at = i.opname.index("_", i.opname.index("_FAST") + 1)
            yield from zip((i.opname[:at], i.opname[at + 1 :]), i.argval)
        elif i.opname == "BINARY_OP" and i.argrepr == "[]":
            yield "BINARY_SUBSCR", i.argval
        else:
            yield i.opname, i.argval


__all__ = ["ANY", "GROUPS", "group_keys"]
