"""Sharding plans for machines that are not there: nothing but shapes is needed, and no process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stowage._torch.fakes import FakeTensorMode
from stowage.sharding.capture import Program, capture_program
from stowage.sharding.decision import decisions
from stowage.sharding.pipeline import PipelinePlan, plan_of, refuse_with_pipeline
from stowage.sharding.placements import ShardingPlan, mesh_document, placement_options, solve
from stowage.sharding.world import named_parameters
from stowage.sizes import parse_bytes
from stowage.step.fit.made_step import MakeStep, told_by_line
from stowage.step.reach.world import World


def program_of(train_step: Callable, args: tuple = (), kwargs: dict | None = None, name: str | None = None) -> Program:
    """What one call of ``train_step`` computes. Model and batch may be FakeTensors; nothing is computed, and nothing
    changed."""
    its_name = getattr(train_step, "__name__", "step")
    return capture_program(train_step, args, kwargs or {}, named_parameters(World(train_step)), name or its_name)


def made_step_of(make_step: MakeStep, asked: dict[str, int | None]) -> tuple[Callable, tuple]:
    """The step that a make_step (step/made_step.py) makes at these sizes, and its arguments: tensors without memory."""
    with told_by_line(), FakeTensorMode(allow_non_fake_inputs=True):
        return make_step(make_step.sizes(asked))


def program_of_made(make_step: MakeStep, asked: dict[str, int | None]) -> Program:
    """Of that step."""
    step, arguments = made_step_of(make_step, asked)
    with told_by_line():
        return program_of(step, arguments)


def shard_plan(
    train_step: Callable | Program,
    args: tuple = (),
    kwargs: dict | None = None,
    *,
    mesh: tuple[int, ...],
    eps: float | None = None,
    memory_limit: int | str | None = None,
    budget: int | str | None = None,
    links: dict | None = None,
    link_gbps: float | None = None,
    pipeline: Any = None,
    **options: Any,
) -> ShardingPlan | PipelinePlan:
    """The plan that stowage.shard would run on a mesh of these sizes, without its devices.

    Args:
        train_step: the function, or a Program captured before by program_of() (for several meshes).
        args, kwargs: its arguments.
        mesh: sizes of the axes, such as (2, 4).
        eps, memory_limit, budget, links, link_gbps: as in stowage.shard. With a budget, ``graph`` and ``memory`` of what
            is returned are what a rank runs, and its plan.
        pipeline: as in stowage.shard, of a stowage.Chain; its layers' costs are modelled, unless it says "measured". What
            is returned is then a PipelinePlan.
        options: any of docs/formats.md, section 5.

    Returns:
        A ShardingPlan. Its summary() has bytes per device, modelled times in nanoseconds, bound and gap; ledger() the
        bytes of each tensor; placement(name) where a parameter lives.

    Raises:
        Infeasible: no split fits memory_limit, or nothing meets the budget.
        Unsupported: the step cannot be recorded.
    """
    if pipeline is not None:
        refuse_with_pipeline(eps=eps, budget=budget, link_gbps=link_gbps, **options)
        return plan_of(train_step, tuple(args), tuple(mesh), pipeline, parse_bytes(memory_limit), links)
    program = train_step if isinstance(train_step, Program) else program_of(train_step, args, kwargs)
    limit, held = parse_bytes(memory_limit), parse_bytes(budget)
    document, asked = mesh_document(list(mesh), None, links), placement_options(eps, limit, options)
    if held is None:
        return ShardingPlan(program, solve(program.to_json(), document, asked), mesh)
    return decisions(program, document, mesh, asked, link_gbps).best(held).plan()


def budget_frontier(
    program: Program,
    *,
    mesh: tuple[int, ...],
    limits: Sequence[int | str] | None = None,
    links: dict | None = None,
    link_gbps: float | None = None,
    **options: Any,
) -> list[dict]:
    """What limits of bytes per rank cost, and by what they are met: the largest limit first.

    Args:
        program: from program_of().
        limits: in bytes or as "2GiB"; None: six, from where nothing is computed again to the smallest that is met.
        mesh, links, link_gbps, options: as in shard_plan.

    Returns:
        For each limit what a plan has as ``budget`` (docs/formats.md, section 5), and ``without``: the step's time where
        placement, recomputation and host, or the host alone, may not be used; None where the limit is then not met.
    """
    made = decisions(program, mesh_document(list(mesh), None, links), mesh, options, link_gbps)
    return made.frontier(None if limits is None else [parse_bytes(limit) or 0 for limit in limits])


def frontier(
    program: Program,
    *,
    mesh: tuple[int, ...],
    eps: tuple[float, ...] = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0),
    **options: Any,
) -> list[dict]:
    """Memory against time: the summaries of plans that may take 1 + eps times the least bytes, for each eps. Where a search
    with more bytes found nothing faster, the plan with fewer stands for both."""
    points: list[dict] = []
    for e in sorted(eps):
        found = shard_plan(program, mesh=mesh, eps=e, **options).summary()
        if points and points[-1]["time"]["value"] < found["time"]["value"]:
            time = {**points[-1]["time"], "outcome": "feasible", "bound": found["time"]["bound"]}
            time["gap"] = time["value"] / time["bound"] - 1 if time["bound"] else None
            found = {**points[-1], "time": time}
        points.append({**found, "eps": e})
    return sorted(points, key=lambda point: eps.index(point["eps"]))


__all__ = ["budget_frontier", "frontier", "made_step_of", "program_of", "program_of_made", "shard_plan"]
