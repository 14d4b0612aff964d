"""stowage.compile: a training step that records itself, is planned, and is then executed at planned addresses.

The life of one signature (shapes, dtypes, flags):

    warm up ──► record ──► rehearse: the user's Python over shells, planned, ──► planned ──► planned ──► planned, checked ──► ...
    (eager)     (eager)    taken back, plain; kept only if both agree              │                        │
                   ▲───────────────────────────────────────────────────────────────┘ a guard fails         │ the Python differs: eagerly
                   └───────────────────────────────────────────────────────────────────────────────────────┘
In every call the user's function runs once (eagerly, or over shells) or not at all. With a budget, what is eager runs
under the eager budget's runtime (eager_calls.py).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stowage import _runtime, compiled_regions
from stowage._core import buffer_digest
from stowage._torch import swapping
from stowage._torch.fakes import fake_mode_active
from stowage._torch.settings import foreign_mode
from stowage._torch.subclasses import heard, unheard
from stowage.errors import BEFORE, Error, Unsupported, UnsupportedWarning, say, warn, warnings_wait
from stowage.report.progress import shown
from stowage.step.attributes import FunctionAttributes
from stowage.step.checking import Checking
from stowage.step.cut.cutting import Cutting
from stowage.step.eager_calls import EagerCall, EagerCalls
from stowage.step.entry import MAX_HANDED_OUT, MAX_LOST_STATES, MAX_SHELLS_READ, Entry, keeps_tensors
from stowage.step.forgetting import Forgetting
from stowage.step.guards.given import ByContent
from stowage.step.guards.moved_functions import moved
from stowage.step.latest_plan import LatestPlan
from stowage.step.reach.places import Held, held_places
from stowage.step.reach.python_state import PythonState
from stowage.step.reach.world import World
from stowage.step.record import other_threads
from stowage.step.record.recording import Recording, record
from stowage.step.replay.repetition import told_to_repeat
from stowage.step.replay.replay import KEEPS_LOST_STATES, Mismatch, OtherNumbers, Replay
from stowage.step.replay.room import Room
from stowage.step.replay.shadow import ReadsShell, Shadow
from stowage.step.replay.step_plan import StepOptions
from stowage.step.replay.undo import Undo
from stowage.step.signature.key_values import loosened
from stowage.step.signature.novelty import Novelty
from stowage.step.signature.passing import Passing
from stowage.step.signature.signature import signature

_MAX_UNSETTLED = 3
_MAX_BEGINNINGS = 32  # recordings in a row in which something began that should stay: each call begins anew
_MAX_OF_CLOSURE = 4  # recordings of which none has served
_MAX_OBJECTS = 4  # different sets of objects among the arguments, for which recordings are kept
_MAX_OBJECTS_WITHIN_BUDGET = 2
_LOOKS_FOR_GONE = 16  # eager calls between two looks
_MANY_NEW_THREADS = 4
_MAX_IDLE = 512  # signatures that are only remembered; the oldest are forgotten


class _BlockBegan(Exception):
    """Another thread's stowage.budget, while the call waited to be alone: it is as if the call came only now."""


class CompiledStep(FunctionAttributes, LatestPlan):
    """Callable like the function that it wraps. Made by stowage.compile."""

    _WITHOUT_PLAN = "runs eagerly"

    def __init__(
        self,
        train_step: Callable,
        options: StepOptions,
        checking: Checking,
        link_gbps: float | None,
        strict: bool | str,
    ):
        """``link_gbps``, ``strict``: as for compile()."""
        room = Room.of_environment(_runtime.Arena(), link_gbps)
        if strict == "paranoid":
            room = dataclasses.replace(room, looks="paranoid")
        super().__init__(train_step, options.budget, strict, room)
        self._options = options
        self._checking = checking
        self._eager_calls = None
        room.regions.limited = self._budget is not None
        if self._budget is not None:
            self._eager_calls = EagerCalls(self._budget, link_gbps, self._room, options.leaving)
        self._cutting = Cutting(train_step, self._budget is not None, checking.always)
        self._novelty = Novelty()
        self._told: set[str] = set()
        self._new_threads = 0
        self._objects: dict[tuple[int, ...], list[Entry]] = {}  # by the objects among the arguments, the latest last
        self._passing = Passing()
        self._key: Any = None  # of the latest call
        self._loose: Any = None
        self._forgetting = Forgetting(self._budget is not None)
        self._warned: list[Warning] = []  # that the user's filters make errors of, for the next call to raise
        swapping.holders.add(self)
        other_threads.install()
        self._own = frozenset(self.__dict__)

    # ---- Calling

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A compiled function in a class is a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if fake_mode_active() or _runtime.intercepting():
            return self._fn(*args, **kwargs)
        if mode := foreign_mode():
            return self._plainly(f"as any within a mode of yours that sees each operation ({mode})", args, kwargs)
        if why := moved():
            return self._plainly(why, args, kwargs)
        if self._options.leaving and self._room.host.homes_are_a_parent_s:
            return self._plainly(
                "as any in a child of fork() where residents leave: they are the parent's", args, kwargs
            )
        _runtime.require_allocator()
        served = False
        with _runtime.Turn(self._gate) as turn:
            if self._warned:
                raise say(self._warned.pop(0), BEFORE)
            if not _runtime.budget_active():
                turn.ends(self._eager_calls)
                with contextlib.suppress(_BlockBegan), warnings_wait(self._warned), unheard():
                    halves = self._cutting.of_call(self._drop_all)
                    parameters = () if halves is None else halves.parameters(*args, **kwargs)
                    result = self._step(turn, args, kwargs)
                    served = True
        if served:
            return result if halves is None else halves.rest(parameters, result)
        return self._fn(*args, **kwargs)  # a budget's block watches what eager does

    @property
    def _function(self) -> Callable:
        """That is recorded and planned: the user's, or its first half."""
        return self._cutting.function

    def _plainly(self, why: str, args: tuple, kwargs: dict) -> Any:
        """Where neither plan nor eager budget can work: what a mode of the user's does is no part of them."""
        if why not in self._told:
            self._told.add(why)
            how = "eagerly" if self._budget is None else "eagerly and without its budget"
            warn(f"this call runs {how}, {why}", UnsupportedWarning)
        return self._fn(*args, **kwargs)

    def _step(self, turn: _runtime.Turn, args: tuple, kwargs: dict) -> Any:
        given: list[Any] = []
        try:
            key, inputs = signature(args, kwargs, given, self._passing)
        except Unsupported as reason:
            self._alone(turn)
            return self._unsupported(str(reason), args, kwargs)
        if key != self._key:
            self._key, self._loose = key, loosened(key)
        entry = self._entry(self._loose, given)
        entry.given = given
        try:
            return self._serve(turn, entry, key, args, kwargs, inputs)
        finally:
            entry.given = ()
            self._passing.end()

    def _unsupported(self, reason: str, args: tuple, kwargs: dict) -> Any:
        """Arguments that have no signature."""
        entry = self._entries.setdefault(("arguments", reason), Entry())
        if not entry.refusal:
            self._refuse(entry, reason)
        return self._eager(entry, args, kwargs, [])

    def _entry(self, key: Any, given: Sequence[Any]) -> Entry:
        """Of a signature. Plans hold on to the objects that they were made for: they serve a few such sets of objects."""
        entry = self._entries.get(key) or self._entries.setdefault(key, Entry())
        entry.objects = tuple(id(value) for value in given if not isinstance(value, (type, ByContent)))
        if objects := entry.objects:
            self._objects[objects] = [*(e for e in self._objects.pop(objects, []) if e is not entry), entry]
            if len(self._objects) > (_MAX_OBJECTS if self._budget is None else _MAX_OBJECTS_WITHIN_BUDGET):
                for old in self._objects.pop(next(iter(self._objects))):
                    old.replays.clear()
        return entry

    def _serve(
        self,
        turn: _runtime.Turn,
        entry: Entry,
        key: Any,
        args: tuple,
        kwargs: dict,
        inputs: list[torch.Tensor],
    ) -> Any:
        entry.calls += 1
        entry.wants_expected()
        entry.key_stays, entry.key = entry.key == key, key
        self._forget_idle(entry)
        if entry.wanted > 0 and entry.recorded_too_often() and entry.serves_often():
            entry.wanted = 0
        self._require_budget_kept(entry)
        if entry.refusal and not entry.wakes():
            self._alone(turn)
            return self._eager(entry, args, kwargs, inputs)
        if _runtime.eager_kernels_come_first():
            self._alone(turn)
            return self._first_of_thread(entry, args, kwargs, inputs)
        fit, replay = self._fitting(entry, key, inputs)
        if (replay is None or not (replay.trusted and replay.numbers_fit) or self._checking.is_due(replay)) and (
            self._alone(turn)
        ):
            fit, replay = self._fitting(entry, key, inputs)  # others may have moved tensors
        if fit and replay is None and self._budget is not None and entry.may_hold_gone:
            entry.may_hold_gone = False
            self._alone(turn)
            # What it holds has to make room, from this call on
            self._forget_gone(entry, World(self._function, entry.given))
            fit, replay = self._fitting(entry, key, inputs)
        self._novelty.note(key, entry.calls == 1 and not fit)
        if entry.replays and not fit:
            entry.wanted_because = entry.replays[-1].unfit(inputs, key, self._passing.met)
        if entry.wanted > 0 or not fit:
            # Optimizer state and lazy caches come into being; or a plan would most likely serve no second call, or would
            # be dear to make for one that may never come.
            unasked = self._novelty.restless or self._budget is not None
            if self._tally.eager_steps == 0 or (unasked and entry.calls == 1):
                return self._eager(entry, args, kwargs, inputs)
            return self._record(entry, key, args, kwargs, inputs)
        # A kernel will raise: with what Python has done until then, and no more. Within a budget there is no room for what
        # would take back an eager call
        likely = replay or fit[0]
        if self._budget is None and likely.refused_index(inputs):
            if _catches(likely) or not likely.recording.world.guard.changed():
                self._alone(turn)
                return self._caught_or_not(entry, args, kwargs, inputs)
            fit = [r for r in fit if not r.refused_index(inputs)]  # it may look up another table now, a larger one
            if not fit:
                self._alone(turn)
                return self._record(entry, key, args, kwargs, inputs)
        if replay is None:
            return self._shadowed(entry, fit, args, kwargs, inputs, unchanged=False)
        if not replay.trusted or not replay.numbers_fit or self._checking.is_due(replay):
            return self._shadowed(
                entry, [replay, *(r for r in fit if r is not replay)], args, kwargs, inputs, unchanged=True
            )
        try:
            result = self._planned(entry, replay, inputs)
            entry.may_hold_gone = True
            entry.serves(replay)
            entry.unchecked += 1
            return result
        except OtherNumbers:
            replay.tells_otherwise()
            self._alone(turn)
            others = [r for r in fit if r is not replay]
            return self._shadowed(entry, [replay, *others], args, kwargs, inputs, unchanged=False)
        except Mismatch as mismatch:
            entry.wanted_because = str(mismatch)
            self._drop(entry, replay)
            self._alone(turn)
            return self._record(entry, key, args, kwargs, inputs)
        except Exception as error:
            if not _may_be_caught(replay, error):
                raise
        self._alone(turn)
        return self._caught_or_not(entry, args, kwargs, inputs)

    def _fitting(self, entry: Entry, key: Any, inputs: list[torch.Tensor]) -> tuple[list[Replay], Replay | None]:
        """Those that can serve the call, if its Python does the same, and the one of which that is known without
        running it. Before any Python runs, guards let go of what weak references would find dead."""
        entry.forget_unconfirmed()
        fit = [replay for replay in reversed(entry.replays) if not replay.unfit(inputs, key, self._passing.met)]
        fit.sort(key=lambda replay: bool(replay.undecided))
        weak = [r for e in self._entries.values() for r in e.replays if r.recording.world.weak]
        if weak:
            self._let_go_of_the_dropped(weak)
        if entry.wanted > 0:
            return fit, None
        return fit, next(
            (
                r
                for r in fit
                if r.key == key and not (r.undecided or r.shadowed_because or r.recording.world.guard.changed())
            ),
            None,
        )

    def _let_go_of_the_dropped(self, weak: list[Replay]) -> None:
        """Steps that read weak references find dead what the user has dropped: a guard that has changed, or is not
        asked, holds nothing."""
        changed = next(filter(None, (r.recording.world.guard.changed() for r in weak if not r.shadowed_because)), "")
        for replay in weak:
            if why := replay.shadowed_because or changed:
                replay.recording.world.guard.let_go(why)

    def _alone(self, turn: _runtime.Turn) -> bool:
        """A call that may run within its budget's block: no other thread may allocate meanwhile, or use what has to
        make room. Nothing of the call has happened.

        Raises _BlockBegan."""
        waited = self._budget is not None and turn.alone()
        if waited and _runtime.budget_active():
            raise _BlockBegan
        return waited

    def _forget_idle(self, entry: Entry) -> None:
        if entry.calls == 1 and len(self._entries) > _MAX_IDLE:
            idle = (k for k, e in self._entries.items() if not e.replays and not e.refusal and e is not entry)
            self._entries.pop(next(idle, None), None)

    def _forget_gone(self, entry: Entry | None = None, world: World | None = None) -> None:
        """Recordings that hold what the program has replaced. ``world``: what ``entry``'s call finds."""
        reached, objects = (world.found, entry.objects) if world is not None and entry is not None else (None, ())
        if self._latest in self._forgetting.forget(self._entries.values(), reached, objects):
            self._latest = None

    def _eager(self, entry: Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        if self._budget is not None or entry.eager_calls % _LOOKS_FOR_GONE == 0:
            self._forget_gone(entry, self._world_of_refused(entry) if self._budget is not None else None)
        with self._tally.eager_call(), self._within(entry, inputs):
            if self._has_compiled_regions(entry):
                result = compiled_regions.run_alike(lambda: heard(self._function, args, kwargs), self._room.regions)
            else:
                result = heard(self._function, args, kwargs)
        entry.eager_calls += 1
        return result

    def _first_of_thread(self, entry: Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        """PyTorch sets a thread's number of threads at the first kernel that it splits. Anything of ours would be such
        a kernel too early: eager's sums before it are those of another number."""
        self._new_threads += 1
        if self._new_threads == _MANY_NEW_THREADS:
            warn(
                "each call comes from a new thread, in which torch.set_num_threads() was not called: its first call runs"
                " eagerly, as its sums are those of another number of threads; call it there, or keep one thread",
                UnsupportedWarning,
            )
        try:
            return self._eager(entry, args, kwargs, inputs)
        finally:
            _runtime.eager_kernels_have_run()

    def _has_compiled_regions(self, entry: Entry) -> bool:
        """Recorded calls see them with other dispatch keys than eager ones do."""
        regions = self._room.regions
        regions.inside = regions.inside or (compiled_regions.in_use() and self._world(entry).compiled is not None)
        return regions.inside

    def _eager_call(
        self, entry: Entry, inputs: list[torch.Tensor], world: World | None = None,
        gradients: Sequence[weakref.ref[torch.Tensor]] = (),
    ) -> EagerCall | None:  # fmt: skip
        """Of a call that has a budget and is not planned. A step that will never be, and has gone through, is not copied each
        time. ``gradients``: that were there before its Python ran."""
        if self._eager_calls is None:
            return None
        world = world or self._world_of_refused(entry)
        tapes = [replay.recording.tape for e in self._entries.values() for replay in e.replays]
        undo = not entry.refusal or entry.eager_calls < 2
        return self._eager_calls.call(
            lambda: world or World(self._function, entry.given), inputs, tapes, undo, gradients
        )

    def _world_of_refused(self, entry: Entry) -> World | None:
        """Of a step that runs eagerly, and may do so in all calls: looked for again where something in it has changed."""
        if not entry.refusal:
            return None
        if entry.world is not None and entry.world.guard.changed():
            entry.world = None
        entry.world = entry.world or World(self._function, entry.given)
        return entry.world

    def _within(
        self, entry: Entry, inputs: list[torch.Tensor], world: World | None = None, began: Replay | None = None,
        gradients: Sequence[weakref.ref[torch.Tensor]] = (),
    ) -> contextlib.AbstractContextManager:  # fmt: skip
        """The block of such a call, where one is enough. ``began``: whose ops are run together in it."""
        call = self._eager_call(entry, inputs, world, gradients)
        if call is None:
            return contextlib.nullcontext()
        return call.within() if began is None else call.within(began.unfinished())

    def _planned(self, entry: Entry, replay: Replay, inputs: list[torch.Tensor]) -> Any:
        result = self._tally.planned_call(replay.run, inputs)
        self._has_planned(entry, replay)
        return result

    def _has_planned(self, entry: Entry, replay: Replay) -> None:
        self._latest = replay
        replay.planned_calls += 1
        self._tally.account(replay.last_run)
        if replay.should_part_from_results:
            with self._planning(entry):
                replay.part_from_results()

    # ---- With the user's own Python

    def _shadowed(
        self, entry: Entry, fit: list[Replay], args: tuple, kwargs: dict, inputs: list[torch.Tensor], unchanged: bool
    ) -> Any:
        """The user's function runs, over shells; what it did is then planned, where a recording holds it.
        ``unchanged``: the guards of the first of them say that it will do the same."""
        began, others = fit[0], fit[1:]
        bound = [replay.inputs(inputs) for replay in fit]  # before the function gives gradients away
        # They live until the call ends, and are the step's: a budget counts them
        gradients = [weakref.ref(p.grad) for p in began.parameters if self._budget is not None and p.grad is not None]
        fitted = [replay.numbers_fit for replay in fit]
        for replay in fit:
            replay.numbers_fit = False  # however far the function comes; below it is seen whether they do

        def take_back(why: Exception) -> None:
            """What the function's Python did, which is to run again."""
            left = before.put_back() if before is not None else "what it has changed"
            _put_back(arrays, contents)
            if left:
                self._refuse(entry, f"its Python, after which came: {why}")
                raise Error(
                    f"the step's Python has run, but its kernels cannot ({why}), and {left} cannot be set back, so that it cannot "
                    "run again; the model and the optimizer are as before the call. Later calls run eagerly"
                ) from why

        def step(undo: Undo) -> tuple[Any, Replay | None]:
            try:
                with self._tally.check():
                    shadow = began.shadow(
                        lambda: heard(self._function, args, kwargs),
                        inputs,
                        others,
                        self._eager_call(entry, inputs, None, gradients),
                        arrays,
                    )
            except ReadsShell as reason:
                undo.now()
                self._drop(entry, began)
                entry.reads_shells += 1
                entry.wanted_because = f"it reads bytes of a tensor on the host: {reason}"
                take_back(reason)
                if entry.reads_shells > MAX_SHELLS_READ:
                    return self._refused(entry, entry.wanted_because, args, kwargs, inputs), None
                # Which knows what can be told
                return self._record(entry, signature(args, kwargs, [], self._passing)[0], args, kwargs, inputs), None
            try:
                missed = (
                    (shadow.refreshed and fitted[0])
                    or shadow.other_in_step
                    or (shadow.difference and not shadow.in_optimizer)
                )
                otherwise = unchanged and not shadow.difference and began.returns_otherwise(shadow.result)
                if unchanged and began.trusted and (missed or otherwise):
                    returned = "it returns something else" if otherwise else "it gives other numbers"
                    self._guards_missed(entry, shadow.difference or returned)
                entry.unchecked = 0
                if shadow.difference:
                    return self._left(entry, shadow), None
                replay = shadow.replay
                entry.has_matched(fit, fitted, shadow, unchanged)
                if not replay.trusted:
                    return self._rehearse(entry, shadow, inputs, bound[fit.index(replay)], undo, gradients), None
                self._tally.planned_call(replay.run_shadowed, shadow, bound[fit.index(replay)])
            finally:
                shadow.done()
            return shadow.result, replay

        arrays = self._passing.arrays if any(r.recording.over_arrays for r in fit) else []
        contents = [copy.copy(array) for array in arrays]
        may_run_twice = any(_may_run_again(r, inputs) for r in fit) or arrays or began.recording.arrays
        before = PythonState(World(self._function, entry.given)) if may_run_twice else None
        try:
            result, replay = began.transaction(step, others, python=True, arguments=inputs, inputs=bound[0])
        except Exception as error:
            if before is None or not _may_be_caught(began, error):
                raise
            take_back(error)
            return self._caught_or_not(entry, args, kwargs, inputs)
        if replay is not None:
            self._has_planned(entry, replay)
        return result

    def _guards_missed(self, entry: Entry, difference: str) -> None:
        """A check has found what the guards did not see: unchecked calls before it may have been wrong, later ones must
        not be."""
        if entry.unchecked:
            warn(
                f"the step's Python has changed in a way that is not watched ({difference}); this call is right, calls"
                " since the last check may not be. From now on its Python runs in every call; check='always' does so from"
                " the beginning"
            )
        for replay in entry.replays:
            replay.shadowed_because = replay.shadowed_because or "it has changed in a way that is not watched"

    def _left(self, entry: Entry, shadow: Shadow) -> Any:
        """The function did what no recording holds, and that has happened eagerly. Recorded when it comes again."""
        self._tally.eager_steps += 1
        entry.eager_calls += 1
        entry.wanted_because = shadow.difference
        if not shadow.handed_out:
            entry.leaves(shadow.left_by)
            if entry.never_serves:
                self._rest(entry, f"its Python does not do what was recorded, however often it is: {shadow.difference}")
        elif not entry.planned_yet:
            entry.handed_out += 1
            if entry.handed_out >= MAX_HANDED_OUT:
                self._rest(entry, f"{shadow.difference}: memory that no plan has filled yet")
        if shadow.difference == KEEPS_LOST_STATES:
            entry.lost_states += 1
            if entry.lost_states >= MAX_LOST_STATES and not entry.planned_yet:
                self._rest(entry, f"{shadow.difference} (item()): a planned call does not know that state")
        return shadow.result

    # ---- Recording and trust

    def _record(self, entry: Entry, key: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        if entry.recorded_too_often():
            if not entry.serves_often():
                entry.rest()
                self._refuse_changing(entry, entry.wanted_because or "what it reads")
            return self._eager(entry, args, kwargs, inputs)
        if entry.calls_closure and not entry.served and len(entry.recordings) >= _MAX_OF_CLOSURE:
            what = "optimizer.step() with a closure, which does something else in each call"
            advice = "a closure that is made once can be planned itself: optimizer.step(stowage.compile(closure))"
            return self._refused(entry, f"{what}: {entry.wanted_because}; {advice}", args, kwargs, inputs)
        world = self._world(entry)
        anew = entry.finds_anew(world)
        if self._budget is not None:
            self._forget_gone()
        held = held_places(world, anew & entry.writes)
        before = [*entry.replaced, *(place for place in held if place not in entry.replaced)]
        might_have_served = [replay for replay in entry.replays if not replay.unfit(inputs, key, self._passing.met)]
        recording = self._recorded(
            entry,
            world,
            args,
            kwargs,
            inputs,
            replaced=before,
            anew=anew - {place.path for place in before if isinstance(place, Held)},
            earlier=[replay.recording.tape for replay in entry.replays],
            keeps=keeps_tensors(self._entries.values()),
        )
        entry.replaced = recording.replaced
        entry.replaced += [place for place in before if isinstance(place, Held) and place not in recording.replaced]
        entry.writes |= recording.writes
        entry.calls_closure = recording.calls_closure
        result = recording.result
        if not recording.unsettled:
            serves = self._cutting.serves(recording, key, entry)
            if serves is None:
                self._drop_all()
                return result
            recording, key = serves
        if recording.tape is None:
            entry.unsettled += not recording.beginning
            entry.beginnings += recording.beginning
            if entry.beginnings >= _MAX_BEGINNINGS:
                self._refuse(
                    entry,
                    f"{recording.refusal}, as in {entry.beginnings - 1} calls before it; what lasts over calls is best made "
                    "before the first",
                )
            elif not recording.unsettled or entry.unsettled >= _MAX_UNSETTLED:
                self._refuse(entry, recording.refusal)
            return result
        if recording.tape.finds:  # no call finds those of that one again
            entry.replays = [replay for replay in entry.replays if not replay.recording.tape.outdated]
        self._forget_gone()
        known = [r for r in might_have_served if r in entry.replays and r.serves_as(recording)]
        outdated = entry.outdated_by(recording, known)
        if known and not outdated:
            entry.has_wasted()
            return result
        for replay in outdated:
            self._drop(entry, replay)
        entry.wanted = 0
        entry.recorded()
        with self._planning(entry):
            replay = Replay(recording, self._room, self._name, self._options)
            replay.key = key
            self._forgetting.recorded(replay)
            entry.keep(replay)
            self._latest = replay
            self._forget_gone(entry, recording.world)
        return result

    def _caught_or_not(self, entry: Entry, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        """A kernel raises, or has raised in a planned call whose Python has handlers of exceptions, and nothing of the call
        has happened: it runs as eager would. What passes through the step is taken back, as far as there is memory for
        a copy."""
        return self._recorded(entry, self._world(entry), args, kwargs, inputs).result

    def _recorded(
        self, entry: Entry, world: World, args: tuple, kwargs: dict, inputs: list[torch.Tensor], **known: Any
    ) -> Recording:
        """The call, run as eager would, and recorded. ``known``: see record()."""
        self._room.make_way()  # it needs what eager does, and no arena beside it
        with shown("recording a step"), self._tally.eager_call():
            recording = record(
                self._function,
                args,
                kwargs,
                inputs,
                world=world,
                within=self._within(entry, inputs, world),
                regions=self._room.regions,
                objects=entry.given,
                passing=self._passing,
                **known,
            )
        entry.eager_calls += 1
        return recording

    def _world(self, entry: Entry) -> World:
        """As it is now. That something is compiled in the step may be known from earlier calls alone."""
        world = World(self._function, entry.given)
        if self._room.regions.inside:
            world.compiled = world.compiled or self._name
        return world

    def _rehearse(
        self, entry: Entry, shadow: Shadow, arguments: list[torch.Tensor], inputs: list[int], undo: Undo,
        gradients: Sequence[weakref.ref[torch.Tensor]],
    ) -> Any:  # fmt: skip
        """Planned and plain from the same state; the plain result counts. Trusted once both agree and nothing was
        missed."""
        replay = shadow.replay
        replay.rehearsals += 1
        rehearsal, raised = None, ""
        told = replay.repetition.told
        with contextlib.ExitStack() as kernels:
            if told:
                kernels.enter_context(told_to_repeat())
            try:
                rehearsal = replay.rehearse_matched(inputs, learn=not told)
            except Error:
                raise
            except Exception as error:  # most often a kernel's, which will raise again
                raised = f"{type(error).__name__}: {error}".partition("\n")[0]
                kernels.close()
                if _catches(replay) and not told:
                    with self._planning(entry):
                        replay.drop_replacements("a replaced kernel has raised")
                    raise
            with self._tally.eager_call(), self._within(entry, arguments, None, shadow.began, gradients):
                shadow.run_plainly()
        undo.keep()
        entry.eager_calls += 1
        replay.note_tile_error(shadow)
        if rehearsal is None and told:
            self._judge(entry, replay, False, replay.repetition.first)
            return shadow.result
        if rehearsal is None:
            with self._planning(entry):
                fell_back = replay.drop_replacements(f"the rehearsal has raised {raised}")
            if not fell_back:
                self._has_raised(entry, replay, raised)
            return shadow.result
        agrees = replay.agrees(rehearsal, shadow.result, inputs, shadow.kept_agree() and shadow.replaced_agree())
        self._judge(entry, replay, agrees, "" if agrees else shadow.first_difference())
        return shadow.result

    def _drop(self, entry: Entry, replay: Replay) -> None:
        entry.replays.remove(replay)

    def let_go_of_tensors(self) -> None:
        """Without its plans: the step is recorded anew. Nothing happens within its own call, which needs them."""
        if _runtime.intercepting():
            return
        with _runtime.Turn(self._gate):
            self._drop_all()

    def _drop_all(self) -> None:
        for entry in self._entries.values():
            entry.replays.clear()
            entry.world = None
        self._forgetting.let_go()
        self._latest = None

    def _refused(self, entry: Entry, reason: str, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        self._refuse(entry, reason)
        return self._eager(entry, args, kwargs, inputs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a compiled step is not copied or pickled: its plans hold this process's tensors; compile the function of the copy"
        )


def _put_back(arrays: Sequence[Any], contents: Sequence[Any]) -> None:
    for array, content in zip(arrays, contents):
        if buffer_digest(array) != buffer_digest(content):
            array[...] = content


def _catches(replay: Replay) -> bool:
    return replay.recording.world.catches


def _may_run_again(replay: Replay, inputs: list[torch.Tensor]) -> bool:
    """The step's Python, after a kernel has raised."""
    recording = replay.recording
    unforeseen = recording.catches_unforeseen or (recording.catches_values and replay.may_refuse_index(inputs))
    return not replay.trusted or (_catches(replay) and unforeseen)


def _may_be_caught(replay: Replay, error: Exception) -> bool:
    """By the step's Python, which has not seen the error where eager would raise it."""
    return _catches(replay) and replay.taken_back and not isinstance(error, (Error, torch.OutOfMemoryError))
