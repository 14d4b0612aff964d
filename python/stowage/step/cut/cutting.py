"""Whether a step's function is cut in two, and where: so that only the rest of its Python runs in every call.

    recorded whole ──► its Python must run: is the reason behind the last of its work? ──► cut there
                                                                                             │ recorded: no Python needed
         ▲                                                                                   ▼
         └────────── cut at no other place, either: whole again ◄── its Python must run   stays so

Behind the cut there may be a few small kernels, which then run as in eager: an accuracy for a log. What writes to anything that
lasts, draws, or steps an optimizer or a scheduler is never there, so that a step is still one transaction."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

import torch

from stowage._torch.private import flatten
from stowage.step.cut.halves import Halves
from stowage.step.cut.where import Place, places
from stowage.step.record.recording import Recording
from stowage.step.replay.replay import keeps_state_in_tensors, why_python_must_run

_SMALL_BYTES = 1 << 14  # that kernels behind the cut touch, or what it hands over takes, however small the step is
_SMALL_SHARE = 0.01  # of the whole step's
_FEW, _FEW_SHARE, _MOST_SHARE = 16, 0.1, 0.25  # of its kernels
_WORKS = {"backward", "step", "zero_grad"}  # methods that no rest calls, whichever way it goes


class Cutting:
    """Of a step. ``limited``: its bytes are, so that no kernel may be outside of the plan. ``never``: it stays whole."""

    def __init__(self, step: Callable, limited: bool, never: bool):
        self._step = step
        self._limited = limited
        self.halves: Halves | None = None  # of the calls to come
        # Where else to cut, and the kernels before it; None: nobody has looked
        self._left: list[tuple[Place, int]] | None = None
        # While the cut is on trial; with its key, and its signature's entry
        self._whole: tuple[Recording, Any, Any] | None = None
        self._settled = never
        self._kernels = 0  # before the cut
        self._small_bytes = 0

    @property
    def function(self) -> Callable:
        """That is recorded, planned and run."""
        return self._step if self.halves is None else self.halves.first

    def of_call(self, forget: Callable[[], None]) -> Halves | None:
        """Of one that has just begun. ``forget``: all recordings."""
        if self.halves is not None and not self.halves.still:  # its function has been given other code: that runs
            self.halves, self._left, self._whole, self._settled = None, [], None, True
            forget()
        return self.halves

    def serves(self, recording: Recording, key: Any, entry: Any) -> tuple[Recording, Any] | None:
        """After a recording of ``function``: the one that calls to come are planned by, and its key. None where they will be cut
        elsewhere, so that none is: ``recording`` is kept meanwhile, for the case that this is of no use."""
        if self._settled:
            return recording, key
        if self._left is None:
            if recording.tape is None or not _may_help(recording):
                return recording, key
            self._small_bytes = max(_SMALL_BYTES, int(_SMALL_SHARE * recording.tape.work_from(0).made_bytes))
            self._small_bytes += _handed_over(recording)
            self._left = _places(recording, 0 if self._limited else self._small_bytes)
            self._whole = (recording, key, entry)
        elif recording.tape is not None and not _why_python_must_run(recording) and self._is_worth_it(recording):
            self._settled, self._whole = True, None
            return recording, key
        if self._left:
            place, self._kernels = self._left.pop(0)
            self.halves = Halves(self._step, place)
            recording.result = None
            return None
        whole, self.halves, self._whole, self._settled = self._whole, None, None, True
        return whole[:2] if whole is not None and whole[2] is entry else None

    def _is_worth_it(self, recording: Recording) -> bool:
        """Its plan does the work, and what it gives the rest is small."""
        return recording.tape.work_from(0).kernels >= self._kernels and _handed_over(recording) <= self._small_bytes


def _may_help(recording: Recording) -> bool:
    """Must Python run only because of what the rest of a step can do?"""
    counts = not all(map(keeps_state_in_tensors, recording.world.optimizers))
    works = recording.gradients.set_by_python or recording.makes_generators or recording.tape.takes_sparse
    otherwise = counts or works or recording.remembers or recording.finds or recording.calls.drew
    return not otherwise and bool(_why_python_must_run(recording))


def _why_python_must_run(recording: Recording) -> str:
    """But for checks of others' functions, whose numbers are most often the same in all calls (ExpectedNumbers)."""
    return why_python_must_run(recording, reads=recording.asks_itself)


def _places(recording: Recording, small_bytes: int) -> list[tuple[Place, int]]:
    """The first behind which there is little work, and the first behind which there is none. With the kernels before it."""
    calls, tape = recording.calls, recording.tape
    if calls.code is None or not calls.ops:
        return []
    kernels, found = tape.work_from(0).kernels, []
    for place in places(calls.code):
        behind = place.rest - place.first
        begins = next((op for at, op in calls.ops if at in behind), tape.ops)
        before = any(at in place.first for at, _ in calls.ops)
        work = tape.work_from(begins)
        if before and not work.lasts and calls.steps.isdisjoint(behind) and not _calls_work(calls.code, behind):
            found.append((place, work))
    few = max(kernels * _FEW_SHARE, min(_FEW, kernels * _MOST_SHARE))
    little = [(p, w) for p, w in found if w.bytes <= small_bytes and w.kernels <= few][:1]
    none = [(p, w) for p, w in found if w.kernels == 0][:1]
    return [(p, kernels - w.kernels) for p, w in (*little, *(each for each in none if each not in little))]


def _calls_work(code: types.CodeType, offsets: frozenset[int]) -> bool:
    calls = (i for i in dis.get_instructions(code) if i.offset in offsets and i.argval in _WORKS)
    return any(
        i.opname in ("LOAD_METHOD", "LOAD_SUPER_ATTR") or (i.opname == "LOAD_ATTR" and (i.arg or 0) & 1) for i in calls
    )


def _handed_over(recording: Recording) -> int:
    """Bytes of the tensors that it makes and returns."""
    leaves, _ = flatten(recording.result)
    made = {
        id(leaf): leaf.numel() * leaf.element_size()
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and i not in recording.output_arguments and recording.output_leaves[i] is None
    }
    return sum(made.values())


__all__ = ["Cutting"]
