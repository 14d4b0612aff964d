"""The content of tensors, as a step's Python asks for it past PyTorch's dispatcher: which of it can be told by the numbers of an
operator of our own (runtime/torch/content.h), and what is made of those.

    tolist()                numbers                         as_list()
    numpy(), __array__()    an array over a copy            copy_with()
    repr(), by which a tensor is printed                    elements_as_text() of a copy

O(elements)."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import torch
from torch._C import TensorBase

from stowage import _runtime
from stowage._torch.fakes import is_fake
from stowage._torch.stand_ins import with_stand_ins

_MOST_BYTES = 1 << 20  # of a tensor whose elements are told: they pass through Python's hands in every call
_FORMATS = {  # of struct, per element
    torch.float64: "d",
    torch.float32: "f",
    torch.float16: "e",
    torch.bfloat16: "H",
    torch.int64: "q",
    torch.int32: "i",
    torch.int16: "h",
    torch.int8: "b",
    torch.uint8: "B",
    torch.uint16: "H",
    torch.uint32: "I",
    torch.uint64: "Q",
    torch.bool: "?",
    torch.complex64: "ff",
    torch.complex128: "dd",
}
ARRAYS = ("numpy", "__array__", "__dlpack__")
PLAIN = (torch.Tensor, torch.nn.Parameter)
TOLD = ("tolist", "__repr__", *ARRAYS)
WHOLE = (
    "__reduce_ex__",
    "__deepcopy__",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "share_memory_",
    "__dlpack__",
)
POINTERS = ("data_ptr", "const_data_ptr", "mutable_data_ptr")


def is_shown(args: tuple) -> bool:
    """Does its format show all elements? Of a tensor of no dimensions, the number is asked for."""
    return type(args[0]) in PLAIN and args[1:] == ("",) and args[0].dim() > 0


def is_read(name: str, args: tuple) -> bool:
    """As to its text, of a plain tensor alone: others make that of their parts."""
    tensor = args[0]
    if name != "__repr__":
        return True
    plain = type(tensor) in PLAIN and tensor.layout == torch.strided
    return plain and tensor.device.type != "meta" and not tensor.is_nested and not is_fake(tensor)


def can_be_told(name: str, tensor: Any) -> bool:
    """Else the call raises an error of its own, or the tensor is no plain one."""
    if type(tensor) not in PLAIN or tensor.layout != torch.strided or (name in ARRAYS and tensor.device.type != "cpu"):
        return False
    if (
        tensor.is_conj()
        or tensor.is_neg()
        or tensor.dtype not in _FORMATS
        or tensor.numel() * tensor.element_size() > _MOST_BYTES
    ):
        return False
    if name not in ARRAYS:
        return True
    wants_gradient = tensor.requires_grad and torch.is_grad_enabled()  # then PyTorch raises
    return name != "__dlpack__" and not wants_gradient and tensor.dtype != torch.bfloat16


def content_of(tensor: torch.Tensor, name: str) -> list[int]:
    return torch.ops.stowage.content(TensorBase.detach(tensor) if tensor.requires_grad else tensor, name in ARRAYS)


def number_of(tensor: torch.Tensor) -> Any:
    return TensorBase.item(TensorBase.detach(tensor))


def bytes_of(tensor: torch.Tensor, words: list[int]) -> bytes:
    return array("q", words).tobytes()[: tensor.numel() * tensor.element_size()]


def copy_with(tensor: torch.Tensor, content: bytes) -> torch.Tensor:
    """Of its form, with that content, in order."""

    def make() -> torch.Tensor:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if content:
            copy.view(-1).copy_(torch.frombuffer(bytearray(content), dtype=tensor.dtype))
        return copy

    copy: Any = _runtime.unrecorded(make)
    return copy


def bytes_in(tensor: torch.Tensor) -> bytes:
    found: Any = _runtime.unrecorded(lambda: array_over(tensor).tobytes())
    return found


def array_over(tensor: torch.Tensor) -> Any:
    """What tensor.detach().numpy() gives, asked on nobody's behalf."""
    return with_stand_ins(torch.Tensor, "numpy", TensorBase.numpy)(TensorBase.detach(tensor))


def as_list(tensor: torch.Tensor, content: bytes) -> Any:
    """What tensor.tolist() gives."""
    form = _FORMATS[tensor.dtype]
    numbers: list = list(struct.unpack(f"={tensor.numel() * len(form)}{form[0]}", content))
    if tensor.dtype == torch.bfloat16:  # the upper half of a float
        numbers = [struct.unpack("=f", struct.pack("=I", n << 16))[0] for n in numbers]
    elif len(form) == 2:
        numbers = [complex(*pair) for pair in zip(numbers[::2], numbers[1::2])]
    for size in reversed(tensor.shape[1:]):
        numbers = (
            [numbers[i : i + size] for i in range(0, len(numbers), size)]
            if size
            else [[] for _ in range(tensor.shape[0])]
        )
    return numbers if tensor.dim() else numbers[0]


__all__ = [
    "ARRAYS",
    "PLAIN",
    "POINTERS",
    "TOLD",
    "WHOLE",
    "array_over",
    "as_list",
    "bytes_in",
    "bytes_of",
    "can_be_told",
    "content_of",
    "copy_with",
    "is_read",
    "is_shown",
    "number_of",
]
