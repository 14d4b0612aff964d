"""What a kernel takes, estimated from its text: bytes it moves and operations it does. No clock, so that two processes
choose the same partition."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry

from stowage.inductor import private
from stowage.inductor.program import Kernel, Program

# Rough rates of a core, or of a GPU: only ratios matter, and of those only which of two recomputations is cheaper.
OPERATIONS_PER_NS = 40.0
BYTES_PER_NS = 8.0
LAUNCH_NS = 1000.0


def of(kernel: Kernel, program: Program, made: dict[str, private.Made]) -> int:
    moved = sum(program.buffers[b].bytes for b in {*kernel.reads, *kernel.makes})
    operations = 0
    for name in {program.buffers[b].name.split("[")[0] for b in kernel.makes}:
        known = made.get(name)
        if known is not None and known.node is not None:
            operations += _operations(known.node)
    return int(LAUNCH_NS + moved / BYTES_PER_NS + operations / OPERATIONS_PER_NS)


def _operations(node: torch.fx.Node) -> int:
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is None:
        return 0
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    try:
        return int(count(*args, **kwargs, out_val=node.meta.get("val")))
    except (AttributeError, AssertionError, TypeError, ValueError):
        return 0


__all__ = ["BYTES_PER_NS", "LAUNCH_NS", "OPERATIONS_PER_NS", "of"]
