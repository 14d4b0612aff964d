"""Checkpoints of sharded steps through torch.distributed.checkpoint: saved on one mesh, loaded on another."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from stowage.errors import Error


class CheckpointMixin:
    """state_dict(), save() and load() of a ShardedStep. Parts are DTensors, so that a mesh of another shape can read them."""

    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers and optimizer state, as DTensors where they are split; hyperparameters and schedulers as they are.

        Loading into these tensors (torch.distributed.checkpoint.load) changes the step's own memory; hand the same dict to
        load_state_dict() afterwards, for what is not a tensor.
        """
        if self._state is None:
            raise Error("nothing is split yet: call prepare(*batch) or the step first")
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._state is None:
            raise Error("nothing is split yet: call prepare(*batch) or the step first")
        self._state.load_state_dict(state)

    def save(self, path: str) -> None:
        """On every rank, with the same path, which all can reach."""
        with torch.no_grad():
            dcp.save(self.state_dict(), checkpoint_id=path)

    def load(self, path: str) -> None:
        """On every rank, after prepare() or a step; the mesh may be another than that of save()."""
        if self._state is None:
            raise Error("nothing is split yet: call prepare(*batch) or the step first")
        with torch.no_grad():
            self._state.make_optimizer_state()
            state = self.state_dict()
            dcp.load(state, checkpoint_id=path)
            self.load_state_dict(state)
