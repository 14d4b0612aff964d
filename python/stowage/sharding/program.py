"""The program of a training step, and what writes it (docs/formats.md, section 5).

    op that passes ──► its tensors: one id for each region (storage, offset, sizes, strides) ──► {"target", "phase", "args", "outputs", "writes"}

A view has an id of its own and says whose storage it shares; what an op changes in place keeps its id.
"""

from __future__ import annotations

import functools
import json
import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stowage._torch.private import flatten, in_backward, storage_address
from stowage.errors import Unsupported
from stowage.sharding.element_by_element import Elements
from stowage.sharding.schema import schema

# Same tensor, or nothing for a placement to decide; PyTorch's engine and DTensor differ in how often they call these.
PASSED_OVER = {
    "aten.detach.default",
    "aten.alias.default",
    "aten.lift_fresh.default",
    "aten._local_scalar_dense.default",
    "aten.is_same_size.default",
}


@functools.lru_cache(maxsize=4096)
def is_passed_over(func) -> bool:
    return str(func) in PASSED_OVER or func.namespace in ("profiler", "prim")


@dataclass
class Program:
    """What was captured. ``parameters``, ``gradients``: tensor ids by name; ``states``: (parameter's name, key) ->
    tensor id. ``left``: those of the gradients that are there when the step has ended."""

    name: str
    tensors: list[dict] = field(default_factory=list)
    ops: list[dict] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    states: dict[tuple[str, str], int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    buffers: dict[str, int] = field(default_factory=dict)
    strides: list[tuple] = field(default_factory=list)  # by tensor; for the execution, not part of the program
    looks: list[tuple[int, int]] = field(
        default_factory=list
    )  # tensors whose numbers Python reads, and before which op
    guessed: str = ""  # where the step reads numbers that were guessed, first: it may run other ops than these

    def homes(self) -> dict[int, str]:
        """Names of the parameters, their gradients and their state, by tensor id."""
        found = {i: name for name, i in self.parameters.items()}
        found |= {i: f"{name}.grad" for name, i in self.gradients.items()}
        return found | {i: f"{name}.{key}" for (name, key), i in self.states.items()}

    def to_json(self) -> str:
        document = {
            "format": "stowage-program",
            "version": 1,
            "name": self.name,
            "tensors": self.tensors,
            "ops": self.ops,
        }
        return json.dumps(document, separators=(",", ":"))


class Pen(TorchDispatchMode):
    """Writes each op that passes.

    Two views of one tensor are two tensors of the program, though they are one region: each can be brought elsewhere.
    So a tensor is known by its object, which saved tensors keep; only then by its region, for aliases that the engine
    makes past the dispatcher."""

    def __init__(self, program: Program):
        super().__init__()
        self.program = program
        # By id(); not held: backward copies a gradient that somebody holds
        self.objects: dict[int, tuple[weakref.ref, int]] = {}
        self.ids: dict[tuple, int] = {}  # by region
        self.latest: dict[int, int] = {}  # by storage: the first tensor that was seen of it
        self.makers: dict[int, int] = {}  # by tensor id: position of the op that made it
        self.keep: list[Any] = []  # storages stay, so that their addresses are theirs
        self.plain: set[int] = set()  # made of no parameter, input or buffer: no DTensors where the step runs
        self.in_optimizer: Elements | None = None  # of the step that is under way
        self.backward_begun = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not is_passed_over(func):
            if func.namespace in ("_c10d_functional", "c10d", "_dtensor"):
                raise Unsupported(f"{func} in the step: it communicates by itself")
            shape = args[0].shape if torch.Tag.inplace_view in func.tags else None
            before = self._arguments(func, args, kwargs)
        result = func(*args, **kwargs)
        if not is_passed_over(func):
            if shape is not None and args[0].shape != shape:
                self._turned(func, args[0])
            self._write(func, before, result)
            if self.in_optimizer is not None:
                self._check(self.in_optimizer, func, args, kwargs, before[0], result)
        elif isinstance(result, torch.Tensor) and args and isinstance(args[0], torch.Tensor):
            known = self.known(args[0])
            if known is not None and region_of(result) == region_of(args[0]):
                self._know(result, known)
        return result

    def _turned(self, func: Any, t: torch.Tensor) -> None:
        """It has another shape now: another tensor of the program, if it is none that a rank has a part of."""
        if self.known(t) not in self.plain:
            raise Unsupported(f"{func} changes the shape of a tensor in place, which no DTensor can: make a view of it")
        del self.objects[id(t)]

    # ---- Tensors

    def tensor(self, t: torch.Tensor, kind: str | None = None, **more: Any) -> int:
        """The id of a tensor; a new one where it is not known."""
        known = self.known(t) if kind is None else None
        return self._add(t, kind or "constant", **more) if known is None else known

    def known(self, t: torch.Tensor) -> int | None:
        if t.layout != torch.strided:
            raise Unsupported(
                f"a tensor of layout {t.layout} in the step: only dense ones can be split (sparse gradients cannot)"
            )
        seen = self.objects.get(id(t))
        return seen[1] if seen is not None and seen[0]() is t else self.ids.get(region_of(t))

    def _know(self, t: torch.Tensor, tensor_id: int) -> None:
        self.objects[id(t)] = (weakref.ref(t), tensor_id)

    def _add(
        self, t: torch.Tensor, kind: str, name: str = "", of: int | None = None, alias_of: int | None = None
    ) -> int:
        entry: dict[str, Any] = {"shape": list(t.shape), "item_bytes": t.element_size(), "kind": kind}
        if name:
            entry["name"] = name
        if of is not None:
            entry["of"] = of
        storage = storage_address(t)
        if alias_of is None and storage in self.latest:
            alias_of = self.latest[storage]
        if alias_of is not None:
            entry["alias_of"] = alias_of
        tensor_id = len(self.program.tensors)
        self.program.tensors.append(entry)
        self.program.strides.append(tuple(t.stride()))
        self._know(t, tensor_id)
        self.ids.setdefault(region_of(t), tensor_id)  # a view of a view may be the tensor that it began with
        self.latest.setdefault(storage, tensor_id)
        self.keep.append(t.untyped_storage())
        return tensor_id

    # ---- Ops

    def look(self, t: Any) -> None:
        """Python reads its numbers."""
        known = self.known(t) if isinstance(t, torch.Tensor) else None
        if known is not None:
            self.program.looks.append((len(self.program.ops), known))

    def _arguments(self, func, args: tuple, kwargs: dict) -> tuple[dict, dict, list[int]]:
        """The op's tensors by schema name, its other arguments, and the tensors that it changes."""
        tensors: dict[str, Any] = {}
        others: dict[str, Any] = {}
        writes: list[int] = []
        said = schema(func)
        for name, value in said.arguments(args, kwargs):
            listed = [t for t in value if isinstance(t, torch.Tensor)] if isinstance(value, (list, tuple)) else []
            if isinstance(value, torch.Tensor):
                tensors[name] = self.tensor(value)
                written = [tensors[name]]
            elif listed:
                written = tensors[name] = [self.tensor(t) for t in listed]
            else:
                plain = _plain(value)
                if plain is not None:
                    others[name] = plain
                continue
            if name in said.written_names:
                writes += written
        return tensors, others, writes

    def _write(self, func, before: tuple[dict, dict, list[int]], result: Any) -> None:
        tensors, others, writes = before
        written = {self.program.tensors[i].get("alias_of", i) for i in writes} | set(writes)
        given = [i for ids in tensors.values() for i in (ids if isinstance(ids, list) else [ids])]
        made = list(flatten(result)[0])
        outputs: list[int | None] = []
        for t in made:
            if not isinstance(t, torch.Tensor):
                if t is None:
                    outputs.append(None)
                continue
            known = self.known(t)
            if known is not None and known in written:
                continue  # an argument, changed in place
            new = self._add(t, "activation")
            outputs.append(new)
            if all(i in self.plain or self.program.tensors[i]["kind"] == "constant" for i in given):
                self.plain.add(new)
        if not any(o is not None for o in outputs) and not writes:
            return
        op: dict[str, Any] = {"target": str(func), "phase": self._phase(), "args": tensors, "outputs": outputs}
        if writes:
            op["writes"] = list(dict.fromkeys(writes))
        if others:
            op["attributes"] = others
        for o in outputs:
            if o is not None:
                self.makers[o] = len(self.program.ops)
        self.program.ops.append(op)

    def _check(self, elements: Elements, func: Any, args: tuple, kwargs: dict, given: dict, result: Any) -> None:
        operands = [t for t in flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        made = [self.tensor(t) for t in flatten(result)[0] if isinstance(t, torch.Tensor)]
        lists = [ids for ids in given.values() if isinstance(ids, list)] if takes_lists(func) else []
        elements.op(func, args, {self.tensor(t): t for t in operands}, lists, made)

    def _phase(self) -> str:
        if self.in_optimizer is not None:
            return "optimizer"
        if in_backward():
            self.backward_begun = True
            return "backward"
        return "backward" if self.backward_begun and not torch.is_grad_enabled() else "forward"

    # ---- Gradients

    def gradient(self, p_id: int, name: str, grad: torch.Tensor) -> None:
        """What the optimizer sees as .grad. PyTorch's engine copies fakes there, where it would hand on a real tensor:
        no copy then."""
        g = self.tensor(grad)
        maker = self.makers.get(g)
        if (
            maker is not None
            and self.program.ops[maker]["target"] == "aten.clone.default"
            and self.program.ops[maker]["phase"] == "backward"
        ):
            source = self.program.ops[maker]["args"]["self"]
            readers = sum(source in tensor_ids(op) for op in self.program.ops)
            if readers == 1 and "alias_of" not in self.program.tensors[source] and source in self.makers:
                self.program.ops[maker]["dropped"] = True
                self._rename(g, source, after=maker)  # clipping has read it already
                self.ids[region_of(grad)] = source
                self._know(grad, source)
                self.latest[storage_address(grad)] = source
                g = source
        entry = self.program.tensors[g]
        if entry["kind"] in ("activation", "constant"):
            entry["kind"], entry["of"], entry["name"] = "gradient", p_id, name + ".grad"
        self.program.gradients[name] = g

    def _rename(self, before: int, now: int, after: int) -> None:
        """In all ops after one."""
        for op in self.program.ops[after + 1 :]:
            op["args"] = {name: _renamed(ids, before, now) for name, ids in op["args"].items()}
            if "writes" in op:
                op["writes"] = _renamed(op["writes"], before, now)


def takes_lists(func: Any) -> bool:
    """The first elements of its lists belong together, and so on."""
    return func._schema.name.startswith(("aten::_foreach_", "aten::_fused_"))


def _renamed(ids: Any, before: int, after: int) -> Any:
    return [_renamed(i, before, after) for i in ids] if isinstance(ids, list) else after if ids == before else ids


def tensor_ids(op: dict) -> list[int]:
    """Of all arguments, in schema order."""
    return [i for value in op["args"].values() for i in (value if isinstance(value, list) else [value])]


def region_of(t: torch.Tensor) -> tuple:
    return (storage_address(t), t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.dtype)


def _plain(value: Any) -> Any:
    """What JSON can hold of an argument; None for the rest, which decides no placement."""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)) and all(isinstance(v, (bool, int)) for v in value):
        return list(value)
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None
