"""Where a function returns what one of its calls gives, and makes nothing else of it.

    n = f(x)                        the value is on top of the stack
    g(y)                            code that does not touch it
    return {"a": n, "b": y}         it is returned at ("a",)

The bytecode behind the call is followed on all its ways, through handlers of errors, too, with a stack on which only the
value is known, and the new tuples, lists and dicts that hold it. An instruction that takes one of them for anything but to
build, unpack, keep in a local variable or return it ends the search, and so does any that is not known here. (Before Python 3.11 the
handlers are not known: there a function that has any is not followed.) O(ways x instructions), at most _MOST_STATES."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from stowage.step.guards.reads import names_builtin_eval

Path = tuple[Hashable, ...]  # keys and indices that lead to the value, from the outermost container
Places = frozenset[Path]
Ways = frozenset[Places]

_MOST_STATES = 4096
_READS_FRAMES = frozenset(
    {"locals", "vars", "eval", "exec", "_getframe", "currentframe", "breakpoint", "set_trace", "f_locals"}
)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Value(NamedTuple):
    """On the stack, or in a local variable."""

    paths: Places = frozenset()  # by which the value is in it
    constant: tuple[Any, ...] = ()  # the one that it is known to be


_OTHER = _Value()


def _is_key(value: _Value) -> bool:
    """Of a container that may hold the value; a tuple: those of a dict."""
    return bool(value.constant) and isinstance(value.constant[0], (int, str, tuple))


class _Used(Exception):
    """More is made of the value."""


class Code:
    """Of a function, decoded."""

    def __init__(self, code: types.CodeType):
        self.instructions = [i for i in dis.get_instructions(code) if i.opname not in _IDLE]
        self.index = {}
        after = 0
        for i in dis.get_instructions(code):  # a jump to what does nothing goes to what comes then
            self.index[i.offset] = after
            after += i.opname not in _IDLE
        self.first = code.co_varnames[0] if code.co_argcount else ""
        entries = getattr(dis.Bytecode(code), "exception_entries", ())
        handlers = {range(entry.start, entry.end): self.index[entry.target] for entry in entries}
        # Where an error of each instruction leads within the function
        self.handlers = [next((h for r, h in handlers.items() if i.offset in r), None) for i in self.instructions]
        unknown = any(i.opname.startswith("SETUP_") for i in self.instructions)  # those of Python 3.10
        named = set(code.co_names) if names_builtin_eval(self.instructions) else set(code.co_names) - {"eval"}
        frames = not _READS_FRAMES.isdisjoint(named)
        self.opaque = unknown or frames or bool(code.co_flags & _SUSPENDED)

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(code: types.CodeType) -> Code:
        return Code(code)

    def at(self, offset: int) -> int:
        """The instruction that runs, which may be told by a cache behind it."""
        return max((i for i, each in enumerate(self.instructions) if each.offset <= offset), default=0)

    def callee(self, call: int) -> dis.Instruction | None:
        """What loads that which this instruction calls; None where that is not sure."""
        opname, arguments = self.instructions[call].opname, self.instructions[call].arg or 0
        if opname not in _SLOTS:
            return None
        if opname == "CALL_FUNCTION_EX":
            arguments = 1 + (arguments & 1)
        found = itertools.islice(self.loads(call), arguments, None)
        first = next(found, None)
        return next(found, None) if first is not None and first.opname == "PUSH_NULL" else first

    def below(self, call: int) -> tuple[_Value, ...]:
        """What is known of the stack below this call's own part, the highest last: keys of a dict that is being built."""
        own = (self.instructions[call].arg or 0) + _SLOTS.get(self.instructions[call].opname, _MOST_BELOW)
        values = [
            _Value(constant=(i.argval,)) if i is not None and i.opname in ("LOAD_CONST", "LOAD_SMALL_INT") else _OTHER
            for i in itertools.islice(self.loads(call), own, _MOST_BELOW)
        ]
        return tuple(v if _is_key(v) else _OTHER for v in reversed(values))

    def loads(self, at: int) -> Iterator[dis.Instruction | None]:
        """What has put the entries of the stack there, as this instruction finds them, the highest first: the instruction,
        or None for what others have changed since. As far as one way alone leads there."""
        height = place = 0  # below what it is there; which entry is looked for
        touched = False
        while at > 0:
            at -= 1
            each = self.instructions[at]
            if _jumps(each):
                return
            before = height - _effect(each)
            while before < place <= height:
                yield None if touched else each
                touched = False
                place -= 1
            if before == place:
                touched = touched or not each.opname.startswith(_PURE_LOADS)
            elif height == place:
                touched = touched or not each.opname.startswith((*_MADE[0], "POP_TOP"))
            if each.is_jump_target:
                return
            height = before

    def is_of_first(self, attribute: dis.Instruction) -> bool:
        """An attribute of the function's first argument, which stays what it is?"""
        at = self.instructions.index(attribute)
        before = self.instructions[at - 1] if at else None
        stays = all(
            i.argval != self.first
            for i in self.instructions
            if i.opname.startswith(("STORE_", "DELETE_")) and i.opcode in dis.haslocal
        )
        return stays and before is not None and before.opname.startswith("LOAD_FAST") and before.argval == self.first


_PURE_LOADS = ("LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLOSURE", "LOAD_SMALL_INT",
               "PUSH_NULL")  # fmt: skip
# They neither move the stack nor anything else
_IDLE = {"CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "NOP", "RESUME", "NOT_TAKEN", "MAKE_CELL", "COPY_FREE_VARS"}
# What calls, and the entries of the stack that it takes beside the arguments
_SLOTS = {
    "CALL": 2,
    "CALL_METHOD": 2,
    "CALL_FUNCTION": 1,
    "CALL_FUNCTION_EX": 2 if "PUSH_NULL" in dis.opmap else 1,
}
_MOST_BELOW = 64
_ENDS = {"RERAISE", "RAISE_VARARGS"}
AWAY = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"}
# What takes from the stack, by how many it puts there, whatever that is
_MADE = {
    0: ("STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "STORE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "DELETE_ATTR",
        "POP_JUMP_", "POP_EXCEPT", "STORE_SLICE", "POP_BLOCK", "SETUP_FINALLY", "END_FOR", "POP_ITER"),
    1: ("LOAD_", "PUSH_NULL", "BINARY_", "COMPARE_OP", "IS_OP", "CONTAINS_OP", "UNARY_", "TO_BOOL", "FORMAT_", "CALL",
        "GET_ITER", "BUILD_", "MAKE_FUNCTION", "CONVERT_VALUE", "INPLACE_", "SET_FUNCTION_ATTRIBUTE", "IMPORT_NAME"),
}  # fmt: skip


def _jumps(instruction: dis.Instruction) -> bool:
    return instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs


def _effect(instruction: dis.Instruction, jump: bool = False) -> int:
    """On the height of the stack. Python 3.11 counts half of a call's at the instruction before it."""
    if instruction.opname == "CALL":
        return -1 - (instruction.arg or 0)
    argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(instruction.opcode, argument, jump=jump)


def returned(frame: types.FrameType, paths: Places) -> Ways | None:
    """Where the function returns the value, which is at ``paths`` in what its call gives that now runs. None where it does
    more with it."""
    code = Code.of(frame.f_code)
    if code.opaque:
        return None
    return _followed(code, code.at(frame.f_lasti), paths)


@functools.lru_cache(maxsize=1024)
def _followed(code: Code, call: int, paths: Places) -> Ways | None:
    returned: set[Places] = set()
    ways: list[tuple[int, tuple[_Value, ...], frozenset]] = [
        (call + 1, (*code.below(call), _Value(paths)), frozenset())
    ]
    seen: set[Any] = set()
    while ways:
        way = ways.pop()
        if way in seen:
            continue
        seen.add(way)
        if len(seen) > _MOST_STATES or way[0] >= len(code.instructions):
            return None
        try:
            ways += _Step(code, *way).next(returned)
        except _Used:
            return None
        if (handler := code.handlers[way[0]]) is not None:  # what was put on the stack since its block began is gone
            ways.append((handler, (), way[2]))
    return frozenset(returned)


class _Step:
    """One instruction, carried out. Below what is known of the stack nothing holds the value."""

    def __init__(self, code: Code, at: int, stack: tuple[_Value, ...], variables: frozenset):
        self.code, self.at = code, at
        self.instruction = code.instructions[at]
        self.stack = list(stack)
        self.variables: dict[str, _Value] = dict(variables)

    def next(self, returned: set[Places]) -> Iterator[tuple]:
        """The instructions that may come then, with stack and variables. ``returned``: takes where the function returns it."""
        i = self.instruction
        name = i.opname
        if name == "RETURN_VALUE" or name == "RETURN_CONST":
            returned.add(self.pop().paths if name == "RETURN_VALUE" else frozenset())
            return
        if name in _ENDS:
            self.take(1 if i.arg is None else i.arg)
            return
        known = getattr(self, f"_{name.lower()}", None)
        if known is not None:
            known(i)
        elif i.opcode in dis.haslocal:
            raise _Used
        elif not _jumps(i):
            self.take_and_make(_effect(i))
        else:
            if name not in AWAY:
                yield self.after_jump(self.at + 1, _effect(i))
            yield self.after_jump(self.code.index[i.argval], _effect(i, jump=True))
            return
        yield self.at + 1, *self.state()

    def state(self) -> tuple:
        if not any(value.paths or value.constant for value in self.stack):
            self.stack.clear()
        return tuple(self.stack), frozenset(self.variables.items())

    def after_jump(self, at: int, effect: int) -> tuple:
        way = _Step(self.code, self.at, tuple(self.stack), frozenset(self.variables.items()))
        way.take_and_make(effect)
        return at, *way.state()

    def take_and_make(self, effect: int) -> None:
        """Of an instruction that must not touch the value."""
        name = self.instruction.opname
        made = next((n for n, names in _MADE.items() if name.startswith(names)), None)
        if made is None:
            if any(value.paths for value in self.stack):
                raise _Used
            self.stack.clear()
            return
        made = max(made, effect)
        self.take(made - effect)
        self.stack += [_OTHER] * made if self.stack else []

    def take(self, count: int) -> None:
        for _ in range(count):
            if self.pop().paths:
                raise _Used

    def pop(self) -> _Value:
        return self.stack.pop() if self.stack else _OTHER

    def top(self, count: int) -> list[_Value]:
        """Takes so many; the highest last."""
        return [self.pop() for _ in range(count)][::-1]

    # ---- What may touch it

    def _load_const(self, i: dis.Instruction) -> None:
        value = _Value(constant=(i.argval,))
        self.stack.append(value if _is_key(value) else _OTHER)

    _load_small_int = _load_const

    def _load_fast(self, i: dis.Instruction) -> None:
        self.stack.append(self.variables.get(i.argval, _OTHER))

    _load_fast_check = _load_fast_borrow = _load_fast

    def _store_fast(self, i: dis.Instruction) -> None:
        value = self.pop()
        self.variables.pop(i.argval, None)
        if value.paths:
            self.variables[i.argval] = value

    def _load_fast_and_clear(self, i: dis.Instruction) -> None:
        self.stack.append(self.variables.pop(i.argval, _OTHER))

    def _delete_fast(self, i: dis.Instruction) -> None:
        self.variables.pop(i.argval, None)

    def _load_fast_load_fast(self, i: dis.Instruction) -> None:
        self.stack += [self.variables.get(name, _OTHER) for name in i.argval]

    _load_fast_borrow_load_fast_borrow = _load_fast_load_fast

    def _store_fast_store_fast(self, i: dis.Instruction) -> None:
        for name in i.argval:
            self._store_fast(i._replace(argval=name))

    def _store_fast_load_fast(self, i: dis.Instruction) -> None:
        self._store_fast(i._replace(argval=i.argval[0]))
        self._load_fast(i._replace(argval=i.argval[1]))

    def _pop_top(self, i: dis.Instruction) -> None:
        self.pop()

    def _copy(self, i: dis.Instruction) -> None:
        taken = self.top(i.arg or 1)
        self.stack += [*taken, taken[0]]

    def _dup_top(self, i: dis.Instruction) -> None:
        self.stack += [self.pop()] * 2

    def _swap(self, i: dis.Instruction) -> None:
        taken = self.top(i.arg or 2)
        taken[0], taken[-1] = taken[-1], taken[0]
        self.stack += taken

    def _rot(self, count: int) -> None:
        taken = self.top(count)
        self.stack += [taken[-1], *taken[:-1]]

    def _rot_two(self, i: dis.Instruction) -> None:
        self._rot(2)

    def _rot_three(self, i: dis.Instruction) -> None:
        self._rot(3)

    def _rot_four(self, i: dis.Instruction) -> None:
        self._rot(4)

    def _rot_n(self, i: dis.Instruction) -> None:
        self._rot(i.arg or 1)

    def _build_tuple(self, i: dis.Instruction) -> None:
        self._hold(((n,), value) for n, value in enumerate(self.top(i.arg or 0)))

    _build_list = _build_tuple

    def _build_map(self, i: dis.Instruction) -> None:
        taken = self.top(2 * (i.arg or 0))
        if any(key.paths for key in taken[::2]):
            raise _Used
        self._hold((key.constant, value) for key, value in zip(taken[::2], taken[1::2]))

    def _build_const_key_map(self, i: dis.Instruction) -> None:
        keys = self.pop().constant
        values = self.top(i.arg or 0)
        if not keys:
            raise _Used
        self._hold(((key,), value) for key, value in zip(keys[0], values))

    def _hold(self, parts: Iterable[tuple[tuple[Any, ...], _Value]]) -> None:
        """A new container of these, by their keys where those are known."""
        paths: set[Path] = set()
        for key, value in parts:
            if value.paths and not key:
                raise _Used
            paths |= {(*key, *path) for path in value.paths}
        self.stack.append(_Value(frozenset(paths)))

    def _unpack_sequence(self, i: dis.Instruction) -> None:
        paths = self.pop().paths
        if () in paths:
            raise _Used
        parts = [_Value(frozenset(p[1:] for p in paths if p[0] == n)) for n in range(i.arg or 0)]
        self.stack += reversed(parts)

    def _binary_subscr(self, i: dis.Instruction) -> None:
        of, key = self.top(2)
        from_end = key.constant and isinstance(key.constant[0], int) and key.constant[0] < 0
        if key.paths or () in of.paths or (of.paths and (from_end or not key.constant)):
            raise _Used
        self.stack.append(_Value(frozenset(p[1:] for p in of.paths if p[0] == key.constant[0])))


__all__ = ["AWAY", "Code", "Path", "Places", "Ways", "returned"]
