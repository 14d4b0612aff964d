"""Checkpoints of sharded steps through torch.distributed.checkpoint: saved on one mesh, loaded on another.

    {"model": {name: DTensor}, "optimizers": {"0": {"groups": {"0": {...}}, "state": {name: {key: DTensor}}}},
    "schedulers": {"0": {...}}}

Parts are DTensors, so that a mesh of another shape can read them.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

from stowage._torch.distributed import redistribute
from stowage._torch.private import local_tensor
from stowage.errors import Error
from stowage.sharding.parts import cut
from stowage.sharding.world import ShardedState


class CheckpointMixin:
    """state_dict(), load_state_dict(), save() and load() of a ShardedStep."""

    _state: ShardedState | None

    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers and optimizer state, as DTensors where they are split; hyperparameters and schedulers as
        they are.

        Loading into these tensors (torch.distributed.checkpoint.load) changes the step's own memory; hand the same dict
        to load_state_dict() afterwards, for what is not a tensor.
        """
        return _saved(self._split_state())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _load(self._split_state(), state)

    def save(self, path: str) -> None:
        """On every rank, with the same path, which all can reach."""
        with torch.no_grad():
            dcp.save(self.state_dict(), checkpoint_id=path)

    def load(self, path: str) -> None:
        """On every rank, after prepare() or a step; the mesh may be another than that of save(). Raises Error, with nothing changed,
        where there is no checkpoint, or one of another model or optimizer."""
        split = self._split_state()
        try:
            there = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise Error(f"{path}: no checkpoint can be read there: {error}") from None
        with torch.no_grad(), _optimizer_state(split):
            state = _saved(split)
            _leave_out(state, there)
            _check(state, there, path)
            dcp.load(state, checkpoint_id=path)
            _load(split, state)

    def _split_state(self) -> ShardedState:
        if self._state is None:
            raise Error("nothing is split yet: call prepare(*batch) or the step first")
        return self._state


def _saved(split: ShardedState) -> dict[str, Any]:
    model: dict[str, Any] = {part.name: part.parameter.detach() for part in split.parts()}
    for path, module in split.world.modules:
        model.update({name: b.detach() for name, b in module.named_buffers(prefix=path)})
    optimizers = {}
    for i, optimizer in enumerate(split.world.optimizers):
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        state = {split.part(p).name: dict(s) for p, s in optimizer.state.items()}
        optimizers[str(i)] = {"groups": {str(g): group for g, group in enumerate(groups)}, "state": state}
    schedulers = {str(i): s.state_dict() for i, s in enumerate(split.world.schedulers)}
    return {"model": model, "optimizers": optimizers, "schedulers": schedulers}


def _leave_out(state: dict[str, Any], there: Container[str]) -> None:
    """Optimizer state that the file does not have: of parameters that had no gradient by then."""
    for i, optimizer in state["optimizers"].items():
        optimizer["state"] = {
            name: values
            for name, values in optimizer["state"].items()
            if all(f"optimizers.{i}.state.{name}.{key}" in there for key in values)
        }


def _check(state: dict[str, Any], there: Mapping[str, Any], path: str) -> None:
    """Raises Error unless the file has all of it, in these shapes, and of no model with more."""
    mine = dict(_leaves(state))
    for key, value in mine.items():
        if key not in there and not any(
            other.startswith(f"{key}.") for other in there
        ):  # a list, whose elements have keys
            raise Error(f"{path} has no '{key}': it was saved from another model or optimizer")
        size = getattr(there.get(key), "size", None)
        if isinstance(value, torch.Tensor) and size is not None and tuple(size) != tuple(value.shape):
            raise Error(f"{path}: '{key}' has the shape {tuple(size)} there, and {tuple(value.shape)} here")
    more = [key for key in there if key.startswith("model.") and key not in mine]
    if more:
        raise Error(f"{path} has '{more[0]}', which this model has not")


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _load(split: ShardedState, saved: dict[str, Any]) -> None:
    """Tensors that are the step's own (of _saved()) already hold what was loaded."""
    for name, tensor in _saved(split)["model"].items():
        _take(tensor, saved["model"][name])
    for i, optimizer in enumerate(split.world.optimizers):
        theirs = saved["optimizers"][str(i)]
        for g, group in enumerate(optimizer.param_groups):
            group.update(theirs["groups"][str(g)])
        for group in optimizer.param_groups:
            for p in group["params"]:
                _load_state_of(optimizer, p, theirs["state"].get(split.part(p).name))
    for i, scheduler in enumerate(split.world.schedulers):
        scheduler.load_state_dict(saved["schedulers"][str(i)])


def _load_state_of(optimizer: torch.optim.Optimizer, p: torch.Tensor, saved: dict[str, Any] | None) -> None:
    """Tensors that are there take the new content; ShardedState.adopt_changes() sees the rest."""
    mine = optimizer.state.pop(p, {})
    if saved is None:
        return
    for key, value in saved.items():
        if isinstance(value, torch.Tensor) and isinstance(mine.get(key), torch.Tensor):
            _take(mine[key], value)
        else:
            mine[key] = value.clone() if isinstance(value, torch.Tensor) else value
    optimizer.state[p] = {key: mine[key] for key in saved}


def _take(into: torch.Tensor, value: torch.Tensor) -> None:
    """Copies, unless both are the same memory."""
    if isinstance(into, DTensor) and isinstance(value, DTensor) and value.placements != into.placements:
        value = redistribute(value, into.placements)
    a, b = local_tensor(into), local_tensor(value)
    if a.data_ptr() != b.data_ptr():
        a.copy_(b)


@contextlib.contextmanager
def _optimizer_state(split: ShardedState):
    """For loading: where a parameter has no state, the optimizer makes it by a step that changes no parameter. It is taken back
    where the block raises."""
    made: list[tuple[torch.optim.Optimizer, torch.Tensor]] = []
    try:
        for optimizer in split.world.optimizers:
            without = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
            if without:
                _make_state(split, optimizer, without)
                made += [(optimizer, p) for p in without]
        yield
    except BaseException:
        for optimizer, p in made:
            optimizer.state.pop(p, None)
        raise


def _make_state(split: ShardedState, optimizer: torch.optim.Optimizer, without: list[torch.Tensor]) -> None:
    groups = [dict(g) for g in optimizer.param_groups]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters]
    try:
        for group in optimizer.param_groups:
            group.update({k: 0.0 for k in ("lr", "weight_decay") if isinstance(group.get(k), float)})
        for p in parameters:
            p.grad = None
        for p in without:
            part = split.part(p)
            p.grad = cut(torch.zeros(part.shape, dtype=p.dtype, device=p.device), split.mesh, part.at.gradient)
        with split.watching():
            optimizer.step()
    finally:
        for group, before in zip(optimizer.param_groups, groups):
            group.update(before)
        for p, gradient in zip(parameters, gradients):
            p.grad = gradient
