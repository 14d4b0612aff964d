"""A function as two, by its code: the first half gives what the rest takes up.

    whole   RESUME  loss = ...  opt.step()  │  log.append(loss.item())  return loss
    first   RESUME  loss = ...  opt.step()  │  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  return (loss,)
                                            └── jumps to the end, behind which this is put     ▲
    rest    RESUME  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  │  log.append(loss.item())  return loss
                    └── jumps to the cut; all its local variables are parameters

No other instruction moves, so that jumps, handlers and lines stay right. What the first half does not run is blank in it: those
who ask what the function reads see no name, constant or variable of another function's that only the rest uses. O(code)."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from stowage.step.cut.where import JUMP_UNITS, UNIT, Place, parameters

_UNKNOWN_LINES = 0x80 | 15 << 3  # an entry of a table of lines: of 1 to 8 units, which come from no line
_PARAMETERS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_OF_CLASS = "__class__"  # which super() looks up by itself


class Halves:
    """``first(*args, **kwargs)`` gives ``results``, by name; then ``rest(parameters(*args, **kwargs), those)`` gives what the
    function would. ``step``: a function, or a method of an object."""

    def __init__(self, step: Callable, place: Place):
        function = getattr(step, "__func__", step)
        code: types.CodeType = function.__code__
        self._step, self._known = function, (code, function.__defaults__, function.__kwdefaults__)
        named = parameters(code)
        mapped = named[-1:] if code.co_flags & inspect.CO_VARKEYWORDS else ()  # a new dict for each call
        self._kept = tuple(n for n in named if n not in place.binds and n not in mapped)
        self.results = tuple(n for n in code.co_varnames if n in place.variables and n not in self._kept)
        self.first = _like(step, _first(code, place, self.results), place.shared)
        self.parameters = _like(step, _first(code, None, self._kept), frozenset())
        self._rest = types.FunctionType(
            _rest(code, place), function.__globals__, function.__name__, None, function.__closure__
        )
        at = {name: i for i, name in enumerate(code.co_varnames)}
        self._places = tuple(at[name] for name in (*self._kept, *self.results))
        self._variables = code.co_nlocals

    @property
    def still(self) -> bool:
        """The function is as it was when it was cut."""
        code, defaults, by_name = self._known
        function = self._step
        return function.__code__ is code and function.__defaults__ is defaults and function.__kwdefaults__ is by_name

    def rest(self, parameters: tuple, results: tuple) -> Any:
        variables: list[Any] = [None] * self._variables
        for at, value in zip(self._places, (*parameters, *results)):
            variables[at] = value
        del parameters, results
        return self._rest(*variables)


def _like(step: Callable, code: types.CodeType, shared: frozenset[str]) -> Callable:
    """Another function, or method, of the same parameters. ``shared``: the variables of functions around that it uses."""
    function = getattr(step, "__func__", step)
    cells = tuple(
        cell if name in shared or name == _OF_CLASS else types.CellType()
        for name, cell in zip(code.co_freevars, function.__closure__ or ())
    )
    other = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    other.__kwdefaults__ = function.__kwdefaults__
    other.__qualname__, other.__module__ = function.__qualname__, function.__module__
    return types.MethodType(other, step.__self__) if isinstance(step, types.MethodType) else other


def _first(code: types.CodeType, place: Place | None, results: tuple[str, ...]) -> types.CodeType:
    """``place``: None for before anything is run."""
    begins = _begins(code)
    runs = place.first if place is not None else frozenset(range(0, begins, UNIT))
    made = bytearray(code.co_code)
    for unit in range(0, len(made), UNIT):
        if unit not in runs:
            made[unit : unit + UNIT] = bytes((dis.opmap["NOP"], 0))
    _jump(made, place.offset if place is not None else begins, len(made))
    given = [code.co_varnames.index(name) for name in results]
    ends = b"".join(_instruction("LOAD_FAST", at) for at in given)
    ends += _instruction("BUILD_TUPLE", len(given)) + _instruction("RETURN_VALUE", 0)
    used = {0, *_constants(code, runs)}  # the first is what is said of the function
    constants = tuple(c if i in used else None for i, c in enumerate(code.co_consts))
    return code.replace(
        co_code=bytes(made) + ends,
        co_linetable=code.co_linetable + _unknown_lines(len(ends) // UNIT),
        co_stacksize=max(code.co_stacksize, len(given) + 1),
        co_consts=constants,
    )


def _rest(code: types.CodeType, place: Place) -> types.CodeType:
    made = bytearray(code.co_code)
    _jump(made, _begins(code), place.offset)
    return code.replace(
        co_code=bytes(made),
        co_argcount=code.co_nlocals,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_PARAMETERS,
    )


def _begins(code: types.CodeType) -> int:
    """Behind what every function begins with."""
    return next(i.offset for i in dis.get_instructions(code) if i.opname == "RESUME") + UNIT


def _constants(code: types.CodeType, runs: frozenset[int]) -> Iterable[int]:
    by_place = set(dis.hasconst) | {dis.opmap.get("KW_NAMES", -1)}
    return (
        i.arg for i in dis.get_instructions(code) if i.opcode in by_place and i.offset in runs and i.arg is not None
    )


def _instruction(name: str, argument: int) -> bytes:
    made = bytes((dis.opmap[name], argument & 0xFF))
    while argument := argument >> 8:
        made = bytes((dis.EXTENDED_ARG, argument & 0xFF)) + made
    return made


def _jump(code: bytearray, at: int, to: int) -> None:
    units = (to - at) // UNIT - JUMP_UNITS
    assert 0 <= units < 1 << 16
    code[at : at + JUMP_UNITS * UNIT] = bytes((dis.EXTENDED_ARG, units >> 8, dis.opmap["JUMP_FORWARD"], units & 0xFF))


def _unknown_lines(units: int) -> bytes:
    return bytes(_UNKNOWN_LINES | min(8, units - n) - 1 for n in range(0, units, 8))


__all__ = ["Halves"]
