"""Process groups, pipelines and DTensor. (Imported when first needed: DTensor takes a second.)

- ``ProcessGroup._get_backend``, ``Backend.options._timeout``, ``Backend._set_default_timeout``: how long a collective
  may take.
- ``_functional_collectives._maybe_wrap_tensor``: what a collective hands out.
- ``torch.distributed.pipelining``: the two halves of a backward, the order of a schedule.
- ``DTensor._local_tensor``, ``DTensor(local, spec)``, ``redistribute_local_tensor``: a rank's part of a tensor, and how
  parts move.
- ``DecompShardingStrategy.has_decomp``: whether DTensor finds placements of an op that has no rule.
- ``_StridedShard.local_shard_size_and_offset``: which rows a strided part has."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stowage._torch.private import unseen

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def group_timeout(group) -> Any:
    """As init_process_group was told; a group that is made later has another unless it is told as well."""
    return group._get_backend(group._device_types[0]).options._timeout


def set_group_timeout(group, timeout) -> None:
    for device in group._device_types:
        group._get_backend(device)._set_default_timeout(timeout)


def backward_of_input(outputs: tuple, gradients: list, inputs: tuple, parameters: list) -> list:
    """As a stage of a pipeline runs it; what backward_of_weights needs to go on."""
    from torch.distributed.pipelining._backward import stage_backward_input

    return stage_backward_input(list(outputs), gradients, list(inputs), iter(parameters))[1]


def backward_of_weights(parameters: list, groups: list) -> None:
    from torch.distributed.pipelining._backward import stage_backward_weight

    stage_backward_weight(iter(parameters), groups)


def pipeline_order(schedule, rank: int) -> list[str] | None:
    """The actions of a rank that compute, as texts such as "2F0"; None of a schedule that does not run by such a list
    (1F1B)."""
    if not hasattr(schedule, "pipeline_order_with_comms"):  # it has a list, which is not the one that it runs
        return None
    order = schedule.pipeline_order
    return [str(a) for a in order[rank] if a is not None and re.fullmatch(r"\d+[FBIW]\d+", str(a))]


def dtensor_spec(mesh, placements, shape, stride, dtype: torch.dtype) -> Any:
    """What a DTensor knows beside its part. Several may share one."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    return DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(torch.Size(shape), tuple(stride), dtype))


def dtensor_of(local: torch.Tensor, spec: Any) -> DTensor:
    """A DTensor over ``local``, without autograd, collectives or checks. (Its __init__ does nothing, in ten microseconds.)"""
    from torch.distributed.tensor import DTensor

    return DTensor.__new__(DTensor, local, spec, requires_grad=False)


def make_dtensor(local: torch.Tensor, mesh, placements, shape, stride) -> DTensor:
    return dtensor_of(local, dtensor_spec(mesh, placements, shape, stride, local.dtype))


def dtensor_like(tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of a rank's part, a DTensor that lies as this one; of any other tensor itself."""
    spec = getattr(tensor, "_spec", None)
    if spec is None:
        return lambda part: part
    return lambda part: make_dtensor(part, spec.mesh, spec.placements, spec.shape, spec.stride)


def local_shape(shape, mesh, placements) -> tuple:
    """Of this rank's part."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)[0])


def local_offset(shape, mesh, placements) -> tuple:
    """Where this rank's part begins in each dimension of the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)[1])


def redistribute(tensor: torch.Tensor, placements) -> DTensor:
    """The same DTensor at other placements, below autograd."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._redistribute import redistribute_local_tensor

    assert isinstance(tensor, DTensor)
    spec = DTensorSpec(tensor.device_mesh, tuple(placements), tensor_meta=tensor._spec.tensor_meta)
    local = redistribute_local_tensor(tensor._local_tensor, tensor._spec, spec)
    return dtensor_of(local, spec)


@contextlib.contextmanager
def waiting_collectives():
    """Functional collectives give plain tensors that are complete, not subclasses that wait when somebody looks."""
    from torch.distributed import _functional_collectives as collectives

    lazy = collectives._maybe_wrap_tensor
    collectives._maybe_wrap_tensor = collectives.wait_tensor
    try:
        yield
    finally:
        collectives._maybe_wrap_tensor = lazy


@contextlib.contextmanager
def rules_alone():
    """DTensor runs an op by a rule for it, or not at all. What it finds by running the op's decomposition on meta tensors is
    wrong where the op asks for the size of the whole: the mean of parts is no part of the mean."""
    from torch.distributed.tensor._decompositions import DecompShardingStrategy

    found = DecompShardingStrategy.has_decomp
    DecompShardingStrategy.has_decomp = staticmethod(lambda op: False)
    try:
        yield
    finally:
        DecompShardingStrategy.has_decomp = staticmethod(found)


@contextlib.contextmanager
def counting_unseen():
    """DTensor finds out by small tensors which rows a strided part has. They are none of the step's, and are read on the host."""
    from torch.distributed.tensor.placement_types import _StridedShard

    names = ("local_shard_size_and_offset", "_local_shard_size_and_offset")  # the latter up to torch 2.12
    own = {name: vars(_StridedShard)[name] for name in names if name in vars(_StridedShard)}

    def aside(counts: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with unseen():
                return counts(*args, **kwargs)

        return staticmethod(counted) if isinstance(counts, staticmethod) else counted

    for name, counts in own.items():
        setattr(_StridedShard, name, aside(counts))
    try:
        yield
    finally:
        for name, counts in own.items():
            setattr(_StridedShard, name, counts)


__all__ = [
    "backward_of_input",
    "backward_of_weights",
    "counting_unseen",
    "dtensor_like",
    "dtensor_of",
    "dtensor_spec",
    "group_timeout",
    "local_offset",
    "local_shape",
    "make_dtensor",
    "pipeline_order",
    "redistribute",
    "rules_alone",
    "set_group_timeout",
    "waiting_collectives",
]
