"""Steps that tell parameters apart by who they are. Once a parameter is cut, the model holds another object than the program does:

    decayed = {p for p in model.parameters() if p.dim() > 1}      the objects before the cut
    if q in decayed                                               q, of the model, is none of them: refused

The step is looked at while it is captured: of the parameters that the model shows it then, each hash() is noted, whoever asks for
it: a set, a dict of any kind, a weak reference, a tuple, functools.lru_cache. Refused as well: id(), hash() and weak dictionaries
by id(); and where the program holds parameters by itself, ``p is q`` and ``optimizer.state[p]``."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import operator
import os
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from stowage._torch.fakes import hashes_told
from stowage.errors import Unsupported
from stowage.step.guards.reads import is_library, is_own
from stowage.step.reach.world import World

_WHY = "which are other objects once they are cut: tell them apart by their names"
_STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_COMPARE = (operator.is_, operator.is_not)
_IS_FUNCTIONS = {function.__name__ for function in _COMPARE}


class Identities:
    """``held``: parameters as the program may hold them; ``shown``: those that the model shows while the step is captured."""

    def __init__(self, world: World, held: Iterable[Any], shown: Iterable[Any]):
        self._ours = {id(p) for p in held}
        self._shown = {id(p) for p in shown}
        states = {id(optimizer.state) for optimizer in world.optimizers}
        reached = world.reached()
        self._holds = any(id(t) in self._ours for _, t in world.tensors)
        containers = [o for o in _containers(reached) if id(o) not in states]
        self._keyed = any(self._is_key(key) for o in containers for key in tuple(o))
        self._by_id = any(
            self._is_key(p) for o in reached if isinstance(o, WeakIdKeyDictionary) for p in list(o.keys())
        )
        self._compares = any(isinstance(o, functools.partial) and o.func in _COMPARE for o in reached)
        self._codes: dict[types.CodeType, dict[str, Any]] = {}  # that ran, and their globals
        self._asked = ""  # where id() or hash() was called
        self._looked = ""  # where a parameter that the model shows was hashed

    def _is_key(self, key: Any) -> bool:
        """One of them, a tuple or an object that holds one, or a weak reference to one."""
        if isinstance(key, (str, int, float, type, types.FunctionType, types.ModuleType)):
            return False
        if isinstance(key, tuple):
            return any(self._is_key(part) for part in key)
        held = [key() if isinstance(key, weakref.ref) else key]
        if not isinstance(key, torch.Tensor):
            parts = gc.get_referents(key)
            held += [*parts, *(value for part in parts if isinstance(part, dict) for value in part.values())]
        return any(id(part) in self._ours for part in held)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The step runs in here, once. Raises Unsupported where it would go another way on parts; that comes before what it raises
        itself, which may be for that."""
        profiled = sys.getprofile() is not None  # by somebody else, who goes first; id() and ``is`` are not seen then
        try:
            try:
                if not profiled:
                    sys.setprofile(self._note)
                with hashes_told(self._hashed):
                    yield
            finally:
                if not profiled:
                    sys.setprofile(None)
        except Exception:
            self._refuse()
            raise
        self._refuse()

    def _note(self, frame: types.FrameType, event: str, what: Any) -> None:
        if event == "call":
            self._codes.setdefault(frame.f_code, frame.f_globals)
        elif event == "c_call" and what is id and _is_user_s(frame.f_code):
            self._asked = f"{_line(frame)}: the step asks for the id() of objects, perhaps"

    def _hashed(self, tensor: torch.Tensor, frame: types.FrameType | None) -> None:
        if id(tensor) not in self._shown:
            return
        while frame is not None and (frame.f_code.co_filename.startswith(_STANDARD) or _is_made(frame.f_code)):
            frame = frame.f_back
        if frame is None or not _is_user_s(frame.f_code):
            return
        self._looked = _line(frame)
        if _names_builtin(frame.f_code, frame.f_globals, "hash"):
            self._asked = f"{_line(frame)}: the step asks for the hash()"

    def _refuse(self) -> None:
        if self._asked:
            raise Unsupported(f"{self._asked} of parameters, {_WHY}")
        if self._by_id:
            raise Unsupported(f"the step has a dictionary by the id() of parameters, {_WHY}")
        if self._keyed and self._looked:
            raise Unsupported(f"{self._looked}: the step looks for a parameter in a set or dict of parameters, {_WHY}")
        if self._holds and self._compares:
            raise Unsupported(f"the step compares objects (a partial of operator.is_), perhaps parameters, {_WHY}")
        for code, names in self._codes.items():
            if not _is_user_s(code):
                continue
            where = f"{code.co_filename}:{code.co_firstlineno}"
            if _hands_on(code, names, "id"):
                raise Unsupported(f"{where}: the step hands on id, perhaps to ask for that of parameters, {_WHY}")
            if self._holds and "state" in code.co_names:
                raise Unsupported(f"{where}: the step looks into a state, perhaps an optimizer's by parameters, {_WHY}")
            if self._holds and _compares_identity(code):
                raise Unsupported(f"{where}: the step compares objects (is), perhaps parameters, {_WHY}")


def _containers(reached: list[Any]) -> Iterator[Any]:
    """Also those behind bound methods (``d.get``), and caches of functions."""
    for o in reached:
        if isinstance(o, types.BuiltinMethodType):
            o = o.__self__
        if isinstance(o, (set, frozenset, dict)):
            yield o
        elif isinstance(o, (weakref.WeakSet, weakref.WeakKeyDictionary)):
            yield list(o)
        elif isinstance(o, functools._lru_cache_wrapper):
            yield from (inner for inner in gc.get_referents(o) if isinstance(inner, dict))


def _line(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_user_s(code: types.CodeType) -> bool:
    """Also what is typed in (<stdin>, <ipython-input>) and run by exec()."""
    return not is_library(code) and not is_own(code) and not _is_made(code)


def _is_made(code: types.CodeType) -> bool:
    """By libraries: __hash__() and the like of dataclasses, what torch.fx compiles."""
    return code.co_filename.startswith("<eval_with_key") or (
        code.co_filename == "<string>" and code.co_name.startswith("__")
    )


def _names_builtin(code: types.CodeType, names: dict[str, Any], name: str) -> bool:
    return name in code.co_names and name not in names


def _hands_on(code: types.CodeType, names: dict[str, Any], name: str) -> bool:
    """A builtin function, for others to call (``map(id, ps)``)."""
    if not _names_builtin(code, names, name):
        return False
    loads = (i for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL" and i.argval == name)
    return any(sys.version_info < (3, 11) or not (i.arg or 0) & 1 for i in loads)  # 1: what follows is its call


def _compares_identity(code: types.CodeType) -> bool:
    """Other than with a constant (``x is None``)."""
    if not _IS_FUNCTIONS.isdisjoint(code.co_names):
        return True
    before = None
    for i in dis.get_instructions(code):
        if i.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if i.opname == "IS_OP" and (before is None or before.opname != "LOAD_CONST"):
            return True
        before = i
    return False
