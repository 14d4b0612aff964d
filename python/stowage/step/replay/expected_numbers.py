"""Numbers that a step makes, that its Python asks for, and that are the same in call after call: checks that all went well.

    if not torch.isfinite(loss): return       True, True, True: from then on the plan looks for itself, and Python does not run
                                              once False: that call is taken back, and its Python runs

Python that is told the numbers of the recording does what was recorded, where all else that it reads is as it was. After a
surprise it has to run four times as often before it is left out again. Not where kernels may be in Python: what these change is put
back by those who run the step's Python. O(numbers) a call."""

from __future__ import annotations

from stowage.step.record.recording import Recording

_CALLS = 3  # in a row that tell the same
_LONGER = 4


class ExpectedNumbers:
    """Of a recording. ``reads``: the ops that tell them, in order; ``expected``: they are expected to tell what was recorded."""

    def __init__(self, recording: Recording):
        returned = {op for op, _ in recording.output_numbers.values()}
        self.reads = [op for op in recording.tape.reads if op not in returned]
        self.expected = False
        self._never = recording.tape.foreign
        self._calls = 0
        self._wanted = _CALLS

    def has_told(self, otherwise: frozenset[int]) -> bool:
        """Of a call whose Python ran. ``otherwise``: the ops that told other numbers than was recorded. Are they expected from
        now on?"""
        self._calls = self._calls + 1 if otherwise.isdisjoint(self.reads) else 0
        self.expected = self._calls >= self._wanted and not self._never
        return self.expected

    def surprises(self) -> None:
        self.expected, self._calls = False, 0
        self._wanted *= _LONGER


__all__ = ["ExpectedNumbers"]
