"""What compiled and sharded steps share: the life of a plan, and what is told of it.

    recorded ──► rehearsed: planned, taken back, then the step without a plan ──► trusted ──► planned from now on
        ▲            │ bits differ, or allocations were others: planned again        │
        │            └──► refused after a few attempts                               │ what the step reads has changed
        └────────────────────────────────────────────────────────────────────────────┘   (too often: it rests, then begins
                                                                                         anew; of several ranks: refused)

Trust belongs to a Replay, so it dies with it. Where several ranks run one step, all of them trust or none does:
``_everywhere``."""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stowage import _runtime
from stowage.errors import AFTER, BEFORE, Error, UnsupportedWarning, say, warn
from stowage.sizes import in_words
from stowage.step.replay.repetition import Stage
from stowage.step.replay.replay import Replay
from stowage.step.replay.tally import Tally

# Of one signature within _RECENT_CALLS of its calls; a step that changes more often runs without a plan for a while
_MAX_RECORDINGS = 8
_RECENT_CALLS = 64
_FIRST_REST = 64  # calls; each further rest is twice as long, until a step has gone on for longer than it had rested
_RECORDINGS_AFTER_REST = 2  # of a step that may still change in each call
_SERVED_SHARE = 0.25  # of those calls: where recordings serve so many, it keeps them, and records no more for a while
_MAX_REHEARSALS = 4
_MAX_TOLD = 8  # with those by deterministic algorithms
_LOG = logging.getLogger("stowage")


class SignatureState:
    """What is known of one signature."""

    def __init__(self) -> None:
        self.calls = 0
        self.recordings: list[int] = []  # at which of the calls
        self.served: list[int] = []  # calls whose Python did what a recording holds
        self.refusal = ""  # also that of a rest
        self.rests_until = 0  # the call that ends the rest; 0: there is none
        self.rest_calls = 0  # length of the latest rest
        self.woke_at = 0  # the call that ended it
        self.over_budget: Error | None = None  # what later calls raise

    def recorded(self) -> None:
        self.recordings.append(self.calls)

    def recorded_too_often(self) -> bool:
        self.recordings = self._recent(self.recordings)
        just_woke = self.woke_at > 0 and self.calls - self.woke_at < _RECENT_CALLS
        return len(self.recordings) >= (_RECORDINGS_AFTER_REST if just_woke else _MAX_RECORDINGS)

    def serves_often(self) -> bool:
        """What has been recorded is worth to be kept, although much is new."""
        self.served = self._recent(self.served)
        return len(self.served) >= _SERVED_SHARE * min(self.calls - self.woke_at, _RECENT_CALLS)

    def _recent(self, calls: list[int]) -> list[int]:
        return [call for call in calls if call >= self.woke_at and call > self.calls - _RECENT_CALLS]

    def rest(self) -> None:
        """What changes in each call today (a warm-up, a schedule that freezes layers) may not tomorrow."""
        served_long = self.calls - self.woke_at > self.rest_calls
        self.rest_calls = _FIRST_REST if served_long else self.rest_calls * 2
        self.rests_until = self.calls + self.rest_calls

    def wakes(self) -> bool:
        """With the call that has just begun?"""
        if self.rests_until == 0 or self.calls < self.rests_until:
            return False
        self.refusal, self.rests_until, self.woke_at = "", 0, self.calls
        return True


class LifeCycle(abc.ABC):
    """Of a step function with a plan for each signature."""

    _WITHOUT_PLAN = ""  # how the step then runs

    def __init__(self, train_step: Callable, budget: int | None, strict: bool | str):
        functools.update_wrapper(self, train_step, updated=())
        self._fn = train_step
        self._name = getattr(train_step, "__name__", "step")
        self._budget = budget
        self._strict = strict
        self._entries: dict[Any, Any] = {}  # SignatureState by signature
        self._gate = _runtime.Gate()  # one call at a time: all share the arena
        self._tally = Tally(strict)

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def _everywhere(self, true_here: bool) -> bool:
        """On all ranks?"""
        return true_here

    @abc.abstractmethod
    def _drop(self, entry: Any, replay: Replay) -> None:
        """The replay serves no more calls."""

    def _judge(self, entry: Any, replay: Replay, agrees: bool, first_difference: str = "") -> None:
        """After a rehearsal and the same step without a plan, whose result counts. ``agrees``: both did the same, bit
        for bit."""
        agrees = self._everywhere(agrees and replay.last_run.escaped_blocks == 0)
        repetition, otherwise = replay.repetition, replay.again_otherwise
        did_not_repeat = replay.did_not_repeat
        if repetition.told:
            repetition.answers(agrees)
            if agrees:
                with self._planning(entry):
                    replay.make_once(repetition.kinds)
                return
        elif repetition.stage is Stage.AGAIN and not otherwise:
            agrees = True
        replay.look_closely(not agrees or repetition.stage is not Stage.USUAL)
        if repetition.stage is Stage.AGAIN and otherwise:
            with self._planning(entry):
                if replay.make_once(did_not_repeat):
                    return
        settled, fell_back = False, True
        with self._planning(entry):
            fell_back = self._falls_back(replay, agrees)
            settled = not fell_back and not replay.replan_if_learned()
        settled = self._everywhere(settled)
        if not agrees and not fell_back and not self._strict:
            repetition.suspects(first_difference, replay.recording.tape.device, did_not_repeat)
        if entry.over_budget is not None:
            self._drop(entry, replay)
        elif agrees and not repetition.told and (settled or replay.rehearsals >= _MAX_REHEARSALS):
            replay.trusted = True
            replay.look_closely(False)
            _runtime.give_free_pages_back()  # of the calls that ran eagerly
            if repetition.stage is Stage.AGAIN:
                warn(f"in {self._name}, {repetition.in_words()}")
            summary = replay.plan.summary()
            arena, residents = in_words(summary["arena_bytes"]), in_words(summary["resident_bytes"])
            _LOG.info("%s is planned: arena %s beside %s of residents", self._name, arena, residents)
        elif replay.rehearsals >= (_MAX_TOLD if repetition.tries else _MAX_REHEARSALS):
            where = f": first {first_difference}" if first_difference else ""
            if repetition.stage is Stage.AGAIN:
                where = f": {otherwise} is made again, and does not repeat its bits"
                where += f"; {repetition.no_way}" if repetition.no_way else ""
            self._give_up(
                entry,
                replay,
                f"the planned step does not give the bits of the one that {self._WITHOUT_PLAN}{where}{_how_to_repeat()}",
            )

    def _has_raised(self, entry: Any, replay: Replay, raised: str) -> None:
        """A rehearsal of the recorded kernels, where the same step without a plan did not."""
        if replay.rehearsals >= _MAX_REHEARSALS:
            self._give_up(entry, replay, f"its rehearsals raise what it does not without a plan: {raised}")

    def _give_up(self, entry: Any, replay: Replay, reason: str) -> None:
        """After a call that has trained."""
        self._drop(entry, replay)
        self._refuse(entry, reason)
        if self._strict:
            raise say(Error(entry.refusal), AFTER)

    def _falls_back(self, replay: Replay, agrees: bool) -> bool:
        """Where a plan with other kernels than the recorded ones has not done what they do, the next has those
        alone."""
        why = replay.planned.tiles_wrong or ("" if agrees else "the rehearsal gave other bits")
        if replay.allocates_otherwise():
            why = why or "a replaced kernel has allocated otherwise than was planned"
        return bool(why) and replay.drop_replacements(why)

    @contextlib.contextmanager
    def _planning(self, entry: Any) -> Iterator[None]:
        """Work on a plan at the end of a call that has trained. Where no plan keeps the budget, this call gives its
        result all the same; the next one raises, and changes nothing."""
        try:
            with self._together():
                yield
        except BaseException as error:
            if isinstance(error, Error) and self._budget is not None:
                entry.over_budget = error.with_traceback(None)
                return
            say(error, AFTER)
            raise

    def _together(self) -> contextlib.AbstractContextManager:
        """Fails on all ranks when it fails on one."""
        return contextlib.nullcontext()

    @staticmethod
    def _require_budget_kept(entry: Any) -> None:
        """Raises what has been found when the plan was made."""
        if entry.over_budget is not None:
            raise say(_anew(entry.over_budget), BEFORE)

    def _refuse_changing(self, entry: Any, what: str) -> None:
        """For good, or for a while where ``entry`` rests."""
        of_data = any(words in what for words in ("another value of", "another tensor", "other tensors"))
        how_long = f"; so do the next {entry.rest_calls} calls" if entry.rests_until else ""
        advice = "; what is drawn or loaded anew for each call, pass as an argument" if of_data else ""
        if "a result of another shape" in what:
            advice = (
                "; where data select the rows, as many in each call can be planned: weights of 0 and 1, or torch.where"
            )
        if "gradient before the call" in what:
            advice = (
                "; zero_grad(set_to_none=False) leaves each parameter a gradient, which the optimizer then applies, too"
            )
        self._refuse(
            entry,
            f"recorded {len(entry.recordings)} times within {min(entry.calls - entry.woke_at, _RECENT_CALLS)} calls, as this keeps "
            f"changing: {what}{how_long}{advice}",
            again=entry.rest_calls > _FIRST_REST,
        )

    def _rest(self, entry: Any, reason: str) -> None:
        """For a while."""
        entry.rest()
        self._refuse(entry, f"{reason}; so do the next {entry.rest_calls} calls", again=entry.rest_calls > _FIRST_REST)

    def _refuse(self, entry: Any, reason: str, again: bool = False) -> None:
        """``again``: a warning has said so before."""
        entry.refusal = reason
        _LOG.info("%s %s: %s", self._name, self._WITHOUT_PLAN, reason)
        if not again:
            warn(f"this step {self._WITHOUT_PLAN}: {reason}", UnsupportedWarning)

    @property
    def refusal(self) -> str:
        """Why steps run without a plan, with the source line where known; "" when they are planned."""
        return next((e.refusal for e in reversed(self._entries.values()) if e.refusal), "")

    def _figures(self, replay: Replay | None) -> dict:
        """Those that every step tells. Bytes are of the arena unless named otherwise; times are medians of the last
        steps."""
        summary = replay.plan.summary() if replay else {}
        return {
            "arena_bytes": summary.get("arena_bytes", 0),
            "planned_peak_bytes": summary.get("peak_bytes", 0),
            "measured_peak_bytes": self._tally.measured_peak_bytes,
            "lower_bound_bytes": summary.get("lower_bound_bytes", 0),
            "outcome": summary.get("outcome", "unknown"),
            "misses": self._tally.misses,
            "planned_steps": self._tally.planned_steps,
            "step_ns": self._tally.planned_ns,
        }


def _how_to_repeat() -> str:
    if torch.are_deterministic_algorithms_enabled():
        return ""
    return "; where a kernel adds in any order, torch.use_deterministic_algorithms(True) makes it repeat its bits"


def _anew(error: Error) -> Error:
    """The same error: one that is raised holds on to the frames that it passes, and they to the batch."""
    fresh = type(error).__new__(type(error), *error.args)
    fresh.args = error.args
    fresh.__dict__.update(error.__dict__)
    return fresh


__all__ = ["LifeCycle", "SignatureState"]
