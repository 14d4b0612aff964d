"""Stowage plans the memory of a whole PyTorch training step and executes the plan.

    step = stowage.compile(train_step)     # train_step(batch): forward, backward(), optimizer.step(), zero_grad()
    for batch in loader:
        loss = step(batch)                 # the first calls run eagerly and record; later calls execute the plan

Importing this package installs an allocator under PyTorch's CPU tensors: it counts bytes, and answers from a plan while a
planned step runs.
"""

from stowage import _runtime  # noqa: I001  imports torch's libraries through stowage.torch_private
from stowage.capture import capture
from stowage.compiled import CompiledStep, compile
from stowage.errors import Error, Infeasible, InvalidGraph, InvalidPlan, Unsupported
from stowage.fit import Fit, max_batch
from stowage.planning import Graph, Plan, check, plan

_runtime.install_allocator()

__all__ = [
    "CompiledStep",
    "Error",
    "Fit",
    "Graph",
    "Infeasible",
    "InvalidGraph",
    "InvalidPlan",
    "Plan",
    "Unsupported",
    "capture",
    "check",
    "compile",
    "max_batch",
    "plan",
]
