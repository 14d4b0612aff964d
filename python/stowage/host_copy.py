"""Bytes of tensors kept where no allocator of PyTorch's counts them, while a call that may have to be taken back is under way."""

from __future__ import annotations

import ctypes
import weakref

import torch


def bytes_of(tensor: torch.Tensor, start: int = 0, end: int | None = None) -> bytes:
    """Of its storage, all of it or a range."""
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr() + start, (storage.nbytes() if end is None else end) - start)


def write_back(tensor: torch.Tensor, content: bytes, start: int = 0) -> None:
    ctypes.memmove(tensor.untyped_storage().data_ptr() + start, content, len(content))


class GradAside:
    """A .grad that the step throws away, taken off its parameter: its memory is free from now on, unless somebody else holds it."""

    def __init__(self, parameter: torch.Tensor):
        grad = parameter.grad
        self._parameter = parameter
        self._grad = weakref.ref(grad)
        self._held = None if _fills_its_storage(grad) else grad
        self._like = grad.detach().to("meta") if self._held is None else None
        self._content = bytes_of(grad) if self._held is None else b""
        parameter.grad = None

    def put_back(self) -> None:
        grad = self._grad()
        if grad is None:
            grad = torch.empty_strided(self._like.shape, self._like.stride(), dtype=self._like.dtype)
            write_back(grad, self._content)
        self._parameter.grad = grad


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type == "cpu"
    return plain and not tensor.requires_grad and tensor.untyped_storage().nbytes() == tensor.nbytes


__all__ = ["GradAside", "bytes_of", "write_back"]
