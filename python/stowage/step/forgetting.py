"""Recordings of what the program has replaced: they hold its memory, and are forgotten.

    died         a parameter, state or buffer is nobody's any more      a state is loaded, a parameter assigned
    replaced     the step reaches others in their places                an optimizer made anew, another model by the name
    moved        its memory is another                                  p.data = ...

The latest of those that are replaced or moved stay, as they may come back (weights exchanged with their averages). Within a
budget none does, until something has come back: two models take turns.

O(tensors) for each recording."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch

from stowage._torch.private import address
from stowage.step.entry import Entry
from stowage.step.guards.found import Found
from stowage.step.replay.replay import Replay

_MOST_ELSEWHERE = 2
_MOST_THAT_COME_BACK = 3
_MOST_REMEMBERED = 4  # of those forgotten; nothing of theirs is held


class Forgetting:
    """Of one compiled step."""

    def __init__(self, within_budget: bool):
        self._most_elsewhere = 0 if within_budget else _MOST_ELSEWHERE
        # What such a recording used, and the step did not reach then
        self._forgotten: list[list[weakref.ref[torch.Tensor]]] = []

    def forget(
        self, entries: Iterable[Entry], reached: Found | None = None, objects: Sequence[int] = ()
    ) -> list[Replay]:
        """Returns those that are forgotten. ``reached``: what the step finds now, where that is known, in calls with the same
        ``objects`` among their arguments."""
        gone: list[Replay] = []
        now = _addresses(reached) if reached is not None else set()
        for entry in entries:
            find = now if reached is not None and tuple(objects) == entry.objects else None
            died = [replay for replay in entry.replays if replay.executor.residents_died()]
            elsewhere = [r for r in entry.replays if r not in died and _lies_elsewhere(r, find)]
            elsewhere.sort(key=lambda replay: replay.served_at)
            gone += died + elsewhere[: max(len(elsewhere) - self._most_elsewhere, 0)]
            entry.replays = [replay for replay in entry.replays if replay not in gone]
        if reached is not None:
            self._forgotten = [*self._forgotten, *(_used(replay, now) for replay in gone)][-_MOST_REMEMBERED:]
        return gone

    def let_go(self) -> None:
        """Of weak references, too."""
        self._forgotten.clear()

    def recorded(self, replay: Replay) -> None:
        """Has something come back that was forgotten?"""
        lasting = _lasting(replay)
        there = (ref() for used in self._forgotten for ref in used)
        if any(address(tensor) in lasting for tensor in there if tensor is not None):
            self._most_elsewhere = _MOST_THAT_COME_BACK


def _lies_elsewhere(replay: Replay, now: set[int] | None) -> bool:
    replaced = now is not None and any(not now.intersection(tensors) for tensors in replay.executor.lasting())
    return replaced or not replay.executor.residents_unchanged()


def _lasting(replay: Replay) -> set[int]:
    return {tensor for tensors in replay.executor.lasting() for tensor in tensors}


def _used(replay: Replay, now: set[int]) -> list[weakref.ref[torch.Tensor]]:
    lasting = _lasting(replay) - now
    return [weakref.ref(t) for t in replay.recording.world.found.lasting() if address(t) in lasting]


def _addresses(found: Found) -> set[int]:
    return {address(tensor) for tensor in found.lasting()}


__all__ = ["Forgetting"]
