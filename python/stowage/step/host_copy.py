"""Bytes of tensors kept where no allocator of PyTorch's counts them, while a call that may have to be taken back is
under way."""

from __future__ import annotations

import ctypes

import torch


def bytes_of(tensor: torch.Tensor, start: int = 0, end: int | None = None) -> bytes:
    """Of its storage, all of it or a range."""
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr() + start, (storage.nbytes() if end is None else end) - start)


def write_back(tensor: torch.Tensor, content: bytes, start: int = 0) -> None:
    ctypes.memmove(tensor.untyped_storage().data_ptr() + start, content, len(content))


__all__ = ["bytes_of", "write_back"]
