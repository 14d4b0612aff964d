"""A call whose Python has run over shells: tensors without memory, whose operators were compared with recordings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stowage.step.replay.replay import Replay


class ReadsShell(Exception):
    """The user's Python reads bytes on the host, beside PyTorch's dispatcher, of a tensor that has none yet. What it
    did is taken back as far as it is known."""


@dataclass(frozen=True)
class Shadow:
    """A call whose Python has run. ``difference``: where it left all recordings, and has happened eagerly; "":
    ``replay`` can execute it. ``refreshed``: Python numbers were others than on the tape of ``began``. ``other_in_step``: it
    went on as another recording, elsewhere than in an optimizer."""

    began: Replay
    replay: Replay
    result: Any
    difference: str
    refreshed: bool
    other_in_step: bool
    in_optimizer: bool  # what differed; there no guard is needed, as its Python runs in every call
    altered: frozenset[int]  # of the others, those that hold numbers of this call
    told_otherwise: frozenset[int]  # ops that told other numbers, which the step makes, than when recorded
    decides_as_before: bool  # it was told other numbers than when recorded, those of the call before
    left_by: tuple[int, str]  # at which operator of the recording, or -1, and by which
    handed_out: bool  # what differed is something that no recording can do: memory that was handed out

    def done(self) -> None:
        self.began.matcher.forget_step()

    def kept_agree(self) -> bool:
        """After a rehearsal and run_plainly(): what Python keeps has the same bits in both."""
        return self.began.matcher.kept_agree(self.replay.executor)

    def run_plainly(self) -> None:
        self.began.matcher.watch(self.replay.executor)
        self.began.matcher.run_plainly()

    @property
    def tile_error(self) -> tuple[float, float, str, bool]:
        """After run_plainly(): see Matcher.tile_error."""
        return self.began.matcher.tile_error

    def replaced_agree(self) -> bool:
        """After a rehearsal and run_plainly(): what the plan makes by other kernels has the same bits in both."""
        return not self.began.matcher.first_difference(self.replay.executor, watched=True)

    def first_difference(self) -> str:
        """After a rehearsal and run_plainly(): the first op that made something else in the plan; "" where nobody
        looked (Room.looks)."""
        return self.began.matcher.first_difference(self.replay.executor)


__all__ = ["ReadsShell", "Shadow"]
