"""Running a step once on DTensors, each op on the placements that the plan gives it.

    op k of the program ──► op k of the step:   inputs ─redistribute─► planned placements ─► DTensor ─► local op (recorded)
                                                                                        └─► outputs ─redistribute─► where they live

The mode sees the user's ops in the order in which the capture saw them; what the ops do inside (collectives, local kernels) goes to
the dispatcher's hook, which records the rank's own tape. Where DTensor has no way to run an op on those placements, and for random
numbers, the op runs on whole tensors on every rank: right, at the price of memory, and listed.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils._python_dispatch import TorchDispatchMode

from stowage.errors import Unsupported
from stowage.shard_capture import is_passed_over
from stowage.torch_private import hook_open, make_dtensor, redistribute, tree_map, waiting_collectives

_LOOKAHEAD = 16  # ops that only one of capture and execution may have, at one place


def parse_placement(text: str) -> tuple:
    """"S0,R" of the plan's JSON as DTensor's placements."""
    parts = []
    for part in text.split(","):
        if part[0] == "S":
            parts.append(Shard(int(part[1:])))
        else:
            parts.append({"R": Replicate(), "Psum": Partial("sum"), "Pavg": Partial("avg"), "Pmax": Partial("max")}[part])
    return tuple(parts)


class OpPlan:
    """The ops of a program outside the optimizer, and where the plan wants their tensors; the cursor moves with the step."""

    def __init__(self, ops: list[dict], planned: list[dict | None]):
        self._targets = [op["target"] for op in ops]
        self._in_optimizer = [op["phase"] == "optimizer" for op in ops]
        self._planned = [None if p is None else _Placed(p) for p in planned]
        self.restart()

    def restart(self) -> None:
        self._cursor = 0
        self.unplaced: list[str] = []  # ops of the step that the program does not have

    def next(self, func) -> _Placed | None:
        name = str(func)
        for k in range(self._cursor, min(self._cursor + _LOOKAHEAD, len(self._targets))):
            if self._targets[k] == name and not self._in_optimizer[k]:
                self._cursor = k + 1
                return self._planned[k]
        self.unplaced.append(name)
        return None

    def pass_optimizer(self) -> None:
        """After one call of optimizer.step()."""
        at = self._cursor
        while at < len(self._targets) and not self._in_optimizer[at]:
            at += 1
        while at < len(self._targets) and self._in_optimizer[at]:
            at += 1
        self._cursor = at


class _Placed:
    def __init__(self, op: dict):
        self.inputs = [None if p is None else parse_placement(p) for p in op["inputs"]]
        self.outputs = [None if p is None else parse_placement(p) for p in op["outputs"]]


class PlacedMode(TorchDispatchMode):
    def __init__(self, mesh, plan: OpPlan | None = None):
        super().__init__()
        self._mesh = mesh
        self._plan = plan
        self._inside = False
        self._paused = False
        self.replicated: list[str] = []  # ops that ran on whole tensors because DTensor could not otherwise
        if plan is not None:
            plan.restart()

    @contextlib.contextmanager
    def running(self):
        """The step runs in here."""
        with implicit_replication(), waiting_collectives(), self:
            yield

    @contextlib.contextmanager
    def aside(self):
        """What happens in here is none of the step's ops."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def pause(self) -> None:
        """An optimizer's step begins: it works on plain tensors, and its ops are not placed one by one."""
        self._paused = True

    def pass_optimizer(self) -> None:
        """It has ended."""
        self._paused = False
        if self._plan is not None:
            self._plan.pass_optimizer()

    # ---- One op

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        counts = not self._inside and not self._paused and not is_passed_over(func)
        placed = self._plan.next(func) if counts and self._plan is not None else None
        if not any(issubclass(t, DTensor) for t in types):
            with hook_open():
                return func(*args, **kwargs)
        if self._inside:
            return NotImplemented  # DTensor's turn
        self._inside = True
        try:
            with self:  # the mode stays on: it opens the hook for what DTensor calls
                return self._run(func, args, kwargs, placed)
        finally:
            self._inside = False

    def _run(self, func, args: tuple, kwargs: dict, placed: _Placed | None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self._run_whole(func, args, kwargs)
        moved = _Moved(func, args, kwargs, self._mesh)
        if placed is not None:
            moved.bring(placed.inputs)
        try:
            result = func(*moved.args, **moved.kwargs)
        except (NotImplementedError, RuntimeError) as reason:
            if "allreduce" in str(reason) or "Connection" in str(reason) or "imed out" in str(reason):
                raise
            return self._run_whole(func, args, kwargs)
        result = moved.take_back(result)
        return self._settle(func, result, placed) if placed is not None else result

    def _settle(self, func, result: Any, placed: _Placed) -> Any:
        """Results go at once to where they live."""
        if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
            return result
        wanted = iter(placed.outputs)

        def settle(t: Any) -> Any:
            if t is not None and not isinstance(t, torch.Tensor):
                return t
            at = next(wanted, None)
            if not isinstance(t, DTensor) or at is None or t.placements == at or any(p.is_partial() for p in at):
                return t
            return redistribute(t, at)

        if isinstance(result, (tuple, list)):
            return type(result)(settle(t) for t in result)
        return settle(result)

    def _run_whole(self, func, args: tuple, kwargs: dict) -> Any:
        self.replicated.append(str(func))
        moved = _Moved(func, args, kwargs, self._mesh)
        moved.bring([(Replicate(),) * self._mesh.ndim] * moved.count)
        try:
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise NotImplementedError
            result = func(*moved.args, **moved.kwargs)
        except (NotImplementedError, RuntimeError):
            result = self._run_local(func, moved)
        return moved.take_back(result)

    def _run_local(self, func, moved: _Moved) -> Any:
        """On the whole tensors, past DTensor."""
        by_local: dict[int, DTensor] = {}

        def unwrap(t: Any) -> Any:
            if isinstance(t, DTensor):
                by_local[id(t._local_tensor)] = t
                return t._local_tensor
            return t

        def wrap(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or isinstance(t, DTensor):
                return t
            return by_local.get(id(t)) or make_dtensor(t, self._mesh, [Replicate()] * self._mesh.ndim, t.shape, t.stride())

        with hook_open():
            try:
                result = func(*tree_map(unwrap, moved.args), **tree_map(unwrap, moved.kwargs))
            except NotImplementedError as reason:
                raise Unsupported(f"{func} cannot run under a mesh: {reason}") from None
        return tree_map(wrap, result)


class _Moved:
    """An op's arguments at other placements, and the way back for those that it changes."""

    def __init__(self, func, args: tuple, kwargs: dict, mesh):
        self._mesh = mesh
        self.args, self.kwargs = args, kwargs
        self._names = [a.name for a in func._schema.arguments]
        self._writes = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        self._back: list[tuple[DTensor, DTensor]] = []  # what was given, what the op has instead
        self.count = sum(isinstance(t, torch.Tensor) for _, value in self._named() for t in (value if isinstance(value, (list, tuple)) else [value]))

    def _named(self):
        for i, name in enumerate(self._names):
            value = self.args[i] if i < len(self.args) else self.kwargs.get(name)
            yield name, value

    def bring(self, wanted: list) -> None:
        """``wanted``: placements of all tensors of all arguments, in schema order; None where any will do."""
        if len(wanted) != self.count:
            return
        places = iter(wanted)
        values = {}
        for name, value in self._named():
            if isinstance(value, torch.Tensor):
                values[name] = self._at(name, value, next(places))
            elif isinstance(value, (list, tuple)) and any(isinstance(t, torch.Tensor) for t in value):
                values[name] = [self._at(name, t, next(places)) if isinstance(t, torch.Tensor) else t for t in value]
            else:
                values[name] = value
        self.args = tuple(values[name] for name in self._names[: len(self.args)])
        self.kwargs = {name: values[name] for name in self.kwargs}

    def _at(self, name: str, t: torch.Tensor, placements) -> torch.Tensor:
        if not isinstance(t, DTensor):
            if placements is None or not any(p.is_shard() for p in placements) or name in self._writes:
                return t
            return redistribute(make_dtensor(t, self._mesh, [Replicate()] * self._mesh.ndim, t.shape, t.stride()), placements)
        if placements is None or t.placements == placements or any(p.is_partial() for p in placements):
            return t
        moved = redistribute(t, placements)
        if name in self._writes:
            self._back.append((t, moved))
        return moved

    def take_back(self, result: Any) -> Any:
        if not self._back:
            return result
        given = {}
        for t, moved in self._back:
            t._local_tensor.copy_(redistribute(moved, t.placements)._local_tensor)
            given[id(moved)] = t
            given[id(moved._local_tensor)] = t

        def own(r: Any) -> Any:
            if not isinstance(r, torch.Tensor):
                return r
            return given.get(id(r)) or (given.get(id(r._local_tensor)) if isinstance(r, DTensor) else None) or r

        return tree_map(own, result)
