"""copy.deepcopy of a tensor, done by operators: PyTorch's own copies its storage past the dispatcher. O(elements)."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import TensorBase

from stowage._torch.fakes import is_fake

_COPIES = "stowage: tensors that were copied by operators"  # of a memo of copy.deepcopy's


def can_be_copied(tensor: Any, memo: dict) -> bool:
    """By operators, as tensor.__deepcopy__(memo) does it past the dispatcher: a plain tensor that is all of its storage,
    whose storage was not copied before, or by copied() for a tensor of the same form."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or is_fake(tensor) or id(tensor) in memo:
        return False
    if not tensor.is_leaf or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.device.type == "meta":
        return False
    storage = TensorBase.untyped_storage(tensor)
    whole = storage.nbytes() == tensor.numel() * tensor.element_size() and tensor.storage_offset() == 0
    if not whole or tensor.grad is not None or tensor.__dict__ or not _dense(tensor):
        return False
    before = memo.get(_COPIES, {}).get(storage._cdata)
    if before is None:
        return storage._cdata not in memo.get("torch", {})
    return (before.shape, before.stride(), before.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)


def copied(tensor: torch.Tensor, memo: dict) -> torch.Tensor:
    copies, storage = memo.setdefault(_COPIES, {}), TensorBase.untyped_storage(tensor)
    with torch.no_grad():
        if (before := copies.get(storage._cdata)) is not None:
            made = TensorBase.detach(before)
        else:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            TensorBase.copy_(made, tensor)
            copies[storage._cdata] = TensorBase.detach(made)
            memo.setdefault("torch", {})[storage._cdata] = TensorBase.untyped_storage(made)
    if tensor.requires_grad:
        made.requires_grad_()
    memo[id(tensor)] = made
    return made


def _dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda dimension: dimension[::-1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


__all__ = ["can_be_copied", "copied"]
