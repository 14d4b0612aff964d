"""Running a step eagerly while the hook records it."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stowage import _runtime
from stowage.errors import Unsupported
from stowage.places import Entry, Memory, Place
from stowage.signature import metadata, parts
from stowage.torch_private import address, addresses, flatten, is_fake, local_tensor, storage_address
from stowage.world import World

# Lines of theirs are no help in a message.
LIBRARY_FOLDERS = [os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep]


@dataclass
class OptimizerEvent:
    """One call of optimizer.step(). ``gradients``: parameter -> slot of the .grad it saw, for those that the step makes.
    ``moved``: parameters that the step itself made out of the model's, and their slots."""

    optimizer: torch.optim.Optimizer
    section: int
    gradients: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    moved: list[tuple[torch.Tensor, int]] = field(default_factory=list)


@dataclass
class SchedulerEvent:
    """One call of scheduler.step()."""

    scheduler: Any
    args: tuple
    kwargs: dict


@dataclass
class Gradients:
    """What a step does with the .grad of its parameters. A parameter can be in several lists.

    given: those that the step works with as it finds them (adds to, scales, reads); they come with each call like arguments.
    absent: None when the step began, and it makes one.
    cleared: set to None, or replaced, by the step without a look at it.
    returned: the step leaves one that it has made.
    gone: None when the step ends, a tensor when it began.
    """

    given: list[tuple[torch.Tensor, tuple]] = field(default_factory=list)  # and what the .grad looked like
    absent: list[torch.Tensor] = field(default_factory=list)
    cleared: list[torch.Tensor] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)
    gone: list[torch.Tensor] = field(default_factory=list)
    inputs: list[torch.Tensor | None] = field(default_factory=list)  # whose .grad come after the arguments; None: any tensor will do


@dataclass
class Recording:
    """A recorded step. ``tape`` is None while ``refusal`` says why not; ``unsettled``: recording again may help; ``beginning``: it
    surely will, as state came into being that stays.
    """

    result: Any
    tape: Any = None
    refusal: str = ""
    unsettled: bool = False
    beginning: bool = False
    inputs: list[torch.Tensor] = field(default_factory=list)  # arguments; let go of when the recording is done
    world: World | None = None
    events: list = field(default_factory=list)
    output_leaves: list = field(default_factory=list)  # tensors replaced by None
    output_slots: list[int] = field(default_factory=list)  # per leaf: position among the returned tensors, or -1
    output_tensors: list[torch.Tensor] = field(default_factory=list)  # metadata only, after finish
    output_spec: Any = None
    gradients: Gradients = field(default_factory=lambda: Gradients())
    keeps: str = ""  # a tensor that it makes, and keeps beyond its end: its Python must run in every call
    replaced: list[Place] = field(default_factory=list)  # whose tensors come after the arguments, as inputs
    returns: str = ""  # it returns something that only its Python can make: that must run in every call
    sets: str = ""  # something that no replay sets: its Python must run in every call
    changes: str = ""  # something that the step reads, and changes: its Python must run in every call


class _HostReads(TorchFunctionMode):
    """Hears of what hands a tensor's data to the host without passing the dispatcher: to Python, or to a composite operator, which
    runs before any kernel and decides shapes by it."""

    _TO_PYTHON = ("numpy", "__array__", "__dlpack__")  # whoever has these may read, and write, at any time
    _READS = {
        "tolist": (0,),
        "tensor_split": (1, "tensor_indices_or_sections", "indices_or_sections"),
        "ctc_loss": (2, "input_lengths", 3, "target_lengths"),
        "_pack_padded_sequence": (1, "lengths"),
        "_pad_packed_sequence": (1, "batch_sizes"),
        **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (1, "batch_sizes")),
    }
    _PACKED = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # packed or not: told by what follows the tensor

    def __init__(self, recorder):
        self._recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in self._READS:
            self._note(name, args, kwargs or {})
        elif name in self._TO_PYTHON:
            self._recorder.refuse(f"Tensor.{name}() inside the step: numbers that depend on data")
        return func(*args, **(kwargs or {}))

    def _note(self, name: str, args: tuple, kwargs: dict) -> None:
        if name in self._PACKED and not (len(args) > 2 and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64):
            return
        for where in self._READS[name]:
            value = kwargs.get(where) if isinstance(where, str) else args[where] if where < len(args) else None
            if isinstance(value, torch.Tensor) and not is_fake(value):
                self._recorder.reads_on_host(address(value), "Tensor.tolist()" if name == "tolist" else f"{name}()")


class _Session:
    """One recorded call: hooks on optimizers and schedulers, and the order in which they ran."""

    def __init__(self, recorder, world: World):
        self._thread = threading.get_ident()  # the hooks on optimizers hear those of other threads, too
        self.recorder = recorder
        self.world = world
        self.events: list = []
        self.hyperparameters = {id(o): _hyperparameters(o) for o in world.optimizers}
        self._optimizer_depth = 0
        self._scheduler_depth = 0

    def before_optimizer(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread:
            return
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:  # a subclass that calls its parent's step()
            return
        if any(v is not None and v is not optimizer for v in (*args, *kwargs.values())):
            self.recorder.refuse("optimizer.step() with a closure")
        if id(optimizer) not in self.hyperparameters:  # found late, by the walk or by its step
            if not any(optimizer is known for known in self.world.optimizers):
                self.world.optimizers.append(optimizer)
            self.hyperparameters[id(optimizer)] = _hyperparameters(optimizer)
            declare_optimizer(self.recorder, optimizer)
        self.world.enter_optimizer(optimizer)
        self.recorder.begin_section(addresses(p.grad for p in self.world.parameters()))
        event = OptimizerEvent(optimizer, sum(isinstance(e, OptimizerEvent) for e in self.events))
        for p in self.world.parameters():
            if p.grad is not None and self.recorder.made_in_step(address(p.grad)):
                event.gradients.append((p, self.recorder.slot_of(address(p.grad))))
        event.moved = [(p, self.recorder.slot_of(address(p))) for p in self.world.moved_parameters(optimizer)]
        self.events.append(event)
        self.world.pause()

    def after_optimizer(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread:
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth == 0:
            self.world.resume()
            self.recorder.end_section()
            self.world.leave_optimizer(optimizer)

    @contextlib.contextmanager
    def watching(self):
        handles = [
            register_optimizer_step_pre_hook(self.before_optimizer),
            register_optimizer_step_post_hook(self.after_optimizer),
        ]
        for scheduler in self.world.schedulers:
            scheduler.step = self._watched(scheduler, scheduler.step)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for scheduler in self.world.schedulers:
                scheduler.__dict__.pop("step", None)

    def _watched(self, scheduler, step):
        def watched_step(*args, **kwargs):
            if self._scheduler_depth == 0:
                if not all(isinstance(v, (int, type(None))) for v in (*args, *kwargs.values())):
                    self.recorder.refuse("scheduler.step() with a number that may depend on data")
                self.events.append(SchedulerEvent(scheduler, args, kwargs))
            self._scheduler_depth += 1
            self.world.pause()
            try:
                return step(*args, **kwargs)
            finally:
                self.world.resume()
                self._scheduler_depth -= 1

        return watched_step


def declare_optimizer(recorder, optimizer) -> None:
    for i, (parameter, state) in enumerate(optimizer.state.items()):
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                recorder.declare(address(value), "optimizer_state", f"state.{i}.{key}")
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                recorder.declare(address(value), "optimizer_state", f"group.{i}.{key}")


def declare_world(recorder, world: World, inputs: list[torch.Tensor]) -> None:
    for kind, name, tensor in world.owned():
        recorder.declare(address(tensor), kind, name)
    where = parts(inputs)
    for i in sorted(range(len(inputs)), key=lambda i: where[i].first != i):  # those that parts begin with are declared before others
        recorder.declare_input(address(inputs[i]), "input", f"input_{i}", i, where[i].start_bytes, where[i].end_bytes)
    for path, module in world.modules:
        for name, parameter in module.named_parameters(prefix=path):
            recorder.declare(address(parameter), "parameter", name)
        for name, buffer in module.named_buffers(prefix=path):
            recorder.declare(address(buffer), "module_buffer", name)
    for optimizer in world.optimizers:
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                recorder.declare(address(parameter), "parameter", f"group.{g}.{i}")
        declare_optimizer(recorder, optimizer)
    for path, tensor in world.tensors:
        recorder.declare(address(tensor), "constant", path)


def _argument_that_is_also_reachable(world: World, inputs: list[torch.Tensor]) -> str:
    """Arguments are bound anew in every call, what the function reaches by itself is not: one tensor cannot be both."""
    storages = {storage_address(t) for t in inputs} - {0}
    for path, module in world.modules:
        for name, tensor in (*module.named_parameters(prefix=path), *module.named_buffers(prefix=path)):
            if storage_address(tensor) in storages:
                return name
    for path, tensor in world.tensors:
        if storage_address(tensor) in storages:
            return path
    return ""


def _hyperparameters(optimizer) -> list[dict]:
    return [{k: v for k, v in g.items() if k != "params" and not isinstance(v, torch.Tensor)} for g in optimizer.param_groups]


def record(
    fn, args: tuple, kwargs: dict, inputs: list[torch.Tensor], *, fake: bool = False, absent_grads: frozenset[int] = frozenset(),
    world: World | None = None, within: contextlib.AbstractContextManager | None = None, replaced: Sequence[Place] = (),
) -> Recording:
    """Runs ``fn(*args, **kwargs)`` eagerly, once, and records it. Exceptions of the step pass through; nothing is kept then.

    inputs: the tensors among the arguments, in the order in which replays will pass them.
    absent_grads: of a sharded step, ids of parameters whose .grad is None only because a planned step has just dropped it.
    world: what the function sees, when that is more than can be found from ``fn``.
    within: the block that it runs in; an eager budget is entered nowhere else.
    replaced: what an earlier recording has found (Recording.replaced).
    """
    if _runtime.budget_active() and not fake:
        raise Unsupported("a step cannot be recorded inside a stowage.budget block: tensors move while it runs")
    world = world or World(fn)
    recorder = _runtime.Recorder(fake, LIBRARY_FOLDERS, world.distributed)
    try:
        return _record(recorder, fn, args, kwargs, inputs, world, absent_grads, within, list(replaced))
    finally:
        recorder.close()


def _record(recorder, fn, args: tuple, kwargs: dict, inputs: list[torch.Tensor], world: World, absent_grads: frozenset[int],
            within: contextlib.AbstractContextManager | None, replaced: list[Place]) -> Recording:  # fmt: skip
    replaced = [place for place in replaced if place.holds_plain()]  # one may have been emptied since
    arguments, inputs = inputs, [*inputs, *(place.get() for place in replaced)]
    declare_world(recorder, world, inputs)
    given = _declare_gradients(recorder, world, inputs)
    places = [] if world.distributed or any(is_fake(p) for p in world.parameters()[:1]) else [(place, storage_address(place.get())) for place in _places(world)]
    state = [(o, {id(p): set(values) for p, values in o.state.items() if isinstance(values, dict)}) for o in world.optimizers]
    if world.compiled is not None:
        recorder.refuse(f"'{world.compiled}' is torch.compile'd: compiled kernels bypass the dispatcher")
    if shared := _argument_that_is_also_reachable(world, arguments):
        recorder.refuse(f"an argument shares its memory with '{shared}', which the function also reaches by itself")
    if any(t.requires_grad for t in inputs):
        recorder.refuse("an argument requires grad")
    before = [(p, p.grad) for p in world.model_parameters()]
    session = _Session(recorder, world)
    with session.watching(), within or contextlib.nullcontext(), _HostReads(recorder):
        recorder.start()
        try:
            with world.noting():
                result = fn(*args, **kwargs)
        finally:
            recorder.stop()
    recording = Recording(result, world=world, events=session.events, inputs=inputs)
    known = [o for o in world.optimizers if id(o) in session.hyperparameters]
    changed = any(_hyperparameters(o) != session.hyperparameters[id(o)] for o in known)
    if changed and not any(isinstance(e, SchedulerEvent) for e in session.events):
        recording.sets = "the optimizer's hyperparameters"
        if world.distributed:
            recorder.refuse(f"the step changes {recording.sets} by itself")
    _take_outputs(recording, recorder)
    _sort_gradients(recording, recorder, before, given, absent_grads)
    returned = [*recording.output_tensors, *(p.grad for p in recording.gradients.returned)]
    if not recorder.refusal:
        _look_for_survivors(recording, recorder, returned, state)
    _look_for_new_tensors(recording, places, replaced)
    tape = recorder.finish(addresses(returned), keep=bool(recording.keeps))
    recording.inputs = []
    if tape.refusal and not recording.refusal:
        recording.refusal = tape.refusal
    if not recording.refusal:
        recording.tape = tape
        recording.output_tensors = [torch.empty_like(local_tensor(t), device="meta") for t in returned]
    return recording


def _places(world: World) -> list[Place]:
    """Where lasting tensors of the step are."""
    found: list[Place] = []
    lasting = [(f"{path}.{name}", p) for path, module in world.modules for name, p in (*module.named_parameters(), *module.named_buffers())]
    lasting += [(f"a parameter of {type(o).__name__}", p) for o in world.optimizers for group in o.param_groups for p in group["params"]]
    for name, tensor in {id(t): (name, t) for name, t in reversed(lasting + world.tensors)}.values():
        found.append(Memory(name, tensor))
    for path, root in world.modules:
        for prefix, module in root.named_modules(prefix=path):
            found += [Entry(f"{prefix}.{name}", lambda module=module: module._buffers, name) for name, b in module._buffers.items() if b is not None]
    for optimizer in world.optimizers:
        for p, values in optimizer.state.items():
            for key, value in values.items() if isinstance(values, dict) else ():
                if isinstance(value, torch.Tensor):
                    found.append(Entry(f"the optimizer's state '{key}'", lambda o=optimizer, p=p: o.state.get(p, {}), key))
    return [place for place in found if place.holds_plain()]


def _look_for_new_tensors(recording: Recording, before: list[tuple[Place, int]], known: list[Place]) -> None:
    """What the step puts in the place of a lasting tensor comes anew with each call, like an argument."""
    recording.replaced = list(known)
    if recording.world.distributed or recording.refusal:
        return
    new = [place for place, storage in before if place.holds_plain() and storage_address(place.get()) != storage and place not in known]
    if new:
        recording.replaced += new
        recording.refusal = f"the step puts another tensor in the place of {new[0].name}"
        recording.unsettled = recording.beginning = True


def _take_outputs(recording: Recording, recorder) -> None:
    leaves, recording.output_spec = flatten(recording.result)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            recording.output_slots.append(len(recording.output_tensors))
            recording.output_tensors.append(leaf)
            recording.output_leaves.append(None)
            continue
        if not isinstance(leaf, (int, str, bytes, type(None))):
            recording.returns = f"a {type(leaf).__name__}"
            if recording.world.distributed:
                recorder.refuse(f"the step returns {recording.returns}; a replay would return that of the recorded step: return tensors")
        recording.output_slots.append(-1)
        recording.output_leaves.append(leaf)


def _declare_gradients(recorder, world: World, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that have a .grad: it comes after the arguments, as an input."""
    if world.distributed:
        return []
    given = [p for p in world.model_parameters() if p.grad is not None]
    for i, p in enumerate(given, start=len(inputs)):
        grad = p.grad
        recorder.declare_input(address(grad), "gradient", f"grad_{i - len(inputs)}", i, *_span(grad))
    return given


def _span(t: torch.Tensor) -> tuple[int, int]:
    part = parts([t])[0] if t.layout == torch.strided else None
    return (part.start_bytes, part.end_bytes) if part is not None else (0, 0)


def _sort_gradients(recording: Recording, recorder, before: list[tuple], given: list[torch.Tensor], absent_grads: set[int]) -> None:
    """What has become of each .grad; see Gradients."""
    found = recording.gradients
    if recording.world.distributed:  # DTensors: what the step throws away in its next call is not handed out
        for p, grad in before:
            had = grad is not None or id(p) in absent_grads
            if had and (p.grad is None or recorder.made_in_step(address(p.grad))):
                found.cleared.append(p)
            elif not had and p.grad is not None:
                found.returned.append(p)
        return
    touched = recorder.touched_inputs()
    used = {id(p): i in touched for i, p in enumerate(given, start=len(recording.inputs))}
    for p, grad in before:
        made = p.grad is not None and recorder.made_in_step(address(p.grad))
        if used.get(id(p)):
            found.given.append((p, metadata(grad)))
        elif grad is None and made:
            found.absent.append(p)
        elif grad is not None and p.grad is not grad:
            found.cleared.append(p)
        if made:
            found.returned.append(p)
        elif p.grad is None and grad is not None:
            found.gone.append(p)
        elif p.grad is not None and p.grad is not grad:
            recorder.refuse("the step sets a parameter's .grad to a tensor that it has not made")
    found.inputs = [p if used[id(p)] else None for p in given]


def _look_for_survivors(recording: Recording, recorder, returned: list[torch.Tensor], state: list[tuple]) -> None:
    """Tensors of the step that Python still holds, and values that the step has changed."""
    known = {id(o): keys for o, keys in state}
    for optimizer in recording.world.optimizers:
        for p, values in optimizer.state.items():
            for key, value in values.items() if isinstance(values, dict) else ():
                first = key not in known.get(id(optimizer), {}).get(id(p), ())
                if first and isinstance(value, torch.Tensor) and recorder.made_in_step(address(value)):
                    recording.refusal = f"the optimizer makes its state '{key}' in this call"
                    recording.unsettled = recording.beginning = True
                    return
    allowed = addresses([*returned, *(p.grad for p in recording.gradients.cleared if p.grad is not None)])
    survivors = recorder.survivors(allowed)
    if survivors:
        gc.collect()
        survivors = recorder.survivors(allowed)
    if survivors and recording.world.distributed:
        recording.refusal = f"{survivors[0]}: the step keeps this tensor beyond its end; return it instead"
        recording.unsettled = True
        return
    recording.keeps = survivors[0] if survivors else ""
    recording.changes = recording.world.settle()
