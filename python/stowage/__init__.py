"""Stowage plans the memory of a whole PyTorch training step and executes the plan.

    step = stowage.compile(train_step)     # train_step(batch): forward, backward(), optimizer.step(), zero_grad()
    for batch in loader:
        loss = step(batch)                 # the first calls run eagerly and record; later calls execute the plan

    with stowage.budget("2GiB"):           # or a byte limit around any loop, without capture
        train()

Graphs, plans, planning and checking need no torch, and importing this package does not import it. Once both are
imported, in either order, an allocator is under PyTorch's CPU tensors: it counts bytes, and answers from a plan while a
planned step runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stowage._core import version as __version__
from stowage._torch.arrival import when_imported
from stowage.errors import Error, Infeasible, InvalidGraph, InvalidPlan, Unsupported
from stowage.planning import Graph, Plan, check, plan

if TYPE_CHECKING:  # what __getattr__ finds
    from stowage import hf as hf
    from stowage import inductor as inductor
    from stowage import lightning as lightning
    from stowage.eviction.budget import OutOfMemory, budget
    from stowage.sharding.chain import Chain
    from stowage.step.compile import compile
    from stowage.step.compiled import CompiledStep
    from stowage.step.fit.fit import Fit, max_batch, max_length
    from stowage.step.fit.prediction import Prediction, will_it_fit
    from stowage.step.record.capturing import capture
    from stowage.step.verifying import Verification, verify

# Names that need torch, and the module that each comes from. A module never has the name of one: importing it would
# hide that one.
_NEED_TORCH = {
    "Chain": "sharding.chain",
    "CompiledStep": "step.compiled",
    "Fit": "step.fit.fit",
    "OutOfMemory": "eviction.budget",
    "budget": "eviction.budget",
    "capture": "step.record.capturing",
    "compile": "step.compile",
    "max_batch": "step.fit.fit",
    "max_length": "step.fit.fit",
    "Prediction": "step.fit.prediction",
    "will_it_fit": "step.fit.prediction",
    "Verification": "step.verifying",
    "verify": "step.verifying",
}

# Parts that are imported when they are first named, as each needs a package of its own.
_PARTS = ("hf", "inductor", "lightning")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"stowage.{name}")
    module = _NEED_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'stowage' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(f"stowage.{module}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise ImportError(f"stowage.{name} needs PyTorch: pip install torch") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NEED_TORCH})


def _install_allocator() -> None:
    """Importing compiles nothing: where the runtime is yet to be built, the first name that needs it does that."""
    from stowage._torch.runtime_build import needs_building

    if needs_building():
        return
    try:
        from stowage import _runtime
    except (ImportError, Error):
        return  # the first name that needs it says why
    from stowage._torch.installed import install

    install(_runtime)


when_imported("torch", _install_allocator)


def shard(train_step, mesh, **options):
    """Splits ``train_step`` over a mesh of ranks so that the least memory is redundant: see
    stowage.sharding.step.shard.

    (A function of its own because torch.distributed.tensor takes a second to import.)
    """
    from stowage.sharding.step import shard as split

    return split(train_step, mesh, **options)


def shard_plan(train_step, args=(), kwargs=None, *, mesh, **options):
    """The plan of stowage.shard for a mesh of any size, without its devices: see stowage.sharding.paper.shard_plan."""
    from stowage.sharding.paper import shard_plan as plan_only

    return plan_only(train_step, args, kwargs, mesh=mesh, **options)


__all__ = [
    "Chain",
    "CompiledStep",
    "Error",
    "Fit",
    "Graph",
    "Infeasible",
    "InvalidGraph",
    "InvalidPlan",
    "OutOfMemory",
    "Plan",
    "Prediction",
    "Unsupported",
    "Verification",
    "__version__",
    "budget",
    "capture",
    "check",
    "compile",
    "max_batch",
    "max_length",
    "plan",
    "shard",
    "shard_plan",
    "verify",
    "will_it_fit",
]
