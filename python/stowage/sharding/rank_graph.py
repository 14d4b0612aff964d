"""The graph of one rank's step, before anything is recorded: what a program under a sharding plan allocates, computes and
sends, op by op, as sharded steps run it.

    op k of the program   a at home ──bring──► a at S0 ─┐
                          b at home ────────────────────┴─kernel──► c as computed ──settle──► c at home
                          what is written elsewhere than at home is brought back: ──return──► home

Bytes are those of the fullest rank, which is the first: slices are cut as torch.chunk cuts them, so that it has as much of
every tensor as any other. A plan of its graph fits all ranks. As in the execution,

- arguments of the step lie whole on every rank, and ops bring them to their parts;
- ops that draw random numbers run on whole tensors;
- an optimizer's step brings all gradients and parameters to where its states are, works, and takes the parameters back;
- what communicates runs once, in program order (`effect`): a plan keeps or copies its result, it never sends again.

Costs are the plan's: kernels and collectives sum up to its modelled time. What a kernel allocates inside is not known here;
a gather along a dimension other than the first has room for the copy that puts the parts together. O(tensors + ops)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from stowage._core import Graph
from stowage.sharding.placements import ShardingPlan, local_elements
from stowage.sharding.program import tensor_ids

_STATE = ("parameter", "gradient", "optimizer_state", "module_buffer")
_BY_ELEMENT = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad")
_TALKING_RECIPES = ("norm_of_parts", "softmax_of_parts", "sum_over_total", "statistics_of_parts")
_SHAPES_ONLY = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
# Whose result may lie over an input: the CPU's elementwise kernels (runtime/replay/kernel_table.h), as far as steps have them
_OVER_INPUTS = frozenset(
    [
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "clamp",
        "cos",
        "div",
        "elu",
        "erf",
        "exp",
        "gelu",
        "hardswish",
        "hardtanh",
        "leaky_relu",
        "lerp",
        "log",
        "logical_not",
        "maximum",
        "minimum",
        "mul",
        "neg",
        "pow",
        "reciprocal",
        "relu",
        "rsqrt",
        "rsub",
        "sgn",
        "sigmoid",
        "silu",
        "sin",
        "softplus",
        "sqrt",
        "sub",
        "tanh",
        "where",
        "elu_backward",
        "gelu_backward",
        "hardswish_backward",
        "hardtanh_backward",
        "leaky_relu_backward",
        "sigmoid_backward",
        "silu_backward",
        "softplus_backward",
        "tanh_backward",
        "threshold_backward",
        "native_dropout",
        "native_dropout_backward",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
    ]
)


def rank_graph(plan: ShardingPlan) -> Graph:
    """Each op's ``meta`` says what it is of: ``op`` (of the program), ``part`` ("kernel", "bring", "settle", "return",
    "gather") and, of what moves, ``tensor``, ``from`` and ``to``."""
    document = _Writer(plan).run()
    return Graph.parse(json.dumps(document, separators=(",", ":")), document["name"])


def draws(op: dict) -> bool:
    """Random numbers. Attention kernels say that they might; without dropout they do not."""
    namespace, name, overload = op["target"].split(".")
    func = getattr(getattr(getattr(torch.ops, namespace, None), name, None), overload, None)
    if func is None or torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    attributes = op.get("attributes", {})
    return attributes["dropout_p"] > 0 if "dropout_p" in attributes else True


def looks_at_shapes(op: dict) -> bool:
    """And reads nothing."""
    name = op["target"].split(".")[1]
    return name in _SHAPES_ONLY or name.startswith("new_")


def talks(before: str, after: str) -> bool:
    """Bringing a tensor from one placement to another needs other ranks. Keeping a slice does not, but where a later axis
    cuts the dimension already."""
    a, b = before.split(","), after.split(",")
    return any(x != y and (x != "R" or y in a[axis + 1 :]) for axis, (x, y) in enumerate(zip(a, b, strict=True)))


def works_by_element(op: dict) -> bool:
    name = op["target"].split(".")[1]
    first = next(iter(op["args"].values()), None)
    return isinstance(first, list) and bool(first) and name.startswith(_BY_ELEMENT)


@dataclass
class _Cost:
    """Of one op of the program, or of one optimizer's step: its kernels and what it sends."""

    compute_ns: float
    communication_ns: float
    kernels: list[tuple[int, float]] = field(default_factory=list)  # op of the graph, weight
    sent: list[tuple[int, float]] = field(default_factory=list)


class _Writer:
    def __init__(self, plan: ShardingPlan):
        self._program, self._plan = plan.program, plan
        self._tensors, self._homes = plan.program.tensors, [t["placement"] for t in plan.document["tensors"]]
        self._sizes = plan.sizes()
        self._whole = ",".join("R" for _ in self._sizes)
        self._buffers: list[dict] = []
        self._ops: list[dict] = []
        self._costs: list[float] = []  # by op of the graph
        self._at: dict[int, str] = {}  # where a tensor is
        self._buffer: dict[int, int] = {}  # and the buffer that it is in
        self._cost = _Cost(0, 0)
        self._carried = 0.0  # ns of an op that neither sends nor computes

    def run(self) -> dict:
        self._add_residents()
        ops = self._program.ops
        k = 0
        while k < len(ops):
            end = k
            while end < len(ops) and ops[end]["phase"] == "optimizer":
                end += 1
            if end > k:
                self._add_optimizer(k, end)
                k = end
            else:
                self._add_op(k)
                k += 1
        self._return_outputs()
        self._round_costs()
        return {
            "format": "stowage-graph", "version": 1, "name": f"{self._program.name} on {self._plan.mesh_text()}", "align": 64,
            "buffers": self._buffers, "ops": self._ops,
        }  # fmt: skip

    # ---- Buffers

    def _bytes(self, t: int, placement: str) -> int:
        tensor = self._tensors[t]
        return local_elements(tensor["shape"], placement, [0] * len(self._sizes), self._sizes) * tensor["item_bytes"]

    def _add_buffer(self, name: str, count: int, kind: str, **more: Any) -> int:
        self._buffers.append({"name": name, "bytes": count, "kind": kind, **more})
        return len(self._buffers) - 1

    def _name(self, t: int) -> str:
        return self._tensors[t].get("name") or f"t{t}"

    def _root(self, t: int) -> int:
        return self._tensors[t].get("alias_of", t)

    def _add_residents(self) -> None:
        made = {o for op in self._program.ops for o in op["outputs"] if o is not None}
        for t, tensor in enumerate(self._tensors):
            if t in made:
                continue
            kind, root = tensor["kind"], self._root(t)
            self._at[t] = self._homes[t] if kind in _STATE else self._whole
            if root != t and root in self._buffer:
                self._buffer[t] = self._buffer[root]
                continue
            kind = kind if kind in (*_STATE, "input") else "constant"
            self._buffer[t] = self._add_buffer(self._name(t), self._bytes(t, self._at[t]), kind, resident=True)

    def _return_outputs(self) -> None:
        """The caller gets whole tensors. Gradients that the step leaves stay until its next call."""
        for t in self._program.left & self._buffer.keys():
            if not self._buffers[self._buffer[t]].get("resident"):
                self._buffers[self._buffer[t]]["returned"] = True
        for t, tensor in enumerate(self._tensors):
            if tensor["kind"] != "output" or t not in self._buffer:
                continue
            self._begin(len(self._program.ops) - 1, 0, 0)
            b = self._bring(t, self._whole, "gather")
            if not self._buffers[b].get("resident"):
                self._buffers[b]["returned"] = True

    # ---- Ops

    def _emit(self, op: int, part: str, reads: list[int], writes: list[int], creates: list[int], traits: list[str],
              **more: Any) -> int:  # fmt: skip
        target = self._program.ops[op]["target"]
        meta = {"op": op, "part": part, **more.pop("meta", {})}
        entry = {
            "name": f"{target.split('.')[1]}_{op}" if part == "kernel" else f"{part}_{len(self._ops)}",
            "target": target if part == "kernel" else part,
            "reads": [b for b in dict.fromkeys(reads) if b not in writes],
            "writes": list(dict.fromkeys(writes)),
            "creates": creates,
            "meta": meta,
            **more,
        }
        if not creates and not writes and not traits:
            traits = ["effect"]
        if traits:
            entry["traits"] = traits
        self._ops.append({k: v for k, v in entry.items() if v != []})
        self._costs.append(0.0)
        return len(self._ops) - 1

    def _move(self, t: int, before: str, after: str, part: str, source: int, into: int, writes: bool = False) -> None:
        count = max(self._bytes(t, before), self._bytes(t, after))
        sends = talks(before, after)
        more: dict[str, Any] = {"meta": {"tensor": t, "from": before, "to": after}}
        if sends and (inside := self._bytes_inside(t, before, after)):
            more["scratch"] = [{"bytes": inside, "from": 0, "to": 1}]
        at = self._emit(self._op, part, [source], [into] if writes else [], [] if writes else [into],
                        ["effect"] if sends else [], **more)  # fmt: skip
        if sends:
            self._cost.sent.append((at, float(count)))

    def _bytes_inside(self, t: int, before: str, after: str) -> int:
        """What a move makes besides its result: parts are gathered and reduced along the first dimension, and then put in
        order; where a cut changes its dimension, the processors' group gathers, and keeps a part."""
        a, b = before.split(","), after.split(",")
        turned = any(x != y and x[0] == y[0] == "S" for x, y in zip(a, b))
        if turned:
            return self._bytes(t, ",".join("R" if x != y else x for x, y in zip(a, b)))
        if any(x != y and p[0] == "S" and p != "S0" for x, y in zip(a, b) for p in (x, y)):
            return max(self._bytes(t, before), self._bytes(t, after))
        return 0

    def _bring(self, t: int, want: str, part: str = "bring") -> int:
        """The buffer that has the tensor at a placement."""
        at, b = self._at[t], self._buffer[t]
        if want == at:
            return b
        copy = self._add_buffer(f"{self._name(t)} at {want}", self._bytes(t, want), "temporary")
        self._move(t, at, want, part, b, copy)
        return copy

    def _begin(self, op: int, compute_ns: float, communication_ns: float) -> None:
        self._op = op
        self._cost = _Cost(compute_ns, communication_ns + self._carried)
        self._carried = 0.0

    def _share_costs(self) -> None:
        cost = self._cost
        for ns, among in ((cost.compute_ns, cost.kernels), (cost.communication_ns, cost.sent or cost.kernels)):
            if not among:  # the plan sends an argument that is whole on every rank
                self._carried += ns
            total = sum(weight for _, weight in among)
            for at, weight in among:
                self._costs[at] += ns * (weight / total if total else 1 / len(among))

    def _round_costs(self) -> None:
        """So that the sum is right to a nanosecond."""
        sum_ns, told = 0.0, 0
        for op, ns in zip(self._ops, self._costs, strict=True):
            sum_ns += ns
            op["cost_ns"] = round(sum_ns) - told
            told += op["cost_ns"]

    def _add_op(self, k: int) -> None:
        op, planned = self._program.ops[k], self._plan.document["ops"][k]
        self._begin(k, planned["compute_ns"], planned["communication_ns"])
        random = draws(op)
        ids, written = tensor_ids(op), set(op.get("writes", ()))
        name = op["target"].split(".")[1]
        looks = looks_at_shapes(op)
        brought: list[int] = []
        returns: list[tuple[int, int, str]] = []
        for t, want in zip(ids, planned["inputs"], strict=True):
            want = self._at[t] if looks else self._whole if random else want
            brought.append(self._bring(t, want))
            if t in written and want != self._at[t]:
                returns.append((t, brought[-1], want))
        writes = [b for t, b in zip(ids, brought) if t in written]
        creates, settled, over = [], [], []
        for o, computed, home in zip(op["outputs"], planned["computed"], planned["outputs"], strict=True):
            if o is None:
                continue
            computed, home = (self._whole, self._whole) if random else (computed, home)
            source = next((i for i, t in enumerate(ids) if self._root(t) == self._tensors[o].get("alias_of")), None)
            if source is not None:
                b = brought[source]
            else:
                kind = self._tensors[o]["kind"] if computed == home else "temporary"
                b = self._add_buffer(self._name(o), self._bytes(o, computed), kind)
                creates.append(b)
                over += self._pairs(name, ids, brought, o, b)
            if computed == home:
                self._at[o], self._buffer[o] = home, b
            else:
                settled.append((o, b, computed, home))
        reads = [] if looks else brought
        if creates or writes or planned["compute_ns"] > 0:
            traits = ["rng"] if random else ["effect"] if planned.get("recipe") in _TALKING_RECIPES else []
            over = [[r, c] for r, c in over if r not in writes]
            self._cost.kernels.append((self._emit(k, "kernel", reads, writes, creates, traits, takeover=over), 1.0))
        for o, b, computed, home in settled:
            self._buffer[o] = self._add_buffer(self._name(o), self._bytes(o, home), self._tensors[o]["kind"])
            self._at[o] = home
            self._move(o, computed, home, "settle", b, self._buffer[o])
        for t, b, want in returns:
            self._move(t, want, self._at[t], "return", b, self._buffer[t], writes=True)
        self._share_costs()

    def _pairs(self, name: str, ids: list[int], brought: list[int], o: int, b: int) -> list[list[int]]:
        """Inputs that a result may lie over."""
        if name not in _OVER_INPUTS:
            return []
        shape, count = self._tensors[o]["shape"], self._buffers[b]["bytes"]
        same = [
            r
            for t, r in zip(ids, brought)
            if self._tensors[t]["shape"] == shape
            and self._buffers[r]["bytes"] == count
            and self._tensors[t]["item_bytes"] == self._tensors[o]["item_bytes"]
            and not self._buffers[r].get("resident")
        ]
        return [[r, b] for r in dict.fromkeys(same)]

    # ---- An optimizer's step

    def _add_optimizer(self, first: int, end: int) -> None:
        """``first``, ``end``: the ops of one or several optimizers' steps, one after another."""
        ops = range(first, end)
        planned = self._plan.document["ops"]
        self._begin(first, sum(planned[k]["compute_ns"] for k in ops), sum(planned[k]["communication_ns"] for k in ops))
        used = {t for k in ops for t in tensor_ids(self._program.ops[k])}
        there: dict[int, int] = {}  # tensor -> the buffer that the optimizer has of it
        moved: list[tuple[int, str]] = []
        for name, p in self._program.parameters.items():
            state = self._state_placement(name, p)
            gradient = self._program.gradients.get(name)
            if gradient in used and gradient in self._buffer:
                there[gradient] = self._bring(gradient, state)
            if p in used and self._at[p] != state:
                there[p] = self._bring(p, state)
                moved.append((p, state))
        for k in ops:
            for element in self._elements(self._program.ops[k]):
                self._add_element(k, *element, there)
        for p, state in moved:
            self._move(p, state, self._at[p], "return", there[p], self._buffer[p], writes=True)
        self._share_costs()

    def _state_placement(self, name: str, p: int) -> str:
        states = [t for (owner, _), t in self._program.states.items() if owner == name and self._tensors[t]["shape"]]
        return self._homes[states[0]] if states else self._homes[p]

    @staticmethod
    def _elements(op: dict) -> list[tuple[list[int], list[int | None]]]:
        """Tensors and results of each kernel: one for each element of its lists."""
        if not works_by_element(op):
            return [(tensor_ids(op), op["outputs"])]
        count = len(next(iter(op["args"].values())))
        found = []
        for i in range(count):
            ids = [
                t
                for value in op["args"].values()
                for t in ([value[i]] if isinstance(value, list) and len(value) == count else value if isinstance(value, list) else [value])
            ]  # fmt: skip
            found.append((ids, [op["outputs"][i]] if len(op["outputs"]) == count else []))
        return found

    def _add_element(self, k: int, ids: list[int], outputs: list, there: dict[int, int]) -> None:
        op = self._program.ops[k]
        written = set(op.get("writes", ()))
        brought = [there.get(t, self._buffer[t]) for t in ids]
        writes = [b for t, b in zip(ids, brought) if t in written]
        name = op["target"].split(".")[1]
        creates, over = [], []
        for o in (o for o in outputs if o is not None):
            source = next((i for i, t in enumerate(ids) if self._root(t) == self._tensors[o].get("alias_of")), None)
            self._at[o] = self._homes[o]
            if source is None:
                self._buffer[o] = self._add_buffer(
                    self._name(o), self._bytes(o, self._homes[o]), self._tensors[o]["kind"]
                )
                creates.append(self._buffer[o])
                over += self._pairs(name.removeprefix("_foreach_"), ids, brought, o, self._buffer[o])
            else:
                self._buffer[o] = brought[source]
        if creates or writes:
            over = [[r, c] for r, c in over if r not in writes]
            at = self._emit(k, "kernel", brought, writes, creates, ["rng"] if draws(op) else [], takeover=over)
            weight = sum(self._buffers[b]["bytes"] for b in dict.fromkeys([*brought, *creates]))
            self._cost.kernels.append((at, float(weight)))


__all__ = ["draws", "looks_at_shapes", "rank_graph", "talks", "works_by_element"]
