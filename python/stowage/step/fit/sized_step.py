"""The user's step at given sizes, on tensors without memory: what eager runs, what its kernels allocate for themselves, its
graph.

    make_step(sizes) ──two calls on fakes──▶ trace ──kernels measured alone──▶ real sizes ──▶ eager's peak
                     └─one more, recorded──▶ graph ◀──────────────────────────────┘

Sizes are traced once. Kernels too large to be measured follow from the same step at smaller sizes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator

import torch

from stowage import _runtime
from stowage._torch.fakes import FakeTensorMode, masks_as_run, models_of_fakes
from stowage._torch.private import flatten
from stowage.errors import Error
from stowage.planning import Graph
from stowage.step.fit.kernel_bytes import KernelBytes, Smaller
from stowage.step.fit.made_step import SIZES, MakeStep, told_by_line
from stowage.step.reach.world import World
from stowage.step.record.capturing import name_of, recorded_tape
from stowage.step.record.eager_trace import Moment, Trace
from stowage.step.signature.signature import objects_of


@dataclasses.dataclass
class SizedStep:
    """inside: bytes of ops at their own peak, by number; moment: eager's peak."""

    sizes: dict[str, int]
    trace: Trace
    device: str
    mode: FakeTensorMode
    step: Callable
    arguments: tuple
    inside: dict[int, int] = dataclasses.field(default_factory=dict)
    moment: Moment = dataclasses.field(default_factory=lambda: Moment(0, -1, (), 0))

    def graphs(self, name: str | None = None) -> tuple[Graph, Graph]:
        """Of a steady step: the one that a compiled step plans, which makes what it returns where it is handed out, and some
        kernels in slices of rows; and that of the kernels as they are recorded, as eager calls run them. Raises
        Unsupported where it cannot be recorded."""
        name = name or name_of(self.step)
        with self.mode, masks_as_run(), told_by_line():
            tape = recorded_tape(self.step, self.arguments, {}, 0)
            planned, eager = (
                _runtime.lower(tape, name, _runtime.RowSlicing(on=on), in_results=True, stay=True).graph
                for on in (True, False)
            )
        return (
            _with_kernel_bytes(planned, self.trace, self.inside),
            _with_kernel_bytes(eager, self.trace, self.inside),
        )


class SizedSteps:
    """Of one make_step, by sizes. Raises Error within a stowage.budget block, where kernels cannot be measured."""

    def __init__(self, made: MakeStep):
        if _runtime.budget_active():
            raise Error("kernels are measured to tell what a step needs: ask outside of a stowage.budget block")
        _runtime.require_allocator()
        self._made = made
        self._kernels = KernelBytes()
        self._traced: dict[tuple, SizedStep] = {}
        self._measured: set[tuple] = set()

    def at(self, sizes: dict[str, int]) -> SizedStep:
        step, key = self._traced_at(sizes), tuple(sizes.items())
        if key not in self._measured:
            step.inside = self._kernels.of_trace(step.trace, self._smaller(sizes))
            step.moment = step.trace.peak(step.device, lambda op: step.inside.get(op, 0))
            self._measured.add(key)
        return step

    def _traced_at(self, sizes: dict[str, int]) -> SizedStep:
        key = tuple(sizes.items())
        if key not in self._traced:
            self._traced[key] = _traced(self._made, sizes)
        return self._traced[key]

    def _smaller(self, sizes: dict[str, int]) -> Smaller | None:
        name = next((n for n in SIZES if sizes.get(n, 1) > 1), None)
        if name is None:
            return None
        return Smaller(lambda size: self._traced_at({**sizes, name: size}).trace, sizes[name])


def _traced(made: MakeStep, sizes: dict[str, int]) -> SizedStep:
    """Two calls of the step under the trace: the first makes the optimizer's state."""
    trace, mode = Trace(), FakeTensorMode()
    with mode, told_by_line():
        with trace, models_of_fakes():
            step, arguments = made(sizes)
        with trace, masks_as_run():  # by now, transformers has been imported, if it will be
            trace.first_call = len(trace.ops)
            result = step(*arguments)
            world = World(step, objects_of(arguments, {}))
            with _gradients_marked(world, trace):
                trace.last_call = len(trace.ops)
                result = step(*arguments)  # as in a loop: the last result is there until the next has come
        device = _settle_kinds(trace, world, arguments)
        trace.end()
        del result
    return SizedStep(sizes, trace, device, mode, step, arguments)


@contextlib.contextmanager
def _gradients_marked(world: World, trace: Trace) -> Iterator[None]:
    parameters = [p for p in world.model_parameters() if p.requires_grad and p.is_leaf]
    trace.mark("gradient", [p.grad for p in parameters])
    hooks = [p.register_post_accumulate_grad_hook(lambda p: trace.mark("gradient", [p.grad])) for p in parameters]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _settle_kinds(trace: Trace, world: World, arguments: tuple) -> str:
    """Marks what lasts. Returns the device that holds the most bytes of the parameters."""
    parameters = world.model_parameters()
    trace.mark("parameter", parameters)
    trace.mark("gradient", [p.grad for p in parameters])
    for optimizer in world.optimizers:
        trace.mark("parameter", [p for group in optimizer.param_groups for p in group["params"]])
        for state in optimizer.state.values():
            trace.mark("optimizer_state", flatten(state)[0])
    trace.mark("module_buffer", [b for _, module in world.modules for b in module.buffers()])
    trace.mark("input", [leaf for leaf in flatten(arguments)[0] if isinstance(leaf, torch.Tensor)])
    bytes_on: collections.Counter[str] = collections.Counter()
    for storage in trace.storages:
        bytes_on[storage.device] += storage.bytes * (storage.kind == "parameter")
    return max(bytes_on, key=lambda d: bytes_on[d], default="cpu")


def _with_kernel_bytes(graph: Graph, trace: Trace, inside: dict[int, int]) -> Graph:
    """The graph with what kernels allocate for themselves, and results of their real sizes. Ops of the graph and of the
    trace's last call are the same, in the same order; those whose number or results differ stay as they are."""
    step = json.loads(graph.to_json())
    by_name: dict[str, list[int]] = collections.defaultdict(list)
    sums = trace.sums_in_place()
    for number in range(trace.last_call, len(trace.ops)):
        if not any(storage in sums for storage in trace.ops[number].makes):
            by_name[trace.ops[number].name].append(number)
    count = collections.Counter(op["target"] for op in step["ops"])
    at: collections.Counter[str] = collections.Counter()
    buffers, changed = step["buffers"], False
    touched: set[int] = set()
    for op in step["ops"]:
        name = op["target"]
        # What it makes where it is handed out is a resident that the op is the first to touch
        in_results = {b for b in op.get("writes", []) if buffers[b]["kind"] == "output" and b not in touched}
        touched.update(b for field in ("reads", "writes", "creates") for b in op.get(field, []))
        if count[name] != len(by_name[name]):
            continue
        number = by_name[name][at[name]]
        at[name] += 1
        made, creates = trace.ops[number].makes, sorted({*op.get("creates", []), *in_results})
        if [trace.ops[number].fake_bytes[n] for n in made] != [buffers[b]["bytes"] for b in creates]:
            continue
        for buffer, storage in zip(creates, made):
            changed |= buffers[buffer]["bytes"] != trace.storages[storage].bytes
            buffers[buffer]["bytes"] = trace.storages[storage].bytes
        extra = inside.get(number, 0) - sum(trace.storages[storage].bytes for storage in made)
        if extra > 0:
            op["scratch"] = [{"bytes": extra, "from": 0, "to": 1}]
            changed = True
    return Graph.parse(json.dumps(step), graph.name) if changed else graph


__all__ = ["SizedStep", "SizedSteps"]
