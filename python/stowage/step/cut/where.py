"""Where a function can be cut in two, so that one half after the other does what the whole does.

    loss.backward()
    opt.step()
    ────────────────────────────    nothing is on the stack, no way leads back, and no way has returned before
    log.append(loss.item())         what it reads: log, loss

At an instruction where Python's stack is empty, which is passed once at most and by every way that comes to an end before
it, with each local variable bound that the rest reads. By the usual analyses of data flow: depth of the stack and variables
that are surely bound, forwards; variables that are still read, backwards (Aho et al., Compilers, 2006, chapter 9).
O(instructions x variables) a function, kept by code object. From Python 3.11, whose code has its handlers in a table."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass

from stowage.step.record.bytecode_ways import AWAY, Code

_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS")
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_LONGEST = 1 << 16  # bytes, over which jumps can lead
UNIT = 2  # bytes of an instruction, of an argument's further byte, and of a cache
JUMP_UNITS = 2  # that a jump to the end takes, at the cut


@dataclass(frozen=True)
class Place:
    """``offset``: of the first instruction behind the cut. ``first``, ``rest``: offsets of what may run on each side, handlers on
    both. ``variables``: local ones that the rest reads as they are then. ``binds``, ``shared``: local ones that the first half
    sets, and those of functions around that it uses."""

    offset: int
    first: frozenset[int]
    rest: frozenset[int]
    variables: frozenset[str]
    binds: frozenset[str]
    shared: frozenset[str]


@dataclass
class _Flow:
    """What an instruction does. By position: what may run next, and where an error of it leads."""

    offset: int
    units: int
    instruction: dis.Instruction
    nexts: tuple[int, ...] = ()
    handlers: tuple[int, ...] = ()
    reads: frozenset[str] = frozenset()
    binds: frozenset[str] = frozenset()
    unbinds: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()  # of functions around
    before: int = -1  # depth of the stack; -1: nothing leads here


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """By name; those of ``*`` and ``**`` come last."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


@functools.lru_cache(maxsize=64)
def places(code: types.CodeType) -> tuple[Place, ...]:
    """In the order of the code. Empty for what suspends itself, looks at its own frame, or has variables that functions
    within it share."""
    if sys.version_info < (3, 11) or code.co_cellvars or len(code.co_code) > _LONGEST or Code.of(code).opaque:
        return ()
    flow = _flow(code)
    if not _measure(flow, code):
        return ()
    bound, read = _bound(flow, code), _read(flow)
    return tuple(place for at in range(len(flow)) if (place := _place(flow, at, bound, read)) is not None)


def _place(flow: list[_Flow], at: int, bound: list[frozenset[str] | None], read: list[frozenset[str]]) -> Place | None:
    surely = bound[at]
    begins = next(n for n, each in enumerate(flow) if each.instruction.opname == "RESUME") + 1
    if at <= begins or flow[at].before != 0 or surely is None or not read[at] <= surely:
        return None
    first = _reached(flow, [0], at)
    rest = _reached(flow, [at], None)
    again = _reached(flow, [*flow[at].nexts, *flow[at].handlers], None)
    returns = any(flow[i].instruction.opname in _RETURNS for i in first)
    if at in first or at in again or returns or not (_has_room(flow, first, at) and _has_room(flow, rest, begins)):
        return None
    ran = [flow[i] for i in first]
    return Place(
        flow[at].offset,
        _units(ran),
        _units([flow[i] for i in rest]),
        read[at],
        frozenset[str]().union(*(each.binds | each.unbinds for each in ran)),
        frozenset[str]().union(*(each.shared for each in ran)),
    )


def _has_room(flow: list[_Flow], stays: set[int], at: int) -> bool:
    """For a jump there, over none of the instructions that stay."""
    end = flow[at].offset + JUMP_UNITS * UNIT
    over = {i for i in range(at, len(flow)) if flow[i].offset < end}
    return flow[-1].offset + flow[-1].units * UNIT >= end and stays.isdisjoint(over)


def _units(flow: list[_Flow]) -> frozenset[int]:
    return frozenset(each.offset + UNIT * n for each in flow for n in range(each.units))


def _flow(code: types.CodeType) -> list[_Flow]:
    flow: list[_Flow] = []
    at: dict[int, int] = {}
    start = -1  # of an instruction with its further bytes
    for i in dis.get_instructions(code):
        start = i.offset if start < 0 else start
        at[start] = at[i.offset] = len(flow)
        if i.opname != "EXTENDED_ARG":
            flow.append(_Flow(start, (i.offset - start) // UNIT + 1, i))
            start = -1
    ends = [*(each.offset for each in flow[1:]), len(code.co_code)]
    entries = getattr(dis.Bytecode(code), "exception_entries", ())
    for n, (each, end) in enumerate(zip(flow, ends)):
        each.units = (end - each.offset) // UNIT  # with its caches
        i = each.instruction
        jump = (at[i.argval],) if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs else ()
        follows = () if i.opname in (*_ENDS, *AWAY) or n + 1 == len(flow) else (n + 1,)
        each.nexts = (*follows, *jump)
        each.handlers = tuple(at[e.target] for e in entries if e.start <= i.offset < e.end)
        if i.opcode in dis.hasfree:
            each.shared = frozenset([i.argval])
        elif i.opcode in dis.haslocal:
            names = tuple(i.argval) if isinstance(i.argval, tuple) else (i.argval,)
            # Cells of a function within, from Python 3.13 on
            each.shared = frozenset(names).intersection(code.co_freevars)
            if not each.shared:
                each.reads, each.binds, each.unbinds = _variables(i, names)
    return flow


def _variables(i: dis.Instruction, names: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Local ones that it reads, binds and unbinds. ``names``: those that it names."""
    does = i.opname.replace("LOAD_FAST_BORROW", "LOAD_FAST")
    if does == "STORE_FAST_LOAD_FAST":
        return frozenset(names[1:]) - {names[0]}, frozenset(names[:1]), frozenset()
    if does.startswith("STORE_FAST"):
        return frozenset(), frozenset(names), frozenset()
    if does == "DELETE_FAST":
        return frozenset(names), frozenset(), frozenset(names)
    return frozenset(names), frozenset(), frozenset()


def _measure(flow: list[_Flow], code: types.CodeType) -> bool:
    """Sets the depths of the stack. False where two ways to an instruction give others, so that none is known."""
    entries = list(getattr(dis.Bytecode(code), "exception_entries", ()))
    ways = [(0, 0)]
    while ways:
        at, depth = ways.pop()
        each = flow[at]
        if each.before >= 0:
            if each.before != depth:
                return False
            continue
        each.before = depth
        i = each.instruction
        argument = i.arg if i.opcode >= dis.HAVE_ARGUMENT else None
        follows = () if i.opname in (*_ENDS, *AWAY) else (at + 1,)
        for to in each.nexts:
            ways.append((to, depth + dis.stack_effect(i.opcode, argument, jump=to not in follows)))
        for entry in entries:
            if entry.start <= i.offset < entry.end:
                ways.append((_at(flow, entry.target), entry.depth + entry.lasti + 1))
    _leave_out_hidden(flow)
    return True


def _at(flow: list[_Flow], offset: int) -> int:
    return next(n for n, each in enumerate(flow) if each.offset <= offset < each.offset + each.units * UNIT)


def _leave_out_hidden(flow: list[_Flow]) -> None:
    """A comprehension that is part of the function hides a variable of its name, and brings it back: what it does with its
    own is nobody's. From where the old value is put aside up to where it is bound again, at the same depth."""
    for at, each in enumerate(flow):
        if each.instruction.opname != "LOAD_FAST_AND_CLEAR" or each.before < 0:
            continue
        name = each.instruction.argval
        for inner in flow[at:]:
            restores = name in inner.binds and inner.before == each.before + 1
            inner.reads, inner.binds = inner.reads - {name}, inner.binds - {name}
            if restores:
                break


def _bound(flow: list[_Flow], code: types.CodeType) -> list[frozenset[str] | None]:
    """Variables that are bound before each instruction, whichever way leads there; None where none does."""
    bound: list[frozenset[str] | None] = [None] * len(flow)
    ways = [(0, frozenset(parameters(code)))]
    while ways:
        at, names = ways.pop()
        known = bound[at]
        now = names if known is None else known & names
        if now == known:
            continue
        bound[at] = now
        each = flow[at]
        after = (now | each.binds) - each.unbinds
        ways += [(to, after) for to in each.nexts]
        ways += [(to, now & after) for to in each.handlers]
    return bound


def _read(flow: list[_Flow]) -> list[frozenset[str]]:
    """Variables whose value before each instruction may still be read."""
    read: list[frozenset[str]] = [frozenset()] * len(flow)
    changed = True
    while changed:
        changed = False
        for at in range(len(flow) - 1, -1, -1):
            each = flow[at]
            after = frozenset[str]().union(*(read[to] for to in each.nexts))
            now = each.reads | (after - each.binds) | frozenset().union(*(read[to] for to in each.handlers))
            changed = changed or now != read[at]
            read[at] = now
    return read


def _reached(flow: list[_Flow], starts: list[int], stop: int | None) -> set[int]:
    """By the ways that do not pass ``stop``."""
    return set(_ways(flow, starts, stop))


def _ways(flow: list[_Flow], starts: list[int], stop: int | None) -> Iterator[int]:
    seen: set[int] = set()
    stack = [at for at in starts if at != stop]
    while stack:
        at = stack.pop()
        if at not in seen:
            seen.add(at)
            yield at
            stack += [to for to in (*flow[at].nexts, *flow[at].handlers) if to != stop]


__all__ = ["JUMP_UNITS", "UNIT", "Place", "parameters", "places"]
