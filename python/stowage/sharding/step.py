"""stowage.shard: a training step whose tensors are split over a mesh of ranks so that the least memory is redundant.

    every rank    capture on fakes ─► the same program?
    rank 0        plan ──broadcast──►
    every rank    parameters, optimizer state cut to their parts ─► one step on DTensors, recorded ─► local tape: order, layout,
                  budget, check ─► rehearsed ─► replayed, with no DTensor in the loop
                  but where the step's Python must run in every call (calls.py)

Ranks run in step: before each step they tell each other what they are about to do, and on what; who disagrees stops all
of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stowage import _runtime
from stowage._torch.settings import foreign_mode
from stowage.errors import Error, Infeasible, Unsupported
from stowage.sharding.arguments import as_plan, refuse_wrong_arguments
from stowage.sharding.calls import ShardedCalls, ShardedEntry
from stowage.sharding.capture import capture_program
from stowage.sharding.checkpoint import CheckpointMixin
from stowage.sharding.decision import Choice, decisions
from stowage.sharding.group import Ranks, as_mesh
from stowage.sharding.held_views import warn_of_views
from stowage.sharding.pipeline import PipelinedStep, refuse_with_pipeline
from stowage.sharding.placements import ShardingPlan, mesh_document, placement_options, says_where, solve
from stowage.sharding.program import Program
from stowage.sharding.stand_in import StandIn
from stowage.sharding.world import (
    ShardedState,
    is_parts,
    named_parameters,
    refuse_what_cannot_be_cut,
)
from stowage.sizes import parse_bytes
from stowage.step.reach.world import World
from stowage.step.replay.room import Room
from stowage.step.signature.signature import signature


class ShardedStep(CheckpointMixin, ShardedCalls):
    """Callable like the function it wraps, on every rank with the same arguments. Made by stowage.shard."""

    def __init__(
        self,
        train_step: Callable,
        mesh,
        *,
        budget: int | None,
        plan: Any,
        links: dict | None,
        link_gbps: float | None,
        strict: bool,
        options: dict,
    ):
        mesh = as_mesh(mesh)
        room = Room(_runtime.Arena(), _runtime.Host("", 0, link_gbps or 0.0), link_gbps, "memory")
        super().__init__(train_step, mesh, Ranks(mesh), room, budget, strict)
        self._options = options  # of the solver
        self._links = links or {}
        self._given_plan = plan
        self._choice: Choice | None = None  # on rank 0
        self._needs: list[tuple[int, int]] = []  # what the placements that were tried need, and the bounds of that
        self._may_choose = budget is not None and plan is None and not says_where(options)
        self._state: ShardedState | None = None
        self._latest: ShardedEntry | None = None
        self._modules: list[torch.nn.Module] | None = None

    # ---- Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _runtime.Turn(self._gate), self._ranks.explained():
            if mode := foreign_mode():
                raise Unsupported(
                    f"a mode of yours that sees each operation is open ({mode}): call the step outside of it"
                )
            if self._state is not None and self._state.adopt_changes():
                for known in self._entries.values():
                    known.replays.clear()
            key, inputs = self._signature(args, kwargs)
            entry = self._entries.get(key) or self._plan(key, args, kwargs)
            if entry.over_budget is not None:
                entry = self._choose_again(entry, key)
            self._latest = entry
            return self._call(entry, key, args, kwargs, inputs)

    def prepare(self, *args: Any, **kwargs: Any) -> ShardingPlan:
        """Plans for these arguments and cuts parameters and optimizer state to their parts, without running a step."""
        with _runtime.Turn(self._gate), self._ranks.explained():
            key, _ = self._signature(args, kwargs)
            entry = self._entries.get(key) or self._plan(key, args, kwargs)
            self._latest = entry
            return entry.plan

    def _signature(self, args: tuple, kwargs: dict) -> tuple[Any, list[torch.Tensor]]:
        """What one plan serves: arguments of these shapes, and modules that train, or do not."""
        key, inputs = signature(args, kwargs)
        if any(is_parts(t) or isinstance(t, StandIn) for t in inputs):
            raise Unsupported(
                "an argument is a tensor in parts (a parameter, a buffer or a gradient of the sharded model): let the step reach it through "
                "the model, or pass t.full_tensor()"
            )
        if self._modules is None:
            self._modules = [module for _, root in World(self._fn).modules for module in root.modules()]
        return (key, tuple(module.training for module in self._modules)), inputs

    def _plan(self, key: Any, args: tuple, kwargs: dict) -> ShardedEntry:
        world = World(self._fn)
        names = self._state.names() if self._state is not None else named_parameters(world)
        if self._state is None:
            refuse_what_cannot_be_cut(world, names)
        with self._ranks.together():
            stand_ins = self._state.stand_ins() if self._state is not None else None
            program = capture_program(self._fn, args, kwargs, names, self._name, stand_ins)
        text = program.to_json()
        self._ranks.same(text, "the ranks' steps differ: not the same program")
        if self._state is None:
            self._ranks.same_tensors([p for _, p in names], "the ranks' parameters differ")
        plan = self._ranks.from_first(lambda: self._solve(program, text))
        return self._take(program, plan, key, world)

    def _take(self, program: Program, plan: str, key: Any, world: World) -> ShardedEntry:
        sharding = ShardingPlan(program, plan, self.mesh)
        if self._state is None:
            warn_of_views(world)
            self._state = ShardedState(world, self.mesh, sharding.state_placements(), sharding.buffer_placements())
        self._entries[key] = ShardedEntry(sharding, sharding.op_plan())
        return self._entries[key]

    def _solve(self, program: Program, text: str) -> str:
        if self._given_plan is not None:
            given = self._given_plan(program, self.mesh) if callable(self._given_plan) else self._given_plan
            return as_plan(given, len(program.tensors), len(program.ops))
        fixed = self._state.fixed(program) if self._state is not None else {}
        sizes = [self.mesh.size(i) for i in range(self.mesh.ndim)]
        mesh = mesh_document(sizes, self.mesh.mesh_dim_names, self._links)
        options = {**self._options, **({"fixed": fixed} if fixed else {})}
        if self._budget is None or says_where(options):
            return solve(text, mesh, options)
        self._choice = Choice(decisions(program, mesh, tuple(sizes), options, self._room.link_gbps), self._budget)
        return self._choice.first().text

    # ---- A placement whose recording needs more than was modelled

    def _choose_again(self, entry: ShardedEntry, key: Any) -> ShardedEntry:
        """Parameters and state go to another placement, which by the same measure fits. Raises where there is none, or where
        another signature's plan rests on where they are."""
        needed, bound = (
            self._ranks.most(getattr(entry.over_budget, f"{name}_bytes", 0)) for name in ("smallest", "bound")
        )
        if needed and not isinstance(entry.over_budget, Infeasible):
            entry.over_budget = Infeasible(
                f"on another rank, no plan was found within the budget; it needs {needed} bytes", needed, bound
            )
        if not self._may_choose or len(self._entries) > 1:
            self._require_budget_kept(entry)
        self._needs.append((needed, bound))
        text = self._ranks.from_first(lambda: self._next_text(needed))
        if not text:
            self._may_choose = False
            if len(self._needs) > 1:
                least, bound = min(self._needs)[0], min(bound for _, bound in self._needs)
                entry.over_budget = Infeasible(
                    f"none of the {len(self._needs)} placements that were tried meets the budget; the smallest that one of them needs: {least}",
                    least,
                    bound,
                )
            self._require_budget_kept(entry)
        program = entry.plan.program
        self._split_state().put_together()
        self._state = self._mode = None
        self._entries.clear()
        return self._take(program, text, key, World(self._fn))

    def _next_text(self, needed: int) -> str:
        plan = self._choice.next(needed) if self._choice is not None and needed > 0 else None
        return "" if plan is None else plan.text

    # ---- What is known

    @property
    def plan(self) -> ShardingPlan | None:
        """The sharding plan of the latest call: placements, ledger, bounds."""
        return self._latest.plan if self._latest else None

    @property
    def graph(self):
        """This rank's local graph of the latest call, or None before it was recorded."""
        return self._latest.latest.graph if self._latest and self._latest.latest else None

    def measured_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds between steps, each storage once, by kind."""
        return self._state.measured_bytes() if self._state is not None else {}

    def stats(self) -> dict:
        """Figures of this rank; times are medians of the last steps."""
        return {
            "rank": dist.get_rank(),
            **self._figures(self._latest.latest if self._latest else None),
            "dtensor_steps": self._tally.eager_steps,
            "dtensor_step_ns": self._tally.eager_ns,
            "replicated_ops": sorted(set(self._mode.replicated)) if self._mode else [],
            "unplaced_ops": len(self._latest.ops.unplaced) if self._latest else 0,
        }


def shard(
    train_step: Callable,
    mesh,
    *,
    eps: float | None = None,
    memory_limit: int | str | None = None,
    budget: int | str | None = None,
    plan: Any = None,
    links: dict | None = None,
    link_gbps: float | None = None,
    strict: bool = False,
    pipeline: Any = None,
    **options: Any,
) -> ShardedStep | PipelinedStep:
    """Splits ``train_step`` over a mesh of ranks.

    Call it under torchrun, on each rank with the same model and the same arguments (the whole batch). The first call
    plans: rank 0 solves, all get the same plan; parameters and optimizer state are cut to their parts in place, so that
    the model holds DTensors. To plan, its Python runs twice or more over tensors without memory; what that changes in Python is put back,
    and Unsupported is raised where it cannot be.

    Args:
        train_step: forward, backward, optimizer step, on a model that every rank has whole.
        mesh: a DeviceMesh, or sizes such as (2, 4).
        eps: state and saved activations may take 1 + eps times the least bytes, for time; None: 0 without a budget.
        memory_limit: of the modelled peak per device, in bytes or as "2GiB".
        budget: of what a rank really holds, in bytes or as "2GiB": the fastest that is found of placement, order,
            recomputation and copies to the host together. Where eps, memory_limit or a plan say where tensors live,
            it is met by the others alone.
        plan: a plan made before (the JSON of docs/formats.md), or a function (program, mesh) -> JSON, instead of
            solving.
        links: per axis, by position: {"latency_ns", "gbps"}; and of a device "tflops", "memory_gbps", "kernel_ns".
        link_gbps: speed of each lane to the host, in 10^9 bytes a second; 0: no copies. None: placements are compared
            at 12, and steps are planned with what is measured.
        strict: as for stowage.compile.
        pipeline: a number of micro-batches, or {"micro_batches", "schedules", "stages_per_rank", "action_ns", "node_limit",
            "costs", "axis"} of docs/formats.md, section 5: train_step is a stowage.Chain, whose layers are cut into stages over
            that axis of the mesh (by its place or name; 0). The others have replicas, each with its rows of the batch. Of the
            other arguments memory_limit, plan and links apply.
        options: any other of docs/formats.md, section 5; relative_gap=0.05 solves to within 5 % of the least time, and
            sooner.

    Returns:
        A function like ``train_step``. Calls return what train_step returns, as whole tensors.

    Raises:
        TypeError, ValueError: train_step is no function; an argument is of a wrong kind, or negative.
        Error: there is no process group.
        Unsupported: the step cannot be split; the message says why.
        Infeasible: from a call, where nothing meets the budget.
    """
    if not callable(train_step):
        raise TypeError(f"shard() needs a function, not {type(train_step).__name__}")
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise Error("stowage.shard needs torch.distributed: run under torchrun, or call init_process_group first")
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    limit = parse_bytes(memory_limit)
    refuse_wrong_arguments(mesh, eps, links, link_gbps, None if pipeline is not None else plan, options)
    if pipeline is not None:
        refuse_with_pipeline(eps=eps, budget=budget, link_gbps=link_gbps, strict=strict or None, **options)
        return PipelinedStep(train_step, mesh, pipeline=pipeline, limit=limit, plan=plan, links=links)
    return ShardedStep(
        train_step,
        mesh,
        budget=parse_bytes(budget),
        plan=plan,
        links=links,
        link_gbps=link_gbps,
        strict=strict,
        options=placement_options(eps, limit, options),
    )
