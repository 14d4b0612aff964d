"""Who runs what: stages over one axis of a mesh, replicas over all others.

mesh (2, 4), axis 1       position 0    1    2    3
replica 0                 rank     0    1    2    3      each replica takes its rows of the batch;
replica 1                 rank     4    5    6    7      gradients are the mean over replicas
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from stowage._torch.distributed import group_timeout
from stowage.errors import Error

_LATENCY_NS, _GBPS = 6000, 100.0  # where nobody says: those of docs/formats.md


def axis_of(axis: int | str, sizes: Sequence[int], names: Sequence[str] | None = None) -> int:
    """That of the stages, by its place or its name."""
    if isinstance(axis, str):
        if axis not in (names or ()):
            raise Error(f"the mesh has no axis '{axis}' for the pipeline's stages, but {list(names or ())}")
        return list(names or ()).index(axis)
    if not 0 <= axis < len(sizes):
        raise Error(f"the mesh {tuple(sizes)} has no axis {axis} for the pipeline's stages")
    return axis


def replicas_of(sizes: Sequence[int], axis: int) -> int:
    ranks = 1
    for size in sizes:
        ranks *= size
    return ranks // sizes[axis]


def exchange_ns(gradient_bytes: int, sizes: Sequence[int], axis: int, links: dict) -> int:
    """Until the replicas have the sum of a layer's gradients, over the slowest of their links."""
    replicas = replicas_of(sizes, axis)
    if replicas < 2 or not gradient_bytes:
        return 0
    others = [links.get(a, {}) for a, size in enumerate(sizes) if a != axis and size > 1]
    latency_ns = max(link.get("latency_ns", _LATENCY_NS) for link in others)
    gbps = min(link.get("gbps", _GBPS) for link in others)
    return int(2 * (replicas - 1) * (latency_ns + gradient_bytes / replicas / gbps))


class PipelineMesh:
    """Made on all ranks of the mesh."""

    def __init__(self, mesh: Any, axis: int | str):
        self.sizes = tuple(mesh.size(i) for i in range(mesh.ndim))
        self.axis = axis_of(axis, self.sizes, mesh.mesh_dim_names)
        self.device = mesh.device_type
        self.group = mesh.get_group(self.axis)  # of this replica's ranks
        self.position = mesh.get_local_rank(self.axis)
        self.positions = self.sizes[self.axis]
        self._rows = (
            mesh.mesh.movedim(self.axis, 0).reshape(self.positions, -1).tolist()
        )  # by position, of each replica
        self.replicas = len(self._rows[0])
        self.replica = self._rows[self.position].index(dist.get_rank())
        # Of the ranks that have the same stages
        self.alike = [_new_group(row) for row in self._rows][self.position] if self.replicas > 1 else None

    def global_rank(self, position: int) -> int:
        """In this replica."""
        return self._rows[position][self.replica]

    def group_of(self, positions: Sequence[int]) -> Any:
        """Of these in this rank's replica, to which it may belong or not. A collective of the whole mesh."""
        return [_new_group([self._rows[p][r] for p in positions]) for r in range(self.replicas)][self.replica]


def _new_group(ranks: list[int]) -> Any:
    return dist.new_group(ranks, timeout=group_timeout(dist.group.WORLD))


__all__ = ["PipelineMesh", "axis_of", "exchange_ns", "replicas_of"]
