"""Gradients of a rank's stages, when the backwards of all micro-batches are done, before its optimizer's step.

    sums over micro-batches ──► their mean, over replicas, too ──► tied ones: the sum over their ranks (ties.py)
                            ──► clipped to max_norm

PyTorch's own schedules would scale a parameter once for each stage of the rank that has it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from stowage.sharding.chain import Chain, trainable
from stowage.sharding.pipeline_mesh import PipelineMesh
from stowage.sharding.ties import ties


class StageGradients:
    """Made on all ranks of the mesh, in one order with other collectives."""

    def __init__(self, chain: Chain, layer_ranks: list[int], mesh: PipelineMesh, micro_batches: int):
        """layer_ranks: of each layer, its rank's position. micro_batches: of a replica."""
        rank = mesh.position
        self.own = trainable(layer for layer, r in zip(chain.layers, layer_ranks) if r == rank)
        self._parts, self._max_norm, self._mesh = micro_batches * mesh.replicas, chain.max_norm, mesh
        self._tied: list[tuple[Any, list[torch.nn.Parameter]]] = []  # with the group of their ranks
        self._counted_elsewhere: set[int] = set()  # ids of parameters, for the norm
        for tie in ties(chain.layers):
            parameters = [p for p in tie.parameters if p.requires_grad]
            ranks = sorted({layer_ranks[i] for i in tie.layers})
            if not parameters or len(ranks) < 2:
                continue
            group = mesh.group_of(ranks)
            if rank in ranks:
                self._tied.append((group, parameters))
            if rank in ranks[1:]:
                self._counted_elsewhere |= {id(p) for p in parameters}

    def finish(self) -> None:
        """A collective."""
        for p in self.own:
            if p.grad is not None:
                p.grad.div_(self._parts)
        if self._mesh.alike is not None:
            self._add_up(self._mesh.alike, self.own)
        for group, parameters in self._tied:
            self._add_up(group, parameters)
        if self._max_norm is not None:
            self._clip(self._max_norm)

    def _add_up(self, group: Any, parameters: list[torch.nn.Parameter]) -> None:
        """One that no rank has stays None, as in one process."""
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32, device=self._mesh.device)
        dist.all_reduce(there, group=group)
        under_way = []
        for p, ranks in zip(parameters, there.tolist()):
            if ranks:
                own = torch.zeros_like(p) if p.grad is None else p.grad
                total = own.to_dense().contiguous()
                under_way.append((p, own, total, dist.all_reduce(total, group=group, async_op=True)))
        for p, own, total, sum_ in under_way:
            sum_.wait()
            p.grad = own.copy_(total) if total is not own and own.layout == torch.strided else total

    def _clip(self, max_norm: float) -> None:
        counted = [p.grad for p in self.own if p.grad is not None and id(p) not in self._counted_elsewhere]
        squares = torch.nn.utils.get_total_norm(counted).to(self._mesh.device, torch.float64).square()
        dist.all_reduce(squares, group=self._mesh.group)
        torch.nn.utils.clip_grads_with_norm_(self.own, max_norm, squares.sqrt())


__all__ = ["StageGradients"]
