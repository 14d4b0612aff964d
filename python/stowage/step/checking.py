"""When a planned step's Python runs again, over shells, to see whether it still does what was recorded.

"auto"     calls 1, 2, 4, 8, 16, ... of a plan: often at first, ever more rarely; and always where guards cannot see what it reads
"always"   each call       N   each N-th call       "never"   only where guards cannot see
"""

from __future__ import annotations

from stowage.errors import Error


class Checking:
    """``how``: "auto", "always", "never", or each how many calls."""

    def __init__(self, how: str | int):
        number = isinstance(how, int) and not isinstance(how, bool) and how >= 1
        if not (how in ("auto", "always", "never") or number):
            raise Error(f"check must be 'auto', 'always', 'never' or a number of calls, not {how!r}")
        self._how = how

    @property
    def always(self) -> bool:
        return self._how == "always"

    def is_due(self, replay) -> bool:
        """At the next planned call of a Replay."""
        next_call = replay.planned_calls + 1
        if self._how == "auto":
            return next_call & (next_call - 1) == 0
        if self._how == "always":
            return True
        return self._how != "never" and next_call % self._how == 0


__all__ = ["Checking"]
