"""Views of DTensors that the step writes to. Of one tensor in one process they are one memory; here each view lives where the plan
wants it, and may have a copy of its own:

    h             S0   [6, 8]     rank 0 has rows 0-2         memory A
    h[:, 1:3]     R    [6, 2]     all ranks have all          memory B
    h[:, 1:3].mul_(2)             B is written, and then A    whole(h), with what was written in its place, cut again

Only storages of which something is read after it was written by another name need that (stale()); `nn.ReLU(inplace=True)`
behind a view does not. Costs a gather of both for each such write.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from stowage._torch.distributed import make_dtensor
from stowage._torch.private import flatten, storage_address
from stowage.errors import Unsupported
from stowage.sharding.moves import brought
from stowage.sharding.program import Program, tensor_ids
from stowage.sharding.schema import schema


def stale(program: Program) -> set[int]:
    """The tensors (those that others are views of) of which the step reads, returns or keeps one name after it has written by
    another. Raises Unsupported where an optimizer's step has written."""
    roots = [t.get("alias_of", i) for i, t in enumerate(program.tensors)]
    homes = program.homes()
    known: dict[int, int] = {}  # by tensor: the latest op that made it, or wrote by its name
    written: dict[int, tuple[int, bool]] = {}  # by root: the latest op that wrote, and whether an optimizer's step did
    found: set[int] = set()

    def look(tensor: int, in_optimizer: bool = False) -> None:
        at, by_optimizer = written.get(roots[tensor], (-1, False))
        if at <= known.get(tensor, -1) or (by_optimizer and in_optimizer):
            return
        if by_optimizer:
            name = program.tensors[tensor].get("name") or homes.get(roots[tensor], "a tensor")
            raise Unsupported(
                f"the step uses a view of '{name}' that is older than optimizer.step(): make it anew behind that"
            )
        found.add(roots[tensor])

    looks: dict[int, list[int]] = {}  # by the op before which Python reads them
    for at, tensor in program.looks:
        looks.setdefault(at, []).append(tensor)
    for at, op in enumerate(program.ops):
        for tensor in looks.get(at, ()):
            look(tensor)
        in_optimizer = op["phase"] == "optimizer"
        for tensor in tensor_ids(op):
            look(tensor, in_optimizer)
        for tensor in op.get("writes", ()):
            written[roots[tensor]] = at, in_optimizer
            known[tensor] = at
            if in_optimizer:  # on this rank's parts, which are one memory
                known.update(dict.fromkeys((i for i in homes if roots[i] == roots[tensor]), at))
        known.update(dict.fromkeys((o for o in op["outputs"] if o is not None), at))
    for tensor in looks.get(len(program.ops), ()):
        look(tensor)
    for tensor, entry in enumerate(program.tensors):
        if entry["kind"] in ("parameter", "module_buffer", "input", "output"):
            look(tensor)
    return found


@dataclass
class _Place:
    """Where a tensor lies in the memory that all of a family are in."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    lazy: bool  # a conjugate or a negative

    @classmethod
    def of_tensor(cls, t: torch.Tensor, offset: int) -> _Place:
        return cls(t.dtype, tuple(t.shape), tuple(t.stride()), offset, t.is_conj() or t.is_neg())

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        if self.lazy:
            raise Unsupported(
                "a write to what a lazy conjugate or negative also looks at: resolve_conj(), resolve_neg() first"
            )
        return memory.view(self.dtype).as_strided(self.size, self.stride, self.offset)


class _Member:
    """``place``: worked out when somebody asks, as few views are written to. The tensor is not kept: a recording looks at what
    Python holds."""

    def __init__(self, tensor: DTensor, find: Callable[[], _Place]):
        self.tensor = weakref.ref(tensor)
        self._find = find

    @functools.cached_property
    def place(self) -> _Place:
        return self._find()


class _Views:
    """Where they lie that one operator has made of a member of ``total_bytes``. On tensors without memory."""

    def __init__(self, total_bytes: int, base: _Member, turned: tuple[bool, bool], call: tuple[Any, tuple, dict]):
        self._total_bytes, self._base, self._turned, self._call = total_bytes, base, turned, call

    @functools.cached_property
    def places(self) -> list[_Place | None]:
        base, (func, args, kwargs), (conj, neg) = self._base.place, self._call, self._turned
        memory = torch.empty(self._total_bytes, dtype=torch.uint8, device="meta").view(base.dtype)
        looked_at = memory.as_strided(base.size, base.stride, base.offset)
        if conj or neg:
            looked_at = looked_at.conj() if conj else looked_at._neg_view()
        seen = flatten(func(looked_at, *args, **kwargs))[0]
        return [_Place.of_tensor(t, int(t.storage_offset())) if isinstance(t, torch.Tensor) else None for t in seen]


@dataclass
class _Family:
    bytes: int
    members: list[_Member] = field(default_factory=list)


class Aliases:
    """Of one call. ``needed``: roots that stale() has found, None where the program is not all that the step may run; what no root
    is known of needs it as well. ``in_all``: of lists of flags, those that are set on all ranks."""

    def __init__(self, needed: set[int] | None, root_name: str, in_all: Callable[..., list[list[bool]]]):
        self._needed, self._root_name, self._in_all = needed, root_name, in_all
        self._families: dict[int, tuple[weakref.ref, _Family, _Member]] = {}  # by id of a tensor

    def op_made_views(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        if not args or not isinstance(args[0], DTensor) or not schema(func).makes_views:
            return
        base = args[0]
        family, member = self._of(base)
        views = _Views(family.bytes, member, (base.is_conj(), base.is_neg()), (func, args[1:], kwargs))
        for i, t in enumerate(flatten(result)[0]):
            if isinstance(t, DTensor) and t is not base:
                self._has(t, family, _Member(t, functools.partial(_place_of, views, i)))

    def op_wrote(self, func: Any, args: tuple, kwargs: dict) -> list[_Update]:
        """Who else looks at what the op has written, and where that is other memory. Outside of what is recorded. A collective: a
        tensor that only a cycle holds may be gone on one rank, and is in nobody's use on the others."""
        written = [t for t in schema(func).written(args, kwargs) if isinstance(t, DTensor)]
        return [update for t in written if self._is_known(t) and self._is_needed(t) for update in self._others(t)]

    def _is_known(self, t: DTensor) -> bool:
        known = self._families.get(id(t))
        return known is not None and known[0]() is t

    def _others(self, t: DTensor) -> list[_Update]:
        family, mine = self._of(t)
        others = [member.tensor() for member in family.members]
        one_memory = [other is not None and _one_memory(other, t) for other in others]
        there, one_memory = self._in_all([other is not None for other in others], one_memory)
        family.members = [member for member, is_there in zip(family.members, there) if is_there]
        return [
            _Update(family.bytes, t, mine.place, other, member.place)
            for other, member, is_one in zip(
                (o for o, is_there in zip(others, there) if is_there),
                family.members,
                (one for one, is_there in zip(one_memory, there) if is_there),
            )
            if not is_one and other is not None
        ]

    def _is_needed(self, t: DTensor) -> bool:
        root = getattr(t, self._root_name, None)
        return self._needed is None or root is None or root in self._needed

    def _of(self, t: DTensor) -> tuple[_Family, _Member]:
        if self._is_known(t):
            return self._families[id(t)][1:]
        numel = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride())) if t.numel() else 0
        family, place = _Family(numel * t.element_size()), _Place.of_tensor(t, 0)
        return family, self._has(t, family, _Member(t, lambda: place))

    def _has(self, t: DTensor, family: _Family, member: _Member) -> _Member:
        family.members.append(member)
        self._families[id(t)] = member.tensor, family, member
        return member


@dataclass
class _Update:
    """``other`` is to have what has been written to ``written``."""

    bytes: int
    written: DTensor
    at: _Place
    other: DTensor
    other_at: _Place

    def run(self) -> None:
        """Among what is recorded: all ranks come here together."""
        memory = _whole(self.written).new_empty(self.bytes, dtype=torch.uint8)
        _put(self.other_at.of(memory), _whole(self.other))
        _put(self.at.of(memory), _whole(self.written))
        now = self.other_at.of(memory).clone()
        mesh = self.other.device_mesh
        moved = make_dtensor(now, mesh, [Replicate()] * mesh.ndim, self.other.shape, now.stride())
        self.other._local_tensor.copy_(brought(moved, self.other.placements)._local_tensor)


def _place_of(views: _Views, i: int) -> _Place:
    place = views.places[i]
    assert place is not None
    return place


def _one_memory(a: DTensor, b: DTensor) -> bool:
    return storage_address(a._local_tensor) == storage_address(b._local_tensor)


def _whole(t: DTensor) -> torch.Tensor:
    return brought(t, (Replicate(),) * t.device_mesh.ndim)._local_tensor


def _put(place: torch.Tensor, content: torch.Tensor) -> None:
    """Of a tensor that is expanded, one of each."""
    for d, step in enumerate(place.stride()):
        if step == 0 and place.shape[d] > 1:
            place, content = place.narrow(d, 0, 1), content.narrow(d, 0, 1)
    place.copy_(content)
