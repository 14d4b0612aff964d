"""What a compiled step knows of one signature: its recordings, and when the next one is worth its call.

    a call leaves all recordings by operator o ──► wanted: the next calls are recorded, until o comes again
                                               └── too rare for that: expected in the call in which it is due

O(1) a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stowage.step.life_cycle import SignatureState
from stowage.step.reach.places import Place
from stowage.step.reach.world import World
from stowage.step.record.recording import Recording
from stowage.step.replay.replay import Replay, why_python_must_run
from stowage.step.replay.shadow import Shadow

MAX_SHELLS_READ = 3
MAX_HANDED_OUT = 4  # calls of a step that no plan has served
MAX_LOST_STATES = 2  # calls that kept states that planned calls do not know, of a step that no plan has served
_MAX_REPLAYS = 16  # kept per signature: the ways that the step has taken lately
_WANTED_CALLS = 8  # after a call whose Python was new, recorded until that comes again
_MAX_LEFT = 64  # ways of leaving the recordings that are remembered
_UNCONFIRMED_CALLS = 64  # that a recording waits for its rehearsal
_MAX_WASTED = 32  # recordings that showed nothing new; from then on such calls only run eagerly


class Entry(SignatureState):
    """Of one signature, whatever Python's own numbers among the arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self.replays: list[Replay] = []  # newest last
        self.unsettled = 0
        self.beginnings = 0  # recordings since a plan has served, in which something began that stays
        self.reads_shells = 0
        self.lost_states = 0
        self.handed_out = 0  # calls that were eager from where they asked for memory
        self.replaced: list[Place] = []  # what the step fills anew
        self.anew: set[str] = set()  # names under which calls find other tensors
        self.writes: set[str] = set()  # names under which calls have found tensors, and changed their content
        self.wanted_because = ""  # what made the latest recording necessary
        self.wanted = 0  # calls that may still be spent on recording what has just been new
        self.wasted = 0
        self.left_at: dict[tuple[int, str], int] = {}  # which call has last left all recordings so
        self.expected: set[int] = set()  # calls that may do so again
        self.calls_closure = False  # an optimizer's step, in the latest recording
        self.changed_calls = 0  # in a row whose Python did what was recorded, although what it reads has changed
        self.stays_changed = False  # what was so many times in a row: the next recording is for that
        self.key: Any = None  # of the latest call
        self.key_stays = False  # it was the same before
        self.patience = 3
        self.eager_calls = 0  # that went through
        self.unchecked = 0  # planned calls since Python has last run
        self.world: World | None = None  # of a step that is refused
        self.given: Sequence[Any] = ()  # objects among the arguments of the call that is under way
        self.may_hold_gone = False  # nothing that it reads had changed in the latest call
        self.objects: tuple[int, ...] = ()  # their ids, and no other ones'

    def leaves(self, operator: tuple[int, str]) -> None:
        """The call that is under way has left all recordings by this operator. It is recorded when it comes again: the
        next calls are, or, where it is too rare for that, the one in which it is due."""
        period = self.calls - self.left_at.get(operator, self.calls)
        if operator[0] >= 0 and (operator in self.left_at or len(self.left_at) < _MAX_LEFT):
            self.left_at[operator] = self.calls
        if period > 0:
            self.expected.add(self.calls + period)
        if self.wasted < _MAX_WASTED and period <= _WANTED_CALLS:
            self.wanted = _WANTED_CALLS

    def has_wasted(self) -> None:
        """A recording, on what one holds already. Where none has served a call so far, one of the next shows whether they can."""
        self.wanted = self.wanted - 1 if self.served else self.wanted // 2
        self.wasted += 1

    def outdated_by(self, recording: Recording, known: Iterable[Replay]) -> Sequence[Replay]:
        """Those of ``known``, which hold what ``recording`` holds, in whose place it is kept: what they read has changed, and
        stays so. It watches that as it is now."""
        stays, self.stays_changed = self.stays_changed, False
        if not stays or why_python_must_run(recording):
            return ()
        return [r for r in known if not r.shadowed_because and r.recording.world.guard.changed()]

    def wants_expected(self) -> None:
        """Of the call that has just begun."""
        if self.calls in self.expected:
            self.expected.remove(self.calls)
            self.wanted = max(1, self.wanted)

    def wakes(self) -> bool:
        if not super().wakes():
            return False
        self.wanted = self.wasted = self.changed_calls = self.lost_states = self.handed_out = 0
        self.expected.clear()
        self.left_at.clear()
        self.world = None
        return True

    @property
    def never_serves(self) -> bool:
        """Calls leave what they are said to do: an operator that raises in each, and is caught, is on no tape."""
        return self.wasted >= _WANTED_CALLS and not self.served

    @property
    def planned_yet(self) -> bool:
        return any(replay.planned_calls for replay in self.replays)

    def serves(self, replay: Replay) -> None:
        replay.served_at = self.calls
        self.served.append(self.calls)
        self.beginnings = 0

    def has_matched(self, fit: Sequence[Replay], fitted: Sequence[bool], shadow: Shadow, unchanged: bool) -> None:
        """The call's Python has done what ``shadow.replay`` holds. ``fitted``: did the numbers of each of ``fit`` fit before, the
        first of which it began with? ``unchanged``: the guards of that one say that nothing is new."""
        replay = shadow.replay
        replay.executor.tenants_fit()
        if replay is fit[0]:
            replay.numbers_fit = unchanged or (fitted[0] and not shadow.refreshed)
            for i, (other, fits) in enumerate(zip(fit[1:], fitted[1:])):
                other.numbers_fit = fits and i not in shadow.altered
        self._settles(replay, unchanged, shadow.decides_as_before)
        if replay is shadow.began and not shadow.other_in_step:
            replay.has_told(shadow)
        self.serves(replay)

    def _settles(self, replay: Replay, unchanged: bool, decides_as_before: bool) -> None:
        """The step's Python has done what a recording holds. Recorded anew, to be watched anew, when what it reads has changed
        and stays so; ever later when it does not stay."""
        self.may_hold_gone = unchanged
        undecided = replay.undecided and not decides_as_before
        expected = unchanged or undecided or replay.shadowed_because or not self.key_stays
        self.changed_calls = 0 if expected else self.changed_calls + 1
        if self.changed_calls >= self.patience:
            self.changed_calls, self.wanted, self.stays_changed = 0, 1, True
            self.wanted_because = replay.recording.world.guard.changed() or "what it reads"
            self.patience *= 2

    def finds_anew(self, world: World) -> frozenset[str]:
        """The names under which this call finds other tensors than a recorded one has found."""
        now = {(name, id(tensor)) for name, tensor in world.tensors}
        names = {name for name, _ in now}
        worlds = [replay.recording.world for replay in self.replays]
        before = [found for known in worlds for found in known.tensors]
        self.anew |= {name for name, tensor in before if name in names and (name, id(tensor)) not in now}
        self.anew |= {name for known in worlds for name in known.names_of_gone() if name in names}
        return frozenset(self.anew)

    def forget_unconfirmed(self) -> None:
        """Ways that came once and not again, where others are trusted: while one waits for its rehearsal, any call may have
        to run twice, and is prepared for it."""
        if any(replay.trusted for replay in self.replays):
            self.replays = [r for r in self.replays if r.trusted or self.calls - r.served_at <= _UNCONFIRMED_CALLS]

    def keep(self, replay: Replay) -> None:
        """In the place of the one that has not served for longest, where there are too many."""
        if len(self.replays) >= _MAX_REPLAYS:
            self.replays.remove(min(self.replays, key=lambda r: r.served_at))
        replay.served_at = self.calls
        self.replays.append(replay)


def keeps_tensors(entries: Iterable[Entry]) -> bool | None:
    """Does the step keep tensors beyond its end? None where no recording can tell."""
    known = [bool(replay.recording.keeps) for entry in entries for replay in entry.replays]
    return any(known) if known else None


__all__ = ["MAX_HANDED_OUT", "MAX_LOST_STATES", "MAX_SHELLS_READ", "Entry", "keeps_tensors"]
