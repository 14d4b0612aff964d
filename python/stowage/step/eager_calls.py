"""The eager calls of a compiled step that has a budget: recorded or not, they run under stowage.budget.

    compile(step, budget=B)     eager   recorded   rehearsal, eager   planned   planned   other shapes: recorded   ...   planned
                                └── within B ──┘              └─ B ─┘                                  └─ B ─┘

B counts what the plan's budget counts: the step's own tensors and what it makes. Other tensors that are alive come on
top of it; they may have to make room meanwhile, and are back when the call ends. A call that does not fit raises
OutOfMemory and has changed nothing.

Where residents leave, B may be less than they take. Then what waits on the host when such a call ends stays there, mapped
as its tensor's memory (runtime/memory/homes.h), and counts no more; and an operator that needs more than B at once gets
it, as a plan may need less."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator

import torch

from stowage import _runtime
from stowage._torch.private import address, storage_address
from stowage.eviction.budget import HostRoom, OutOfMemory, budget
from stowage.step.reach.state import State, lasting, on_accelerator, own_ranges
from stowage.step.reach.world import World
from stowage.step.replay.room import Room


class EagerCalls:
    """``link_gbps`` as for compile(); 0 forbids swapping to plans, not to these few calls, which may need it where a
    plan does not."""

    def __init__(self, budget_bytes: int, link_gbps: float | None, room: Room, leaving: bool):
        self._budget_bytes = budget_bytes
        self._link_gbps = link_gbps or None
        self._room = room
        self._leaving = leaving
        # One for all calls: it learns the order of accesses, and that the limit is far away
        self._block: budget | None = None

    @contextlib.contextmanager
    def within(self, world: World, inputs: list[torch.Tensor], tapes: Iterable[_runtime.Tape] = (), undo: bool = True,
               unfinished: Callable[[], bool] = lambda: False) -> Iterator[None]:  # fmt: skip
        """One call. ``tapes``: those recorded so far; what they keep alive counts, since nobody else does. ``undo``:
        keep on the host what is needed to take the call back. ``unfinished``: after an error, have ops that are run
        together stopped in between? They are taken back."""
        self._room.arena.release()  # planned steps take it again
        own = own_ranges(world, inputs)
        there = on_accelerator(own)
        device = torch.device("cpu") if there is None else there.device
        counted = [(t, start, end) for t, start, end in own if t.device == device]
        own_bytes = sum(end - start for t, start, end in counted if not _runtime.at_home(address(t)))
        if device.type == "cpu":
            own_bytes += _held_bytes(tapes, {storage_address(t) for t, _, _ in counted})
        limit_bytes = self._budget_bytes + _runtime.live_bytes(str(device)) - own_bytes
        leaving = self._leaving and device.type == "cpu"
        if leaving:
            self._room.host.part_from_children()
        before = State(world, own, inputs) if undo and not leaving else None
        peak_bytes = _runtime.peak_bytes(str(device))
        if self._block is None or self._block.device != device:
            host = HostRoom(self._room.host, soft=True) if leaving else None
            self._block = budget(
                max(limit_bytes, 1), link_gbps=self._link_gbps, progress=False, device=device, _room=host
            )
        self._block._may_stay = (lambda: lasting(world)) if leaving else list
        try:
            with self._block._again(max(limit_bytes, 1)):
                try:
                    yield
                except torch.OutOfMemoryError as error:
                    # What the step has made dies before the rest comes back
                    traceback.clear_frames(error.__traceback__)
                    if before is not None:
                        before.holders.put_back()
                    raise
        except GeneratorExit:  # interrupted before the call began
            raise
        except OutOfMemory as error:
            if before is not None:
                before.put_back()
            raise self._explained(error, self._block.stats()["short_bytes"]) from None
        except BaseException:
            if before is not None and unfinished():
                before.put_back()
            raise
        finally:
            _runtime.raise_peak(peak_bytes, str(device))

    def end(self) -> None:
        """Of a call that was interrupted where within() had just begun."""
        if self._block is not None:
            self._block._end()

    def _explained(self, error: OutOfMemory, short_bytes: int) -> OutOfMemory:
        bound_bytes = self._budget_bytes + short_bytes
        needs = f", at least {bound_bytes} are needed" if short_bytes > 0 else ""
        explained = OutOfMemory(
            f"the step does not run eagerly within its budget of {self._budget_bytes} bytes{needs}: {error}"
        )
        explained.bound_bytes = bound_bytes
        return explained


def _held_bytes(tapes: Iterable[_runtime.Tape], but: set[int]) -> int:
    """Of the storages that tapes keep alive: numbers that Python made and the step reads, a kilobyte or so each."""
    held = {address: bytes_ for tape in tapes for address, bytes_ in tape.held_storages()}
    return sum(bytes_ for address, bytes_ in held.items() if address not in but)


__all__ = ["EagerCalls"]
