"""Running a step eagerly while the hook records it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stowage import _runtime, compiled_regions
from stowage._core import buffer_digest
from stowage._torch.fakes import is_fake
from stowage._torch.function_modes import within_function_mode
from stowage._torch.own_operators import declares_form
from stowage._torch.private import address, addresses, generated_code, is_leaf, local_tensor, storage_address
from stowage._torch.settings import within_autocast
from stowage._torch.subclasses import heard
from stowage.errors import BEFORE, PACKAGE_FOLDER, Unsupported, say
from stowage.step.guards.blind import NEVER_PLANNED
from stowage.step.reach.places import Held, Place, is_plain, lasting_places
from stowage.step.reach.state import Holders
from stowage.step.reach.world import World
from stowage.step.record.declared import declare_world, found_arguments, lasting_argument, leave_out_gradients
from stowage.step.record.gradients import Gradients, declare_gradients, sort_gradients
from stowage.step.record.host_reads import PAST_THE_DISPATCHER, HostReads
from stowage.step.record.other_threads import WRITTEN_MEANWHILE, Listener
from stowage.step.record.results import find_places, take_numbers, take_outputs
from stowage.step.record.returned_numbers import returned_numbers
from stowage.step.record.session import Session
from stowage.step.record.shared_memory import shared_memory
from stowage.step.signature.key_values import Value
from stowage.step.signature.passing import Passing
from stowage.step.signature.signature import held, settings

# Lines of theirs are no help in a message.
LIBRARY_FOLDERS = [os.path.dirname(torch.__file__) + os.sep, PACKAGE_FOLDER, os.path.dirname(os.__file__) + os.sep]


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
    # Which are the .grad that a parameter had when the call began
    output_gradients: dict[int, torch.nn.Parameter] = field(default_factory=dict)
    output_slots: list[int] = field(default_factory=list)  # per leaf: position among the returned tensors, or -1
    # Of the returned tensors
    output_forms: list[tuple[torch.dtype, torch.device]] = field(default_factory=list)
    # Which are numbers that the step makes, and of which its Python makes nothing else: the op of the tape, and their class
    output_numbers: dict[int, tuple[int, type]] = field(default_factory=dict)
    reads: bool = False  # its Python asks for other numbers that it makes
    asks_itself: bool = False  # for one of those in the step's own code
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
    catches_values: bool = True  # its Python may catch what a kernel raises because of what tensors hold
    catches_unforeseen: bool = True  # also where no index is refused among the arguments
    index_ranges: Any = None  # which says that
    met: Sequence[int] = ()  # identities of what its arguments hold (Passing.met)
    calls: Any = None  # where in the step's own code its ops were called from (CallsOfStep)
    also_finds: str = ""  # an argument, under this name
    remembers: str = ""  # what PyTorch keeps from one call for the next: its Python must run in every call


def record(
    fn,
    args: tuple,
    kwargs: dict,
    inputs: list[torch.Tensor],
    *,
    fake: bool = False,
    world: World | None = None,
    within: contextlib.AbstractContextManager | None = None,
    replaced: Sequence[Place] = (),
    anew: frozenset[str] = frozenset(),
    earlier: Sequence[Any] = (),
    keeps: bool | None = None,
    regions: compiled_regions.Regions | None = None,
    objects: Sequence[Any] = (),
    passing: Passing | None = None,
    step: Callable | None = None,
) -> Recording:
    """Runs ``fn(*args, **kwargs)`` eagerly, once, and records it. Exceptions of the step pass through; nothing is kept
    then.

    inputs: the tensors among the arguments, in the order in which replays will pass them.
    world: what the function sees, when that is more than can be found from ``fn``.
    within: the block that it runs in; an eager budget is entered nowhere else.
    replaced: what an earlier recording has found (Recording.replaced).
    anew: names of World.tensors under which calls find other tensors.
    earlier: tapes of the same step. keeps: does it keep tensors beyond its end, as far as is known?
    regions: what is known of it; what is found is put there.
    objects: among the arguments, that ``world`` has been given. passing: what comes anew with this call.
    step: the user's function, where ``fn`` is another, which calls it by heard().
    """
    if _runtime.budget_active() and not fake:
        raise Unsupported("a step cannot be recorded inside a stowage.budget block: tensors move while it runs")
    world = world or World(fn)
    hidden = LIBRARY_FOLDERS + generated_code()
    around: list[set[types.CodeType | None]] = []
    recorder = _runtime.Recorder(fake, hidden, world.distributed, around, _watched.__code__, declares_form)
    recording: Recording | None = None
    try:
        recording = _record(
            recorder,
            fn,
            args,
            kwargs,
            inputs,
            world,
            within,
            list(replaced),
            anew,
            earlier,
            keeps,
            regions or compiled_regions.Regions(),
            objects,
            passing or Passing(),
            step or fn,
        )
        if recording.tape is not None:
            recording.index_ranges = _runtime.IndexRanges(recording.tape)
            foreseen = set(recording.index_ranges.foreseen())
            unforeseen = (codes for i, codes in enumerate(around) if i not in foreseen)
            recording.catches_values = world.catches_from(itertools.chain(*around))
            recording.catches_unforeseen = world.catches_from(itertools.chain(*unforeseen))
        return recording
    finally:
        recorder.close()
        if world.notes is not None:
            world.notes.stop()
        if recording is None or recording.tape is None:
            world.drop()


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
    session: Session,
    reads: HostReads,
    call: Callable[[], Any],
    within: contextlib.AbstractContextManager | None,
    regions: compiled_regions.Regions,
) -> Any:
    """call(), while all that it does is noted. What ends the noting is C in its first act: no interrupt comes before
    that."""

    def noted() -> Any:
        recorder.start()
        with session.world.noting(
            lambda: -1 if _runtime.inside_operator() else recorder.ops, compiled_regions.in_use()
        ):
            return call()

    def compiled() -> Any:
        recorder.start()
        return call()

    def tell(reason: str) -> None:
        if reason:
            recorder.refuse(f"the step {reason}")
        session.world.tell("uses other threads")

    def made(tensor: torch.Tensor) -> bool:
        return recorder.made_in_step(address(tensor)) or recorder.writes(address(tensor))

    listener = Listener(tell, made, lambda t: recorder.touches(address(t)), lambda: recorder.ops)
    try:
        session.watch()
        listener.hears()
        with within or contextlib.nullcontext():
            if session.world.compiled is not None:  # whose guards would see a mode, and what is noted
                if past := PAST_THE_DISPATCHER & session.world.take_for_run():
                    recorder.refuse(
                        f"the step may read tensors past the dispatcher ({min(past)}), which cannot be told beside what "
                        "torch.compile has compiled"
                    )
                with compiled_regions.seen(recorder.refuse, regions):
                    result = compiled()
            else:
                with compiled_regions.looked_for(recorder.refuse, regions, reads):
                    result = within_function_mode(reads, noted)
            if listener.has_written():
                recorder.refuse(WRITTEN_MEANWHILE)
            return result
    finally:
        recorder.stop()
        listener.ends()
        if session.world.notes is not None:
            session.world.notes.stop()


def _record(
    recorder,
    fn,
    args: tuple,
    kwargs: dict,
    inputs: list[torch.Tensor],
    world: World,
    within: contextlib.AbstractContextManager | None,
    replaced: list[Place],
    anew: frozenset[str],
    earlier: Sequence[Any],
    keeps: bool | None,
    regions: compiled_regions.Regions,
    objects: Sequence[Any],
    passing: Passing,
    step: Callable,
) -> Recording:
    met = tuple(passing.met)
    replaced = [place for place in replaced if place.holds_plain()]  # one may have been emptied since
    arguments, inputs = inputs, [*inputs, *(t for place in replaced if (t := place.get()) is not None)]
    also_found = found_arguments(world, arguments)
    if not world.distributed:
        leave_out_gradients(world)
    declare_world(recorder, world, inputs, earlier)
    given = declare_gradients(recorder, world, inputs)
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
    if shared := lasting_argument(world, arguments):
        recorder.refuse(f"an argument shares its memory with '{shared}', which the function also reaches by itself")
    with_graphs = [t for t in inputs[len(arguments) :] if t.requires_grad]
    if world.distributed and any(t.requires_grad for t in [*arguments, *with_graphs]):
        recorder.refuse("an argument requires grad")
    if any(t.is_leaf for t in with_graphs):
        recorder.refuse("the step puts another tensor in the place of one that requires grad")
    if any(t.requires_grad and not t.is_leaf for t in arguments):
        recorder.refuse("an argument is part of a graph that was made outside of the step; pass it detached")
    before = [(p, p.grad) for p in world.model_parameters()]
    of_leaves = _gradients_of_leaves(world)
    arrays = [(array, buffer_digest(array)) for array in passing.arrays]
    held_before, storages = held(args, kwargs, passing), [storage_address(t) for t in arguments]
    set_before = Value(settings())
    nodes = _runtime.NodeHooks(addresses([*world.parameters(), *(t for _, t in world.tensors)]))
    node_hooks = nodes.now()
    fakes = any(is_fake(t) for t in inputs)
    host_reads = HostReads(recorder, not fakes, step, arguments, () if fakes else world.deaf)
    session = Session(recorder, world, host_reads.calls, [p for p, grad in before if grad is not None])
    undo = _Undo(recorder, world, inputs)
    whole = not world.distributed and not fakes
    versions = [(name, t, t._version) for name, t in world.tensors if whole and not t.is_inference()]
    try:
        result = _watched(recorder, session, host_reads, lambda: heard(fn, args, kwargs), within, regions)
    except BaseException as error:  # as in Replay.transaction()
        undo.error = error
        _runtime.uninterrupted(undo.now, error, undo.thread)
        raise
    finally:
        undo.error = None  # whose traceback holds it
        _runtime.uninterrupted(session.unwatch)
    host_reads.finish()
    recording = Recording(result, world, events=session.events, inputs=inputs, nodes=nodes, node_hooks=node_hooks)
    recording.writes = frozenset(name for name, t, version in versions if t._version != version)
    recording.remembers = host_reads.asked
    recording.met = met
    recording.calls = host_reads.calls
    if other := [place.name for place in replaced if isinstance(place, Held)]:
        recording.remembers = recording.remembers or f"calls find other tensors in {other[0]}"
    if any(t.requires_grad for t in arguments):
        recording.remembers = recording.remembers or "an argument requires grad: its gradient and hooks are Python's"
    if with_graphs:
        recording.remembers = recording.remembers or "it finds a tensor with an autograd graph, and keeps another one"
    if within_autocast() and torch.is_autocast_cache_enabled():
        recording.remembers = "an autocast block around the step keeps what is cast in it; open it in the step"
    if world.compiled is not None:
        recording.remembers = f"torch.compile's guards decide what '{world.compiled}' runs"
    if session.sets_hyperparameters():
        recording.sets = "the optimizer's hyperparameters"
    recording.calls_closure = session.calls_closure
    if session.calls_closure:
        recording.remembers = recording.remembers or "an optimizer's step() calls a closure"
    if session.operates:  # in planned calls it would run beside the plan, which has them, too
        recording.remembers = recording.remembers or "a scheduler's step runs operators"
    if session.takes_number:
        recording.sets = "a scheduler's metric"
    given_arrays = [("argument", array, buffer_digest(array) != was) for array, was in arrays]
    if held(args, kwargs, passing) != held_before:
        recording.sets = "what its arguments hold"
    if passing.unseen:
        recording.remembers = recording.remembers or passing.unseen
    if Value(settings()) != set_before:
        recording.sets = "one of PyTorch's global settings"
    if storages != [storage_address(t) for t in arguments]:
        recorder.refuse("the step sets the .data of an argument")
    leaves = take_outputs(recording, args, kwargs)
    recording.gradients = sort_gradients(recorder, world, len(inputs), before, given)
    returned = [*leaves, *(p.grad for p in recording.gradients.returned if p.grad is not None)]
    find_places(recording, recorder, returned, arguments)
    if not recorder.refusal:
        _look_for_survivors(recording, recorder, returned, state, keeps)
        _judge_found_arguments(recording, recorder, [*also_found, *found_arguments(world, arguments)], arguments)
    _look_for_new_tensors(recording, places, replaced)
    if never := [reason for reason in world.guard.blind if reason.startswith(NEVER_PLANNED)]:
        recorder.refuse(f"the step {never[0]}")
    of_leaves = [(t, grad) for t, grad in of_leaves if recorder.touches(address(grad))]
    numbers = returned_numbers(host_reads.numbers, result)
    tape = recorder.finish(
        addresses(returned),
        keep=bool(recording.keeps),
        replaced=addresses(_found_anew(recording, fn, objects, anew)),
        dropped=recording.gradients.dropped,
        earlier=earlier,
        returned_numbers=list(numbers),
        until_next=[len(leaves) + i for i in recording.gradients.until_next],
    )
    if not tape.finds:  # else those that calls find anew come like arguments
        recording.gradients.lasting += of_leaves
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
    take_numbers(recording, tape.reads, numbers, (n.op for n in host_reads.numbers if n.own))
    if not recording.refusal:
        recording.tape = tape
        recording.output_forms = [(t.dtype, t.device) for t in returned]
    return recording


def _gradients_of_leaves(world: World) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of tensors that require grad, and are in no module and no optimizer: with their .grad, which the program may replace."""
    if world.distributed:
        return []
    leaves = {id(t): t for _, t in world.tensors if t.requires_grad and is_leaf(t)}
    for p in world.model_parameters():
        leaves.pop(id(p), None)
    return [(t, t.grad) for t in leaves.values() if t.grad is not None]


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


def _judge_found_arguments(
    recording: Recording, recorder, also_found: list[tuple[str, torch.Tensor]], arguments: list[torch.Tensor]
) -> None:
    """Where the step reads them under both names, its Python has to say in each call whether they are still one."""
    for path, tensor in also_found:
        if not recording.world.may_read(tensor):
            continue
        if recording.world.distributed or not any(tensor is argument for argument in arguments):
            recorder.refuse(f"an argument shares its memory with '{path}', which the function also reaches by itself")
        recording.also_finds = recording.also_finds or path


def _found_anew(recording: Recording, fn, given: Sequence[Any], anew: frozenset[str]) -> list[torch.Tensor]:
    """Tensors that the step has found, where the next call will find others: it has put some there, or ``anew`` names
    the place."""
    world = recording.world
    if not world.tensors or not (recording.keeps or anew):
        return []
    there = (
        {id(tensor) for _, tensor in World(fn, given).tensors} | (_ids(world.tensors) - world.tensors_before)
        if recording.keeps
        else _ids(world.tensors)
    )
    found = [
        (name, local_tensor(tensor))
        for name, tensor in world.tensors
        if (id(tensor) not in there or name in anew) and is_plain(local_tensor(tensor))
    ]
    recording.finds = next((name for name, _ in found if name in anew), "")
    return [tensor for _, tensor in found]


def _look_for_survivors(
    recording: Recording, recorder, returned: list[torch.Tensor], state: list[tuple], keeps: bool | None
) -> None:
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
    # What only cycles hold is nobody's. All objects of a large program take hundreds of milliseconds: once the step is
    # known, the youngest ones come first, those of this call; where it does keep tensors, no others
    for generation in (2,) if keeps is None else (0, 1) if keeps else (0, 1, 2):
        if not survivors:
            break
        gc.collect(generation)
        survivors = recorder.survivors(allowed)
    recording.keeps = survivors[0] if survivors else ""
    recording.changes = recording.world.settle()
    if not recording.world.reads_gradients:
        recording.gradients.present.clear()


def _ids(tensors: Sequence[tuple[str, torch.Tensor]]) -> set[int]:
    return {id(tensor) for _, tensor in tensors}
