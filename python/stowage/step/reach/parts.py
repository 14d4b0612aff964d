"""The parts of storages that tensors look into.

Where in its storage an argument begins is no matter: batches are often slices of one large tensor. Arguments that lie
in one storage are told apart by the parts of it that they look into, and only where they lie to each other within one
part counts:

    storage   ..........xxxxxxxx............yyzzzzzyy....     x: a part of its own     y, z: one part, z two elements after y
"""

from __future__ import annotations

import dataclasses

import torch

from stowage._torch.private import local_tensor, storage_address


def metadata(t: torch.Tensor) -> tuple:
    """Of two tensors with the same, either can stand in a recording for the other."""
    if t.is_nested:  # it has several of each
        return type(t), id(t), None, t.dtype, t.device, t.layout
    return type(t), t.shape, t.stride() if t.layout == torch.strided else None, t.dtype, t.device, t.layout


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
    found: dict[int, Part] = {}
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
    return [found[i] for i in range(len(tensors))]


def _span_bytes(t: torch.Tensor) -> tuple[int, int]:
    t = local_tensor(t)
    size, first = t.element_size(), int(t.storage_offset())
    if t.numel() == 0:
        return first * size, first * size
    return first * size, (first + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride())) + 1) * size


__all__ = ["Part", "metadata", "parts"]
