"""Steps that tell parameters apart by who they are. Once a parameter is cut, the model holds another object than the program does:

    decayed = {id(p) for p in model.parameters() if p.dim() > 1}        the objects before the cut
    if id(p) in decayed                                                 never again: refused

Refused as well, where the program holds parameters by itself: ``p is q``, ``optimizer.state[p]``, sets of them, and dicts by them
that are asked whether they have one. Looked at while the step is captured, in the code of the user's that runs."""

from __future__ import annotations

import contextlib
import dis
import sys
import types
from collections.abc import Iterable
from typing import Any

from stowage.errors import Unsupported
from stowage.step.guards.reads import is_library, is_own
from stowage.step.reach.world import World

_ASKS = {"get", "pop", "setdefault"}
_WHY = "which are other objects once they are cut: tell them apart by their names"


class Identities:
    def __init__(self, world: World, parameters: Iterable[Any]):
        ours = {id(p) for p in parameters}
        states = {id(optimizer.state) for optimizer in world.optimizers}
        self._holds = any(id(t) in ours for _, t in world.tensors)
        containers = [o for o in world.reached() if isinstance(o, (set, frozenset, dict)) and id(o) not in states]
        keyed = [o for o in containers if any(id(key) in ours for key in tuple(o))]
        self._sets = any(not isinstance(o, dict) for o in keyed)
        self._dicts = any(isinstance(o, dict) for o in keyed)
        self._codes: set[types.CodeType] = set()
        self._asked = ""  # where id() was called

    @contextlib.contextmanager
    def watching(self):
        """The step runs in here, once. Raises Unsupported where it would go another way on parts; that comes before what it raises
        itself, which may be for that."""
        before = sys.getprofile()  # somebody else's goes first
        try:
            try:
                sys.setprofile(before or self._note)
                yield
            finally:
                sys.setprofile(before)
        except Exception:
            self._refuse()
            raise
        self._refuse()

    def _note(self, frame: types.FrameType, event: str, what: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)
        elif event == "c_call" and what is id and _is_user_s(frame.f_code):
            self._asked = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def _refuse(self) -> None:
        if self._asked:
            raise Unsupported(f"{self._asked}: the step asks for the id() of objects, perhaps of parameters, {_WHY}")
        if self._sets:
            raise Unsupported(f"the step has a set of parameters, {_WHY}")
        for code in filter(_is_user_s, self._codes):
            where = f"{code.co_filename}:{code.co_firstlineno}"
            if self._dicts and (_ASKS & set(code.co_names) or _has(code, "CONTAINS_OP")):
                raise Unsupported(
                    f"{where}: the step has a dict by parameters, and may ask whether they are in it, {_WHY}"
                )
            if self._holds and "state" in code.co_names:
                raise Unsupported(f"{where}: the step looks into a state, perhaps an optimizer's by parameters, {_WHY}")
            if self._holds and _compares_identity(code):
                raise Unsupported(f"{where}: the step compares objects (is), perhaps parameters, {_WHY}")


def _is_user_s(code: types.CodeType) -> bool:
    return not is_library(code) and not is_own(code) and not code.co_filename.startswith("<")


def _has(code: types.CodeType, name: str) -> bool:
    return any(i.opname == name for i in dis.get_instructions(code))


def _compares_identity(code: types.CodeType) -> bool:
    """Other than with a constant (``x is None``)."""
    before = None
    for i in dis.get_instructions(code):
        if i.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if i.opname == "IS_OP" and (before is None or before.opname != "LOAD_CONST"):
            return True
        before = i
    return False
