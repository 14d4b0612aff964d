"""A sharding plan as Python reads it: placements by name, this rank's bytes, the figures of the solver."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from stowage import _core
from stowage.errors import Error, Infeasible, warn
from stowage.planning import Plan
from stowage.report.reports import write_report
from stowage.sharding.mode import OpPlan, parse_placement
from stowage.sharding.parts import StatePlacement
from stowage.sharding.program import Program, tensor_ids

_KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer_state",
    "module_buffer": "buffers",
}
_NOT_KEPT = ("activation", "constant", "output", "input")


def mesh_document(sizes: list[int], names: Any = None, links: dict | None = None) -> dict:
    """The mesh of docs/formats.md. ``links``: by axis, what differs from the defaults; and figures of a device."""
    links = links or {}
    axes = []
    for i, size in enumerate(sizes):
        axes.append({"name": names[i] if names else f"axis{i}", "size": size, **links.get(i, {})})
    return {"axes": axes, **{k: v for k, v in links.items() if isinstance(k, str)}}


def placement_options(eps: float | None, memory_limit: int | None, options: dict) -> dict:
    """Of the solver. ``eps``: None where nothing is said; without a budget that is 0."""
    limit = {} if memory_limit is None else {"memory_limit_bytes": memory_limit}
    return {**({} if eps is None else {"eps": eps}), **limit, **options}


def says_where(options: dict) -> bool:
    """The options of the solver choose the placement by themselves: by eps, by a limit on the modelled peak, by a goal."""
    return any(options.get(key) is not None for key in ("eps", "memory_limit_bytes", "goal"))


_RELAXED = (0.01, 0.05, 0.1, 0.3, 1.0)


def solve(program: str, mesh: dict, options: dict) -> str:
    """The plan's JSON. When no split of all ops keeps to (1 + eps) of the proven least, the next larger eps for which
    there is one."""
    asked = options.get("eps", 0.0)
    for eps in (asked, *(e for e in _RELAXED if e > asked)):
        text = _core.plan_sharding(program, json.dumps(mesh), json.dumps({**options, "eps": eps}))
        if not text.endswith('"ops":[]}'):
            if eps > asked:
                warn(
                    f"no split of all ops keeps to 1 + {asked:g} times the least bytes; this one takes up to {1 + eps:g}"
                )
            return text
    found = json.loads(text)
    if any(found.get(part, {}).get("outcome") == "unknown" for part in ("redundancy", "time")):
        raise Error(
            "no split was found before the time was over: allow more (time_limit_seconds), or leave the limit out"
        )
    raise Infeasible(f"no split fits {options.get('memory_limit_bytes', 'any limit')}", 0, 0)


class ShardingPlan:
    """Where each tensor of a step lives, with the ledger of bytes and the proof of how good it is."""

    def __init__(
        self, program: Program, text: str, mesh: Any, graph: _core.Graph | None = None, memory: Plan | None = None
    ):
        """``graph``, ``memory``: of a plan for a budget, what a rank runs (rank_graph.py), and its plan."""
        self.program = program
        self.text = text
        self.document = json.loads(text)
        self.mesh = mesh
        self.graph, self.memory = graph, memory
        self._bring_states_together()

    def _bring_states_together(self) -> None:
        """The optimizer works on a parameter's states at one placement: where the plan has them apart, at the one with
        least bytes. A gradient is never kept as summands: it is summed where its parameter is."""
        tensors, planned = self.program.tensors, self.document["tensors"]
        for name, p in self.program.parameters.items():
            states = [
                t
                for (owner, _), t in self.program.states.items()
                if owner == name and tensors[t]["shape"] == tensors[p]["shape"]
            ]
            if len({planned[t]["placement"] for t in states}) > 1:
                best = min(states, key=lambda t: self._largest_bytes(t, planned[t]["placement"]))
                for t in states:
                    self._move(t, planned[best]["placement"])
            gradient = self.program.gradients.get(name)
            if gradient is not None and "P" in planned[gradient]["placement"]:
                self._move(gradient, planned[p]["placement"])

    def _largest_bytes(self, t: int, placement: str) -> int:
        """Of the fullest device, which is the first."""
        tensor, sizes = self.program.tensors[t], self.sizes()
        return local_elements(tensor["shape"], placement, [0] * len(sizes), sizes) * tensor["item_bytes"]

    def _move(self, t: int, placement: str) -> None:
        """Puts a tensor elsewhere, and keeps the totals true: those of its kind, of what counts, and of the peak where
        state is live. The least bytes of all plans, "redundancy", stay what they are."""
        planned, kind = self.document["tensors"][t], self.program.tensors[t]["kind"]
        grown = self._largest_bytes(t, placement) - self._largest_bytes(t, planned["placement"])
        planned["placement"] = placement
        for key in ("local_bytes", "redundant_bytes"):
            if key in planned:
                planned[key] += grown
        totals = self.document.get("bytes")
        if totals is None or (kind != "gradient" and "alias_of" in self.program.tensors[t]):
            return
        totals[_KINDS[kind]] += grown
        totals["redundant"] += grown
        if kind != "gradient":
            totals["peak"] += grown

    def sizes(self) -> list[int]:
        """Of the axes of the mesh."""
        return (
            list(self.mesh)
            if isinstance(self.mesh, (tuple, list))
            else [self.mesh.size(axis) for axis in range(self.mesh.ndim)]
        )

    def mesh_text(self) -> str:
        """ "2x4"."""
        return "x".join(str(n) for n in self.sizes())

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
                found.append(
                    {
                        "op": op["target"],
                        "why": planned.get("why", ""),
                        "transient_bytes": planned.get("transient_bytes", 0),
                    }
                )
        return found

    def ledger(self) -> list[dict]:
        """Every tensor that lives between steps or is kept for backward, most redundant first: its bytes, its
        placement, the bytes of the fullest device, those beyond an even share, and why it is kept."""
        rows = []
        for i, (tensor, planned) in enumerate(zip(self.program.tensors, self.document["tensors"], strict=True)):
            shared = "alias_of" in tensor and tensor["kind"] != "gradient"
            if shared or (tensor["kind"] in _NOT_KEPT and not planned.get("saved")):
                continue
            rows.append(
                {
                    "tensor": str(tensor.get("name") or f"tensor {i}"),
                    "bytes": math.prod(tensor["shape"]) * tensor["item_bytes"],
                    "placement": planned["placement"],
                    "local_bytes": planned.get("local_bytes", 0),
                    "redundant_bytes": planned.get("redundant_bytes", 0),
                    "why": "saved for backward" if planned.get("saved") else tensor["kind"].replace("_", " "),
                }
            )
        return sorted(rows, key=lambda row: (-row["redundant_bytes"], -row["local_bytes"]))

    def report(self, path: str | os.PathLike) -> None:
        """The ledger as a page (.html)."""
        write_report(path, ledger=self.ledger(), devices=math.prod(self.sizes()))

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)

    # ---- For the execution

    def _at(self, tensor: int) -> tuple:
        return parse_placement(self.document["tensors"][tensor]["placement"])

    def state_placements(self) -> dict[str, StatePlacement]:
        """By parameter."""
        placements = {}
        for name, p in self.program.parameters.items():
            parameter = self._at(p)
            states = [
                t for (owner, _), t in self.program.states.items() if owner == name and self.program.tensors[t]["shape"]
            ]
            gradient = self._at(self.program.gradients[name]) if name in self.program.gradients else parameter
            state = self._at(states[0]) if states else parameter
            placements[name] = StatePlacement(parameter, gradient, state)
        return placements

    def buffer_placements(self) -> dict[str, tuple]:
        return {name: self._at(t) for name, t in self.program.buffers.items()}

    def op_plan(self) -> OpPlan:
        return OpPlan(self.program, self.document["ops"])

    def local_bytes(self, coordinate: list[int], sizes: list[int]) -> dict[str, int]:
        """The ledger of one device: bytes of what lives between steps, by kind; tied and shared storages once."""
        ledger = dict.fromkeys(_KINDS.values(), 0)
        for entry, planned in zip(self.program.tensors, self.document["tensors"], strict=True):
            kind = _KINDS.get(entry["kind"])
            if kind is None or (entry["kind"] != "gradient" and "alias_of" in entry):
                continue
            ledger[kind] += (
                local_elements(entry["shape"], planned["placement"], coordinate, sizes) * entry["item_bytes"]
            )
        return ledger

    def saved_bytes(self, coordinate: list[int]) -> int:
        """What one device keeps from forward for backward: the storages, each once, of what forward makes and backward
        reads. A view that is brought elsewhere, or whose tensor is, is a copy."""
        sizes, tensors, placed = self.sizes(), self.program.tensors, self.document["tensors"]
        storage: dict[int, int] = {}  # of what forward makes: the tensor that its storage began with
        kept: set[int] = set()
        for op, planned in zip(self.program.ops, self.document["ops"], strict=True):
            read = tensor_ids(op)
            if op["phase"] == "backward":
                kept.update(storage[i] for i in read if i in storage)
            if op["phase"] != "forward":
                continue
            stays = bool(read) and (planned is None or planned["inputs"][0] == placed[read[0]]["placement"])
            for at, o in enumerate(op["outputs"]):
                if o is not None:
                    view = (
                        stays
                        and "alias_of" in tensors[o]
                        and (planned is None or planned["computed"][at] == planned["outputs"][at])
                    )
                    storage[o] = storage.get(read[0], read[0]) if view else o
        return sum(
            local_elements(tensors[i]["shape"], placed[i]["placement"], coordinate, sizes) * tensors[i]["item_bytes"]
            for i in kept
            if i in storage
        )


def local_elements(shape: list[int], placement: str, coordinate: list[int], sizes: list[int]) -> int:
    """Of the part that the device at ``coordinate`` holds: slices as torch.chunk cuts them, axis by axis."""
    local = list(shape)
    for axis, part in enumerate(placement.split(",")):
        if part[0] == "S":
            d = int(part[1:])
            rows = -(-local[d] // sizes[axis])
            local[d] = max(0, min(rows, local[d] - rows * coordinate[axis]))
    return math.prod(local)
