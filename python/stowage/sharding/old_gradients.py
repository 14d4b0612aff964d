"""Gradients that earlier calls have left: does the step look at them?

zero_grad(), backward(), step()          it lets go of them, or fills them with zeros: a recording needs none of them
backward(), and step() now and then      it adds to them: a recording on parts does not know them as inputs, so the step
                                         goes on running on DTensors
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from stowage._torch.private import flatten, local_tensor, storage_address

_ZEROS = ("aten::zero_", "aten::_foreach_zero_")


class OldGradients:
    """Of one call. ``used``: an operator, or an optimizer, has taken one as it was found."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]):
        self._old = {storage_address(local_tensor(p.grad)) for p in parameters if p.grad is not None}
        self.used = False

    def op(self, func: Any, args: tuple, kwargs: dict) -> None:
        if self._old and not self.used:
            self._meet(flatten((args, kwargs))[0], func._schema.name in _ZEROS)

    def optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Which begins to step with their gradients."""
        self._meet([p.grad for p in parameters], False)

    def _meet(self, tensors: Iterable[Any], are_filled: bool) -> None:
        met = {storage_address(t._local_tensor) for t in tensors if isinstance(t, DTensor)} & self._old
        if are_filled:
            self._old -= met
        self.used = self.used or bool(met and not are_filled)
