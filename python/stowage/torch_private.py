"""Every private PyTorch interface that the Python side uses, in one place; tests/python/test_torch_private.py fails when one changes.

- ``Tensor._cdata``: the address of the TensorImpl. Tensors cross into C++ by it, so that nothing links libtorch_python.
- ``UntypedStorage._cdata``: the address of the StorageImpl, equal for tensors that share memory.
- ``FakeTensorMode`` and what it raises when a number or a shape depends on data.
- ``torch.utils._pytree``: how nested outputs are taken apart and put together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils import _pytree


def address(tensor: torch.Tensor | None) -> int:
    """Address of the TensorImpl, 0 for None."""
    if tensor is None:
        return 0
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    return tensor._cdata


def storage_address(tensor: torch.Tensor) -> int:
    """Address of the StorageImpl; tensors that share memory have the same. 0 for tensors without one (sparse)."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0


def addresses(tensors) -> list[int]:
    return [address(t) for t in tensors]


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Leaves of nested dicts, lists, tuples and registered classes, and what unflatten() needs."""
    return _pytree.tree_flatten(value)


def unflatten(leaves: list[Any], spec: Any) -> Any:
    return _pytree.tree_unflatten(leaves, spec)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)  # raised under FakeTensorMode


def fake_mode_active() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def dispatch_mode_active() -> bool:
    """Any Python dispatch mode of the user's (FlopCounterMode and the like): such a mode would not see a replay."""
    return torch._C._len_torch_dispatch_stack() > 0


__all__ = ["DATA_DEPENDENT", "FakeTensorMode", "address", "addresses", "dispatch_mode_active", "fake_mode_active", "flatten", "is_fake",
           "storage_address", "unflatten"]
