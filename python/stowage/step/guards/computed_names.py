"""Which schedulers and optimizers the step asks for attributes by names that its code does not show.

    layer = getattr(self, f"layer{i}")            what is read of all that the step holds is not known: all of it is watched
    scheduler.step()                              changes last_epoch in each call: Python would have to run in each

While the step is recorded each of these objects is told what it is asked for. Of one that is asked for nothing by such code,
nothing but the names that code shows counts. Some code asks past that (pickle, object.__getattribute__, copies): Ran.bypasses.
O(1) a question."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from stowage._torch.stand_ins import StandIn
from stowage.step.guards.reads import is_own, reads

_OF_TORCH = os.path.join(os.path.dirname(torch.__file__), "optim") + os.sep
_ALL = ("__dict__", "__dir__", "__getstate__", "__reduce__", "__reduce_ex__")
_QUESTIONS = ("__getattribute__", "__setattr__", "__delattr__")

Tell = Callable[[Any], None]


class Listener:
    """Between comes() and leaves() tell() is told of each that code asks for one of its own attributes, or for all of them, or that
    it sets so, without showing the name. PyTorch's own optimizers and schedulers are no such code."""

    def __init__(self, tell: Tell):
        self._tell: Tell | None = tell
        self._stand_ins = [
            StandIn(owner, name, self._telling) for owner in (LRScheduler, Optimizer) for name in _QUESTIONS
        ]

    def comes(self) -> None:
        for each in self._stand_ins:
            each.comes()

    def leaves(self) -> None:
        for each in self._stand_ins:
            each.leaves()
        self._tell = None  # what has been reached may hold the stand-ins, and would be a part of cycles
        self._stand_ins.clear()

    def _telling(self, function: Callable) -> Callable:
        def asked(held: Any, name: str, *value: Any) -> Any:
            frame: types.FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_globals is globals():  # of another recording
                frame = frame.f_back
            code, tell = frame.f_code if frame is not None else None, self._tell
            if code is not None and tell is not None and not (is_own(code) or code.co_filename.startswith(_OF_TORCH)):
                shown = name in reads(code).attributes
                if name in _ALL or (not shown and (value or name in object.__getattribute__(held, "__dict__"))):
                    tell(held)
            return function(held, name, *value)

        return asked


__all__ = ["Listener"]
