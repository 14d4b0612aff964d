"""Bringing a DTensor to other placements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from stowage._torch.distributed import make_dtensor, redistribute
from stowage._torch.private import local_tensor, storage_bytes


def brought(t: DTensor, placements: tuple) -> DTensor:
    """At other placements. What becomes a summand is kept by the first device of the axis; the others have zeros (a factor: ones; of
    a mean, a maximum or a minimum each has the value)."""
    if t.placements == placements:
        return t
    fresh = [axis for axis, p in enumerate(placements) if p.is_partial() and not t.placements[axis].is_partial()]
    if not fresh:
        return _moved(t, placements)
    whole = tuple(Replicate() if axis in fresh else p for axis, p in enumerate(placements))
    t = t if t.placements == whole else _moved(t, whole)
    coordinate = t.device_mesh.get_coordinate()
    assert coordinate is not None
    local = t._local_tensor
    for axis in fresh:
        neutral = {"sum": torch.zeros_like, "product": torch.ones_like}.get(placements[axis].reduce_op)
        if neutral is not None and coordinate[axis] != 0:
            local = neutral(t._local_tensor)
    return make_dtensor(local, t.device_mesh, placements, t.shape, t.stride())


def empty_part(
    like: torch.Tensor, shape: Sequence[int], whole: Sequence[int], strides: Sequence[int], dtype=None
) -> torch.Tensor:
    """Room for a part of ``shape`` of a tensor of ``whole`` shape, in its order of dimensions; for all of it, laid out as it."""
    if tuple(shape) == tuple(whole):
        return like.new_empty_strided(shape, strides, dtype=dtype or like.dtype)
    order = sorted(range(len(shape)), key=lambda d: -strides[d])
    back = [order.index(d) for d in range(len(shape))]
    return like.new_empty([shape[d] for d in order], dtype=dtype or like.dtype).permute(back)


def laid_out(t: DTensor) -> DTensor:
    """A DTensor that is whole everywhere, in memory as the tensor is that it stands for."""
    local, strides = local_tensor(t), t.stride()
    if local.stride() == strides:
        return t
    for d in range(t.dim()):
        if strides[d] == 0:  # expanded
            local = local[(slice(None),) * d + (slice(0, 1),)]
    end = 1
    for size, stride in sorted(zip(local.shape, strides), key=lambda dim: dim[1]):
        if size > 1 and stride < end:
            return t  # elements that share memory: nothing lies so but a view of another shape
        end = max(end, size * stride)
    room = empty_part(local, local.shape, local.shape, strides).copy_(local).expand(t.shape)
    return make_dtensor(room, t.device_mesh, t.placements, t.shape, strides)


def plain_sum(t: Any) -> Any:
    """A DTensor whose summands need more than to be added (rows that were looked up in parts of a table: their mask is
    kept by the placement, and serves one reader alone) with those added; all else as it is."""
    if not isinstance(t, DTensor) or all(not p.is_partial() or type(p) is Partial for p in t.placements):
        return t
    return redistribute(t, tuple(Replicate() if p.is_partial() and type(p) is not Partial else p for p in t.placements))


def _moved(t: DTensor, placements: tuple) -> DTensor:
    """Parts arrive laid out as the whole is. Views that the step takes of the whole then are views of the parts as
    well, not copies; and collectives, which want rows one behind the other, find them so."""
    order = sorted(range(t.dim()), key=lambda d: -t.stride()[d])
    if order == list(range(t.dim())):
        return compact(redistribute(t, placements))  # uneven parts come out of a gather with room between them
    at = [order.index(d) for d in range(t.dim())]

    def turned(dtensor: DTensor, dims: list[int], back: list[int], where: tuple) -> DTensor:
        there = tuple(Shard(back[p.dim]) if p.is_shard() else p for p in where)
        shape, stride = ([values[d] for d in dims] for values in (dtensor.shape, dtensor.stride()))
        return make_dtensor(dtensor._local_tensor.permute(dims), dtensor.device_mesh, there, shape, stride)

    there = tuple(Shard(at[p.dim]) if p.is_shard() else p for p in placements)
    return turned(compact(redistribute(turned(t, order, at, t.placements), there)), at, order, there)


def compact(tensor: DTensor) -> DTensor:
    """The same DTensor; a part that lies in a larger storage gets one of its own size."""
    local = local_tensor(tensor)
    if storage_bytes(local) == local.numel() * local.element_size():
        return tensor
    return make_dtensor(
        local.clone(memory_format=torch.contiguous_format),
        tensor.device_mesh,
        tensor.placements,
        tensor.shape,
        tensor.stride(),
    )
