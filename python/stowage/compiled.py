"""stowage.compile: a training step that records itself, is planned, and is then executed at planned addresses.

The life of one signature (shapes, dtypes, flags):

    warm up ──► record ──► rehearse, then run eagerly and compare ──► planned ──► planned ──► ...
    (eager)     (eager)    (eager result; planned only if equal)          │ a guard fails, the optimizer's Python differs
                   ▲──────────────────────────────────────────────────────┘
With a budget, what is eager runs under the eager budget's runtime (eager_calls.py).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from typing import Any, Callable

import torch

from stowage import _runtime
from stowage.eager_calls import EagerCalls
from stowage.errors import Error, Unsupported, UnsupportedWarning
from stowage.novelty import Novelty
from stowage.planning import parse_bytes
from stowage.progress import shown
from stowage.recording import Recording, record
from stowage.replay import Mismatch, Replay, Room
from stowage.signature import signature
from stowage.tally import Tally
from stowage.torch_private import fake_mode_active
from stowage.world import World

_MAX_RECORDINGS = 8  # of one signature within _RECENT_CALLS of its calls; a step that changes more often runs eagerly
_RECENT_CALLS = 64
_MAX_REPLAYS = 8  # kept per signature, the newest
_MAX_UNSETTLED = 3
_MAX_REHEARSALS = 4
_MAX_IDLE = 512  # signatures that are only remembered; the oldest are forgotten


class _Entry:
    """All that is known of one signature."""

    def __init__(self) -> None:
        self.replays: list[Replay] = []  # newest last
        self.trusted: set[int] = set()  # ids of replays that have agreed with eager
        self.rehearsals: dict[int, int] = {}
        self.recordings: list[int] = []  # at which of the calls
        self.unsettled = 0
        self.calls = 0
        self.eager_calls = 0  # that went through
        self.refusal = ""
        self.over_budget: Error | None = None


class CompiledStep:
    """Callable like the function it wraps. Made by stowage.compile."""

    def __init__(self, train_step: Callable, budget: int | str | None, check_every: int, link_gbps: float | None, strict: bool,
                 takeover: bool):
        functools.update_wrapper(self, train_step, updated=())
        self._fn = train_step
        self._budget = parse_bytes(budget)
        self._check_every = check_every
        self._strict = strict
        self._takeover = takeover
        self._entries: dict[Any, _Entry] = {}
        self._arena = _runtime.Arena()
        self._room = Room.of_environment(self._arena, link_gbps)
        self._eager_calls = EagerCalls(self._budget, link_gbps, self._arena) if self._budget is not None else None
        self._lock = threading.RLock()  # one step at a time: all share the arena
        self._latest: Replay | None = None
        self._absent_grads: frozenset[int] = frozenset()  # parameters whose .grad the last step, a planned one, has dropped
        self._tally = Tally(strict)
        self._novelty = Novelty()

    # ---- Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if fake_mode_active() or _runtime.intercepting() or _runtime.budget_active():  # a budget's block watches what eager does
            return self._fn(*args, **kwargs)
        with self._lock:
            return self._step(args, kwargs)

    def _step(self, args: tuple, kwargs: dict) -> Any:
        try:
            key, inputs = signature(args, kwargs)
        except Unsupported as reason:
            return self._refused(_Entry(), str(reason), args, kwargs, [])
        entry = self._entries.setdefault(key, _Entry())
        entry.calls += 1
        self._novelty.note(key, entry.calls == 1, stacklevel=4)
        self._forget_idle(entry)
        if entry.over_budget is not None:
            raise entry.over_budget
        if entry.refusal:
            return self._eager(entry, args, kwargs, inputs)
        replay = self._current(entry, inputs)
        if replay is None:
            # Optimizer state and lazy caches come into being; or a plan would most likely serve no second call.
            if self._tally.eager_steps == 0 or (self._novelty.restless and entry.calls == 1):
                return self._eager(entry, args, kwargs, inputs)
            return self._record(entry, args, kwargs, inputs)
        try:
            if id(replay) not in entry.trusted:
                return self._rehearse(entry, replay, args, kwargs, inputs)
            if self._check_every and (self._tally.planned_steps + 1) % self._check_every == 0:
                return self._check(entry, replay, args, kwargs, inputs)
            return self._planned(replay, inputs)
        except Mismatch:
            self._drop(entry, replay)
            return self._record(entry, args, kwargs, inputs)

    def _forget_idle(self, entry: _Entry) -> None:
        if entry.calls == 1 and len(self._entries) > _MAX_IDLE:
            idle = (k for k, e in self._entries.items() if not e.replays and not e.refusal and e is not entry)
            self._entries.pop(next(idle, None), None)

    def _current(self, entry: _Entry, inputs: list[torch.Tensor]) -> Replay | None:
        """The newest replay whose guards hold."""
        for replay in reversed(entry.replays):
            if not replay.changed(inputs):
                return replay
        return None

    def _eager(self, entry: _Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        with self._tally.eager_call(), self._within(entry, inputs):
            result = self._fn(*args, **kwargs)
        entry.eager_calls += 1
        self._absent_grads = frozenset()
        return result

    def _within(self, entry: _Entry, inputs: list[torch.Tensor], world: World | None = None) -> contextlib.AbstractContextManager:
        """The block of a call that is not planned. A step that will never be, and has gone through, is not copied each time."""
        if self._eager_calls is None:
            return contextlib.nullcontext()
        tapes = [replay.recording.tape for e in self._entries.values() for replay in e.replays]
        return self._eager_calls.within(world or World(self._fn), inputs, tapes, undo=not entry.refusal or entry.eager_calls < 2)

    def _recorded(self, entry: _Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Recording:
        world = World(self._fn)
        with self._tally.eager_call():
            recording = record(self._fn, args, kwargs, inputs, absent_grads=self._absent_grads, world=world,
                               within=self._within(entry, inputs, world))
        entry.eager_calls += 1
        self._absent_grads = frozenset()
        return recording

    def _planned(self, replay: Replay, inputs: list[torch.Tensor]) -> Any:
        result = self._tally.planned_call(replay.run, inputs)
        self._latest = replay
        self._absent_grads = frozenset(id(p) for p in replay.recording.dropped_grads)
        self._tally.account(replay.last_run)
        return result

    # ---- Recording and trust

    def _record(self, entry: _Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        entry.recordings = [call for call in entry.recordings if call > entry.calls - _RECENT_CALLS]
        if len(entry.recordings) >= _MAX_RECORDINGS:
            why = f"what it reads has changed {_MAX_RECORDINGS} times within {_RECENT_CALLS} calls"
            return self._refused(entry, why, args, kwargs, inputs)
        with shown("recording a step"):
            recording = self._recorded(entry, args, kwargs, inputs)
        result = recording.result
        if recording.tape is None:
            entry.unsettled += 1
            if not recording.unsettled or entry.unsettled >= _MAX_UNSETTLED:
                self._refuse(entry, recording.refusal)
            return result
        entry.recordings.append(entry.calls)
        try:
            replay = Replay(recording, self._room, getattr(self._fn, "__name__", "step"), self._budget, self._takeover)
        except Error as error:
            if self._budget is None:
                raise
            entry.over_budget = error  # this call has trained; the next one raises, and changes nothing
            return result
        entry.replays = [*entry.replays[-_MAX_REPLAYS + 1 :], replay]
        self._latest = replay
        return result

    def _rehearse(self, entry: _Entry, replay: Replay, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        """Planned and eager from the same state; the eager result counts. Trusted once both agree and nothing was missed."""
        count = entry.rehearsals[id(replay)] = entry.rehearsals.get(id(replay), 0) + 1
        try:
            rehearsal = replay.rehearse(inputs)
        except (Error, Mismatch):
            raise
        except Exception:
            return self._eager(entry, args, kwargs, inputs)  # a kernel has raised, and will again
        result = self._eager(entry, args, kwargs, inputs)
        agrees = replay.agrees(rehearsal, result, inputs) and replay.last_run.escaped_blocks == 0
        learned = replay.replan_if_learned()
        if agrees and (not learned or count >= _MAX_REHEARSALS):
            entry.trusted.add(id(replay))
        elif count >= _MAX_REHEARSALS:
            self._drop(entry, replay)
            self._refuse(entry, "the planned step does not give the bits of the eager one")
            if self._strict:
                raise Error(entry.refusal)
        return result

    def _check(self, entry: _Entry, replay: Replay, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        """Every check_every steps the user's Python runs, recorded, and is compared with the tape."""
        recording = self._recorded(entry, args, kwargs, inputs)
        self._tally.planned_steps += 1  # so that the next check comes check_every steps later
        difference = recording.refusal or replay.recording.tape.same_program(recording.tape)
        if difference:
            warnings.warn(f"stowage: the step's Python has changed ({difference}); recording again", stacklevel=3)
            self._drop(entry, replay)
        return recording.result

    def _drop(self, entry: _Entry, replay: Replay) -> None:
        entry.replays.remove(replay)
        entry.trusted.discard(id(replay))

    def _refuse(self, entry: _Entry, reason: str) -> None:
        entry.refusal = reason
        warnings.warn(f"stowage: this step runs eagerly: {reason}", category=UnsupportedWarning, stacklevel=4)

    def _refused(self, entry: _Entry, reason: str, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        self._refuse(entry, reason)
        return self._eager(entry, args, kwargs, inputs)

    # ---- What is known

    @property
    def graph(self):
        """Graph of the latest signature, or None before anything was recorded."""
        return self._latest.graph if self._latest else None

    @property
    def plan(self):
        """Plan of the latest signature, or None before anything was recorded."""
        return self._latest.plan if self._latest else None

    def explain(self, *, prices: bool = True, width: int = 100) -> str:
        """One screen of text on the latest plan; see Plan.explain()."""
        if self._latest is None:
            return f"Nothing is planned: {self.refusal}\n" if self.refusal else "Nothing is planned yet: call the step three times\n"
        return self.plan.explain(self.graph, prices=prices, width=width)

    def report(self, path: str, **sections) -> None:
        """Writes the latest plan as a page, a trace or a memory snapshot; see Plan.report()."""
        if self._latest is None:
            raise Error(f"nothing to report: {self.refusal or 'nothing is planned yet; call the step three times'}")
        self.plan.report(path, self.graph, **sections)

    @property
    def refusal(self) -> str:
        """Why steps run eagerly, with the source line where known; "" when they are planned."""
        return next((e.refusal for e in reversed(self._entries.values()) if e.refusal), "")

    def stats(self) -> dict:
        """Figures of the latest plan. Bytes are of the arena unless named otherwise; times are medians of the last steps."""
        summary = self._latest.plan.summary() if self._latest else {}
        return {
            "arena_bytes": summary.get("arena_bytes", 0),
            "resident_bytes": summary.get("resident_bytes", 0),
            "planned_peak_bytes": summary.get("peak_bytes", 0),
            "measured_peak_bytes": self._tally.measured_peak_bytes,
            "lower_bound_bytes": summary.get("lower_bound_bytes", 0),
            "gap": summary.get("gap", 0.0),
            "outcome": summary.get("outcome", "unknown"),
            "misses": self._tally.misses,
            "eager_steps": self._tally.eager_steps,
            "planned_steps": self._tally.planned_steps,
            "step_ns": self._tally.planned_ns,
            "eager_step_ns": self._tally.eager_ns,
            "recomputed_ops": summary.get("recomputed_ops", 0),
            "swapped_bytes": self._latest.swapped_bytes if self._latest else 0,
            "host_bytes": self._latest.host_bytes if self._latest else 0,
            "stall_ns": self._tally.stall_ns,
            "plan_from_cache": bool(self._latest and self._latest.plan.from_cache),
        }


def compile(
    train_step: Callable,
    budget: int | str | None = None,
    *,
    check_every: int = 0,
    link_gbps: float | None = None,
    strict: bool = False,
    takeover: bool = True,
) -> CompiledStep:
    """Wraps ``train_step`` (forward, backward, optimizer step, zero_grad: the user's own function) so that it is planned.

    The first calls run eagerly and record; later ones execute the plan, with the numbers of eager, bit for bit. As with CUDA
    graphs, a planned call does not run the function's Python, except for the optimizers' and schedulers' step(). What that Python
    could read (flags, hyperparameters, closure, parameters) is watched; a change records anew.

    budget: bytes that residents and arena together may take in planned steps, or "2GiB". It holds from the first call on: those that
        run eagerly do so as in a stowage.budget block, and raise OutOfMemory where even that is not enough. When no plan fits, every
        call after the recorded one raises Infeasible, with the smallest budget for which a plan was found (or Error, when none
        fitting is proven). A call that raises either leaves model and optimizer untouched.
    check_every: every so many steps the function runs eagerly and is compared with the recording.
    link_gbps: bandwidth of the host link in 10^9 bytes a second, for swapping under a budget: copies are held to it. None: as
        fast as copies are on this machine, measured once.
    strict: raise Error instead of warning when an allocation was not as planned or bits differ.
    takeover: let kernels that work element by element write their result over an input that dies there.
    """
    if not callable(train_step):
        raise TypeError(f"compile() needs a function, not {type(train_step).__name__}")
    return CompiledStep(train_step, budget, check_every, link_gbps, strict, takeover)
