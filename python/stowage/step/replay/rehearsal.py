"""What a planned step did from the same start as the eager step that follows it, and whether the two agree bit for
bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import TensorBase

from stowage import _runtime
from stowage._torch.private import address, flatten, local_tensor


class Rehearsal:
    """``state``: digest of residents, optimizers' numbers and generator after the planned step. ``outputs``: the
    tensors that it returned, which are not kept: they may be as large as all parameters. None: a resident or an
    argument, which ``state`` has seen."""

    def __init__(self, state: Any, outputs: list[torch.Tensor | None]):
        self._state = state
        self._outputs = [None if output is None else _described(output) for output in outputs]

    def agrees(self, state: Any, result: Any, returned_grads: Sequence[torch.Tensor]) -> bool:
        """After the same step without a plan, with its digest and result: same bits in every resident, the generator's
        state, and every returned tensor?"""
        tensors = [leaf for leaf in flatten(result)[0] if isinstance(leaf, torch.Tensor)]
        grads = [p.grad for p in returned_grads if p.grad is not None]
        if len(grads) != len(returned_grads) or len(tensors) + len(grads) != len(self._outputs):
            return False
        seen = zip([*tensors, *grads], self._outputs)
        return self._state == state and all(o is None or _described(t) == o for t, o in seen)


def _described(t: torch.Tensor) -> tuple:
    """Equal for tensors of the same shape, dtype and bytes (so a NaN equals itself)."""
    plain = TensorBase.detach(local_tensor(t)).resolve_conj().resolve_neg().contiguous()
    return plain.shape, plain.dtype, _runtime.digest(address(plain))
