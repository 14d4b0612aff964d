"""What a planned step did from the same start as the eager step that follows it, and whether the two agree bit for bit."""

from __future__ import annotations

from typing import Any

import torch

from stowage.torch_private import flatten


class Rehearsal:
    """``state``: digest of residents, optimizers' numbers and generator after the planned step. ``outputs``: the tensors that it returned."""

    def __init__(self, state: Any, outputs: list[torch.Tensor]):
        self._state = state
        self._outputs = outputs

    def agrees(self, state: Any, result: Any, returned_grads: list[torch.nn.Parameter]) -> bool:
        """After the eager step, with its digest and result: same bits in every resident, the generator's state, and every returned tensor?"""
        tensors = [leaf for leaf in flatten(result)[0] if isinstance(leaf, torch.Tensor)]
        tensors += [p.grad for p in returned_grads]
        if len(tensors) != len(self._outputs):
            return False
        return all(t is not None and _same_bits(t, o) for t, o in zip(tensors, self._outputs)) and self._state == state


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same shape, dtype and bytes (so a NaN equals itself)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(t: torch.Tensor) -> torch.Tensor:
    return t.detach().contiguous().reshape(-1).view(torch.uint8)
