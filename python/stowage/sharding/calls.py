"""The calls of a sharded step: on DTensors, recorded, over shells, or planned. All ranks do the same.

    each rank wishes     agreed: the least of it
      EAGER  ─┐            the function runs on DTensors
      RECORD  ├─ agree ──► the same, and this rank's kernels and collectives are recorded
      ANEW    │            the same, once a plan is made anew whose results were in its way
      SHELLS  │            the function runs on DTensors over shells; its kernels are compared with the recordings, then planned
      PLANNED ┘            the optimizers' Python runs, and the plan

Over shells each rank runs by itself, until kernels are to run: then all must have come to the same moment, as collectives are
among them.

    rank 0   forward ... item()?  ─┐          ┌─► 2.31 ... backward, update, end ─┐          ┌─► the plan
    rank 1   forward ... item()?  ─┴─ tells ──┴─► 2.31 ... backward, update, end ─┴─ ends ───┴─► the plan
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from typing import Any

import torch

from stowage._torch.private import flatten, tree_map, unflatten
from stowage._torch.subclasses import heard
from stowage.errors import Error
from stowage.sharding.group import Ranks
from stowage.sharding.index_ranges import index_ranges, refuse_indices
from stowage.sharding.mode import OpPlan, PlacedMode
from stowage.sharding.old_gradients import OldGradients
from stowage.sharding.parts import whole
from stowage.sharding.placements import ShardingPlan
from stowage.sharding.stand_in import what_is_held_explained
from stowage.sharding.world import ShardedState, ShardedWorld
from stowage.step.entry import MAX_HANDED_OUT, MAX_LOST_STATES, MAX_SHELLS_READ, Entry, keeps_tensors
from stowage.step.life_cycle import LifeCycle
from stowage.step.reach.python_state import PythonState
from stowage.step.record.recording import Recording, record
from stowage.step.replay.replay import KEEPS_LOST_STATES, Mismatch, Replay
from stowage.step.replay.room import Room
from stowage.step.replay.shadow import ReadsShell, Shadow
from stowage.step.replay.step_plan import StepOptions
from stowage.step.replay.undo import Undo

_EAGER, _RECORD, _PLAN_ANEW, _SHELLS, _PLANNED = range(5)  # what the ranks do: the least that one of them wishes
_TELLS, _LEAVES, _READS, _ENDS = range(4)  # moments of a call over shells
_IN_WORDS = {
    _TELLS: "asks for a number",
    _LEAVES: "does what was not recorded",
    _READS: "reads a tensor on the host",
    _ENDS: "ends",
}
_MOST_REPLAYS = 1 << 16


class ShardedEntry(Entry):
    def __init__(self, plan: ShardingPlan, ops: OpPlan):
        super().__init__()
        self.plan = plan
        self.ops = ops
        self.indices = [] if plan.program.guessed else index_ranges(plan.program)
        self.latest: Replay | None = None
        self.key_stays = True  # each has its own


class Moments:
    """Of one call over shells. Once one has failed, there is no other."""

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._failed: BaseException | None = None

    def tells(self, under_way: bool) -> bool:
        """Kernels are to run for a number. ``under_way``: some have run; is that so on all ranks?"""
        return all(row[1] for row in self._come_to(_TELLS, under_way))

    def leaves(self) -> None:
        """The Python has left the recordings; what it has done is to run without a plan."""
        self._come_to(_LEAVES)

    def reads(self) -> None:
        """The Python has read a shell, and is taken back."""
        self._come_to(_READS)

    def ends(self, recording: int, under_way: bool, trusted: bool) -> tuple[bool, bool, bool]:
        """The Python has done what this recording holds; kernels are under way, its plan is trusted. Is each so on all
        ranks?"""
        rows = self._come_to(_ENDS, recording, under_way + 2 * trusted)
        alike = all(row[:2] == [_ENDS, recording] for row in rows)
        return alike, all(row[2] & 1 for row in rows), all(row[2] & 2 for row in rows)

    def _come_to(self, moment: int, *numbers: int) -> list[list[int]]:
        if self._failed is not None:
            raise self._failed
        try:
            rows = self._ranks.at_moment(moment, *numbers)
            others = [row[0] for row in rows]
            if not (set(others) <= {_LEAVES, _ENDS} or len(set(others)) == 1):
                i = next(i for i, other in enumerate(others) if other != moment)
                raise self._ranks.differ(
                    f"the ranks' Python differs: rank {i} {_IN_WORDS[others[i]]} where this one {_IN_WORDS[moment]}"
                )
        except BaseException as error:
            self._failed = error
            raise
        return rows


class ShardedCalls(LifeCycle):
    """Of a step whose tensors are in parts."""

    _WITHOUT_PLAN = "runs on DTensors"

    def __init__(self, train_step: Callable, mesh: Any, ranks: Ranks, room: Room, budget: int | None, strict: bool):
        super().__init__(train_step, budget, strict)
        self.mesh = mesh
        self._ranks = ranks
        self._room = room
        self._mode: PlacedMode | None = None

    @abc.abstractmethod
    def _split_state(self) -> ShardedState:
        """What the ranks hold."""

    def _call(self, entry: ShardedEntry, key: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        refuse_indices(entry.indices, inputs)
        entry.calls += 1
        entry.wants_expected()
        if entry.wanted > 0 and entry.recorded_too_often() and entry.serves_often():
            entry.wanted = 0
        wish, fit, replay = self._wish(entry, key, inputs)
        if wish == _PLANNED and replay is not None:
            bound = replay.inputs(inputs)
            with replay.host_state() as undo:
                try:
                    replay.match(bound)
                except Mismatch as mismatch:
                    entry.wanted_because, wish = str(mismatch), _RECORD
                agreed = self._agree(entry, wish, replay, key)
                if agreed == _PLANNED:
                    replay.let_go()
                    result = self._tally.planned_call(replay.run_matched, bound)
                    entry.serves(replay)
                    self._has_planned(entry, replay)
                    return result
                undo.now()
        else:
            agreed = self._agree(entry, wish, fit[0] if fit else None, key)
        if agreed == _SHELLS:
            return self._over_shells(entry, fit, args, kwargs, inputs, replay is not None)
        if agreed == _RECORD:
            return self._record(entry, key, args, kwargs, inputs)
        if agreed == _PLAN_ANEW:
            with self._planning(entry):
                fit[0].part_from_results()
        return self._eager(entry, args, kwargs)

    def _wish(
        self, entry: ShardedEntry, key: Any, inputs: list[torch.Tensor]
    ) -> tuple[int, list[Replay], Replay | None]:
        """And the recordings that can serve the call, if its Python does the same; and the one of which that is known
        without running it, which is the first of these."""
        # In its first call the ranks agree which ops run on parts: no recording sees that
        asleep = entry.refusal and not entry.wakes()
        if asleep or entry.calls == 1 or not self._split_state().has_optimizer_state():
            return _EAGER, [], None
        entry.forget_unconfirmed()
        fit = [replay for replay in reversed(entry.replays) if not replay.unfit(inputs, key, ())]
        fit.sort(key=lambda replay: bool(replay.undecided))
        if entry.replays and not fit:
            entry.wanted_because = entry.replays[-1].unfit(inputs, key, ())
        if entry.wanted > 0 or not fit:
            if not entry.recorded_too_often():
                return _RECORD, [], None
            if not entry.serves_often():
                self._refuse_changing(entry, entry.wanted_because or "what it reads")
            return _EAGER, [], None
        if fit[0].trusted and fit[0].should_part_from_results:
            return _PLAN_ANEW, fit, None
        known = next(
            (
                r
                for r in fit
                if r.key == key and not (r.undecided or r.shadowed_because or r.recording.world.guard.changed())
            ),
            None,
        )
        if known is None:
            return _SHELLS, fit, None
        fit = [known, *(r for r in fit if r is not known)]
        return (_PLANNED if known.trusted and known.numbers_fit else _SHELLS), fit, known

    def _agree(self, entry: ShardedEntry, wish: int, replay: Replay | None, key: Any) -> int:
        """On what to do, and, where the optimizers' Python alone has run, on the recording."""
        position = entry.replays.index(replay) if replay is not None else 0
        wishes = self._ranks.agree(wish * _MOST_REPLAYS + position, key)
        least = min(wishes) // _MOST_REPLAYS
        return _SHELLS if least == _PLANNED and len(set(wishes)) > 1 else least

    # ---- One call

    def _distributed(self, entry: ShardedEntry) -> Callable:
        """The user's function on DTensors: arguments as all ranks have them in, whole tensors out."""

        def step(*args: Any, **kwargs: Any) -> Any:
            split = self._split_state()
            mode = PlacedMode(self.mesh, entry.ops, self._ranks, OldGradients(split.parameters()))
            self._mode = split.mode = mode
            spread = lambda v: whole(v, self.mesh) if isinstance(v, torch.Tensor) else v
            args, kwargs = tree_map(spread, args), tree_map(spread, kwargs)
            entry.ops.begin(split.names(), [t for t in flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)])
            with mode.running(), what_is_held_explained():
                result = heard(self._fn, args, kwargs)
                with mode.aside(), torch.no_grad():
                    leaves, spec = flatten(result)
                    return unflatten([split.gathered(leaf) for leaf in leaves], spec)

        return step

    def _watched(self, entry: ShardedEntry, args: tuple, kwargs: dict) -> Any:
        with self._split_state().watching():
            return self._distributed(entry)(*args, **kwargs)

    def _eager(self, entry: ShardedEntry, args: tuple, kwargs: dict) -> Any:
        with self._tally.eager_call():
            return self._watched(entry, args, kwargs)

    def _record(self, entry: ShardedEntry, key: Any, args: tuple, kwargs: dict, inputs: list[torch.Tensor]) -> Any:
        might_have_served = [replay for replay in entry.replays if not replay.unfit(inputs, key, ())]
        world = ShardedWorld(self._fn, self._split_state())
        self._room.make_way()
        with self._tally.eager_call():
            recording = record(
                self._distributed(entry),
                args,
                kwargs,
                inputs,
                world=world,
                step=self._fn,
                anew=entry.finds_anew(world),
                keeps=keeps_tensors(self._entries.values()),
            )
        result = recording.result
        if not recording.refusal and self._mode is not None and self._mode.uses_old_gradients:
            recording.refusal, recording.unsettled = (
                "it adds to gradients of earlier calls, or uses them otherwise",
                True,
            )
        if self._ranks.any(recording.tape is None or bool(recording.refusal)):
            entry.recorded()
            settled = self._ranks.any(not recording.unsettled)
            if settled or entry.recorded_too_often():
                self._refuse(entry, recording.refusal or "another rank's step cannot be replayed")
            return result
        same = (i for i, r in enumerate(entry.replays) if r in might_have_served and r.serves_as(recording))
        known = next(same, -1)
        outdated = entry.outdated_by(recording, entry.replays[known : known + 1] if known >= 0 else ())
        if self._everywhere(known >= 0):
            alike = self._everywhere(self._ranks.most(known) == known)
            if not (alike and self._ranks.any(bool(outdated))):
                entry.has_wasted()
                return result
            entry.replays.pop(known)
        entry.wanted = 0
        entry.recorded()
        self._plan_recorded(entry, key, recording)
        return result

    def _plan_recorded(self, entry: ShardedEntry, key: Any, recording: Recording) -> None:
        with self._planning(entry):
            replay = Replay(recording, self._room, self._name, StepOptions(self._budget, lean_kernels=False))
            replay.key = key
            entry.keep(replay)
            entry.latest = replay

    # ---- With the user's own Python

    def _over_shells(
        self,
        entry: ShardedEntry,
        fit: list[Replay],
        args: tuple,
        kwargs: dict,
        inputs: list[torch.Tensor],
        unchanged: bool,
    ) -> Any:
        """``unchanged``: the guards of the first of ``fit`` say that the Python will do the same."""
        began, others = fit[0], fit[1:]
        bound = [replay.inputs(inputs) for replay in fit]
        fitted = [replay.numbers_fit for replay in fit]
        for replay in fit:
            replay.numbers_fit = False  # however far the function comes; below it is seen whether they do
        moments = Moments(self._ranks)
        before = PythonState(ShardedWorld(self._fn, self._split_state())) if not began.trusted else None

        def step(undo: Undo) -> tuple[Any, bool]:
            try:
                with self._tally.check():
                    shadow = began.shadow(
                        lambda: self._watched(entry, args, kwargs), inputs, others, None, ranks=moments
                    )
            except ReadsShell as reason:
                moments.reads()
                undo.now()
                self._read_shell(entry, began, str(reason), before)
                return None, False
            try:
                if shadow.difference:
                    return self._left(entry, shadow), True
                replay = shadow.replay
                alike, under_way, trusted = moments.ends(
                    entry.replays.index(replay), began.matcher.under_way, replay.trusted
                )
                if not under_way:
                    began.matcher.start_over()
                if not alike:
                    shadow.run_plainly()
                    undo.keep()
                    return self._left(entry, shadow, "another rank's Python does what was not recorded"), True
                entry.has_matched(fit, fitted, shadow, unchanged)
                entry.latest = replay
                if not trusted:
                    return self._rehearse(entry, shadow, bound[fit.index(replay)], undo), True
                self._tally.planned_call(replay.run_shadowed, shadow, bound[fit.index(replay)])
            finally:
                shadow.done()
            self._has_planned(entry, replay)
            return shadow.result, True

        result, happened = began.transaction(step, others, python=True, arguments=inputs, inputs=bound[0])
        return result if happened else self._record(entry, began.key, args, kwargs, inputs)

    def _read_shell(self, entry: ShardedEntry, began: Replay, reason: str, before: PythonState | None) -> None:
        """The Python has to run again. Raises Error where what it has changed cannot be set back."""
        self._drop(entry, began)
        entry.reads_shells += 1
        entry.wanted_because = f"it reads bytes of a tensor on the host: {reason}"
        left = before.put_back() if before is not None else "what it has changed"
        if left or entry.reads_shells > MAX_SHELLS_READ:
            self._refuse(entry, entry.wanted_because)
        if left:
            raise Error(
                f"the step's Python has run, but it reads bytes of a tensor on the host ({reason}), and {left} cannot be set back, so that "
                "it cannot run again; the model and the optimizer are as before the call. Later calls run on DTensors"
            )

    def _left(self, entry: ShardedEntry, shadow: Shadow, difference: str = "") -> Any:
        """The function did what no recording holds, on this rank or another, and that has happened without a plan. Recorded when
        it comes again."""
        self._tally.eager_steps += 1
        entry.eager_calls += 1
        entry.wanted_because = difference or shadow.difference
        entry.leaves(shadow.left_by)
        lost = entry.wanted_because == KEEPS_LOST_STATES
        entry.lost_states += lost
        entry.handed_out += shadow.handed_out
        if entry.never_serves or (
            not entry.planned_yet and (entry.handed_out >= MAX_HANDED_OUT or entry.lost_states >= MAX_LOST_STATES)
        ):
            self._rest(entry, f"its Python does not do what was recorded, however often it is: {entry.wanted_because}")
        return shadow.result

    def _rehearse(self, entry: ShardedEntry, shadow: Shadow, inputs: list[int], undo: Undo) -> Any:
        """Planned and plain from the same state; the plain result counts. Trusted once both agree."""
        replay = shadow.replay
        replay.rehearsals += 1
        rehearsal = replay.rehearse_matched(inputs)
        with self._tally.eager_call():
            shadow.run_plainly()
        undo.keep()
        entry.eager_calls += 1
        kept = shadow.kept_agree() and shadow.replaced_agree()
        self._judge(entry, replay, replay.agrees(rehearsal, shadow.result, inputs, kept))
        return shadow.result

    def _has_planned(self, entry: ShardedEntry, replay: Replay) -> None:
        entry.latest = replay
        replay.planned_calls += 1
        self._tally.account(replay.last_run)

    def _together(self) -> contextlib.AbstractContextManager:
        return self._ranks.together()

    def _everywhere(self, true_here: bool) -> bool:
        return not self._ranks.any(not true_here)

    def _drop(self, entry: ShardedEntry, replay: Replay) -> None:
        if replay in entry.replays:
            entry.replays.remove(replay)


__all__ = ["ShardedCalls", "ShardedEntry"]
