"""A partition as Inductor would run it: both programs, and the peak of forward and backward together.

        forward                        backward
    ┌─────────────────┐ saved ┌──────────────────────┐
    │ inputs: resident│──────▶│ saved: freed at their│
    │ outputs: held   │       │ last use, unless the │
    └─────────────────┘       │ user holds them too  │
                              └──────────────────────┘

Counted are the bytes above parameters and inputs: what forward makes, what is saved, the tangents, gradients. A gradient
that does not lie in memory as its parameter does is copied when all are there, before ``.grad`` gets it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stowage.inductor import private, scratch
from stowage.inductor.kernels import program_text
from stowage.inductor.order import better
from stowage.inductor.program import Given, Program, read


@dataclasses.dataclass
class Trial:
    forward: Program
    backward: Program
    made: tuple[dict[str, private.Made], dict[str, private.Made]]
    saved: list[str]  # placeholders of backward that are saved: nodes of the joint graph
    saved_buffers: list[int | None]  # of forward, by position of `saved`
    user_buffers: list[int | None]  # of forward: its first outputs
    tangent_bytes: int
    nodes: dict[str, torch.fx.Node]  # of the forward graph before it was lowered
    outside_bytes: int  # what the user holds of forward's outputs while backward runs, and is not saved
    copied_bytes: int  # of the largest gradient that is copied

    @property
    def peak_bytes(self) -> int:
        backward = max(self.backward.peak_bytes, self.backward.end_bytes + self.copied_bytes)
        return max(self.forward.peak_bytes, backward + self.outside_bytes)


def run(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, user_outputs: int, parameters: Sequence[int] | None
) -> Trial:
    """Lowers copies of both graphs. parameters: which inputs last; None: not known. Raises whatever Inductor raises, and
    Unreadable."""
    forward_inputs, outputs = _values(forward), _outputs(forward)
    visible = [i for i in range(user_outputs) if _is_node(outputs[i])]

    def lower_forward() -> tuple[private.Lowered, Program]:
        (lowered,) = private.lower(forward, forward_inputs, visible, False, ())
        return lowered, _read(lowered, {})

    lowered, first = lower_forward()
    take_back = _want_better(first, lowered.made)
    saved = [node.name for node in outputs[user_outputs:]]
    backward_inputs = _restrided(_values(backward), lowered.output_strides[user_outputs:])
    given, outside, tangents = _given(first, backward, backward_inputs, saved, user_outputs)
    backward_outputs = [i for i, node in enumerate(_outputs(backward)) if _is_node(node)]
    donated = _donated(forward, backward, user_outputs)
    wanted: list[Callable | None] = []
    read_once: list[Program] = []

    def once_more(lowered: private.Lowered) -> bool:
        read_once[:] = [_read(lowered, given)]
        matters = first.peak_bytes < read_once[0].peak_bytes + outside
        wanted.append(_want_better(read_once[0], lowered.made) if matters else None)
        return wanted[-1] is not None

    def lower_backward() -> tuple[private.Lowered, Program]:
        found = private.lower(backward, backward_inputs, backward_outputs, True, donated, again=once_more)
        programs = read_once + [_read(each, given) for each in found[1:]]
        return _the_better(list(zip(found, programs)), wanted[-1])

    lowered_backward, second = lower_backward()
    rest = second.peak_bytes + outside
    if first.peak_bytes > rest and take_back is not None:
        lowered, first = _the_better([(lowered, first), lower_forward()], take_back)
        if first.peak_bytes < rest:
            lowered_backward, second = lower_backward()
    elif take_back is not None:
        take_back()  # forward's order does not matter
    return Trial(
        first, second, (lowered.made, lowered_backward.made), saved, first.outputs[user_outputs:],
        first.outputs[:user_outputs], tangents, {node.name: node for node in forward.graph.nodes}, outside,
        _copied_bytes(forward_inputs, lowered_backward.output_strides, _outputs(backward), parameters),
    )  # fmt: skip


def _copied_bytes(
    inputs: list[Any], strides: list[tuple[int, ...] | None], gradients: list[Any], parameters: Sequence[int] | None
) -> int:
    """PyTorch takes a gradient as it is where its strides are those of its parameter."""
    copied = 0
    for i, (value, stride, gradient) in enumerate(zip(inputs, strides, gradients)):
        lasts = parameters is None or i in parameters
        if not lasts or stride is None or not isinstance(value, torch.Tensor) or not _is_node(gradient):
            continue
        if any(a != b for size, a, b in zip(value.shape, value.stride(), stride) if size != 1):
            copied = max(copied, private.storage_bytes(value.shape, value.stride(), value.dtype))
    return copied


def each_program(trial: Trial) -> tuple[tuple[str, str], ...]:
    """Forward and backward as graphs of their own, as texts."""
    return (
        ("forward", program_text(trial.forward, trial.made[0])),
        ("backward", program_text(trial.backward, trial.made[1])),
    )


def _want_better(program: Program, made: dict[str, private.Made]) -> Callable | None:
    """Of the program that was lowered last. None: Inductor's is optimal, or none is better."""
    if not private.can_order():
        return None
    wanted = better(program, made)
    return private.want(wanted) if wanted is not None else None


def _the_better(
    programs: list[tuple[private.Lowered, Program]], take_back: Callable | None
) -> tuple[private.Lowered, Program]:
    """Of one, or of one and the same as was wanted."""
    if len(programs) > 1 and programs[1][1].peak_bytes < programs[0][1].peak_bytes:
        return programs[1]
    if take_back is not None:
        take_back()
    return programs[0]


def _given(
    first: Program, backward: torch.fx.GraphModule, inputs: list[Any], saved: list[str], user_outputs: int
) -> tuple:
    """What backward is given that counts; bytes that the user holds besides; bytes of the tangents."""
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    user = first.outputs[:user_outputs]
    held = {first.buffers[b].storage for b in user if b is not None and not first.buffers[b].given}
    given, counted = {}, set()
    for name, buffer in zip(names, first.outputs[user_outputs:]):
        if buffer is not None and not first.buffers[buffer].given:
            storage = first.buffers[buffer].storage
            given[name] = Given(storage, _storage_bytes(first, storage), storage in held)
            counted.add(storage)
    tangents = 0
    for name, value in zip(names[len(saved) :], inputs[len(saved) :]):
        if isinstance(value, torch.Tensor):
            size = private.storage_bytes(value.shape, value.stride(), value.dtype)
            given[name] = Given(name, size, True)
            tangents += size
    return given, sum(_storage_bytes(first, storage) for storage in held - counted), tangents


def _read(lowered: private.Lowered, given: dict[str, Given]) -> Program:
    made = lowered.made

    def sizes(name: str) -> tuple[tuple[int | None, ...], bool]:
        known = made.get(name)
        return (known.bytes, known.single) if known else ((), True)

    return read(
        lowered.code, sizes, lambda name: made[name].reads if name in made else frozenset(), given,
        lambda name, target: scratch.of(made[name].node, target, made[name].inputs) if name in made else 0,
        lambda name: made[name].changes if name in made else frozenset(),
    )  # fmt: skip


def _storage_bytes(program: Program, storage: int) -> int:
    return max(b.bytes for b in program.buffers if b.storage == storage)


def _values(module: torch.fx.GraphModule) -> list[Any]:
    return [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]


def _outputs(module: torch.fx.GraphModule) -> list[Any]:
    return list(next(iter(module.graph.find_nodes(op="output"))).args[0])


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _restrided(values: list[Any], strides: list[tuple[int, ...] | None]) -> list[Any]:
    """Backward gets what forward really hands over: Inductor may choose other strides than the graph says."""
    found = list(values)
    for i, stride in enumerate(strides):
        value = values[i]
        if isinstance(value, torch.Tensor) and stride is not None and tuple(value.stride()) != stride:
            found[i] = value.as_strided(value.size(), stride)
    return found


def _donated(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, user_outputs: int) -> list[int]:
    """Positions of saved tensors that alias neither inputs nor what anybody is handed: backward may write over them."""

    def storages(nodes: list[Any]) -> set[int]:
        values = (n.meta.get("val") for n in nodes if _is_node(n))
        return {v.untyped_storage()._cdata for v in values if isinstance(v, torch.Tensor) and v.layout == torch.strided}

    outputs = _outputs(forward)
    others = storages(
        [*forward.graph.find_nodes(op="placeholder"), *outputs[:user_outputs], *_outputs(backward)]
    )  # fmt: skip
    found = []
    for i, node in enumerate(outputs[user_outputs:]):
        mine = storages([node])
        if mine and not mine & others:
            found.append(i)
    return found


__all__ = ["Trial", "each_program", "run"]
