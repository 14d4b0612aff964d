"""Running a step eagerly while the hook records it."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stowage import _runtime
from stowage._core import buffer_digest
from stowage._torch import optimizer_steps
from stowage._torch.private import (
    address,
    addresses,
    generated_code,
    is_fake,
    storage_address,
    within_autocast,
    within_function_mode,
)
from stowage.errors import BEFORE, PACKAGE_FOLDER, Unsupported, say
from stowage.step import compiled_regions
from stowage.step.guards.blind import ORDERS_WORK
from stowage.step.host_reads import PAST_THE_DISPATCHER, HostReads
from stowage.step.places import Held, Place, is_plain, lasting_places
from stowage.step.results import find_places, take_outputs
from stowage.step.shared_memory import shared_memory
from stowage.step.signature import Passing, Value, held, metadata, parts, settings
from stowage.step.state import Holders
from stowage.step.world import World

# Lines of theirs are no help in a message.
LIBRARY_FOLDERS = [os.path.dirname(torch.__file__) + os.sep, PACKAGE_FOLDER, os.path.dirname(os.__file__) + os.sep]


@dataclass
class OptimizerEvent:
    """One call of optimizer.step(). ``gradients``: parameter -> slot of the .grad it saw, for those that the step
    makes. ``moved``: parameters that the step itself made out of the model's, and their slots."""

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

    given: those that the step works with as it finds them (adds to, scales, reads); they come with each call like
    arguments. absent: None when the step began: it makes one, and may let go of it, or no other call may find one, as
    an optimizer would use it. cleared: set to None, or replaced, by the step without a look at it.
    returned: the step leaves one that it has made; ``slots``: its position among all that the step returns.
    gone: None when the step ends, a tensor when it began. lasting: the .grad lies in memory that the step also reaches
    otherwise, such as one flat buffer for all gradients: that tensor is needed.
    """

    given: list[tuple[torch.Tensor, tuple]] = field(default_factory=list)  # and what the .grad looked like
    absent: list[torch.Tensor] = field(default_factory=list)
    cleared: list[torch.Tensor] = field(default_factory=list)
    returned: list[torch.Tensor] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    gone: list[torch.Tensor] = field(default_factory=list)
    lasting: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # and its .grad
    # Whose .grad come after the arguments; None: any tensor will do
    inputs: list[torch.Tensor | None] = field(default_factory=list)


@dataclass
class Recording:
    """A recorded step. ``tape`` is None while ``refusal`` says why not; ``unsettled``: recording again may help;
    ``beginning``: it surely will, as state came into being that stays.
    """

    result: Any
    world: World
    tape: Any = None
    refusal: str = ""
    unsettled: bool = False
    beginning: bool = False
    inputs: list[torch.Tensor] = field(default_factory=list)  # arguments; let go of when the recording is done
    events: list = field(default_factory=list)
    finds: str = ""  # a name under which each call finds another tensor
    writes: frozenset[str] = frozenset()  # names of World.tensors whose content the step has changed
    output_leaves: list = field(default_factory=list)  # None for tensors, but those that are lasting objects
    # Which leaves are tensors of the arguments, and which
    output_arguments: dict[int, int] = field(default_factory=dict)
    output_slots: list[int] = field(default_factory=list)  # per leaf: position among the returned tensors, or -1
    # Of the returned tensors
    output_forms: list[tuple[torch.dtype, torch.device]] = field(default_factory=list)
    output_spec: Any = None
    # By position among the returned tensors: the node of autograd's that they end, whose graph is used up
    output_graphs: dict[int, str] = field(default_factory=dict)
    gradients: Gradients = field(default_factory=lambda: Gradients())
    keeps: str = ""  # a tensor that it makes, and keeps beyond its end: its Python must run in every call
    replaced: list[Place] = field(default_factory=list)  # whose tensors come after the arguments, as inputs
    returns: str = ""  # it returns something that only its Python can make: that must run in every call
    calls_closure: bool = False  # an optimizer's step does
    sets: str = ""  # something that no replay sets: its Python must run in every call
    changes: str = ""  # something that the step reads, and changes: its Python must run in every call
    nodes: Any = None  # autograd nodes of what the step finds (NodeHooks), and the hooks that were on them before it
    node_hooks: list[int] = field(default_factory=list)
    arrays: list = field(default_factory=list)  # of Python's, over memory that kernels read: neither may write there
    over_arrays: bool = False  # kernels read the memory of arrays among the arguments, which come anew with each call
    makes_generators: bool = False  # it draws from random generators that it makes, or comes by, or sets them
    remembers: str = ""  # what PyTorch keeps from one call for the next: its Python must run in every call


class _Session:
    """One recorded call: hooks on optimizers and schedulers, and the order in which they ran."""

    def __init__(self, recorder, world: World):
        self._thread = threading.get_ident()  # the hooks on optimizers hear those of other threads, too
        self.recorder = recorder
        self.world = world
        self.events: list = []
        self.hyperparameters = {id(o): _hyperparameters(o) for o in world.optimizers}
        self.takes_number = False  # a scheduler: it may depend on data
        self.calls_closure = False  # an optimizer
        self._closure = False  # the one that is at work
        self._optimizer_depth = 0
        self._scheduler_depth = 0
        self._watches = False

    def before_optimizer(self, optimizer, args, kwargs):
        if threading.get_ident() != self._thread or not self._watches:
            return
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:  # a subclass that calls its parent's step()
            return
        self._closure = any(v is not None and v is not optimizer for v in (*args, *kwargs.values()))
        if self._closure and self.world.distributed:
            self.recorder.refuse("optimizer.step() with a closure")
        if id(optimizer) not in self.hyperparameters:  # found late, by the walk or by its step
            if not any(optimizer is known for known in self.world.optimizers):
                self.world.optimizers.append(optimizer)
            self.hyperparameters[id(optimizer)] = _hyperparameters(optimizer)
            declare_optimizer(self.recorder, optimizer)
        if self._closure:  # forward and backward are in it: it is no part of its own
            self.calls_closure = True
            return
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
        if threading.get_ident() != self._thread or not self._watches:
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth == 0 and not self._closure:
            self.world.resume()
            self.recorder.end_section()
            self.world.leave_optimizer(optimizer)

    def watch(self) -> None:
        self._watches = True
        optimizer_steps.listen(self, self.before_optimizer, self.after_optimizer)
        for scheduler in self.world.schedulers:
            scheduler.__dict__["step"] = self._watched(scheduler, scheduler.step)

    def unwatch(self) -> None:
        """However far watch() has come."""
        self._watches = False
        optimizer_steps.forget(self)
        for scheduler in self.world.schedulers:
            scheduler.__dict__.pop("step", None)

    def _takes_number(self) -> None:
        self.takes_number = True
        if self.world.distributed:
            self.recorder.refuse("scheduler.step() with a number that may depend on data")

    def _watched(self, scheduler, step):
        def watched_step(*args, **kwargs):
            if self._scheduler_depth == 0:
                if not all(isinstance(v, (int, type(None))) for v in (*args, *kwargs.values())):
                    self._takes_number()
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
    for i, (_parameter, state) in enumerate(optimizer.state.items()):
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                recorder.declare(address(value), "optimizer_state", f"state.{i}.{key}")
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                recorder.declare(address(value), "optimizer_state", f"group.{i}.{key}")


def declare_world(recorder, world: World, inputs: list[torch.Tensor], earlier: Sequence[Any]) -> None:
    for kind, name, tensor in world.owned():
        recorder.declare(address(tensor), kind, name)
    where = parts(inputs)
    # Those that parts begin with are declared before others
    for i in sorted(range(len(inputs)), key=lambda i: where[i].first != i):
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
    world.know_generators(lambda generator: recorder.know_generator(generator, earlier))


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
    return [
        {k: v for k, v in g.items() if k != "params" and not isinstance(v, torch.Tensor)}
        for g in optimizer.param_groups
    ]


def record(
    fn,
    args: tuple,
    kwargs: dict,
    inputs: list[torch.Tensor],
    *,
    fake: bool = False,
    absent_grads: frozenset[int] = frozenset(),
    world: World | None = None,
    within: contextlib.AbstractContextManager | None = None,
    replaced: Sequence[Place] = (),
    anew: frozenset[str] = frozenset(),
    earlier: Sequence[Any] = (),
    regions: compiled_regions.Regions | None = None,
    objects: Sequence[Any] = (),
    passing: Passing | None = None,
) -> Recording:
    """Runs ``fn(*args, **kwargs)`` eagerly, once, and records it. Exceptions of the step pass through; nothing is kept
    then.

    inputs: the tensors among the arguments, in the order in which replays will pass them.
    absent_grads: of a sharded step, ids of parameters whose .grad is None only because a planned step has just dropped
    it. world: what the function sees, when that is more than can be found from ``fn``.
    within: the block that it runs in; an eager budget is entered nowhere else.
    replaced: what an earlier recording has found (Recording.replaced).
    anew: names of World.tensors under which calls find other tensors.
    earlier: tapes of the same step. regions: what is known of it; what is found is put there.
    objects: among the arguments, that ``world`` has been given. passing: what comes anew with this call.
    """
    if _runtime.budget_active() and not fake:
        raise Unsupported("a step cannot be recorded inside a stowage.budget block: tensors move while it runs")
    world = world or World(fn)
    hidden = LIBRARY_FOLDERS + generated_code()
    recorder = _runtime.Recorder(fake, hidden, world.distributed)
    try:
        return _record(
            recorder,
            fn,
            args,
            kwargs,
            inputs,
            world,
            absent_grads,
            within,
            list(replaced),
            anew,
            earlier,
            regions or compiled_regions.Regions(),
            objects,
            passing or Passing(),
        )
    finally:
        recorder.close()
        if world.notes is not None:
            world.notes.stop()


class _Undo:
    """Takes back a call that was interrupted, or in which a kernel has raised. What the user's Python raises is part of
    the step: what it did before stays."""

    def __init__(self, recorder, world: World, inputs: Sequence[torch.Tensor]):
        self.error: BaseException | None = None
        self.thread = _runtime.ThreadState()
        self._recorder = recorder
        self._holders = Holders.of(world, inputs)

    def now(self) -> None:
        by_python = isinstance(self.error, Exception) and not self._recorder.kernel_raised
        if by_python or not self._recorder.take_back():
            return
        self._holders.put_back()
        say(self.error, BEFORE)


def _watched(
    recorder,
    session: _Session,
    reads: HostReads,
    call: Callable[[], Any],
    within: contextlib.AbstractContextManager | None,
    regions: compiled_regions.Regions,
) -> Any:
    """call(), while all that it does is noted. What ends the noting is C in its first act: no interrupt comes before
    that."""

    def noted() -> Any:
        recorder.start()
        with session.world.noting():
            return call()

    def compiled() -> Any:
        recorder.start()
        return call()

    try:
        session.watch()
        with within or contextlib.nullcontext():
            if session.world.compiled is not None:  # whose guards would see a mode, and what is noted
                if past := PAST_THE_DISPATCHER & session.world.take_for_run():
                    recorder.refuse(
                        f"the step may read tensors past the dispatcher ({min(past)}), which cannot be told beside what "
                        "torch.compile has compiled"
                    )
                with compiled_regions.seen(recorder.refuse):
                    return compiled()
            with compiled_regions.looked_for(recorder.refuse, regions, reads):
                return within_function_mode(reads, noted)
    finally:
        recorder.stop()
        if session.world.notes is not None:
            session.world.notes.stop()


def _record(
    recorder,
    fn,
    args: tuple,
    kwargs: dict,
    inputs: list[torch.Tensor],
    world: World,
    absent_grads: frozenset[int],
    within: contextlib.AbstractContextManager | None,
    replaced: list[Place],
    anew: frozenset[str],
    earlier: Sequence[Any],
    regions: compiled_regions.Regions,
    objects: Sequence[Any],
    passing: Passing,
) -> Recording:
    replaced = [place for place in replaced if place.holds_plain()]  # one may have been emptied since
    arguments, inputs = inputs, [*inputs, *(t for place in replaced if (t := place.get()) is not None)]
    declare_world(recorder, world, inputs, earlier)
    given = _declare_gradients(recorder, world, inputs)
    grads = [p.grad for p in given if p.grad is not None]
    places = (
        []
        if world.distributed or any(is_fake(p) for p in world.parameters()[:1])
        else [(place, storage_address(place.get())) for place in lasting_places(world)]
    )
    state = [
        (o, {id(p): set(values) for p, values in o.state.items() if isinstance(values, dict)}) for o in world.optimizers
    ]
    if world.compiled is not None and (world.distributed or any(is_fake(t) for t in inputs)):
        recorder.refuse(f"'{world.compiled}' is torch.compile'd: compiled kernels bypass the dispatcher")
    if shared := _argument_that_is_also_reachable(world, arguments):
        recorder.refuse(f"an argument shares its memory with '{shared}', which the function also reaches by itself")
    if (world.distributed and any(t.requires_grad for t in arguments)) or any(
        t.requires_grad for t in inputs[len(arguments) :]
    ):
        recorder.refuse("an argument requires grad")
    if any(t.requires_grad and not t.is_leaf for t in arguments):
        recorder.refuse("an argument is part of a graph that was made outside of the step; pass it detached")
    before = [(p, p.grad) for p in world.model_parameters()]
    arrays = [(array, buffer_digest(array)) for array in passing.arrays]
    held_before, storages = held(args, kwargs, passing), [storage_address(t) for t in arguments]
    set_before = Value(settings())
    nodes = _runtime.NodeHooks(addresses([*world.parameters(), *(t for _, t in world.tensors)]))
    node_hooks = nodes.now()
    session = _Session(recorder, world)
    whole = not world.distributed and not any(is_fake(t) for t in inputs)
    host_reads = HostReads(recorder, whole, arguments)
    undo = _Undo(recorder, world, inputs)
    versions = [(name, t, t._version) for name, t in world.tensors if whole and not t.is_inference()]
    try:
        result = _watched(recorder, session, host_reads, lambda: fn(*args, **kwargs), within, regions)
    except BaseException as error:  # as in Replay.transaction()
        undo.error = error
        _runtime.uninterrupted(undo.now, error, undo.thread)
        raise
    finally:
        _runtime.uninterrupted(session.unwatch)
    host_reads.finish()
    recording = Recording(result, world, events=session.events, inputs=inputs, nodes=nodes, node_hooks=node_hooks)
    recording.writes = frozenset(name for name, t, version in versions if t._version != version)
    recording.remembers = host_reads.asked
    if other := [place.name for place in replaced if isinstance(place, Held)]:
        recording.remembers = recording.remembers or f"calls find other tensors in {other[0]}"
    if any(t.requires_grad for t in arguments):
        recording.remembers = recording.remembers or "an argument requires grad: its gradient and hooks are Python's"
    if within_autocast() and torch.is_autocast_cache_enabled():
        recording.remembers = "an autocast block around the step keeps what is cast in it; open it in the step"
    if world.compiled is not None:
        recording.remembers = f"torch.compile's guards decide what '{world.compiled}' runs"
    known = [o for o in world.optimizers if id(o) in session.hyperparameters]
    changed = any(_hyperparameters(o) != session.hyperparameters[id(o)] for o in known)
    if changed and not any(isinstance(e, SchedulerEvent) for e in session.events):
        recording.sets = "the optimizer's hyperparameters"
    recording.calls_closure = session.calls_closure
    if session.calls_closure:
        recording.remembers = recording.remembers or "an optimizer's step() calls a closure"
    if session.takes_number:
        recording.sets = "a scheduler's metric"
    given_arrays = [("argument", array, buffer_digest(array) != was) for array, was in arrays]
    if held(args, kwargs, passing) != held_before:
        recording.sets = "what its arguments hold"
    if passing.iterator:
        recording.remembers = recording.remembers or f"a {passing.iterator} is passed: where it stands cannot be seen"
    if Value(settings()) != set_before:
        recording.sets = "one of PyTorch's global settings"
    if storages != [storage_address(t) for t in arguments]:
        recorder.refuse("the step sets the .data of an argument")
    if recording.sets and world.distributed:
        recorder.refuse(f"the step changes {recording.sets} by itself")
    leaves = take_outputs(recording, recorder, args, kwargs)
    _sort_gradients(recording, recorder, before, given, absent_grads)
    returned = [*leaves, *(p.grad for p in recording.gradients.returned if p.grad is not None)]
    find_places(recording, recorder, returned, arguments)
    if not recorder.refusal:
        _look_for_survivors(recording, recorder, returned, state)
    _look_for_new_tensors(recording, places, replaced)
    if ordering := [reason for reason in world.guard.blind if reason.startswith(ORDERS_WORK)]:
        recorder.refuse(f"the step {ordering[0]}")
    tape = recorder.finish(
        addresses(returned),
        keep=bool(recording.keeps),
        replaced=addresses(_found_anew(recording, fn, objects, anew)),
        earlier=earlier,
    )
    recording.makes_generators = tape.makes_generators
    if tape.finds and not recording.finds:
        recording.finds = "what it takes from somewhere"
    if regions.inside and world.compiled is None:
        recording.unsettled = recording.beginning = True
    if tape.refusal and not recording.refusal:
        recording.refusal = tape.refusal
    if not recording.refusal and not world.distributed and not any(is_fake(t) for t in world.parameters()[:1]):
        found = [*recording.inputs, *grads]
        recording.refusal, recording.arrays = shared_memory(tape, found, world.arrays)
        if not recording.refusal:
            recording.refusal, over = shared_memory(tape, found, given_arrays)
            recording.over_arrays = bool(over) or (tape.finds and bool(given_arrays))
            if recording.over_arrays:
                recording.remembers = recording.remembers or "a tensor lies over an array among its arguments"
    recording.inputs = []
    if not recording.refusal:
        recording.tape = tape
        recording.output_forms = [(t.dtype, t.device) for t in returned]
    return recording


def _look_for_new_tensors(recording: Recording, before: list[tuple[Place, int]], known: list[Place]) -> None:
    """What the step puts in the place of a lasting tensor comes anew with each call, like an argument."""
    recording.replaced = list(known)
    if recording.world.distributed or recording.refusal:
        return
    new = [
        place
        for place, storage in before
        if place.holds_plain() and storage_address(place.get()) != storage and place not in known
    ]
    if new:
        recording.replaced += new
        recording.refusal = f"the step puts another tensor in the place of {new[0].name}"
        recording.unsettled = recording.beginning = True


def _found_anew(recording: Recording, fn, given: Sequence[Any], anew: frozenset[str]) -> list[torch.Tensor]:
    """Tensors that the step has found, where the next call will find others: it has put some there, or ``anew`` names
    the place."""
    world = recording.world
    if world.distributed or not world.tensors or not (recording.keeps or anew):
        return []
    there = (
        {id(tensor) for _, tensor in World(fn, given).tensors}
        if recording.keeps
        else {id(tensor) for _, tensor in world.tensors}
    )
    found = [
        (name, tensor)
        for name, tensor in world.tensors
        if (id(tensor) not in there or name in anew) and is_plain(tensor)
    ]
    recording.finds = next((name for name, _ in found if name in anew), "")
    return [tensor for _, tensor in found]


def _declare_gradients(recorder, world: World, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that have a .grad: it comes after the arguments, as an input."""
    if world.distributed:
        return []
    given = [(p, p.grad) for p in world.model_parameters() if p.grad is not None]
    for i, (_, grad) in enumerate(given, start=len(inputs)):
        recorder.declare_input(address(grad), "gradient", f"grad_{i - len(inputs)}", i, *_span(grad))
    return [p for p, _ in given]


def _span(t: torch.Tensor) -> tuple[int, int]:
    part = parts([t])[0] if t.layout == torch.strided else None
    return (part.start_bytes, part.end_bytes) if part is not None else (0, 0)


def _sort_gradients(
    recording: Recording, recorder, before: list[tuple], given: list[torch.Tensor], absent_grads: frozenset[int]
) -> None:
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
        elif grad is None:
            found.absent.append(p)
        else:
            if recorder.lasts(address(grad)) and recorder.touches(address(grad)):
                found.lasting.append((p, grad))
            if p.grad is not grad:
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
