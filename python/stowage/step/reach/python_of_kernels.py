"""The Python that runs while kernels alone do (custom operators, functions of autograd, hooks), in a run that is not to count:
put back after it.

    kernels = PythonOfKernels()
    with kernels.notes:            while kernels alone run, most of them without Python
        ... the run ...
    kernels.put_back()

Nothing is kept before a kernel's Python runs, and of what runs only what it reaches (python_state.py): other threads may use the
rest meanwhile."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from stowage._core import Notes
from stowage._torch import collector
from stowage._torch.private import generated_code
from stowage.step.guards.found import Found
from stowage.step.guards.reads import is_own, is_standard
from stowage.step.guards.walk import Walk
from stowage.step.reach.python_state import PythonState


class PythonOfKernels:
    def __init__(self) -> None:
        self.notes = Notes(
            self._begins,
            lambda code, given: None,
            lambda function: False,
            lambda function, caller: False,
            lambda function: None,
        )
        self._generated = tuple(generated_code())
        self._walk: Walk | None = None
        self._state: PythonState | None = None
        self._kept = 0

    def put_back(self) -> None:
        state, self._walk, self._state = self._state, None, None
        if state is not None:
            state.put_back()

    def _begins(self, code: types.CodeType, function: Any, globals_: dict) -> None:
        """A function is about to run, for the first time: what it reaches is still as before."""
        if is_own(code) or code.co_filename.startswith(self._generated):
            return
        if self._walk is None or self._state is None:
            self._walk, self._state = Walk(None, "", Found()), PythonState()
        if _is_standard(globals_):  # the kernel itself comes later
            return
        frame = sys._getframe(1)
        self._walk.note(code, None, globals_)
        # What a kernel makes meanwhile must not outlive it: tensors of the plan
        if not self._walk.made_within(code):
            self._walk.reach(_functions_of(code, function))
        if _is_kernel(frame):
            self._walk.reach(v for v in frame.f_locals.values() if not isinstance(v, (torch.Tensor, list, tuple)))
        reached = self._walk.reached()
        self._state.keep(reached[self._kept :])
        self._kept = len(reached)


class ToldKernels:
    """Of the kernels that run for a number while a step's Python runs: until back(), or for good."""

    def __init__(self) -> None:
        self._kernels: PythonOfKernels | None = None

    def noted(self, run: Callable[[], None]) -> None:
        if self._kernels is None:
            self._kernels = PythonOfKernels()
        with self._kernels.notes:
            run()

    def back(self) -> None:
        kernels, self._kernels = self._kernels, None
        if kernels is not None:
            kernels.put_back()


def _functions_of(code: types.CodeType, function: Any) -> list[types.FunctionType]:
    """All that have this code; ``function`` runs it now, where that is known. A function within another is made anew with
    each call of that one. Of others there is one, and the collector, which looks through all objects, is not asked."""
    if function is not None and "<locals>" not in code.co_qualname:
        return [function]
    return [f for f in collector.get_referrers(code) if isinstance(f, types.FunctionType)]


def _is_standard(namespace: dict) -> bool:
    return is_standard(str(namespace.get("__name__", "")))


def _is_kernel(frame: types.FrameType) -> bool:
    """Called by PyTorch, not by what the kernel calls: what it is given was there before, or comes from operators."""
    caller = frame.f_back
    while caller is not None and not is_own(caller.f_code) and _is_standard(caller.f_globals):
        caller = caller.f_back
    return caller is None or is_own(caller.f_code)


__all__ = ["PythonOfKernels", "ToldKernels"]
