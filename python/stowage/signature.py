"""What a recorded step may assume of its arguments and of PyTorch's global state.

Where in its storage an argument begins is no matter: batches are often slices of one large tensor. Arguments that lie in one storage
are told apart by the parts of it that they look into, and only where they lie to each other within one part counts:

    storage   ..........xxxxxxxx............yyzzzzzyy....     x: a part of its own     y, z: one part, z two elements after y
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from stowage.errors import Unsupported
from stowage.torch_private import dispatch_mode_active, local_tensor, storage_address


def signature(args: tuple, kwargs: dict) -> tuple[tuple, list[torch.Tensor]]:
    """A hashable key, equal for calls that one recording can serve, and the tensors among the arguments in a fixed order.

    Raises Unsupported for arguments that cannot be compared by value.
    """
    tensors: list[torch.Tensor] = []
    structure = (_describe(args, tensors), _describe(kwargs, tensors))
    sharing = tuple((i, p.first, p.offset_bytes) for i, p in enumerate(parts(tensors)) if p.first != i)
    return (structure, sharing, _global_state()), tensors


@dataclasses.dataclass(frozen=True)
class Part:
    """Of a storage, where an argument lies: [start, end) in bytes. ``first``: the argument that it begins with."""

    first: int
    start_bytes: int
    end_bytes: int
    offset_bytes: int  # of the argument in it


def parts(tensors: list[torch.Tensor]) -> list[Part]:
    """Arguments of one storage whose bytes overlap or interleave share a part."""
    storages: dict[int, list[int]] = {}
    for i, t in enumerate(tensors):
        storages.setdefault(storage_address(t), []).append(i)
    spans = [_span_bytes(t) for t in tensors]
    found: list[Part | None] = [None] * len(tensors)
    for members in storages.values():
        members.sort(key=lambda i: (*spans[i], i))
        while members:
            first, end = members[0], spans[members[0]][1]
            count = 1
            while count < len(members) and spans[members[count]][0] < end:
                end = max(end, spans[members[count]][1])
                count += 1
            start = spans[first][0]
            for i in members[:count]:
                found[i] = Part(first, start, end, spans[i][0] - start)
            members = members[count:]
    return found


def _span_bytes(t: torch.Tensor) -> tuple[int, int]:
    t = local_tensor(t)
    size, first = t.element_size(), t.storage_offset()
    if t.numel() == 0:
        return first * size, first * size
    return first * size, (first + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride())) + 1) * size


def difference(old: tuple, new: tuple) -> str:
    """The first thing in which two signatures differ, as far as it can be named."""
    for what, a, b in zip(("the arguments", "which arguments share memory", "a global setting (grad mode, autocast, threads, ...)"), old, new):
        if a != b:
            return _first_difference(a, b) or what
    return "nothing"


def _first_difference(a: Any, b: Any) -> str:
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return "" if a == b or isinstance(a, bool) or not isinstance(a, (int, float, str)) else f"an argument is {a!r}, then {b!r}"
    if a[:1] == ("tensor",) == b[:1]:
        names = ("", "shape", "strides", "dtype", "device", "requires_grad")
        return next((f"a tensor's {name} is {_plain(x)}, then {_plain(y)}" for name, x, y in zip(names, a, b) if x != y), "")
    if len(a) != len(b):
        return ""
    return next(filter(None, (_first_difference(x, y) for x, y in zip(a, b) if x != y)), "")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


def _describe(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise Unsupported(f"an argument is a tensor of layout {value.layout}")
        tensors.append(value)
        return ("tensor", value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)):
        return (type(value), value)
    if isinstance(value, Mapping):
        return (type(value), tuple((key, _describe(item, tensors)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_describe(item, tensors) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), tuple((f.name, _describe(getattr(value, f.name), tensors)) for f in dataclasses.fields(value)))
    raise Unsupported(f"an argument of type {type(value).__name__} (tensors, numbers, strings and containers of them are fine)")


def _global_state() -> tuple:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        dispatch_mode_active(),
    )
