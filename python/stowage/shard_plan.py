"""A sharding plan as Python reads it: placements by name, this rank's bytes, the figures of the solver."""

from __future__ import annotations

import json
import math
from typing import Any

from stowage import _core
from stowage.shard_capture import Program
from stowage.shard_mode import OpPlan, parse_placement
from stowage.shard_world import StatePlacement

_KINDS = {"parameter": "parameters", "gradient": "gradients", "optimizer_state": "optimizer_state", "module_buffer": "buffers"}


def mesh_document(sizes: list[int], names: Any = None, links: dict | None = None) -> dict:
    """The mesh of docs/formats.md. ``links``: by axis, what differs from the defaults; and figures of a device."""
    links = links or {}
    axes = []
    for i, size in enumerate(sizes):
        axes.append({"name": names[i] if names else f"axis{i}", "size": size, **links.get(i, {})})
    return {"axes": axes, **{k: v for k, v in links.items() if isinstance(k, str)}}


def solve(program: str, mesh: dict, options: dict) -> str:
    return _core.plan_sharding(program, json.dumps(mesh), json.dumps(options))


class ShardingPlan:
    """Where each tensor of a step lives, with the ledger of bytes and the proof of how good it is."""

    def __init__(self, program: Program, text: str, mesh: Any):
        self.program = program
        self.text = text
        self.document = json.loads(text)
        self.mesh = mesh

    # ---- Figures

    def summary(self) -> dict:
        """Bytes per device, modelled times, and bound and gap of both stages."""
        return {k: v for k, v in self.document.items() if k not in ("ops", "tensors", "format", "version")}

    def placement(self, name: str) -> str:
        """Of a parameter, or of any tensor with a name: "S0,R"."""
        for entry, planned in zip(self.program.tensors, self.document["tensors"], strict=True):
            if entry.get("name") == name:
                return planned["placement"]
        raise KeyError(name)

    def replicated(self) -> list[dict]:
        """Ops that run on whole tensors, and why; with the bytes that copies for them take."""
        found = []
        for op, planned in zip(self.program.ops, self.document["ops"], strict=True):
            if planned and planned.get("replicated"):
                found.append({"op": op["target"], "why": planned.get("why", ""), "transient_bytes": planned.get("transient_bytes", 0)})
        return found

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)

    # ---- For the execution

    def _at(self, tensor: int) -> tuple:
        return parse_placement(self.document["tensors"][tensor]["placement"])

    def state_placements(self) -> dict[str, StatePlacement]:
        """By parameter. A partial gradient is not kept: it is summed where the parameter is. States of a parameter live together."""
        placements = {}
        for name, p in self.program.parameters.items():
            parameter = self._at(p)
            states = [t for (owner, _), t in self.program.states.items() if owner == name and self.program.tensors[t]["shape"]]
            gradient = self._at(self.program.gradients[name]) if name in self.program.gradients else parameter
            if any(part.is_partial() for part in gradient):
                gradient = parameter
            state = self._at(states[0]) if states else parameter
            placements[name] = StatePlacement(parameter, gradient, state)
        return placements

    def buffer_placements(self) -> dict[str, tuple]:
        return {name: self._at(t) for name, t in self.program.buffers.items()}

    def op_plan(self) -> OpPlan:
        return OpPlan(self.program, self.document["ops"])

    def local_bytes(self, coordinate: list[int], sizes: list[int]) -> dict[str, int]:
        """The ledger of one device: bytes of what lives between steps, by kind; tied and shared storages once."""
        ledger = {kind: 0 for kind in _KINDS.values()}
        for entry, planned in zip(self.program.tensors, self.document["tensors"], strict=True):
            kind = _KINDS.get(entry["kind"])
            if kind is None or (entry["kind"] != "gradient" and "alias_of" in entry):
                continue
            ledger[kind] += local_elements(entry["shape"], planned["placement"], coordinate, sizes) * entry["item_bytes"]
        return ledger


def local_elements(shape: list[int], placement: str, coordinate: list[int], sizes: list[int]) -> int:
    """Of the part that the device at ``coordinate`` holds: slices as torch.chunk cuts them, axis by axis."""
    local = list(shape)
    for axis, part in enumerate(placement.split(",")):
        if part[0] == "S":
            d = int(part[1:])
            rows = -(-local[d] // sizes[axis])
            local[d] = max(0, min(rows, local[d] - rows * coordinate[axis]))
    return math.prod(local)
