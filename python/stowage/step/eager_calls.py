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
import weakref
from collections.abc import Callable, Iterable, Iterator

import torch
from torch._C import TensorBase

from stowage import _runtime
from stowage._torch.private import address, storage_address, storage_bytes
from stowage.eviction.budget import HostRoom, OutOfMemory, budget, existing_tensors
from stowage.step.reach.places import is_plain
from stowage.step.reach.state import State, lasting, on_accelerator, own_ranges
from stowage.step.reach.world import World
from stowage.step.replay.room import Room

_NEGLIGIBLE_SHARE = 64  # of the budget: so much may be in the way


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
        self._others = OtherTensors()

    def call(self, world: Callable[[], World], inputs: list[torch.Tensor], tapes: Iterable[_runtime.Tape] = (),
             undo: bool = True, gradients: Iterable[weakref.ref[torch.Tensor]] = ()) -> EagerCall:  # fmt: skip
        """``world``: that of the call, asked for when the first of its blocks begins. ``tapes``: those recorded so far; what
        they keep alive counts, since nobody else does. ``undo``: keep on the host what is needed to take the call back.
        ``gradients``: that were there before the call's Python ran; where they still live, they are the step's."""
        return EagerCall(self, world, inputs, tapes, undo, gradients)

    def end(self) -> None:
        """Of a call that was interrupted where a block had just begun."""
        if self._block is not None:
            self._block._end()

    def block_for(self, device: torch.device, leaving: bool) -> budget:
        if self._block is None or self._block.device != device:
            host = HostRoom(self._room.host, soft=True) if leaving else None
            self._block = budget(1, link_gbps=self._link_gbps, progress=False, device=device, _room=host)
        return self._block


class EagerCall:
    """One call of the step. It may need several blocks: one for each number that its Python asks for, and one for what it
    does eagerly from then on. They share what is known of the call, and the copy that takes it back."""

    def __init__(self, calls: EagerCalls, world: Callable[[], World], inputs: list[torch.Tensor],
                 tapes: Iterable[_runtime.Tape], undo: bool,
                 gradients: Iterable[weakref.ref[torch.Tensor]]):  # fmt: skip
        self._calls = calls
        self._find_world = world
        self._inputs = inputs
        self._tapes = tapes
        self._undo = undo
        self._known = False
        self.had_room = False  # in the latest block, nothing had to make room
        self._gradients = gradients

    def _know(self) -> None:
        """The call's tensors and its limit, before it has done anything."""
        calls = self._calls
        world = self._find_world()
        self._own = own = own_ranges(world, self._inputs)
        found = {storage_address(t) for t, _, _ in own}
        for gradient in (reference() for reference in self._gradients):
            if gradient is not None and is_plain(gradient) and storage_address(gradient) not in found:
                own.append((TensorBase.detach(gradient), 0, storage_bytes(gradient)))
                found.add(storage_address(gradient))
        if (there := on_accelerator(own)) is not None:
            _runtime.take_up(address(there))
        self._device = torch.device("cpu") if there is None else there.device
        counted = [(t, start, end) for t, start, end in own if t.device == self._device]
        own_bytes = sum(end - start for t, start, end in counted if not _runtime.at_home(address(t)))
        if self._device.type == "cpu":
            own_bytes += _held_bytes(self._tapes, {storage_address(t) for t, _, _ in counted})
        other_bytes = _runtime.live_bytes(str(self._device)) - own_bytes
        self._limit_bytes = max(calls._budget_bytes + other_bytes, 1)
        self._leaving = calls._leaving and self._device.type == "cpu"
        if self._leaving:
            calls._room.host.part_from_children()
        self._may_stay: Callable[[], list[torch.Tensor]] = (lambda: lasting(world)) if self._leaving else list
        self._before = State(world, own, self._inputs) if self._undo and not self._leaving else None
        storages = {storage_address(t) for t, _, _ in own}
        self._others = calls._others.now(storages, self._device, other_bytes, calls._budget_bytes // _NEGLIGIBLE_SHARE)
        self._known = True

    def forget(self) -> None:
        """Holds no tensor of the call from here on, so that whoever else does can be told. A block that begins later looks
        anew."""
        self._known = False
        self._may_stay, self._own, self._before, self._others = list, [], None, []

    def _may_make_room(self) -> Iterator[torch.Tensor]:
        yield from (t for t, _, _ in self._own)
        yield from (t for t in (reference() for reference in self._others) if t is not None)

    @contextlib.contextmanager
    def within(self, unfinished: Callable[[], bool] = lambda: False, takes_back: bool = True) -> Iterator[None]:
        """``unfinished``: after an error, have ops that are run together stopped in between? They are taken back.
        ``takes_back``: else whoever runs them does so."""
        self._calls._room.make_way()
        if not self._known:
            self._know()
        block, before = self._calls.block_for(self._device, self._leaving), self._before if takes_back else None
        peak_bytes = _runtime.peak_bytes(str(self._device))
        block._may_stay, block._may_make_room = self._may_stay, self._may_make_room
        went = block.stats()["evictions"]
        try:
            with block._again(self._limit_bytes):
                try:
                    yield
                except torch.OutOfMemoryError as error:
                    # What the step has made dies before the rest comes back
                    traceback.clear_frames(error.__traceback__)
                    if before is not None:
                        before.holders.put_back()
                    raise
            self.had_room = not self._leaving and block.stats()["evictions"] == went
        except GeneratorExit:  # interrupted before the call began
            raise
        except OutOfMemory as error:
            if before is not None:
                before.put_back()
            raise self._explained(error, block.stats()["short_bytes"]) from None
        except BaseException:
            if before is not None and unfinished():
                before.put_back()
            raise
        finally:
            block._may_stay = block._may_make_room = list
            _runtime.raise_peak(peak_bytes, str(self._device))

    def _explained(self, error: OutOfMemory, short_bytes: int) -> OutOfMemory:
        budget_bytes = self._calls._budget_bytes
        needs = f", at least {budget_bytes + short_bytes} are needed" if short_bytes > 0 else ""
        why = str(error).rpartition(". At least ")[0] or str(error)  # that counts what is not the step's, too
        explained = OutOfMemory(
            f"the step does not run eagerly within its budget of {budget_bytes} bytes{needs}: {why}"
        )
        explained.bound_bytes = budget_bytes + short_bytes
        return explained


class OtherTensors:
    """The program's tensors that are none of the step's, for which room is made where they are in the way. The collector is
    asked for them, a tenth of a second in a large program, only when the bytes that nobody here knows have grown."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[torch.Tensor]] = []
        self._unknown_bytes = -1

    def now(self, own: set[int], device: torch.device, other_bytes: int,
            negligible_bytes: int) -> list[weakref.ref[torch.Tensor]]:  # fmt: skip
        """``own``: addresses of the step's storages. ``other_bytes``: what is alive beside these."""
        unknown_bytes = other_bytes - self._bytes_but(own, device)
        if self._unknown_bytes < 0 or unknown_bytes > self._unknown_bytes + negligible_bytes:
            self._known = [weakref.ref(t) for t in existing_tensors()]
            self._unknown_bytes = other_bytes - self._bytes_but(own, device)
        return self._known

    def _bytes_but(self, own: set[int], device: torch.device) -> int:
        """Of the known ones that are alive; forgets the others."""
        alive = [(reference, t) for reference in self._known if (t := reference()) is not None]
        self._known = [reference for reference, _ in alive]
        sizes = {storage_address(t): storage_bytes(t) for _, t in alive if t.device == device and is_plain(t)}
        return sum(size for storage, size in sizes.items() if storage not in own)


def _held_bytes(tapes: Iterable[_runtime.Tape], but: set[int]) -> int:
    """Of the storages that tapes keep alive: numbers that Python made and the step reads, a kilobyte or so each."""
    held = {address: bytes_ for tape in tapes for address, bytes_ in tape.held_storages()}
    return sum(bytes_ for address, bytes_ in held.items() if address not in but)


__all__ = ["EagerCall", "EagerCalls"]
