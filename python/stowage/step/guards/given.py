"""What the walk is given beside the step: objects among its arguments, and these."""

from __future__ import annotations

import types


class ByContent:
    """A function among the arguments that the signature knows by its code and by what it holds: it comes anew with each
    call, and what it holds is an argument. The walk does not enter it; what its code reads beside that, is watched."""

    __slots__ = ("function",)

    def __init__(self, function: types.FunctionType):
        self.function = function


__all__ = ["ByContent"]
