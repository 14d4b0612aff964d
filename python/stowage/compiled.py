"""stowage.compile: a training step that records itself, is planned, and is then executed at planned addresses.

The life of one signature (shapes, dtypes, flags):

    warm up ──► record ──► rehearse: the user's Python over shells, planned, ──► planned ──► planned ──► planned, checked ──► ...
    (eager)     (eager)    taken back, plain; kept only if both agree              │                        │
                   ▲───────────────────────────────────────────────────────────────┘ a guard fails         │ the Python differs: eagerly
                   └───────────────────────────────────────────────────────────────────────────────────────┘
In every call the user's function runs once (eagerly, or over shells) or not at all. With a budget, what is eager runs under the
eager budget's runtime (eager_calls.py).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from stowage import _runtime
from stowage.checking import Checking
from stowage.eager_calls import EagerCalls
from stowage.errors import Error, Unsupported, UnsupportedWarning
from stowage.novelty import Novelty
from stowage.places import Place
from stowage.planning import parse_bytes
from stowage.progress import shown
from stowage.recording import Recording, record
from stowage.replay import Mismatch, ReadsShell, Replay, Room, Shadow, Undo
from stowage.signature import loosened, signature
from stowage.tally import Tally
from stowage.torch_private import fake_mode_active
from stowage.world import World

_MAX_RECORDINGS = 8  # of one signature within _RECENT_CALLS of its calls; a step that changes more often runs eagerly
_RECENT_CALLS = 64
_MAX_REPLAYS = 8  # kept per signature, the newest
_MAX_UNSETTLED = 3
_MAX_REHEARSALS = 4
_MAX_IDLE = 512  # signatures that are only remembered; the oldest are forgotten
_WANTED_CALLS = 8  # after a call whose Python was new, recorded until that comes again
_MAX_WASTED = 32  # recordings that showed nothing new; from then on such calls only run eagerly


class _Entry:
    """All that is known of one signature, whatever Python's own numbers among the arguments are."""

    def __init__(self) -> None:
        self.replays: list[Replay] = []  # newest last
        self.recordings: list[int] = []  # at which of the calls
        self.unsettled = 0
        self.replaced: list[Place] = []  # what the step fills anew
        self.left_because = ""  # what was new in the latest call that no recording held
        self.wanted = 0  # calls that may still be spent on recording what has just been new
        self.wasted = 0
        self.changed_calls = 0  # in a row whose Python did what was recorded, although what it reads has changed
        self.patience = 3
        self.calls = 0
        self.eager_calls = 0  # that went through
        self.refusal = ""
        self.over_budget: Error | None = None
        self.world: World | None = None  # of a step that is refused


class CompiledStep:
    """Callable like the function it wraps. Made by stowage.compile."""

    def __init__(self, train_step: Callable, budget: int | str | None, check: str | int, link_gbps: float | None, strict: bool, takeover: bool):
        functools.update_wrapper(self, train_step, updated=())
        self._fn = train_step
        self._budget = parse_bytes(budget)
        self._checking = Checking(check)
        self._strict = strict
        self._takeover = takeover
        self._entries: dict[Any, _Entry] = {}
        self._arena = _runtime.Arena()
        self._room = Room.of_environment(self._arena, link_gbps)
        self._eager_calls = EagerCalls(self._budget, link_gbps, self._arena) if self._budget is not None else None
        self._lock = threading.RLock()  # one step at a time: all share the arena
        self._latest: Replay | None = None
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
        entry = self._entries.setdefault(loosened(key), _Entry())
        entry.calls += 1
        self._forget_idle(entry)
        if entry.over_budget is not None:
            raise _anew(entry.over_budget)
        if entry.refusal:
            return self._eager(entry, args, kwargs, inputs)
        fit = [replay for replay in reversed(entry.replays) if not replay.unfit(inputs)]
        self._novelty.note(key, entry.calls == 1 and not fit, stacklevel=4)
        if entry.wanted > 0 or not fit:
            # Optimizer state and lazy caches come into being; or a plan would most likely serve no second call.
            if self._tally.eager_steps == 0 or (self._novelty.restless and entry.calls == 1):
                return self._eager(entry, args, kwargs, inputs)
            return self._record(entry, key, args, kwargs, inputs)
        replay = next((r for r in fit if r.key == key and not r.shadowed_because and not r.recording.world.guard.changed()), None)
        if replay is None:
            return self._shadowed(entry, fit, args, kwargs, inputs, unchanged=False)
        if not replay.trusted or self._checking.is_due(replay):
            return self._shadowed(entry, [replay, *(r for r in fit if r is not replay)], args, kwargs, inputs, unchanged=True)
        try:
            return self._planned(replay, inputs)
        except Mismatch:
            self._drop(entry, replay)
            return self._record(entry, key, args, kwargs, inputs)

    def _forget_idle(self, entry: _Entry) -> None:
        if entry.calls == 1 and len(self._entries) > _MAX_IDLE:
            idle = (k for k, e in self._entries.items() if not e.replays and not e.refusal and e is not entry)
            self._entries.pop(next(idle, None), None)

    def _eager(self, entry: _Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        with self._tally.eager_call(), self._within(entry, inputs):
            result = self._fn(*args, **kwargs)
        entry.eager_calls += 1
        return result

    def _within(self, entry: _Entry, inputs: list[torch.Tensor], world: World | None = None) -> contextlib.AbstractContextManager:
        """The block of a call that is not planned. A step that will never be, and has gone through, is not copied each time."""
        if self._eager_calls is None:
            return contextlib.nullcontext()
        if entry.refusal and world is None:
            entry.world = world = entry.world or World(self._fn)
        tapes = [replay.recording.tape for e in self._entries.values() for replay in e.replays]
        return self._eager_calls.within(world or World(self._fn), inputs, tapes, undo=not entry.refusal or entry.eager_calls < 2)

    def _planned(self, replay: Replay, inputs: list[torch.Tensor]) -> Any:
        result = self._tally.planned_call(replay.run, inputs)
        self._has_planned(replay)
        return result

    def _has_planned(self, replay: Replay) -> None:
        self._latest = replay
        replay.planned_calls += 1
        self._tally.account(replay.last_run)

    # ---- With the user's own Python

    def _shadowed(self, entry: _Entry, fit: list[Replay], args: tuple, kwargs: dict, inputs: list[torch.Tensor], unchanged: bool) -> Any:
        """The user's function runs, over shells; what it did is then planned, where a recording holds it. ``unchanged``: the guards of the
        first of them say that it will do the same."""
        began, others = fit[0], fit[1:]
        bound = [replay.inputs(inputs) for replay in fit]  # before the function gives gradients away
        with began.host_state(others) as undo:
            try:
                with self._tally.check():
                    shadow = began.shadow(lambda: self._fn(*args, **kwargs), inputs, others, lambda: self._within(entry, inputs), undo)
            except ReadsShell as reason:
                undo.now()
                self._drop(entry, began)
                return self._refused(entry, f"it reads bytes of a tensor on the host: {reason}", args, kwargs, inputs)
            try:
                missed = shadow.refreshed or shadow.replay is not began or (shadow.difference and not shadow.in_optimizer)
                if unchanged and began.trusted and missed:
                    self._guards_missed(entry, shadow.difference or "it gives other numbers")
                if shadow.difference:
                    return self._left(entry, shadow)
                replay = shadow.replay
                self._settle_down(entry, replay, unchanged)
                if not replay.trusted:
                    return self._rehearse(entry, shadow, inputs, bound[fit.index(replay)], undo)
                self._tally.planned_call(replay.run_shadowed, shadow, bound[fit.index(replay)])
            finally:
                shadow.done()
        self._has_planned(replay)
        return shadow.result

    def _guards_missed(self, entry: _Entry, difference: str) -> None:
        """A check has found what the guards did not see: calls before it may have been wrong, later ones must not be."""
        warnings.warn(f"stowage: the step's Python has changed in a way that is not watched ({difference}); this call is right, calls since "
                      "the last check may not be. From now on its Python runs in every call; check='always' does so from the beginning",
                      stacklevel=5)  # fmt: skip
        for replay in entry.replays:
            replay.shadowed_because = replay.shadowed_because or "it has changed in a way that is not watched"

    def _settle_down(self, entry: _Entry, replay: Replay, unchanged: bool) -> None:
        """Recorded anew, to be watched anew, when what it reads has changed and stays so; ever later when it does not stay."""
        entry.changed_calls = 0 if unchanged or replay.shadowed_because else entry.changed_calls + 1
        if entry.changed_calls >= entry.patience:
            entry.changed_calls, entry.wanted = 0, 1
            entry.patience *= 2

    def _left(self, entry: _Entry, shadow: Shadow) -> Any:
        """The function did what no recording holds, and that has happened eagerly. Recorded when it comes again."""
        self._tally.eager_steps += 1
        entry.eager_calls += 1
        entry.left_because = shadow.difference
        if entry.wasted < _MAX_WASTED:
            entry.wanted = _WANTED_CALLS
        return shadow.result

    # ---- Recording and trust

    def _record(self, entry: _Entry, key: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        entry.recordings = [call for call in entry.recordings if call > entry.calls - _RECENT_CALLS]
        if len(entry.recordings) >= _MAX_RECORDINGS:
            changed = next((why for why in (r.changed(inputs) for r in entry.replays) if why), entry.left_because) or "what it reads"
            why = f"recorded {_MAX_RECORDINGS} times within {_RECENT_CALLS} calls, as this keeps changing: {changed}"
            return self._refused(entry, why, args, kwargs, inputs)
        world = World(self._fn)
        with shown("recording a step"), self._tally.eager_call():
            recording = record(self._fn, args, kwargs, inputs, world=world, within=self._within(entry, inputs, world), replaced=entry.replaced)
        entry.replaced = recording.replaced
        entry.eager_calls += 1
        result = recording.result
        if recording.tape is None:
            entry.unsettled += not recording.beginning
            if not recording.unsettled or entry.unsettled >= _MAX_UNSETTLED:
                self._refuse(entry, recording.refusal)
            return result
        if any(r.serves_as(recording) for r in entry.replays):
            entry.wanted -= 1
            entry.wasted += 1
            return result
        entry.wanted = 0
        entry.recordings.append(entry.calls)
        try:
            replay = Replay(recording, self._room, getattr(self._fn, "__name__", "step"), self._budget, self._takeover)
        except Error as error:
            if self._budget is None:
                raise
            entry.over_budget = error.with_traceback(None)  # this call has trained; the next one raises, and changes nothing
            return result
        replay.key = key
        del entry.replays[: -_MAX_REPLAYS + 1]
        entry.replays.append(replay)
        self._latest = replay
        return result

    def _rehearse(self, entry: _Entry, shadow: Shadow, arguments: list[torch.Tensor], inputs: list[int], undo: Undo) -> Any:
        """Planned and plain from the same state; the plain result counts. Trusted once both agree and nothing was missed."""
        replay = shadow.replay
        replay.rehearsals += 1
        rehearsal = None
        try:
            rehearsal = replay.rehearse_matched(inputs)
        except Error:
            raise
        except Exception:  # a kernel has raised, and will again
            pass
        with self._tally.eager_call(), self._within(entry, arguments):
            shadow.run_plainly()
        undo.forget()
        entry.eager_calls += 1
        if rehearsal is None:
            return shadow.result
        agrees = replay.agrees(rehearsal, shadow.result, inputs, shadow.kept_agree()) and replay.last_run.escaped_blocks == 0
        learned = replay.replan_if_learned()
        if agrees and (not learned or replay.rehearsals >= _MAX_REHEARSALS):
            replay.trusted = True
        elif replay.rehearsals >= _MAX_REHEARSALS:
            self._drop(entry, replay)
            self._refuse(entry, "the planned step does not give the bits of the eager one")
            if self._strict:
                raise Error(entry.refusal)
        return shadow.result

    def _drop(self, entry: _Entry, replay: Replay) -> None:
        entry.replays.remove(replay)

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
            "checked_steps": self._tally.checked_steps,
            "check_ns": self._tally.check_ns,
            "plan_from_cache": bool(self._latest and self._latest.plan.from_cache),
        }


def _anew(error: Error) -> Error:
    """The same error: one that is raised holds on to the frames that it passes, and they to the batch."""
    fresh = type(error).__new__(type(error), *error.args)
    fresh.args = error.args
    fresh.__dict__.update(error.__dict__)
    return fresh


def compile(
    train_step: Callable,
    budget: int | str | None = None,
    *,
    check: str | int = "auto",
    check_every: int = 0,
    link_gbps: float | None = None,
    strict: bool = False,
    takeover: bool = True,
) -> CompiledStep:
    """Wraps ``train_step`` (forward, backward, optimizer step, zero_grad: the user's own function) so that it is planned.

    The first calls run eagerly and record; later ones execute the plan, with the numbers of eager, bit for bit. A planned call does
    not run the function's Python, except for the optimizers' and schedulers' step(), or it runs it once, over tensors without memory,
    and compares each operation with the recording. Two fences keep the numbers right: what the Python could read (flags,
    hyperparameters, globals, closures, parameters) is watched, and ``check`` runs it.

    budget: bytes that residents and arena together may take in planned steps, or "2GiB". It holds from the first call on: those that
        run eagerly do so as in a stowage.budget block, and raise OutOfMemory where even that is not enough. When no plan fits, every
        call after the recorded one raises Infeasible, with the smallest budget for which a plan was found (or Error, when none
        fitting is proven). A call that raises either leaves model and optimizer untouched.
    check: how often a planned call runs the function's Python: "auto" (calls 1, 2, 4, 8, ... of a plan, and every one where guards cannot
        see what it reads), "always" (any Python, at the price of running it), a number N (every N-th), "never" (only where guards
        cannot see). Where it does something new, that call has happened eagerly, and is recorded when it comes again.
    check_every: the same as check=N; 0: as ``check`` says.
    link_gbps: bandwidth of the host link in 10^9 bytes a second, for swapping under a budget: copies are held to it. None: as
        fast as copies are on this machine, measured once.
    strict: raise Error instead of warning when an allocation was not as planned or bits differ.
    takeover: let kernels that work element by element write their result over an input that dies there.
    """
    if not callable(train_step):
        raise TypeError(f"compile() needs a function, not {type(train_step).__name__}")
    return CompiledStep(train_step, budget, check_every or check, link_gbps, strict, takeover)
