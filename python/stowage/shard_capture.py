"""Writing down what a training step computes, as a TensorProgram (docs/formats.md, section 5), without computing it.

    user's step ──FakeTensorMode──► ops of forward, backward, optimizer ──► tensors (regions of storages) and ops, as JSON

Nothing of the user's is changed: while the capture runs, modules and optimizers hold fakes; afterwards what they held before. The step's
Python runs twice: once so that the optimizers make their state, once under the pen.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from stowage.errors import Unsupported
from stowage.torch_private import DATA_DEPENDENT, FakeTensorMode, flatten, in_backward, is_fake, local_tensor, masks_as_run, storage_address, tree_map
from stowage.world import World

# Same tensor, or nothing for a placement to decide; PyTorch's engine and DTensor differ in how often they call these.
PASSED_OVER = {"aten.detach.default", "aten.alias.default", "aten.lift_fresh.default", "aten._local_scalar_dense.default",
               "aten.is_same_size.default"}


def is_passed_over(func) -> bool:
    return str(func) in PASSED_OVER or func.namespace in ("profiler", "prim")


@dataclass
class Program:
    """What was captured. ``parameters``, ``gradients``: tensor ids by name; ``states``: (parameter's name, key) -> tensor id."""

    name: str
    tensors: list[dict] = field(default_factory=list)
    ops: list[dict] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    states: dict[tuple[str, str], int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    buffers: dict[str, int] = field(default_factory=dict)
    strides: list[tuple] = field(default_factory=list)  # by tensor; for the execution, not part of the program

    def to_json(self) -> str:
        document = {"format": "stowage-program", "version": 1, "name": self.name, "tensors": self.tensors, "ops": self.ops}
        return json.dumps(document, separators=(",", ":"))


class _Pen(TorchDispatchMode):
    """Writes each op that passes."""

    def __init__(self, program: Program):
        super().__init__()
        self.program = program
        self.ids: dict[tuple, int] = {}  # by region
        self.latest: dict[int, int] = {}  # by storage: the first tensor that was seen of it
        self.makers: dict[int, int] = {}  # by tensor id: position of the op that made it
        self.keep: list[Any] = []  # storages stay, so that their addresses are theirs
        self.in_optimizer = False
        self.backward_begun = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not is_passed_over(func):
            if func.namespace in ("_c10d_functional", "c10d", "_dtensor"):
                raise Unsupported(f"{func} in the step: it communicates by itself")
            before = self._arguments(func, args, kwargs)
        result = func(*args, **kwargs)
        if not is_passed_over(func):
            self._write(func, before, result)
        return result

    # ---- Tensors

    def tensor(self, t: torch.Tensor, kind: str | None = None, **more: Any) -> int:
        """The id of a tensor; a new one where its region is not known."""
        region = _region(t)
        if region in self.ids and kind is None:
            return self.ids[region]
        return self._add(t, kind or "constant", **more)

    def _add(self, t: torch.Tensor, kind: str, name: str = "", of: int | None = None, alias_of: int | None = None) -> int:
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
        self.ids.setdefault(_region(t), tensor_id)  # a view of a view may be the tensor that it began with
        self.latest.setdefault(storage, tensor_id)
        self.keep.append(t.untyped_storage())
        return tensor_id

    # ---- Ops

    def _arguments(self, func, args: tuple, kwargs: dict) -> tuple[dict, dict, list[int]]:
        """The op's tensors by schema name, its other arguments, and the tensors that it changes."""
        tensors: dict[str, Any] = {}
        others: dict[str, Any] = {}
        writes: list[int] = []
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
            listed = [t for t in value if isinstance(t, torch.Tensor)] if isinstance(value, (list, tuple)) else []
            if isinstance(value, torch.Tensor):
                tensors[argument.name] = self.tensor(value)
                written = [tensors[argument.name]]
            elif listed:
                written = tensors[argument.name] = [self.tensor(t) for t in listed]
            else:
                plain = _plain(value)
                if plain is not None:
                    others[argument.name] = plain
                continue
            if writes_argument(func, argument):
                writes += written
        return tensors, others, writes

    def _write(self, func, before: tuple[dict, dict, list[int]], result: Any) -> None:
        tensors, others, writes = before
        written = {self.program.tensors[i].get("alias_of", i) for i in writes} | set(writes)
        made = [t for t in flatten(result)[0]]
        outputs: list[int | None] = []
        for t in made:
            if not isinstance(t, torch.Tensor):
                if t is None:
                    outputs.append(None)
                continue
            known = self.ids.get(_region(t))
            if known is not None and known in written:
                continue  # an argument, changed in place
            outputs.append(self._add(t, "activation"))
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

    def _phase(self) -> str:
        if self.in_optimizer:
            return "optimizer"
        if in_backward():
            self.backward_begun = True
            return "backward"
        return "backward" if self.backward_begun and not torch.is_grad_enabled() else "forward"

    # ---- Gradients

    def gradient(self, p_id: int, name: str, grad: torch.Tensor) -> None:
        """What the optimizer sees as .grad. PyTorch's engine copies fakes there, where it would hand on a real tensor: no copy then."""
        g = self.tensor(grad)
        maker = self.makers.get(g)
        if maker is not None and self.program.ops[maker]["target"] == "aten.clone.default" and self.program.ops[maker]["phase"] == "backward":
            source = self.program.ops[maker]["args"]["self"]
            readers = sum(source in _ids(op) for op in self.program.ops)
            if readers == 1 and "alias_of" not in self.program.tensors[source] and source in self.makers:
                self.program.ops[maker]["dropped"] = True
                self.ids[_region(grad)] = source
                self.latest[storage_address(grad)] = source
                g = source
        entry = self.program.tensors[g]
        if entry["kind"] in ("activation", "constant"):
            entry["kind"], entry["of"], entry["name"] = "gradient", p_id, name + ".grad"
        self.program.gradients[name] = g


def _ids(op: dict) -> list[int]:
    return [i for value in op["args"].values() for i in (value if isinstance(value, list) else [value])]


def _region(t: torch.Tensor) -> tuple:
    return (storage_address(t), t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.dtype)


def writes_argument(func, argument) -> bool:
    """As the schema says; and batch norms update their statistics without saying so."""
    if argument.alias_info is not None and argument.alias_info.is_write:
        return True
    return func._schema.name in ("aten::native_batch_norm", "aten::_batch_norm_impl_index") and argument.name in ("running_mean", "running_var")


def _plain(value: Any) -> Any:
    """What JSON can hold of an argument; None for the rest, which decides no placement."""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)) and all(isinstance(v, (bool, int)) for v in value):
        return list(value)
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


# ---- Fakes in place of the user's tensors


class _Fakes:
    """One fake for each tensor of the user's, kept in step with who shares memory with whom."""

    def __init__(self, mode: FakeTensorMode):
        self.mode = mode
        self.of: dict[int, torch.Tensor] = {}

    def parameter(self, p: torch.nn.Parameter) -> torch.nn.Parameter:
        if id(p) not in self.of:
            with self.mode:
                self.of[id(p)] = torch.nn.Parameter(_empty(p), requires_grad=p.requires_grad)
        return self.of[id(p)]

    def tensor(self, t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if isinstance(t, torch.nn.Parameter):
            return self.parameter(t)
        if id(t) not in self.of:
            number = local_tensor(t).item() if t.dim() == 0 and not is_fake(t) else None  # step counters decide Python numbers
            with self.mode:
                self.of[id(t)] = _empty(t) if number is None else torch.tensor(number, dtype=t.dtype)
        return self.of[id(t)]


def _empty(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


@contextlib.contextmanager
def _faked(world: World, fakes: _Fakes):
    """While open, the modules and optimizers of the world hold fakes."""
    saved: list[tuple[dict, dict]] = []

    def put(live: dict, new: dict) -> None:
        saved.append((live, dict(live)))
        live.clear()
        live.update(new)

    try:
        for _, root in world.modules:
            for module in root.modules():
                put(module._parameters, {k: None if p is None else fakes.parameter(p) for k, p in module._parameters.items()})
                put(module._buffers, {k: None if b is None else fakes.tensor(b) for k, b in module._buffers.items()})
        for optimizer in world.optimizers:
            state = {fakes.parameter(p): {k: fakes.tensor(v) for k, v in s.items()} for p, s in optimizer.state.items()}
            put(optimizer.state, state)
            for group in optimizer.param_groups:
                put(group, {**group, "params": [fakes.parameter(p) for p in group["params"]]})
        for scheduler in world.schedulers:
            put(scheduler.__dict__, dict(scheduler.__dict__))
        yield
    finally:
        for live, before in reversed(saved):
            live.clear()
            live.update(before)


def capture_program(train_step: Callable, args: tuple, kwargs: dict, names: list[tuple[str, torch.nn.Parameter]], name: str) -> Program:
    """The TensorProgram of one call of ``train_step``. ``names``: the parameters, each once."""
    with masks_as_run():
        try:
            return _capture(train_step, args, kwargs, names, name)
        except DATA_DEPENDENT:
            pass
    try:
        return _capture(train_step, args, kwargs, names, name)
    except DATA_DEPENDENT as reason:
        raise Unsupported(f"the step reads numbers that depend on data, or makes shapes of them: {reason}") from None


def _capture(train_step: Callable, args: tuple, kwargs: dict, names: list[tuple[str, torch.nn.Parameter]], name: str) -> Program:
    world = World(train_step)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = _Fakes(mode)
    program = Program(name)
    pen = _Pen(program)
    generator = torch.get_rng_state()
    with _faked(world, fakes):
        fake_args, fake_kwargs = tree_map(fakes.tensor, args), tree_map(fakes.tensor, kwargs)
        by_name = [(n, fakes.parameter(p)) for n, p in names]
        try:
            with mode:
                train_step(*fake_args, **fake_kwargs)
                _declare(pen, world, by_name, [t for t in flatten((fake_args, fake_kwargs))[0] if isinstance(t, torch.Tensor)])
                with _watching(pen, by_name), pen:
                    result = train_step(*fake_args, **fake_kwargs)
        finally:
            torch.set_rng_state(generator)
        for leaf in flatten(result)[0]:
            if isinstance(leaf, torch.Tensor):
                entry = program.tensors[pen.tensor(leaf)]
                entry["kind"] = "output" if entry["kind"] == "activation" else entry["kind"]
    program.ops = [op for op in program.ops if not op.get("dropped")]
    return program


def _declare(pen: _Pen, world: World, names: list[tuple[str, torch.nn.Parameter]], inputs: list[torch.Tensor]) -> None:
    program = pen.program
    for i, t in enumerate(inputs):
        program.inputs.append(pen.tensor(t, "input", name=f"input_{i}"))
    for name, p in names:
        program.parameters[name] = pen.tensor(p, "parameter", name=name)
    for path, module in world.modules:
        for name, b in module.named_buffers(prefix=path):
            if _region(b) not in pen.ids:
                program.buffers[name] = pen.tensor(b, "module_buffer", name=name)
    by_id = {id(p): name for name, p in names}
    for optimizer in world.optimizers:
        for p, state in optimizer.state.items():
            for key, value in state.items() if id(p) in by_id else ():
                if isinstance(value, torch.Tensor):
                    name = by_id[id(p)]
                    program.states[name, key] = pen.tensor(value, "optimizer_state", name=f"{name}.{key}", of=program.parameters[name])


@contextlib.contextmanager
def _watching(pen: _Pen, names: list[tuple[str, torch.nn.Parameter]]):
    by_id = {id(p): name for name, p in names}

    def before(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and id(p) in by_id:
                    pen.gradient(pen.program.parameters[by_id[id(p)]], by_id[id(p)], p.grad)
        pen.in_optimizer = True

    def after(optimizer, args, kwargs):
        pen.in_optimizer = False

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
