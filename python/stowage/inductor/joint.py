"""Forward and backward as one graph of the planner, and what a plan of it says to save.

    f.k0 ─▶ f.k1 ─▶ f.k2 ┆ boundary ┆ b.k0 ─▶ b.k1 ─▶ b.k2
      ╰────────╴saved╶──────────────────▲       ▲
             f.k1 again ╶───────────────────────╯   a recomputation that the planner chose

Ops are the kernels after Inductor's fusion: a graph of operators would price what fusion makes free, and miss what it
keeps from memory. Kernels of backward, and those that draw random numbers or act outside, are effects: they never run
twice. A buffer that is live at the boundary is saved.

Complexity: linear in kernels and buffers."""

from __future__ import annotations

import json

import torch

from stowage._core import Graph
from stowage._core import Plan as CorePlan
from stowage.inductor import costs, private
from stowage.inductor.order import text_of
from stowage.inductor.program import Kernel, Program
from stowage.inductor.trial import Trial

_ALIGN = 1  # Inductor's buffers are PyTorch's: what counts is what is asked for


class Joint:
    """The graph, and how its buffers are called in the joint graph of AOTAutograd."""

    def __init__(self, trial: Trial):
        self.trial = trial
        self.buffers: list[dict] = []
        self.ops: list[dict] = []
        self.forward_ids = self._add_buffers(trial.forward, "f.", {})
        for buffer in trial.user_buffers:
            if buffer is not None and buffer in self.forward_ids:
                self.buffers[self.forward_ids[buffer]]["returned"] = True
        self._add_kernels(trial.forward, self.forward_ids, trial.made[0], "f.")
        self.boundary = len(self.ops)
        shared = {
            b: self.forward_ids[s]
            for b, s in zip(trial.backward.inputs, trial.saved_buffers)
            if b is not None and s is not None and s in self.forward_ids
        }
        self.buffers.append(
            {"name": "tangents", "bytes": trial.tangent_bytes, "kind": "gradient", "returned": True}
        )  # fmt: skip
        self.ops.append({
            "name": "boundary", "target": "boundary", "creates": [len(self.buffers) - 1], "traits": ["effect"],
            "after": list(range(self.boundary)),
        })  # fmt: skip
        self.backward_ids = self._add_buffers(trial.backward, "b.", shared)
        for buffer in trial.backward.outputs:
            if buffer is not None and buffer in self.backward_ids and buffer not in shared:
                self.buffers[self.backward_ids[buffer]]["returned"] = True
        self._add_kernels(trial.backward, self.backward_ids, trial.made[1], "b.")
        text = {
            "format": "stowage-graph", "version": 1, "name": "compiled", "align": _ALIGN, "meta": {},
            "buffers": self.buffers, "ops": self.ops,
        }  # fmt: skip
        self.graph = Graph.parse(json.dumps(text), "compiled")

    def _add_buffers(self, program: Program, prefix: str, shared: dict[int, int]) -> dict[int, int]:
        ids = dict(shared)
        made = {b for kernel in program.kernels for b in kernel.makes}
        for i, buffer in enumerate(program.buffers):
            if i in ids or buffer.given or i not in made:
                continue
            ids[i] = len(self.buffers)
            self.buffers.append({"name": prefix + buffer.name, "bytes": buffer.bytes, "kind": "activation"})
        return ids

    def _add_kernels(self, program: Program, ids: dict[int, int], made: dict[str, private.Made], prefix: str) -> None:
        for kernel in program.kernels:
            makes = list(dict.fromkeys(ids[b] for b in kernel.makes if b in ids))
            reads = [b for b in dict.fromkeys(ids[b] for b in kernel.reads if b in ids) if b not in makes]
            op: dict = {
                "name": prefix + kernel.target,
                "target": kernel.target,
                "creates": makes,
                "cost_ns": costs.of(kernel, program, made),
            }
            op["reads" if makes else "writes"] = reads  # what makes nothing changes something that it is given
            if kernel.scratch_bytes:
                op["scratch"] = [{"bytes": kernel.scratch_bytes, "from": 0, "to": 1}]
            takeover = [
                [ids[r], ids[c]]
                for r, c in kernel.over
                if r in ids
                and c in ids
                and ids[r] in reads
                and self.buffers[ids[c]]["bytes"] <= self.buffers[ids[r]]["bytes"]
            ]
            if takeover:
                op["takeover"] = takeover
            if prefix == "b." or not makes or _runs_once(kernel, program, made):
                op["traits"] = ["effect"]
            self.ops.append(op)

    def saved_by(self, plan: CorePlan) -> tuple[list[str], int]:
        """Nodes of the joint graph whose tensors are live at the boundary, and bytes that have no name there."""
        described = json.loads(plan.to_json())
        at = next(i for i, step in enumerate(described["steps"]) if step.get("op") == self.boundary)
        live = {p["buffer"] for p in described["placements"] if p["from"] <= at < p["to"]}
        names: list[str] = []
        nameless = 0
        for buffer, number in self.forward_ids.items():
            if number not in live:
                continue
            found = self._names(buffer)
            names += found
            if not found and buffer not in self.trial.user_buffers:
                nameless += self.buffers[number]["bytes"]
        return names, nameless

    def _names(self, buffer: int) -> list[str]:
        saved = [name for name, b in zip(self.trial.saved, self.trial.saved_buffers) if b == buffer]
        if saved:
            return saved
        made, program = self.trial.made[0], self.trial.forward
        for name in [program.buffers[buffer].name, *program.buffers[buffer].aliases]:
            node = made[name].node if name in made else None
            known = self.trial.nodes.get(node.name) if node is not None else None
            if node is not None and known is not None and _alike(known, node):
                return [known.name]
        return []

    @property
    def given_names(self) -> list[str]:
        """What is saved of the inputs: it costs nothing."""
        given = self.trial.forward.buffers
        return [n for n, b in zip(self.trial.saved, self.trial.saved_buffers) if b is None or given[b].given]


def each_program(trial: Trial) -> tuple[tuple[str, str], ...]:
    """Forward and backward as graphs of their own, in which any order of the kernels is allowed."""
    found = []
    for name, program, made in (("forward", trial.forward, trial.made[0]), ("backward", trial.backward, trial.made[1])):
        part = Joint.__new__(Joint)
        part.trial, part.buffers, part.ops = trial, [], []
        ids = part._add_buffers(program, "", {})
        given = {}
        for b in dict.fromkeys(program.inputs):
            if b is None or not program.buffers[b].bytes:
                continue
            given[b] = len(part.buffers)
            part.buffers.append(
                {"name": program.buffers[b].name, "bytes": program.buffers[b].bytes, "kind": "activation"}
            )
        part.ops.append({"name": "inputs", "target": "inputs", "creates": list(given.values())})
        for b in program.outputs:
            if b is not None and (b in ids or b in given):
                part.buffers[{**ids, **given}[b]]["returned"] = True
        part._add_kernels(program, {**ids, **given}, made, "")
        for op in part.ops[1:]:
            op.pop("traits", None)
            op["after"] = [0]
        found.append((name, text_of(part.buffers, part.ops)))
    return tuple(found)


def _alike(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype


def _runs_once(kernel: Kernel, program: Program, made: dict[str, private.Made]) -> bool:
    if "rand" in kernel.target or "seed" in kernel.target or "c10d" in kernel.target:
        return True
    for buffer in kernel.makes:
        known = made.get(program.buffers[buffer].name.split("[")[0])
        target = known.node.target if known is not None and known.node is not None else None
        if private.is_random(target) or private.acts_outside(target):
            return True
    return False


__all__ = ["Joint", "each_program"]
