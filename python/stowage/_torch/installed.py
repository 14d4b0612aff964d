"""What lies under PyTorch from the import of both on: the allocator that counts, and what makes tensors that torch.load() has
read as those that PyTorch has allocated.

PyTorch makes numpy() leave a mark: the storage is not resizable from then on. What torch.load() reads is not resizable
either, though no array looks into it; so a budget could not tell, and an optimizer's state from a checkpoint would
never leave.

Private: torch._C.PyTorchFileReader.get_storage_from_record. Source: torch/serialization.py, torch/csrc/jit/python/init.cpp of
PyTorch 2.11 to 2.13."""

from __future__ import annotations

import functools
from typing import Any

import torch


def install(runtime: Any) -> None:
    runtime.install_allocator()
    reader = torch._C.PyTorchFileReader
    read = getattr(reader, "get_storage_from_record", None)
    if read is None or hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def get_storage_from_record(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        from stowage._torch.private import address

        tensor = read(self, *args, **kwargs)
        runtime.as_allocated(address(tensor))
        return tensor

    reader.get_storage_from_record = get_storage_from_record  # type: ignore[method-assign]


__all__ = ["install"]
