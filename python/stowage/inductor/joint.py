"""Forward and backward as one graph of the planner, and what a plan of it says to save.

    f.k0 ─▶ f.k1 ─▶ f.k2 ┆ boundary ┆ b.k0 ─▶ b.k1 ─▶ b.k2
      ╰────────╴saved╶──────────────────▲       ▲
             f.k1 again ╶───────────────────────╯   a recomputation that the planner chose

Ops are the kernels after Inductor's fusion: a graph of operators would price what fusion makes free, and miss what it
keeps from memory. A mask that is made again in backward (masks.py) is no buffer: who reads it, reads what it is made of.
Kernels of backward, and those that draw random numbers or act outside, are effects: they never run
twice. A buffer that is live at the boundary is saved.

Complexity: linear in kernels and buffers."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from stowage._core import Graph
from stowage._core import Plan as CorePlan
from stowage.inductor.kernels import add_buffers, ops_of, text_of
from stowage.inductor.trial import Trial


class Joint:
    """The graph, and how its buffers are called in the joint graph of AOTAutograd. masks: those made again, and of what."""

    def __init__(self, trial: Trial, masks: Mapping[str, tuple[str, ...]]):
        self.trial = trial
        self.buffers: list[dict] = []
        self.ops: list[dict] = []
        self.forward_ids = add_buffers(trial.forward, self.buffers, "f.", {})
        for buffer in trial.user_buffers:
            if buffer is not None and buffer in self.forward_ids:
                self.buffers[self.forward_ids[buffer]]["returned"] = True
        self.ops += ops_of(trial.forward, self.forward_ids, self.buffers, trial.made[0], "f.")
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
        self.backward_ids = add_buffers(trial.backward, self.buffers, "b.", shared)
        for buffer in trial.backward.outputs:
            if buffer is not None and buffer in self.backward_ids and buffer not in shared:
                self.buffers[self.backward_ids[buffer]]["returned"] = True
        self.ops += ops_of(trial.backward, self.backward_ids, self.buffers, trial.made[1], "b.", effects=True)
        self._make_again(masks)
        self.cost_ns = sum(op.get("cost_ns", 0) for op in self.ops)
        self.graph = Graph.parse(text_of(self.buffers, self.ops), "compiled")

    def _make_again(self, masks: Mapping[str, tuple[str, ...]]) -> None:
        named: dict[int, list[str]] = {}  # by buffer
        for name, buffer in zip(self.trial.saved, self.trial.saved_buffers):
            if buffer in self.forward_ids:
                named.setdefault(self.forward_ids[buffer], []).append(name)
        number = {name: buffer for buffer, names in named.items() for name in names}
        for mask in (buffer for buffer, names in named.items() if all(name in masks for name in names)):
            sources = {number[source] for name in named[mask] for source in masks[name] if source in number}
            for op in self.ops[self.boundary :]:
                if mask in op.get("reads", ()):
                    there = {*op["reads"], *op["creates"], *op.get("writes", ())}
                    op["reads"] = [b for b in op["reads"] if b != mask] + sorted(sources - there)
                    op["takeover"] = [pair for pair in op.get("takeover", ()) if pair[0] != mask]
            if not any(mask in op.get("reads", ()) for op in self.ops):
                self.buffers[mask]["bytes"] = 0

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


def _alike(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype


__all__ = ["Joint"]
