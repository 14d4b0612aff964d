"""Does a step ever see the same arguments twice? Whoever passes something else in every call (a step number, ever other
lengths) should hear that nothing gets planned, and recordings that would serve one call should not be made."""

from __future__ import annotations

from collections import deque
from typing import Any

from stowage.errors import warn
from stowage.step.signature.signature import difference

_RECENT = 20  # calls; when half of them have signatures that were never seen, the step is restless


class Novelty:
    """``restless``: a new signature most likely never comes again."""

    def __init__(self) -> None:
        self.restless = False
        self._new: deque[bool] = deque(maxlen=_RECENT)  # of the latest calls: was the signature new?
        self._latest_key: Any = None

    def note(self, key: Any, is_new: bool) -> None:
        """Of each call. Warns once, when the step turns out to be restless."""
        self._new.append(is_new)
        if sum(self._new) >= _RECENT // 2 and not self.restless:
            self.restless = True
            warn(
                f"{sum(self._new)} of the last {len(self._new)} calls ran eagerly, because their signature was new: "
                f"{difference(self._latest_key, key)}. A plan serves arguments of the same shapes, dtypes, strides and values of "
                "all that is no tensor; from now on a step is planned when its signature comes again"
            )
        self._latest_key = key
