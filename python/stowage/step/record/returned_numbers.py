"""Numbers of which the step's Python makes nothing but what it returns: ``return loss.item()``.

    n = loss.item()                 asked for here: the call's result is the number
    opt.step()                      code that does not touch it
    return {"loss": n, "y": y}      it is returned at ("loss",), and nowhere else

A planned call puts its own number there, and needs no Python. Of any other number Python may have made a decision.

The bytecode behind the call is followed on all its ways (bytecode_ways.py), and that of the functions around in the same
way, where it is certain that Python itself calls them: a function of C may have looked at the number before it passed it on.
O(functions), and what each of them takes."""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stowage._torch.private import flatten
from stowage._torch.subclasses import heard
from stowage.step.record.bytecode_ways import Code, Path, Places, Ways, returned

_MOST_FRAMES = 16
_CONVERSIONS = {"__float__": float, "__int__": int, "__bool__": bool}
_DTYPES = {
    float: {torch.float64, torch.float32, torch.float16, torch.bfloat16},
    int: {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8},
    bool: {torch.bool},
    complex: {torch.complex64, torch.complex128},
}
NAMES = frozenset({"item", *_CONVERSIONS})  # of Tensor's methods


@dataclass
class Number:
    """That the step has asked for. ``op``: of the tape; ``ways``: the places where it is returned, by way; None where one of them
    makes more of it. ``own``: it was asked for in the step's own code, not in a function that this calls."""

    op: int
    value: Any
    ways: Ways | None
    own: bool


def number(op: int, name: str, tensor: torch.Tensor, value: Any, asked: types.FrameType, step: Any) -> Number:
    """``value``: what ``name``, of NAMES, gives of ``tensor``, called in the frame ``asked``, within a call of ``step`` by heard().
    The tensor's class has not heard of the question."""
    known = tensor.dtype in _DTYPES.get(type(value), ())
    own = asked.f_code is getattr(getattr(step, "__func__", step), "__code__", None)
    return Number(op, value, _ways(name, asked, step) if known else None, own)


def returned_numbers(numbers: Iterable[Number], result: Any) -> dict[int, tuple[list[int], type]]:
    """By op of the tape: which leaves of the step's result are the number that it tells, and their class."""
    found = ((number, _returned_as(number, result)) for number in numbers)
    return {number.op: (leaves, type(number.value)) for number, leaves in found if leaves is not None}


def _returned_as(number: Number, result: Any) -> list[int] | None:
    """Which leaves of the step's result are this number; None where that is not sure, or more is made of it."""
    found = []
    for places in number.ways or ():
        leaves = [_leaf_at(result, path, number.value) for path in places]
        if None not in leaves:
            found.append([leaf for leaf in leaves if leaf is not None])
    if isinstance(number.value, (float, complex)):  # an object that nothing else is
        here = sum(leaf is number.value for leaf in flatten(result)[0])
        found = [leaves for leaves in found if len(leaves) == here]
    return found[0] if len(found) == 1 else None


def _leaf_at(result: Any, path: Path, value: Any) -> int | None:
    mark = object()

    def marked(part: Any, rest: Path) -> Any:
        if not rest:
            return mark if part is value else None
        inner = marked(_item(part, rest[0]), rest[1:])
        if inner is None:
            return None
        items = dict(part) if isinstance(part, dict) else dict(enumerate(part))
        items[rest[0]] = inner
        return items if isinstance(part, dict) else type(part)(items.values())

    with_mark = marked(result, path)
    return (
        None if with_mark is None else next((i for i, leaf in enumerate(flatten(with_mark)[0]) if leaf is mark), None)
    )


def _item(part: Any, key: Any) -> Any:
    """None where it has none: of several results, this is another."""
    if type(part) is dict:
        return part.get(key)
    there = type(part) in (tuple, list) and type(key) is int and 0 <= key < len(part)
    return part[key] if there else None


# ---- The functions around


def _ways(name: str, asked: types.FrameType, step: Any) -> Ways | None:
    """Where the outermost function returns the number, through all that are between."""
    function, receiver = getattr(step, "__func__", step), getattr(step, "__self__", None)
    frames = [asked]
    while (around := frames[-1].f_back) is not None and around.f_code is not heard.__code__:
        if len(frames) > _MOST_FRAMES:
            return None
        frames.append(around)
    if not isinstance(function, types.FunctionType) or frames[-1].f_code is not function.__code__:
        return None
    for outer, inner in zip(reversed(frames), reversed(frames[:-1])):
        found = _called_by(function, receiver, outer)
        if found is None or found[0].__code__ is not inner.f_code:
            return None
        function, receiver = found
    if not _asks(name, asked):
        return None
    ways: set[Places] = {frozenset({()})}
    for frame in frames:
        followed = [returned(frame, places) if places else frozenset({places}) for places in ways]
        if None in followed:
            return None
        ways = {places for each in followed if each is not None for places in each}
    return frozenset(ways)


def _asks(name: str, frame: types.FrameType) -> bool:
    """Does the call that runs in the frame give what ``name`` gives?"""
    code = Code.of(frame.f_code)
    call = code.at(frame.f_lasti)
    found = code.callee(call)
    if found is None or found.opname == "LOAD_GLOBAL":
        wanted = _CONVERSIONS.get(name)
        return (
            found is not None
            and wanted is not None
            and code.instructions[call].arg == 1
            and _global(frame.f_globals, found.argval) is wanted
        )
    return (
        name == "item"
        and found.argval == "item"
        and found.opname in ("LOAD_METHOD", "LOAD_ATTR")
        and code.instructions[call].arg == 0
    )


def _called_by(
    function: types.FunctionType, receiver: Any, frame: types.FrameType
) -> tuple[types.FunctionType, Any] | None:
    """The function of Python's, and the object whose method it is, that ``function`` calls where its frame stands."""
    code = Code.of(frame.f_code)
    found = code.callee(code.at(frame.f_lasti))
    if found is None:
        return None
    value: Any = None
    owner: Any = None
    if found.opname == "LOAD_GLOBAL":
        value = _global(frame.f_globals, found.argval)
    elif found.opname == "LOAD_DEREF" and found.argval in frame.f_code.co_freevars and function.__closure__:
        cell = function.__closure__[frame.f_code.co_freevars.index(found.argval)]
        value = cell.cell_contents if cell != types.CellType() else None
    elif found.opname in ("LOAD_METHOD", "LOAD_ATTR") and receiver is not None and code.is_of_first(found):
        value, owner = inspect.getattr_static(type(receiver), found.argval, None), receiver
        plainly = type(receiver).__getattribute__ is object.__getattribute__
        if not plainly or found.argval in getattr(receiver, "__dict__", {}):
            return None
    if isinstance(value, types.MethodType):
        value, owner = value.__func__, value.__self__
    return (value, owner) if isinstance(value, types.FunctionType) else None


def _global(names: dict, name: str) -> Any:
    return names[name] if name in names else getattr(builtins, name, None)


__all__ = ["NAMES", "Number", "number", "returned_numbers"]
