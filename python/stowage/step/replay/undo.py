"""A planned step is a transaction: after an error, or an interrupt, the state is that before the step, or that after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from stowage import _runtime
from stowage.errors import AFTER, BEFORE, say
from stowage.eviction.budget import OutOfMemory
from stowage.step.reach.state import Holders, leaves_of

if TYPE_CHECKING:
    from stowage.step.replay.replay import Replay


class Undo:
    """What the Python of one call can change and the executor does not put back: optimizers' numbers, schedulers,
    gradients.

    A step that has been executed is never taken back: an interrupt that arrives between its end and here finds it
    finished. Gradients that the step lets go of unread are not held meanwhile: an error finds them gone, also where eager
    would come to it earlier. now() says in ``error`` which of the two it is.
    """

    def __init__(
        self,
        began: Replay,
        others: Sequence[Replay],
        python: bool,
        arguments: Sequence[torch.Tensor] = (),
        inputs: Sequence[int] = (),
    ):
        """python: the user's function runs, whose optimizers may count in Python objects. inputs: those of ``began``."""
        world = began.recording.world
        self.error: BaseException | None = None
        self.thread = _runtime.ThreadState()
        self._plain_runs = began.matcher.plain_runs
        began.matcher.remember(inputs)
        self._began = began
        self._runs = [(replay, replay.executor.runs) for replay in (began, *others)]
        # Not held meanwhile: all that the step does with them is to let them go
        cleared = {id(p) for p in began.gradients.cleared}
        self._cleared = [] if world.distributed else began.gradients.cleared  # let_go() is the last that may fail there
        kept = [p for p in began.parameters if id(p) not in cleared]
        self._holders = Holders([*kept, *leaves_of(arguments)], world.counters(python))
        self._memory = [(place, place.get()) for place in began.recording.replaced]
        self._done = self._happened = False

    def keep(self) -> None:
        """The step has happened, and stays; what comes after it in the call may still raise."""
        self._done = self._happened = True
        self._memory = []

    def now(self) -> None:
        if self._done:
            if self._happened:
                say(self.error, AFTER)
            return
        self._put_back()
        self._done = True

    def _put_back(self) -> None:
        """May be called again where there was no memory to come to its end."""
        for replay, runs in self._runs:
            if replay.executor.runs != runs:
                replay.finish()
                say(self.error, AFTER)
                return
        if self._began.matcher.plain_runs != self._plain_runs and not isinstance(self.error, OutOfMemory):
            return  # what it did has happened; where memory was short, the budget's block has taken that back
        self._began.matcher.forget_step()
        self._began.executor.take_back()  # what has run for numbers that are expected
        self._began.matcher.roll_back()
        self._holders.put_back()
        for cleared in self._cleared:
            cleared.grad = None
        for place, tensor in self._memory:
            if tensor is not None:
                place.put_back(tensor)
        self._memory = []
        if not any(replay.executor.half_done for replay, _ in self._runs):
            self._began.taken_back = True
            say(self.error, BEFORE)


__all__ = ["Undo"]
