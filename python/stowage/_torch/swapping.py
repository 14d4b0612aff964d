"""Who lets go of tensors for torch.utils.swap_tensors: it wants nobody but Python to hold the two that it swaps, and nobody to
have weak references to them. Plans have both.

    step = compile(...)        holders.add(step)
    swap_tensors(p, q)         refused by PyTorch, as p is held ──► step.let_go_of_tensors() ──► once more"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import torch

holders: weakref.WeakSet[Any] = weakref.WeakSet()  # have let_go_of_tensors()
_swap = torch.utils.swap_tensors


@functools.wraps(_swap)
def _swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
    try:
        _swap(t1, t2)
        return
    except RuntimeError as error:
        if not ("use_count" in str(error) or "weakref" in str(error)) or not holders:
            raise
    for holder in list(holders):
        holder.let_go_of_tensors()
    gc.collect()
    _swap(t1, t2)


torch.utils.swap_tensors = _swap_tensors

__all__ = ["holders"]
