"""Numbers that a step reads of tensors without memory, while it is captured: they are guessed.

    if not torch.isfinite(loss): raise ...     isfinite: no ──► raises ──► tried again with the latest line that said no: yes
    seen.append(loss.item())                   0.0

Each line of the user's says the same whenever it reads: no, or 0, and where the step raises by that, yes, or 1. The program that is
captured is the step's as it goes with such numbers: what else it runs is placed by DTensor's rules, and right all the same. At most 16
runs of the step."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stowage._torch.fakes import DATA_DEPENDENT
from stowage._torch.private import unseen
from stowage.sharding.program import Pen
from stowage.step.fit.made_step import innermost_line

_MOST_GUESSES = 16


class Guesses:
    def __init__(self) -> None:
        self.read: list[str] = []  # the user's lines, of one run of the step
        self._yes: dict[str, bool] = {}  # by line, those that were tried either way
        self._tries = 0

    def number(self, dtype: torch.dtype | None) -> Any:
        """In the place of what is read; None: of a comparison."""
        self.read.append(innermost_line(traceback.extract_stack()))
        yes = self._yes.get(self.read[-1], False)
        if dtype is None or dtype == torch.bool:
            return yes
        return complex(yes) if dtype.is_complex else float(yes) if dtype.is_floating_point else int(yes)

    def content(self, pen: Pen, func: Any, args: tuple, kwargs: dict) -> Any:
        """What a function finds that asks for all of a tensor."""
        pen.look(args[0])
        number = self.number(args[0].dtype)
        with unseen():
            return func(torch.full(args[0].shape, number, dtype=args[0].dtype), *args[1:], **kwargs)

    def others(self) -> bool:
        """After the step has raised: the latest line that was not tried both ways is to say yes, and those behind it no again.
        False where none is left."""
        self._tries += 1
        lines = list(dict.fromkeys(self.read))
        while lines and self._yes.get(lines[-1], False):
            del self._yes[lines.pop()]
        if not lines or self._tries == _MOST_GUESSES:
            return False
        self._yes[lines[-1]] = True
        self.read = []
        return True


def content_of(guesses: Guesses | None, pen: Pen) -> Callable[[Any, tuple, dict], Any]:
    """What functions are to find that ask for all of a tensor (PastTheDispatcher); None: nothing, they raise."""
    if guesses is not None:
        return functools.partial(guesses.content, pen)

    def read_nothing(func: Any, args: tuple, kwargs: dict) -> Any:
        raise DATA_DEPENDENT[0](func)

    return read_nothing


def numbers_of(guesses: Guesses | None, pen: Pen) -> contextlib.AbstractContextManager:
    """While open, operators that read a number find a guess."""
    return contextlib.nullcontext() if guesses is None else _Guessing(guesses, pen)


_READS = ("aten._local_scalar_dense.default", "aten.equal.default")


class _Guessing(TorchDispatchMode):
    """But within optimizers: those see parts where the step runs."""

    def __init__(self, guesses: Guesses, pen: Pen):
        super().__init__()
        self._guesses, self._pen = guesses, pen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        try:
            return func(*args, **(kwargs or {}))
        except DATA_DEPENDENT:
            if self._pen.in_optimizer is not None or str(func) not in _READS:
                raise
            self._pen.look(args[0])
            return self._guesses.number(args[0].dtype if str(func) == _READS[0] else None)
