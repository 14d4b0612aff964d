"""A chain of layers over the ranks of one axis of a mesh: planned (docs/formats.md, section 5), and run by
torch.distributed.pipelining.

    rank 0    costs of each layer ─► plan: cuts, schedule, ledger ──broadcast──►
    every rank    keeps its stages' layers ─► PipelineStage ─► the plan's schedule, micro-batch by micro-batch
                  ─► gradients of all micro-batches (stage_gradients.py) ─► its optimizer
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stowage import _core
from stowage._torch.distributed import pipeline_order
from stowage._torch.private import storage_address, storage_bytes
from stowage.errors import Error, Infeasible, Unsupported
from stowage.sharding import chain_checks, layer_costs
from stowage.sharding.chain import Chain, as_tuple, handed_on, micro_batches, trainable
from stowage.sharding.group import Ranks, as_mesh
from stowage.sharding.pipeline_mesh import PipelineMesh, axis_of, exchange_ns, replicas_of
from stowage.sharding.stage_gradients import StageGradients

_DEVICE = ("tflops", "memory_gbps", "kernel_ns")
_OPTIONS = ("micro_batches", "schedules", "stages_per_rank", "action_ns", "node_limit", "costs", "axis")


_WHOLE = ("1f1b", "interleaved")  # schedules that run backward as a whole


class PipelinePlan:
    """Which layers each rank runs, in which order, what that takes and holds."""

    def __init__(self, problem: str, text: str):
        self.problem, self.text = json.loads(problem), text
        self.document: dict = json.loads(text)

    def summary(self) -> dict:
        """The plan without its actions: docs/formats.md, section 5."""
        return {k: v for k, v in self.document.items() if k != "actions"}

    @property
    def schedule(self) -> str:
        return self.document["schedule"]

    @property
    def stages(self) -> list[dict]:
        """Of each stage: its rank, its first layer, the end of its layers."""
        return self.document["stages"]

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)


def checked_options(pipeline: Any) -> dict:
    options = {"micro_batches": pipeline} if isinstance(pipeline, int) else dict(pipeline)
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TypeError(f"pipeline= has no '{unknown[0]}': it is one of {', '.join(_OPTIONS)}")
    count = options.get("micro_batches")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise TypeError(f"pipeline= needs a number of micro-batches, at least 1, not {count!r}")
    axis = options.get("axis", 0)
    if isinstance(axis, bool) or not isinstance(axis, (int, str)):
        raise TypeError(f"pipeline=: axis is that of the stages, by its place or name in the mesh, not {axis!r}")
    costs = options.get("costs", "measured")
    if costs not in ("measured", "modelled") and not isinstance(costs, list):
        raise TypeError("pipeline=: costs are 'measured', 'modelled', or the list of layers of a problem")
    return options


def problem_of(
    chain: Chain,
    batch: tuple,
    sizes: tuple[int, ...],
    axis: int,
    options: dict,
    limit: int | None,
    links: dict | None,
    costs: Any,
) -> str:
    """The problem's JSON, of the chain on this batch. sizes: of the mesh; axis: of the stages."""
    parts = micro_batches(batch, options["micro_batches"] * replicas_of(sizes, axis))
    chain_checks.refuse_what_parts_change(chain, parts)
    halves = layer_costs.can_halve(chain, parts[0])
    if not halves:
        options = {**options, "schedules": _without_halves(options.get("schedules", _WHOLE))}
    links = links or {}
    device = {k: links[k] for k in _DEVICE if k in links}
    if isinstance(costs, list):
        layers = costs
        if len(layers) != len(chain.layers):
            raise Error(f"costs are of {len(layers)} layers, and the chain has {len(chain.layers)}")
    else:
        layers = (
            layer_costs.measured(chain, parts[0], halves)
            if costs == "measured"
            else layer_costs.modelled(chain, parts[0], halves, **device)
        )
        for layer in layers:
            layer["update_ns"] = layer.get("update_ns", 0) + exchange_ns(layer["gradient_bytes"], sizes, axis, links)
    document = {
        "format": "stowage-pipeline", "version": 1, "name": chain.__name__, "ranks": sizes[axis],
        **{k: v for k, v in options.items() if k not in ("costs", "axis")}, **links.get(axis, {}),
        "memory_limit_bytes": limit, "layers": layers, "ties": layer_costs.tie_costs(chain),
    }  # fmt: skip
    return json.dumps(document)


def _without_halves(schedules: Any) -> list[str]:
    found = [s for s in schedules if s in _WHOLE]
    if not found:
        raise Unsupported(
            "PyTorch cannot run the backward of a layer in halves, as zero bubbles do (a parameter that is used twice, or in two layers): "
            f"let schedules have one of {', '.join(_WHOLE)}"
        )
    return found


def solve_pipeline(problem: str) -> str:
    """The plan's JSON. Raises Infeasible where nothing fits the limit."""
    text = _core.plan_pipeline(problem)
    document = json.loads(text)
    if document["outcome"] in ("infeasible", "unknown"):
        smallest = document["smallest_bytes"]
        raise Infeasible(
            f"no cut of the layers keeps each rank within the limit; the fullest rank of the best one holds {smallest} bytes",
            smallest,
            document["bound_bytes"],
        )
    return text


def plan_of(
    chain: Any, batch: tuple, mesh: tuple[int, ...], pipeline: Any, limit: int | None, links: dict | None
) -> PipelinePlan:
    """On paper: no device, no ranks."""
    options = checked_options(pipeline)
    _require_chain(chain)
    axis = axis_of(options.get("axis", 0), mesh)
    problem = problem_of(chain, batch, mesh, axis, options, limit, links, options.get("costs", "modelled"))
    plan = PipelinePlan(problem, solve_pipeline(problem))
    chain_checks.refuse_other_options(chain, plan.stages)
    return plan


def refuse_with_pipeline(**given: Any) -> None:
    """Arguments of stowage.shard that say nothing of a pipeline."""
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"{name}= does not go with pipeline= so far")


def _require_chain(chain: Any) -> None:
    if not isinstance(chain, Chain):
        raise TypeError(f"a pipeline needs a stowage.Chain, whose layers it can cut, not {type(chain).__name__}")


class _Stage(torch.nn.Module):
    def __init__(self, layers: list[torch.nn.Module]):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, *values: torch.Tensor) -> Any:
        values = handed_on(values)
        for layer in self.layers:
            values = as_tuple(layer(*values))
        values = handed_on(tuple(v.contiguous() if isinstance(v, torch.Tensor) else v for v in values))
        return values[0] if len(values) == 1 else values


class PipelinedStep:
    """Called with the whole batch on every rank; returns the mean of the micro-batches' losses. Made by stowage.shard."""

    def __init__(self, chain: Any, mesh: Any, *, pipeline: Any, limit: int | None, plan: Any, links: dict | None):
        _require_chain(chain)
        self._options = checked_options(pipeline)
        self.mesh = as_mesh(mesh)
        self._place = PipelineMesh(self.mesh, self._options.get("axis", 0))
        self.chain, self._limit, self._given_plan, self._links = chain, limit, plan, links
        self._ranks = Ranks(self.mesh)
        self._group = self._place.group
        self.plan: PipelinePlan | None = None
        self._stages: list[Any] = []
        self._times: list[int] = []
        self._shapes: Any = None
        self._whole: dict[int, torch.Size] = {}  # by id of a parameter or buffer: its shape
        self._layer_ranks: list[int] = []
        self._loss_type: torch.dtype | None = None
        self._gradients: StageGradients | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    # ---- Calling

    def __call__(self, *batch: torch.Tensor) -> torch.Tensor:
        with self._ranks.explained():
            self.prepare(*batch)
            begin = time.perf_counter_ns()
            loss = self._step(batch)
            self._times.append(time.perf_counter_ns() - begin)
            return loss

    def prepare(self, *batch: torch.Tensor) -> PipelinePlan:
        """Plans for this batch, and keeps of the layers those of this rank; the others' parameters give their memory
        back. Later batches have the same shapes."""
        shapes = [(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in batch]
        if self.plan is not None:
            if shapes != self._shapes:
                raise Unsupported(f"a pipeline runs batches of the shapes that it was planned for: {self._shapes}")
            return self.plan
        self._ranks.same(repr(shapes), "the ranks' batches differ in shape or type")
        self._ranks.same_tensors(
            [p for layer in self.chain.layers for p in layer.parameters()], "the ranks' parameters differ"
        )
        problem_and_plan = self._ranks.from_first(lambda: json.dumps(self._planned(batch)))
        self.plan = PipelinePlan(*json.loads(problem_and_plan))
        self._shapes = shapes
        self._build()
        return self.plan

    def _planned(self, batch: tuple) -> tuple[str, str]:
        costs, place = self._options.get("costs", "measured"), self._place
        problem = problem_of(self.chain, batch, place.sizes, place.axis, self._options, self._limit, self._links, costs)
        if self._given_plan is None:
            plan = solve_pipeline(problem)
        else:
            plan = self._given_plan(problem) if callable(self._given_plan) else self._given_plan
        chain_checks.refuse_other_options(self.chain, json.loads(plan)["stages"])
        return problem, plan

    def _build(self) -> None:
        from torch.distributed.pipelining import (
            PipelineStage,
            Schedule1F1B,
            ScheduleInterleaved1F1B,
            ScheduleInterleavedZeroBubble,
            ScheduleZBVZeroBubble,
        )

        assert self.plan is not None
        rank, plan, layers = self._place.position, self.plan, self.chain.layers
        kinds: dict[str, Callable] = {
            "1f1b": Schedule1F1B,
            "interleaved": ScheduleInterleaved1F1B,
            "zero-bubble": ScheduleInterleavedZeroBubble,
            "zbv": ScheduleZBVZeroBubble,
        }
        device = torch.device(self.mesh.device_type)
        for s, stage in enumerate(plan.stages):
            self._layer_ranks += [stage["rank"]] * (stage["end"] - stage["first"])
            if stage["rank"] == rank:
                module = _Stage(layers[stage["first"] : stage["end"]])
                self._stages.append(PipelineStage(module, s, len(plan.stages), device, group=self._group))
        micro_batches = self._options["micro_batches"]
        stages = self._stages[0] if plan.schedule == "1f1b" else self._stages
        self._schedule = kinds[plan.schedule](stages, micro_batches, loss_fn=self._loss, scale_grads=False)
        if pipeline_order(self._schedule, rank) not in (None, plan.document["actions"][rank]):
            raise Error(f"this version of PyTorch runs {plan.schedule} in another order than was planned")
        self._keep_own(rank)
        self._gradients = StageGradients(self.chain, self._layer_ranks, self._place, micro_batches)
        self._optimizer = self.chain.optimizer(self._gradients.own) if self._gradients.own else None

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        return handed_on((self.chain.loss(output, target),))[0]

    def _keep_own(self, rank: int) -> None:
        """Parameters and buffers of other ranks' layers give their memory back."""
        kept = {id(t) for stage in self._stages for t in [*stage.submod.parameters(), *stage.submod.buffers()]}
        with torch.no_grad():
            for layer in self.chain.layers:
                for tensor in [*layer.parameters(), *layer.buffers()]:
                    self._whole.setdefault(id(tensor), tensor.shape)  # layers may share it
                    if id(tensor) not in kept:
                        tensor.data = tensor.new_empty(0)

    def _step(self, batch: tuple) -> torch.Tensor:
        place = self._place
        *inputs, target = (t.chunk(place.replicas)[place.replica] for t in batch)
        first = any(stage.is_first for stage in self._stages)
        last = any(stage.is_last for stage in self._stages)
        losses: list[torch.Tensor] = []
        self._schedule.step(
            *(inputs if first else ()), target=target if last else None, losses=losses, return_outputs=False
        )
        assert self._gradients is not None
        self._gradients.finish()
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return self._told(torch.stack([x.detach() for x in losses]).mean() if last else None)

    def _told(self, loss: torch.Tensor | None) -> torch.Tensor:
        """The last stage's loss, its mean over replicas, on all ranks."""
        owner = self._global_rank(len(self._layer_ranks) - 1)
        if self._loss_type is None:
            box = [None if loss is None else loss.dtype]
            dist.broadcast_object_list(box, src=owner, group=self._group)
            self._loss_type = box[0]
        told = torch.empty((), dtype=self._loss_type, device=self.mesh.device_type) if loss is None else loss
        dist.broadcast(told, owner, group=self._group)
        if self._place.alike is not None:
            told = told / self._place.replicas
            dist.all_reduce(told, group=self._place.alike)
        return told

    def _global_rank(self, layer: int) -> int:
        return self._place.global_rank(self._layer_ranks[layer])

    # ---- What is known

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of all layers, whole, on every rank: "0.weight" is of layer 0. A collective: all ranks
        call it."""
        found: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for i, layer in enumerate(self.chain.layers):
                for name, tensor in layer.state_dict(keep_vars=True).items():
                    value = tensor.detach().clone(memory_format=torch.contiguous_format)
                    if self.plan is not None:
                        if self._layer_ranks[i] != self._place.position:
                            value = torch.empty(self._whole[id(tensor)], dtype=tensor.dtype, device=tensor.device)
                        dist.broadcast(value, self._global_rank(i), group=self._group)
                    found[f"{i}.{name}"] = value
        return found

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """This rank's, for learning rates and schedulers; None before prepare(), and where it has nothing to train."""
        return self._optimizer

    def optimizer_state_dict(self) -> dict[str, dict[str, Any]]:
        """What the optimizers keep of each parameter, by the names of state_dict(), on every rank and in the host's memory. A
        collective."""
        found: dict[str, dict[str, Any]] = {}
        mine = self._optimizer.state if self._optimizer is not None else {}
        for i, layer in enumerate(self.chain.layers if self.plan is not None else ()):
            named = layer.named_parameters(remove_duplicate=False)
            box = [{name: _on_host(mine[p]) for name, p in named if p in mine}]
            dist.broadcast_object_list(box, src=self._global_rank(i), group=self._group)
            found |= {f"{i}.{name}": state for name, state in box[0].items()}
        return found

    def load_state_dict(
        self, state: dict[str, torch.Tensor], optimizer: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Of state_dict(), and of optimizer_state_dict(), also of another number of ranks. After prepare(), on all ranks. Raises
        Error, with nothing changed, where a name or a shape is another."""
        if self.plan is None:
            raise Error("nothing is split yet: call prepare(*batch) or the step first")
        own = {
            f"{i}.{name}": tensor
            for i, layer in enumerate(self.chain.layers)
            for name, tensor in layer.state_dict(keep_vars=True).items()
        }
        self._refuse_other_state(own, state, optimizer or {})
        here = {id(t): t for stage in self._stages for t in [*stage.submod.parameters(), *stage.submod.buffers()]}
        mine = self._optimizer.state if self._optimizer is not None else {}
        with torch.no_grad():
            for name, tensor in own.items():
                if id(tensor) in here:
                    tensor.copy_(state[name])
        if optimizer is not None:
            mine.clear()
            mine.update({own[n]: _at(kept, own[n].device) for n, kept in optimizer.items() if id(own[n]) in here})

    def _refuse_other_state(
        self, own: dict[str, torch.Tensor], state: dict[str, torch.Tensor], optimizer: dict[str, dict[str, Any]]
    ) -> None:
        for name in [*own.keys() - state.keys(), *(state.keys() | optimizer.keys()) - own.keys()]:
            raise Error(f"'{name}' is not both in the state and in the chain")
        for name, tensor in own.items():
            whole = self._whole[id(tensor)]
            of_optimizer = [v for v in optimizer.get(name, {}).values() if isinstance(v, torch.Tensor)]
            if state[name].shape != whole or any(v.dim() == len(whole) and v.shape != whole for v in of_optimizer):
                raise Error(f"'{name}' has another shape in the state than {tuple(whole)}")

    def measured_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds between steps, each storage once, by kind: as the ledger's. Gradients are those that
        a backward makes."""
        modules = [stage.submod for stage in self._stages]
        state = self._optimizer.state.values() if self._optimizer is not None else ()
        return {
            "parameters": _bytes([t for m in modules for t in [*m.parameters(), *m.buffers()]]),
            "gradients": sum(p.nbytes for p in trainable(modules)),
            "optimizer_state": _bytes([v for s in state for v in s.values() if isinstance(v, torch.Tensor)]),
        }

    def stats(self) -> dict:
        """Figures of this rank. step_ns: the median of its latest steps; planned_step_ns: what the plan says."""
        if self.plan is None:
            return {"rank": dist.get_rank(), "steps": 0}
        document, rank = self.plan.document, self._place.position
        return {
            "rank": dist.get_rank(),
            "steps": len(self._times),
            "step_ns": int(statistics.median(self._times[-20:])) if self._times else 0,
            "planned_step_ns": document["step_ns"],
            "planned_peak_bytes": document["ranks"][rank]["peak"],
            **{key: document[key] for key in ("outcome", "schedule", "stages_per_rank", "bound_ns", "gap")},
        }


def _on_host(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def _at(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Copies. Counters stay on the host."""
    return {
        k: v.clone().to(device if v.dim() else v.device) if isinstance(v, torch.Tensor) else v for k, v in state.items()
    }


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum({storage_address(t): storage_bytes(t) for t in tensors}.values())
