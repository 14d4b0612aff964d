"""What a recorded step may assume of its arguments and of PyTorch's global state.

Where in its storage an argument begins is no matter: batches are often slices of one large tensor. Arguments that lie
in one storage are told apart by the parts of it that they look into, and only where they lie to each other within one
part counts:

    storage   ..........xxxxxxxx............yyzzzzzyy....     x: a part of its own     y, z: one part, z two elements after y
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch

from stowage._core import same_bits
from stowage._torch.private import global_state, local_tensor, setting_names, storage_address
from stowage.errors import Unsupported


def metadata(t: torch.Tensor) -> tuple:
    """Of two tensors with the same, either can stand in a recording for the other."""
    return type(t), t.shape, t.stride() if t.layout == torch.strided else None, t.dtype, t.device, t.layout


def signature(args: tuple, kwargs: dict) -> tuple[tuple, list[torch.Tensor]]:
    """A hashable key, equal for calls that one recording can serve, and the tensors among the arguments in a fixed
    order.

    Raises Unsupported for arguments that cannot be compared by value.
    """
    tensors: list[torch.Tensor] = []
    structure = (_describe(args, tensors), _describe(kwargs, tensors))
    sharing = tuple((i, p.first, p.offset_bytes) for i, p in enumerate(parts(tensors)) if p.first != i)
    return (structure, sharing, Value(global_state())), tensors


def held(args: tuple, kwargs: dict) -> tuple | None:
    """What the arguments hold: equal before and after a call that changes no container, attribute or dataclass among
    them. None where that cannot be told."""
    tensors: list[torch.Tensor] = []
    try:
        structure = (_describe(args, tensors), _describe(kwargs, tensors))
    except Unsupported:
        return None
    return structure, [id(t) for t in tensors]


class Value:
    """A value as part of a key. Equal only to one of the same bits and types: 0.0 is not -0.0, 1 is not True, (2,) is
    not (2.0,)."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any):
        self.value = value
        # NaNs hash by their address, though their bits may be equal; objects that cannot be hashed are equal to
        # themselves alone.
        try:
            self._hash = 0 if value != value else hash(value)
        except (TypeError, RuntimeError, ValueError):
            self._hash = id(type(value))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is Value and same_bits(self.value, other.value)

    def __repr__(self) -> str:
        return repr(self.value)


def loosened(key: Any) -> Any:
    """The signature without the values of Python's own numbers: a step number that is passed in is another one in every
    call."""
    if not isinstance(key, tuple):
        return key
    if len(key) == 2 and key[0] in (int, float):
        return key[:1]
    return tuple(loosened(part) for part in key)


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


def difference(old: tuple, new: tuple) -> str:
    """The first thing in which two signatures differ, as far as it can be named."""
    for what, a, b in zip(("the arguments", "which arguments share memory"), old, new):
        if a != b:
            return _first_difference(a, b) or what
    for name, a, b in zip(setting_names(), old[2].value, new[2].value):
        if not same_bits(a, b):
            return f"a global setting ({name.lstrip('_')}: {a!r}, then {b!r})"
    return "nothing"


_OF_TENSORS = (
    "",
    "shape",
    "strides",
    "dtype",
    "device",
    "requires_grad",
    "class",
    "leaf",
    "conjugate bit",
    "negative bit",
    "inference",
    "attributes",
)


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, Value) and isinstance(b, Value):
        told = all(isinstance(v.value, (int, float, str)) and not isinstance(v.value, bool) for v in (a, b))
        return f"an argument is {a!r}, then {b!r}" if told and a != b else ""
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return ""
    if a[:1] == ("tensor",) == b[:1]:
        return next(
            (f"a tensor's {name} is {_plain(x)}, then {_plain(y)}" for name, x, y in zip(_OF_TENSORS, a, b) if x != y),
            "",
        )
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
        return (
            "tensor",
            value.shape,
            value.stride(),
            value.dtype,
            value.device,
            value.requires_grad,
            type(value),
            value.is_leaf,
            value.is_conj(),
            value.is_neg(),
            value.is_inference(),
            _attributes(value),
        )
    if isinstance(value, _ATOMS):
        return (type(value), Value(value))
    if isinstance(value, Mapping):
        return (
            type(value),
            tuple((Value(key), _describe(item, tensors)) for key, item in value.items()),
            _attributes(value),
        )
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_describe(item, tensors) for item in value), _attributes(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (
            type(value),
            tuple((f.name, _describe(getattr(value, f.name, _ABSENT), tensors)) for f in dataclasses.fields(value)),
            _attributes(value),
        )
    raise Unsupported(
        f"an argument of type {type(value).__name__} (tensors, numbers, strings and containers of them are fine)"
    )


_ABSENT = "a field that is not set"
_ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    range,
    slice,
)


def _attributes(value: Any) -> tuple:
    """Plain values that the user has put on a tensor or a container as attributes."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return tuple((name, Value(item)) for name, item in own.items() if isinstance(item, _ATOMS)) if own else ()
