"""One recorded step, planned and executable: match the optimizer's Python against the tape, run the plan, hand out the
results."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from stowage import _core, _runtime, compiled_regions
from stowage._torch.private import address, addresses, flatten, is_shell, storage_address, unflatten
from stowage._torch.subclasses import heard, unheard
from stowage.errors import Error, InvalidGraph, InvalidPlan
from stowage.eviction.budget import OutOfMemory
from stowage.planning import Plan
from stowage.report.progress import shown
from stowage.step.reach.parts import metadata
from stowage.step.reach.python_of_kernels import PythonOfKernels, ToldKernels
from stowage.step.record.other_threads import WRITTEN_MEANWHILE, Listener
from stowage.step.record.recording import Recording
from stowage.step.record.session import OptimizerEvent
from stowage.step.record.told_contents import ToldContents
from stowage.step.replay.expected_numbers import ExpectedNumbers
from stowage.step.replay.rehearsal import Rehearsal
from stowage.step.replay.repetition import Repetition
from stowage.step.replay.room import Room
from stowage.step.replay.shadow import ReadsShell, Shadow
from stowage.step.replay.step_plan import StepOptions, StepPlan
from stowage.step.replay.undo import Undo


class Mismatch(Exception):
    """The user's Python no longer does what was recorded; nothing has been changed."""


class OtherNumbers(Exception):
    """The step makes other numbers, for which its Python would ask, than those that it was planned without Python for; nothing has
    been changed."""


class OtherRanks(Protocol):
    """Of a step that is split (sharding/calls.py). Kernels run over shells where all ranks have come to the same moment."""

    def tells(self, under_way: bool) -> bool: ...

    def leaves(self) -> None: ...


class EagerBlocks(Protocol):
    """Those of one call, where memory is limited (step/eager_calls.py)."""

    had_room: bool  # in the latest, nothing had to make room

    def within(self, unfinished: Callable[[], bool], takes_back: bool = True) -> contextlib.AbstractContextManager: ...

    def forget(self) -> None: ...


KEEPS_LOST_STATES = "the step keeps a state of a random generator, and reads numbers"
READS_NUMBERS = "it reads numbers that it makes"
_ELSEWHERE = "where a tensor lies in memory that it shares with others"


def why_python_must_run(recording: Recording, reads: bool = True) -> str:
    """In every call; "" where guards see all that it reads, and the plan does all that it does. ``reads``: also because it asks for
    numbers that it makes."""
    if recording.keeps:
        return f"{recording.keeps}: the step keeps this tensor beyond its end"
    if keeper := next((o for o in recording.world.optimizers if not keeps_state_in_tensors(o)), None):
        return f"{type(keeper).__qualname__} may keep state in Python objects"
    if recording.finds:
        return f"each call finds another tensor in '{recording.finds}'"
    if recording.sets:
        return f"the step sets {recording.sets} by itself"
    if recording.remembers:
        return recording.remembers
    if recording.also_finds:
        return f"it also finds an argument in '{recording.also_finds}'"
    if recording.gradients.set_by_python:
        return "it sets a parameter's .grad to a tensor that it has not made"
    if recording.makes_generators:
        return "it uses a random generator that it makes, or comes by"
    if recording.returns:
        return f"it returns {recording.returns}"
    if recording.reads and reads:
        return READS_NUMBERS
    if recording.tape.takes_sparse:
        return "it reads sparse tensors"
    if recording.changes:
        return f"the step changes {recording.changes}, which it also reads"
    return next(iter(recording.world.guard.blind), "")


class Replay:
    """Executes a Recording by its plan. Not thread-safe; residents are the user's own tensors."""

    def __init__(self, recording: Recording, room: Room, name: str, options: StepOptions):
        """Raises what plan() raises."""
        self.recording = recording
        self.room = room
        self.events = recording.events
        self.last_run: Any = None
        recording.result = None
        self.finish: Callable[[], Any] = _nothing
        self._has_budget = options.budget is not None
        self.repetition = Repetition()
        self.planned = StepPlan(recording.tape, room, name, options)
        self.gradients = recording.gradients
        self.parameters = recording.world.fading_parameters()
        self.key: Any = None  # signature of the recorded call
        self.taken_back = False  # the latest transaction: nothing of it has happened
        self.trusted = False  # has agreed with the step done without a plan
        # The numbers of Python's on the tape are those that it gives where the guard sees nothing new. Not so after a call whose
        # Python found something else, or went elsewhere: they are that call's
        self.numbers_fit = True
        # What Python would decide otherwise in this call than the tape has it: then it has to run
        self.undecided = ""
        self.rehearsals = 0
        self.served_at = 0  # the latest of its signature's calls that it has served
        self.planned_calls = 0
        self.shadowed_because = why_python_must_run(recording)
        self._numbers = ExpectedNumbers(recording)
        self.matcher = _runtime.Matcher(recording.tape)
        self.matcher.look_closely(bool(room.looks))
        self._memory: list[torch.Tensor | None] = []
        self._harmless: dict[tuple[int, ...], int] = {}  # see Listener
        self._shells: dict[tuple[int, int], torch.Tensor] = {}
        for event in self.events:
            if isinstance(event, OptimizerEvent):
                for p, slot in event.gradients:
                    if (id(p), slot) not in self._shells:
                        shell = torch.empty(0, dtype=p.dtype if p.grad is None else p.grad.dtype, device=p.device)
                        self.matcher.adopt_shell(address(shell), slot)
                        self._shells[id(p), slot] = shell
        # Whether an argument is an object that the step also finds decides nothing but what its Python does
        self._found_among_arguments = recording.world.found_among(recording.met)
        if not recording.world.distributed:
            recording.world.fade()
            self.gradients.fade(
                p for event in self.events if isinstance(event, OptimizerEvent) for p, _ in event.gradients
            )
        cleared = {id(p) for p in self.gradients.cleared}
        of_before = [*(p for p, _ in self.gradients.given), *self.gradients.present]
        self._keep_gradients = [p for p in {id(p): p for p in of_before}.values() if id(p) not in cleared]

    @property
    def graph(self) -> _core.Graph:
        return self.planned.graph

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    @property
    def executor(self) -> _runtime.Executor:
        return self.planned.executor

    # ---- A plan that is made anew

    def make_once(self, kinds: set[str]) -> bool:
        """From now on no plan makes ops of these kinds again. True where the one at hand did: it has been made anew, and is
        not trusted yet. Where none does without within the budget, this one stays."""
        try:
            anew = self.planned.make_once(kinds)
        except (InvalidGraph, InvalidPlan):
            raise
        except Error as error:
            self.repetition.no_way = str(error)
            return False
        return self._is_new(anew)

    def drop_replacements(self, why: str) -> bool:
        """From now on with fewer kernels than the recorded ones; see StepPlan. True where the plan had others: it has been made
        anew, and is not trusted yet. Raises what plan() raises."""
        return self._is_new(self.planned.drop_replacements(why))

    @property
    def should_part_from_results(self) -> bool:
        """Somebody had a result when its place in the arena was needed."""
        return self.room.arena.results_outlive and self.planned.may_part_from_results

    def part_from_results(self) -> None:
        """See StepPlan. A plan that is made anew is not trusted yet."""
        if self._is_new(self.planned.part_from_results()):
            self.trusted = False

    def replan_if_learned(self) -> bool:
        """After a rehearsal; see StepPlan."""
        anew = self.planned.replan_if_learned()
        if anew:
            self.repetition.plan_changes()
        return anew

    def _is_new(self, anew: bool) -> bool:
        if anew:
            self.repetition.plan_changes()
            self.rehearsals = 0
        return anew

    # ---- Guards

    def inputs(self, arguments: list[torch.Tensor]) -> list[int]:
        """Addresses of all that comes anew with each call: the tensors among the arguments, those that the step will
        replace, and gradients given from outside. Valid until the call ends."""
        self._own_memory()
        return addresses(
            [*arguments, *self._memory, *(p.grad if p is not None else None for p in self.gradients.inputs)]
        )

    def _own_memory(self) -> None:
        """What is in the places that the step will fill anew, before it. Held for the length of a call, and no
        longer."""
        now = [place.get() for place in self.recording.replaced]
        if [storage_address(t) for t in now] != [storage_address(t) for t in self._memory]:
            self._memory = now

    def unfit(self, arguments: list[torch.Tensor], key: Any, met: Sequence[int]) -> str:
        """Why the recorded operations cannot serve this call, whatever its Python would do; "" when they can: where
        ``undecided`` is "", as they are, else Python has to say what it does."""
        self.undecided = ""
        if why := self._other_tensors(arguments):
            return why
        tape, inputs = self.recording.tape, self.inputs(arguments)
        self.undecided, serves = tape.decided(inputs, self.key != key)
        if not serves and self.recording.world.guard.changed():
            self.undecided, serves = tape.decided(inputs, True)
        if not self.executor.tenants_unchanged(inputs):
            self.undecided = self.undecided or _ELSEWHERE
        if self.recording.world.found_among(met) != self._found_among_arguments:
            self.undecided = self.undecided or "an argument that its Python also finds, or no longer does"
        return "" if serves else self.undecided

    def refused_index(self, arguments: list[torch.Tensor]) -> str:
        """The operator that would raise, as an index among the arguments is out of its range; "" for none. Of a call that
        it may serve."""
        return self.recording.index_ranges.refused(self.inputs(arguments))

    def may_refuse_index(self, arguments: list[torch.Tensor]) -> bool:
        """As refused_index(), where its Python may look at another part of an argument than was recorded."""
        return self.recording.index_ranges.may_refuse(self.inputs(arguments))

    def _other_tensors(self, arguments: list[torch.Tensor]) -> str:
        for place in self.recording.replaced:
            tensor = place.get()
            if tensor is None or metadata(tensor) != place.meta:
                return place.name
        for p, meta in self.gradients.given:
            if p.grad is None or metadata(p.grad) != meta:
                return "a gradient that the step adds to"
        for p in (*self.gradients.absent, *self.gradients.absent_elsewhere):
            if p.grad is not None:
                return f"{self._named(p)} has a gradient before the call, as it had not when recorded"
        for p in (*self.gradients.present, *self.gradients.present_elsewhere):
            if p.grad is None:
                return f"{self._named(p)} has no gradient before the call, as it had when recorded"
        for p, grad in self.gradients.lasting:
            if p.grad is not grad:
                return "a gradient that lies in a tensor of the step's own"
        if self.recording.nodes.now() != self.recording.node_hooks:
            return "a hook on the autograd node of a parameter or tensor"
        if not self.executor.residents_unchanged():
            return "the memory of a parameter, buffer or optimizer state"
        return "" if self.executor.accepts(self.inputs(arguments)) else "where an argument lies in its storage"

    def _named(self, tensor: torch.Tensor) -> str:
        """As the step's Python comes by it."""
        return self._names.get(id(tensor), "a parameter")

    @functools.cached_property
    def _names(self) -> dict[int, str]:
        world = self.recording.world
        of_modules = (each for path, module in world.modules for each in module.named_parameters(prefix=path))
        return {id(tensor): name for name, tensor in (*world.tensors, *of_modules)}

    def changed(self, arguments: list[torch.Tensor]) -> str:
        """What no longer is as it was when the step was recorded, or ""."""
        return (
            self.recording.world.guard.changed()
            or self._other_tensors(arguments)
            or self.recording.tape.decided(self.inputs(arguments), False)[0]
            or ("" if self.executor.tenants_unchanged(self.inputs(arguments)) else _ELSEWHERE)
        )

    # ---- Running

    def run(self, arguments: list[torch.Tensor]) -> Any:
        """One planned step. Returns what the user's function would.

        Raises OtherNumbers where Python would be told others than was recorded, Mismatch when the optimizer's Python
        differs, Error when memory cannot be had, whatever a kernel raises, or an interrupt. The state is then as before
        the step, or as after it, and the error says which (executor_undo.cpp)."""
        inputs = self.inputs(arguments)

        def step(undo: Undo) -> Any:
            self.match(inputs)
            self._note_graphs(inputs)
            if self._numbers.expected and not self.executor.tells_as_recorded(self._numbers.reads, inputs):
                raise OtherNumbers
            return self.run_matched(inputs, arguments)

        return self.transaction(step, inputs=inputs)

    def has_told(self, shadow: Shadow) -> None:
        """A call's Python has done what this recording holds."""
        if self.shadowed_because == READS_NUMBERS and self._numbers.has_told(shadow.told_otherwise):
            self.shadowed_because = ""

    def tells_otherwise(self) -> None:
        """After OtherNumbers: Python has to run again."""
        self._numbers.surprises()
        self.shadowed_because = self.shadowed_because or READS_NUMBERS

    def run_matched(self, inputs: list[int], arguments: Sequence[torch.Tensor] = ()) -> Any:
        """run(), after match(), within transaction() or host_state()."""

        def finish() -> list[torch.Tensor]:
            outputs = self._fresh_outputs()
            self.executor.hand_out(inputs, addresses(outputs))
            for p in self.gradients.gone:
                p.grad = None
            for p, slot, form in zip(self.gradients.returned, self.gradients.slots, self.gradients.forms):
                p.grad = form(outputs[slot])
            return outputs

        outputs = self._execute(inputs, finish)
        for slot, name in self.recording.output_graphs.items():
            _runtime.end_with_spent_graph(address(outputs[slot]), name)
        leaves = [
            outputs[slot] if slot >= 0 and leaf is None else leaf
            for slot, leaf in zip(self.recording.output_slots, self.recording.output_leaves)
        ]
        for leaf, argument in self.recording.output_arguments.items() if arguments else ():
            leaves[leaf] = arguments[argument]
        for leaf, parameter in self.recording.output_gradients.items():
            leaves[leaf] = parameter.grad
        numbers = self.recording.output_numbers
        told = {op: kind(self.executor.number(op)) for op, kind in numbers.values()}  # each is one object
        for leaf, (op, _) in numbers.items():
            leaves[leaf] = told[op]
        return unflatten(leaves, self.recording.output_spec)

    def _execute(self, inputs: list[int], finish: Callable[[], Any], writes_counted: bool = False) -> Any:
        """Returns finish(), which hands out the results. It may run twice. No frame of an error's holds them."""
        timed = self.planned.is_timed
        self.finish = finish
        self.last_run = self.executor.run(inputs, timed, writes_counted)
        self.executor.try_graphs(inputs)
        outputs = finish()
        self.finish = _nothing
        self.executor.drop_results()
        if timed:
            self.planned.learn_costs()
        return outputs

    def _note_graphs(self, inputs: list[int]) -> None:
        """Once, in a call that is about to run the plan. Nothing is changed, and the arena stays."""
        if not self.planned.wants_graphs:
            return
        with shown("noting graphs of the device"):
            self.executor.note_graphs(inputs, self.gradients.slots)

    def _fresh_outputs(self) -> list[torch.Tensor]:
        """What the executor hands out into."""
        return [torch.empty(0, dtype=dtype, device=device) for dtype, device in self.recording.output_forms]

    def match(self, inputs: list[int]) -> None:
        """Runs the optimizers' and schedulers' Python; their numbers go onto the tape. Raises Mismatch."""
        if not self.recording.world.distributed:
            self.let_go()
        staying = [(p, p.grad) for p in (*self._keep_gradients, *self.gradients.present_elsewhere)]
        self.matcher.bind(inputs)
        for event in self.events:
            if not isinstance(event, OptimizerEvent):
                event.scheduler.step(*event.args, **event.kwargs)
                continue
            for p in event.absent:
                p.grad = None
            for p, slot in event.moved:
                self.matcher.adopt_shell(address(p), slot)
            for p, slot in event.gradients:
                p.grad = self._shells[id(p), slot]
            with self.recording.world.optimizer_view(event.optimizer):
                mismatch = self.matcher.section(event.section, event.optimizer.step)
            for p, _ in event.gradients:
                p.grad = None
            if mismatch:
                raise Mismatch(mismatch)
            # What was set aside for an optimizer may be there again for the next one, and at the end
            for p, grad in staying:
                p.grad = grad

    def let_go(self) -> None:
        """Of the gradients that the step finds and does not look at."""
        for p in self.gradients.cleared:
            p.grad = None

    def transaction(
        self,
        step: Callable[[Undo], Any],
        others: Sequence[Replay] = (),
        *,
        python: bool = False,
        arguments: Sequence[torch.Tensor] = (),
        inputs: Sequence[int] = (),
    ) -> Any:
        """Takes memory for the step and returns step(undo). When that raises, or is interrupted, what the optimizers'
        Python has changed goes back, unless the step has happened.

        others: recordings of the same function, one of which may come to be executed instead. python, arguments,
        inputs: see Undo.
        """
        if not self.executor.has_staying_results:  # the step first lets go of what needs their place
            self.executor.reserve()
        self.taken_back = False
        undo = Undo(self, others, python, arguments, inputs)
        try:
            return step(undo)
        # Here no signal's handler can run before the next call returns, and in there none does
        except BaseException as error:
            undo.error = error
            _runtime.uninterrupted(undo.now, error, undo.thread)
            raise
        finally:
            undo.error = None  # whose traceback holds it
            self._unbind(others)

    def _unbind(self, others: Sequence[Replay]) -> None:
        self.matcher.bind([])
        for replay in (self, *others):
            replay._memory = []

    @contextlib.contextmanager
    def host_state(self) -> Iterator[Undo]:
        """transaction() as a block, for steps that are split over ranks; let_go() is called in it, once they agree."""
        if not self.executor.has_staying_results:
            self.executor.reserve()
        undo = Undo(self, (), False)
        try:
            yield undo
        except BaseException as error:
            undo.error = error
            _runtime.uninterrupted(undo.now, error, undo.thread)
            raise
        finally:
            undo.error = None
            self._unbind(())

    # ---- With the user's own Python

    def shadow(
        self,
        call: Callable[[], Any],
        arguments: list[torch.Tensor],
        others: list[Replay],
        eager: EagerBlocks | None,
        passing: Sequence[Any] = (),
        ranks: OtherRanks | None = None,
    ) -> Shadow:
        """Runs the user's function once, over shells, and matches what it does with the recordings: this one, then
        ``others``.

        passing: arrays among the call's arguments, over which tensors may lie.
        eager: its blocks are those that it runs in if it leaves them, as it has happened eagerly then, and where it
        asks for a number that no plan makes. An exception of the function passes through; what it did before has
        happened then, as in eager. Nothing has when it was interrupted before it left them."""
        matcher = self.matcher
        raised: list[BaseException] = []  # within an operator, which passes it on as a RuntimeError

        def run_within(run: Callable[[], None], may_fail: bool) -> bool | None:
            assert eager is not None
            try:
                with unheard(modes=True), eager.within(self.unfinished(), takes_back=not may_fail):
                    heard(run, (), {})
            except OutOfMemory:
                if may_fail:
                    return None
                raise
            return eager.had_room

        with contextlib.ExitStack() as block:

            def leaving() -> None:
                if ranks is not None:
                    ranks.leaves()
                if eager is not None:
                    block.enter_context(eager.within(self.unfinished()))
                else:
                    self.room.make_way()  # what follows has its own memory

            try:
                tapes = [other.recording.tape for other in others]
                executors = [replay.executor if replay.trusted else None for replay in (self, *others)]
                arrays = [array for replay in (self, *others) for array in replay.recording.arrays]
                arrays += passing
                contents = ToldContents(matcher, arrays, self.recording.world.distributed)
                around = run_within if eager is not None else None
                decided = [not replay.undecided for replay in (self, *others)]
                matcher.begin_step(
                    [replay.inputs(arguments) for replay in (self, *others)],
                    tapes,
                    leaving,
                    eager is not None,
                    executors,
                    around,
                    raised,
                    decided,
                    ToldKernels(),
                    ranks.tells if ranks is not None else None,
                )
                result = matcher.step(lambda: self._python_of(call, contents))
                if eager is not None:
                    eager.forget()
                difference = matcher.difference
                chosen = self if matcher.chosen < 0 else others[matcher.chosen]
                if not difference and not self._returns(chosen, result):
                    difference = "the step returns or keeps other tensors than when it was recorded"
                    matcher.leave(difference)
                if not difference and self._keeps_lost_states():
                    difference = KEEPS_LOST_STATES
                    matcher.leave(difference)
            except BaseException as error:
                matcher.forget_step()
                if raised and isinstance(error, RuntimeError) and type(raised[-1]).__name__ in str(error):
                    raise raised[-1] from None
                if matcher.read_shell and isinstance(error, Exception):
                    raise ReadsShell(str(error)) from None
                raise
        return Shadow(
            self,
            chosen,
            result,
            difference,
            matcher.refreshed,
            matcher.other_in_step,
            matcher.left_in_section,
            frozenset(matcher.altered),
            frozenset(matcher.told_otherwise),
            matcher.decides_as_before,
            matcher.left_by,
            contents.handed_out,
        )

    def unfinished(self) -> Callable[[], bool]:
        """Have the ops of a matched call, which are run together, come to no end since now?"""
        runs = self.matcher.plain_runs
        return lambda: self.matcher.plain_runs == runs

    def _python_of(self, call: Callable[[], Any], contents: ToldContents) -> Any:
        regions, matcher = self.room.regions, self.matcher
        threads = Listener(
            contents.leaves,
            lambda t: is_shell(t) or matcher.is_behind(address(t)),
            lambda t: matcher.touches(address(t)),
            lambda: matcher.matched,
            self._harmless,
        )
        compiled = self.recording.world.compiled is not None or bool(regions.inside)
        seen = compiled_regions.seen(matcher.leave, regions) if compiled else None
        try:
            threads.hears()
            with seen or compiled_regions.looked_for(matcher.leave, regions, contents):
                result = contents.beside(call) if compiled else contents.within(call)
            if not matcher.left and threads.has_written():
                raise Error(f"{WRITTEN_MEANWHILE}; nothing of this call has happened but that")
            return result
        finally:
            threads.ends()

    def run_shadowed(self, shadow: Shadow, inputs: list[int]) -> None:
        """The planned step, after the user's Python has run over shells, which get their content here."""
        self._note_graphs(inputs)
        handover = shadow.began.matcher.handover()
        handover.begin(self.executor)
        self._execute(inputs, lambda: handover.take_results(self.executor), writes_counted=True)
        shadow.began.matcher.join_arrays()

    def _held(self, result: Any) -> list[torch.Tensor | None]:
        """What Python holds in the places of the outputs."""
        return [
            *(leaf for leaf in flatten(result)[0] if isinstance(leaf, torch.Tensor)),
            *(p.grad for p in self.gradients.returned),
        ]

    def _returns(self, chosen: Replay, result: Any) -> bool:
        held = addresses(chosen._held(result))
        return _without_cycles(lambda: self.matcher.returns(held))

    def returns_otherwise(self, result: Any) -> bool:
        """Are what is no tensor, and the containers, others than calls give back whose Python does not run?"""
        if self.recording.returns:
            return False
        leaves, spec = flatten(result)
        if spec != self.recording.output_spec:
            return True
        numbers = self.recording.output_numbers
        of_call = any(type(leaves[i]) is not kind for i, (_, kind) in numbers.items())
        triples = zip(leaves, self.recording.output_leaves, self.recording.output_slots)
        return of_call or any(
            slot < 0 and i not in numbers and not _core.same_bits(leaf, known)
            for i, (leaf, known, slot) in enumerate(triples)
        )

    def _keeps_lost_states(self) -> bool:
        return not _without_cycles(lambda: not self.matcher.keeps_lost_states)

    # ---- Trust

    def serves_as(self, recording: Recording) -> bool:
        """The recording holds what this one holds."""
        return not self.recording.tape.same_program(recording.tape)

    def rehearse_matched(self, inputs: list[int], learn: bool = True) -> Rehearsal:
        """Runs the planned step, remembers a digest of what it did, and puts everything back. Learns the ops' true
        allocations, but where ``learn`` says that its kernels are not those of later calls.

        After match() or shadow(). Needs the plan's memory, and beside it that of the residents that are being changed
        at one moment."""
        kernels = PythonOfKernels()
        try:
            with shown("rehearsing the plan"), kernels.notes:
                self.last_run, state = self.executor.rehearse(inputs, self.matcher, learn)
        finally:
            kernels.put_back()
            self.room.make_way()  # the eager step that follows has its own memory
            self.room.host.release()
        if learn:
            self.planned.learn_costs()
        outputs = self._fresh_outputs()
        self.executor.hand_out(inputs, addresses(outputs))
        self.executor.drop_returned()
        return Rehearsal(state, [output if self.executor.is_result(i) else None for i, output in enumerate(outputs)])

    def agrees(self, rehearsal: Rehearsal, result: Any, inputs: list[int], kept: bool = True) -> bool:
        """After the same step done without a plan: has it done the same, bit for bit? ``inputs``: as they were before
        it. ``kept``: so are the tensors that Python keeps."""
        return kept and rehearsal.agrees(self.executor.state(inputs, self.matcher), result, self.gradients.returned)

    def look_closely(self, on: bool) -> None:
        """Whether rehearsals note which op differs first, where nobody has said so (Room.looks)."""
        if self.room.looks:
            return
        self.matcher.look_closely(on)
        self.planned.look_closely("closely" if on else "")

    @property
    def again_otherwise(self) -> str:
        """The first op that the last rehearsal made again with other results than before, where it looked."""
        return self.executor.again_otherwise

    @property
    def did_not_repeat(self) -> set[str]:
        """Kinds of ops that the last rehearsal, where it looked, has made again with other results on the same inputs."""
        return self.executor.do_not_repeat

    def allocates_otherwise(self) -> bool:
        """The last rehearsal saw it of a replaced kernel."""
        return self.executor.chain_surprised

    def note_tile_error(self, shadow: Shadow) -> None:
        """After a rehearsal and run_plainly()."""
        self.planned.note_tile_error(*shadow.tile_error)


def _without_cycles(holds: Callable[[], bool]) -> bool:
    """Does it, once what only cycles hold is gone, which is nobody's? The youngest objects first: those of this call. All
    of a large program's take hundreds of milliseconds."""
    return holds() or any(gc.collect(generation) >= 0 and holds() for generation in range(3))


_OPTIMIZERS = ("torch.optim", "accelerate.optimizer")  # packages


def keeps_state_in_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """So that a step() that has begun over shells can be taken back: what it has counted is in tensors, which are put
    back. Others count in numbers of Python, which would count twice when the plan turns out not to fit, and the step
    runs anew."""
    hooks = any(getattr(optimizer, name, None) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))
    module = str(getattr(type(optimizer), "__module__", ""))
    return any(module == known or module.startswith(f"{known}.") for known in _OPTIMIZERS) and not hooks


def _nothing() -> None:
    pass


__all__ = ["KEEPS_LOST_STATES", "Mismatch", "OtherNumbers", "Replay", "keeps_state_in_tensors", "why_python_must_run"]
