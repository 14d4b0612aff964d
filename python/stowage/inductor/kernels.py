"""A program's kernels as ops of the planner's graph.

Bytes are those that are asked for (align 1), as Inductor's buffers are PyTorch's own. What makes nothing changes
all that it is given. Kernels that draw random numbers or act outside are effects: they keep their order and never
run twice."""

from __future__ import annotations

import json

from stowage.inductor import costs, private
from stowage.inductor.program import Kernel, Program


def add_buffers(program: Program, buffers: list[dict], prefix: str, shared: dict[int, int]) -> dict[int, int]:
    """Appends what its kernels make; returns the id of each buffer of the program. shared: those that have one."""
    ids = dict(shared)
    made = {b for kernel in program.kernels for b in kernel.makes}
    for i, buffer in enumerate(program.buffers):
        if i not in ids and not buffer.given and i in made:
            ids[i] = len(buffers)
            buffers.append({"name": prefix + buffer.name, "bytes": buffer.bytes, "kind": "activation"})
    return ids


def ops_of(program: Program, ids: dict[int, int], buffers: list[dict], made: dict[str, private.Made], prefix: str,
           effects: bool = False) -> list[dict]:  # fmt: skip
    """effects: each of them is one."""
    return [_op(kernel, program, ids, buffers, made, prefix, effects) for kernel in program.kernels]


def _op(kernel: Kernel, program: Program, ids: dict[int, int], buffers: list[dict], made: dict[str, private.Made],
        prefix: str, effects: bool) -> dict:  # fmt: skip
    makes = list(dict.fromkeys(ids[b] for b in kernel.makes if b in ids))
    reads = [b for b in dict.fromkeys(ids[b] for b in kernel.reads if b in ids) if b not in makes]
    op: dict = {
        "name": prefix + kernel.target,
        "target": kernel.target,
        "creates": makes,
        "cost_ns": costs.of(kernel, program, made),
    }
    changed = [ids[b] for b in kernel.changes if b in ids] if makes else reads
    op["reads"] = [b for b in reads if b not in changed]
    if changed:
        op["writes"] = list(dict.fromkeys(changed))
    if kernel.scratch_bytes:
        op["scratch"] = [{"bytes": kernel.scratch_bytes, "from": 0, "to": 1}]
    takeover = []
    for r, c in ((ids[r], ids[c]) for r, c in kernel.over if r in ids and c in ids):
        if r in reads and buffers[c]["bytes"] <= buffers[r]["bytes"]:
            takeover.append([r, c])
    if takeover:
        op["takeover"] = takeover
    if effects or not makes or _runs_once(kernel, program, made):
        op["traits"] = ["effect"]
    return op


def _runs_once(kernel: Kernel, program: Program, made: dict[str, private.Made]) -> bool:
    if "rand" in kernel.target or "seed" in kernel.target or "c10d" in kernel.target:
        return True
    for buffer in kernel.makes:
        known = made.get(program.buffers[buffer].name.split("[")[0])
        target = known.node.target if known is not None and known.node is not None else None
        if private.is_random(target) or private.acts_outside(target):
            return True
    return False


def program_text(program: Program, made: dict[str, private.Made]) -> str:
    """A graph of the program alone, in which other orders are allowed. Its op 0 is what it is given, op i + 1 is its
    kernel i."""
    buffers: list[dict] = []
    given = {}
    for b in dict.fromkeys(program.inputs):
        if b is not None and program.buffers[b].bytes:
            given[b] = len(buffers)
            buffers.append({"name": program.buffers[b].name, "bytes": program.buffers[b].bytes, "kind": "activation"})
            if program.buffers[b].held:
                buffers[-1]["returned"] = True
    first = {"name": "inputs", "target": "inputs", "creates": list(given.values())}
    ids = add_buffers(program, buffers, "", given)
    for b in program.outputs:
        if b is not None and b in ids:
            buffers[ids[b]]["returned"] = True
    ops = ops_of(program, ids, buffers, made, "")
    for op in ops:
        op["after"] = [0]
    return text_of(buffers, [first, *ops])


def text_of(buffers: list[dict], ops: list[dict]) -> str:
    return json.dumps(
        {"format": "stowage-graph", "version": 1, "name": "program", "align": 1, "meta": {}, "buffers": buffers, "ops": ops}
    )  # fmt: skip


__all__ = ["add_buffers", "ops_of", "program_text", "text_of"]
