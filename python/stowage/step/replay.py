"""One recorded step, planned and executable: match the optimizer's Python against the tape, run the plan, hand out the
results."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stowage import _core, _runtime
from stowage._torch.private import address, addresses, flatten, storage_address, unflatten
from stowage.cache import plan_cache
from stowage.cache.costs import cost_file
from stowage.errors import AFTER, BEFORE, Error, Infeasible, InvalidGraph, InvalidPlan, UnsupportedWarning, say, warn
from stowage.eviction.budget import OutOfMemory
from stowage.planning import Plan, check, plan, plan_options
from stowage.report.progress import shown
from stowage.sizes import parse_bytes
from stowage.step import compiled_regions
from stowage.step.host_reads import ToldContents
from stowage.step.python_state import PythonOfKernels, ToldKernels
from stowage.step.recording import OptimizerEvent, Recording
from stowage.step.rehearsal import Rehearsal
from stowage.step.repetition import Repetition
from stowage.step.signature import metadata
from stowage.step.state import Holders, leaves_of

_TIMED_RUNS = 4  # the rehearsal and the first planned steps
_GUESSED_ENOUGH = 0.02  # share of the step's cost


class Mismatch(Exception):
    """The user's Python no longer does what was recorded; nothing has been changed."""


class ReadsShell(Exception):
    """The user's Python reads bytes on the host, beside PyTorch's dispatcher, of a tensor that has none yet. What it
    did is taken back as far as it is known."""


@dataclass(frozen=True)
class Shadow:
    """A call whose Python has run. ``difference``: where it left all recordings, and has happened eagerly; "":
    ``replay`` can execute it. ``refreshed``: Python numbers were others than on the tape of ``began``. ``other_in_step``: it
    went on as another recording, elsewhere than in an optimizer."""

    began: Replay
    replay: Replay
    result: Any
    difference: str
    refreshed: bool
    other_in_step: bool
    in_optimizer: bool  # what differed; there no guard is needed, as its Python runs in every call
    other_operator: tuple[int, str]  # where it was another operator: at which place; else -1
    handed_out: bool  # what differed is something that no recording can do: memory that was handed out

    def done(self) -> None:
        self.began._matcher.forget_step()

    def kept_agree(self) -> bool:
        """After a rehearsal and run_plainly(): what Python keeps has the same bits in both."""
        return self.began._matcher.kept_agree(self.replay._executor)

    def run_plainly(self) -> None:
        self.began._matcher.watch(self.replay._executor)
        self.began._matcher.run_plainly()

    @property
    def tile_error(self) -> tuple[float, float, str, bool]:
        """After run_plainly(): see Matcher.tile_error."""
        return self.began._matcher.tile_error

    def replaced_agree(self) -> bool:
        """After a rehearsal and run_plainly(): what the plan makes by other kernels has the same bits in both."""
        return not self.began._matcher.first_difference(self.replay._executor, watched=True)

    def first_difference(self) -> str:
        """After a rehearsal and run_plainly(): the first op that made something else in the plan; "" where nobody
        looked (Room.looks)."""
        return self.began._matcher.first_difference(self.replay._executor)


@dataclass(frozen=True)
class Room:
    """What the plans of one compiled step share."""

    arena: _runtime.Arena
    host: _runtime.Host
    link_gbps: float | None
    store: str  # what the host store is, as costs are kept by it
    # "closely": rehearsals note which op differs first; "paranoid": and no op may write outside its own memory
    looks: str = ""
    regions: compiled_regions.Regions = field(default_factory=compiled_regions.Regions)

    @classmethod
    def of_environment(cls, arena: _runtime.Arena, link_gbps: float | None) -> Room:
        """With the host store that the environment wants: in memory, or in a file of a directory; as large as needed,
        or limited."""
        directory = os.environ.get("STOWAGE_HOST_STORE", "")
        limit = parse_bytes(os.environ.get("STOWAGE_HOST_LIMIT") or None)
        return cls(arena, _runtime.Host(directory, limit or 0, link_gbps or 0.0), link_gbps, directory or "memory")


class Undo:
    """What the Python of one call can change and the executor does not put back: optimizers' numbers, schedulers,
    gradients.

    A step that has been executed is never taken back: an interrupt that arrives between its end and here finds it
    finished. Gradients that the step's first act is to let go are not held meanwhile: an error finds them gone, as in
    eager. now() says in ``error`` which of the two it is.
    """

    def __init__(
        self,
        began: Replay,
        others: Sequence[Replay],
        python: bool,
        arguments: Sequence[torch.Tensor] = (),
        inputs: Sequence[int] = (),
    ):
        """python: the user's function runs, whose optimizers may count in Python objects. inputs: those of ``began``."""
        world = began.recording.world
        self.error: BaseException | None = None
        self.thread = _runtime.ThreadState()
        self._plain_runs = began._matcher.plain_runs
        began._matcher.remember(inputs)
        self._began = began
        self._runs = [(replay, replay._executor.runs) for replay in (began, *others)]
        # Not held meanwhile: the step's first act on them is to let them go
        cleared = {id(p) for p in began._grads.cleared}
        self._cleared = began._grads.cleared
        kept = [p for p in began._parameters if id(p) not in cleared]
        self._holders = Holders([*kept, *leaves_of(arguments)], world.counters(python))
        self._memory = [(place, place.get()) for place in began.recording.replaced]
        self._done = self._happened = False

    def keep(self) -> None:
        """The step has happened, and stays; what comes after it in the call may still raise."""
        self._done = self._happened = True
        self._memory = []

    def now(self) -> None:
        if self._done:
            if self._happened:
                say(self.error, AFTER)
            return
        self._put_back()
        self._done = True

    def _put_back(self) -> None:
        """May be called again where there was no memory to come to its end."""
        for replay, runs in self._runs:
            if replay._executor.runs != runs:
                replay._finish()
                say(self.error, AFTER)
                return
        if self._began._matcher.plain_runs != self._plain_runs and not isinstance(self.error, OutOfMemory):
            return  # what it did has happened; where memory was short, the budget's block has taken that back
        self._began._matcher.forget_step()
        self._began._matcher.roll_back()
        self._holders.put_back()
        for cleared in self._cleared:
            cleared.grad = None
        for place, tensor in self._memory:
            if tensor is not None:
                place.put_back(tensor)
        self._memory = []
        if not any(replay._executor.half_done for replay, _ in self._runs):
            self._began.taken_back = True
            say(self.error, BEFORE)


def why_python_must_run(recording: Recording) -> str:
    """In every call; "" where guards see all that it reads, and the plan does all that it does."""
    if recording.keeps:
        return f"{recording.keeps}: the step keeps this tensor beyond its end"
    if keeper := next((o for o in recording.world.optimizers if not _keeps_state_in_tensors(o)), None):
        return f"{type(keeper).__qualname__} may keep state in Python objects"
    if recording.finds:
        return f"each call finds another tensor in '{recording.finds}'"
    if recording.sets:
        return f"the step sets {recording.sets} by itself"
    if recording.remembers:
        return recording.remembers
    if recording.makes_generators:
        return "it uses a random generator that it makes, or comes by"
    if recording.returns:
        return f"it returns {recording.returns}"
    if recording.tape.reads:
        return "it reads numbers that it makes"
    if recording.changes:
        return f"the step changes {recording.changes}, which it also reads"
    return next(iter(recording.world.guard.blind), "")


class Replay:
    """Executes a Recording. Not thread-safe; residents are the user's own tensors."""

    def __init__(
        self,
        recording: Recording,
        room: Room,
        name: str,
        budget: int | None,
        in_place_reuse: bool = True,
        lean_kernels: bool = True,
        leaving: bool = False,
        tile_loss: bool = False,
    ):
        self.recording = recording
        # Why a loss head is not tiled, though that was asked for
        self.tile_refusal = ""
        self.tile_error = self.tile_largest_error = 0.0
        self._tile_error_too_large = ""
        self._tiling = _tiling(tile_loss)
        # Why the plan has the recorded kernels alone, though others were asked for
        self.replacement_refusal = ""
        # Why the plan copies nothing to the host, though copies were faster
        self.host_refusal = ""
        self.room = room
        self.arena = room.arena
        self.host = room.host
        self.name = name
        self.budget = budget
        self.in_place_reuse = in_place_reuse
        self.leaving = leaving  # residents may wait on the host
        self._slicing = _slicing(lean_kernels)
        self.events = recording.events
        self.last_run: Any = None
        recording.result = None
        self._costs = cost_file()
        self._cost_keys = recording.tape.cost_keys()
        self._timed_runs = 0
        self._rehearsed = False
        self._finish: Callable[[], None] = _nothing
        self._looks = room.looks
        self.repetition = Repetition()
        self._once: set[str] = set()  # kinds of ops that no plan makes again
        self._make_plan()
        self._grads = recording.gradients
        self._parameters = recording.world.parameters()
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
        self._optimizers = recording.world.optimizers
        self._schedulers = recording.world.schedulers
        self._matcher = _runtime.Matcher(recording.tape)
        self._matcher.look_closely(bool(self._looks))
        self._memory: list[torch.Tensor | None] = []
        self._shells: dict[tuple[int, int], torch.Tensor] = {}
        for event in self.events:
            if isinstance(event, OptimizerEvent):
                for p, slot in event.gradients:
                    if (id(p), slot) not in self._shells:
                        shell = torch.empty(0, dtype=p.dtype if p.grad is None else p.grad.dtype, device=p.device)
                        self._matcher.adopt_shell(address(shell), slot)
                        self._shells[id(p), slot] = shell

    def _make_plan(self) -> None:
        """Raises what plan() raises, and the plan before stays."""
        self._guessed = self._costs.price(self.recording.tape)
        if self.leaving and self.recording.tape.device != "cpu":
            raise Error(
                f"residents='leave' is for the CPU; this step runs on {self.recording.tape.device}: leave it out"
            )
        lowered = self._lower()
        link_gbps = self._lane_gbps(lowered.graph)
        options = plan_options(self.budget, in_place_reuse=self.in_place_reuse, link_gbps=link_gbps)
        if self.budget is not None:
            self._take_kept_costs(lowered, options)
        graph = lowered.graph
        planned, executor = self._executable(lowered, link_gbps)
        if self.budget is not None and self._guessed >= _GUESSED_ENOUGH and not planned.from_cache:
            provisional = plan_cache.Entry(planned._plan, planned.summary(), graph.costs_ns, provisional=True)
            plan_cache.keep(graph, options, provisional)
        self.host_refusal = _host_refusal(executor)
        if self.host_refusal:
            try:
                planned, executor = self._executable(lowered, 0.0)
            except (InvalidGraph, InvalidPlan):
                raise
            except Error:  # nothing fits without copies: the call says what the host lacks
                self.host_refusal = ""
        self.graph, self.plan, self._executor = graph, planned, executor
        self.repetition.plan_changes()
        self.replaced = lowered.replaced  # chains of kernels that one op stands for
        self.products = lowered.products  # that may take the memory of their operand
        self.tiled = lowered.tiled  # kernels that run on tiles
        if lowered.tile_refusal:
            self._refuse_tiles(lowered.tile_refusal)
        self._executor.look_closely(bool(self._looks), self._looks == "paranoid")

    def _lower(self) -> _runtime.Lowered:
        return _runtime.lower(
            self.recording.tape, self.name, self._slicing, self.leaving, self._tiling, once=self._once
        )

    def _executable(self, lowered: Any, link_gbps: float | None) -> tuple[Plan, Any]:
        planned = plan(lowered.graph, self.budget, in_place_reuse=self.in_place_reuse, link_gbps=link_gbps)
        with shown("checking the plan and making it executable"):
            check(lowered.graph, planned)
            return planned, _runtime.Executor(self.recording.tape, lowered, planned._plan, self.arena, self.host)

    @property
    def again_otherwise(self) -> str:
        """The first op that the last rehearsal made again with other results than before, where it looked."""
        return self._executor.again_otherwise

    def make_once(self, kinds: set[str]) -> bool:
        """From now on no plan makes ops of these kinds again. True where the one at hand did: it has been made anew, and is
        not trusted yet. Where none does without within the budget, this one stays."""
        fresh = kinds - self._once
        if not fresh & self._executor.made_again:
            self._once |= fresh
            return False
        before = self._once
        self._once = before | fresh
        try:
            self._make_plan()
        except (InvalidGraph, InvalidPlan):
            raise
        except Error as error:
            self._once = before
            self.repetition.no_way = str(error)
            return False
        self.rehearsals = 0
        return True

    @property
    def did_not_repeat(self) -> set[str]:
        """Kinds of ops that the last rehearsal, where it looked, has made again with other results on the same inputs."""
        return self._executor.do_not_repeat

    def allocates_otherwise(self) -> bool:
        """The last rehearsal saw it of a replaced kernel."""
        return self._executor.chain_surprised

    def drop_replacements(self, why: str) -> bool:
        """From now on without tiles; where the plan has none, without products over their operands; where it has none
        either, the recorded kernels alone: planned anew and not trusted yet. False where the plan has no others. Raises
        what plan() raises."""
        if not self.replaced and not self.products and not self.tiled:
            return False
        if self.tiled:
            self._tiling = _tiling(False)
            self.tile_error = self.tile_largest_error = 0.0
            self._tile_error_too_large = ""
            self._refuse_tiles(why)
        else:
            self.replacement_refusal = why
            # Those whose bits depend on how a library splits its sums go first
            self._slicing = _slicing(True, 0) if self.products else _slicing(False)
        self._make_plan()
        self.rehearsals = 0
        return True

    def _refuse_tiles(self, why: str) -> None:
        if why == self.tile_refusal:
            return
        self.tile_refusal = why
        what = "a loss head of this step is not tiled" if self.tiled else "tile_loss=True tiles nothing in this step"
        warn(f"{what}, and all of it stays exact: {why}", UnsupportedWarning)

    def note_tile_error(self, shadow: Shadow) -> None:
        """After a rehearsal and run_plainly()."""
        if not self.tiled:
            return
        relative, absolute, where, too_large = shadow.tile_error
        self.tile_error = max(self.tile_error, relative)
        self.tile_largest_error = max(self.tile_largest_error, absolute)
        if too_large:
            self._tile_error_too_large = (
                f"the tiles' result of {where} differs by {relative:.2g} of its largest number, "
                "more than sums in another order may"
            )

    @property
    def tiles_wrong(self) -> str:
        """By more than roundings do; "" where not."""
        return self._tile_error_too_large

    def host_in_words(self) -> str:
        return f"\nNo copies to the host: {self.host_refusal}\n" if self.host_refusal else ""

    def tiles_in_words(self) -> str:
        if not self.tiled:
            return f"\nNo tiles: {self.tile_refusal}\n" if self.tile_refusal else ""
        return (
            f"\n{self.tiled} kernels of the loss head run on tiles of its rows: their results differ from those of whole "
            f"rows by at most {self.tile_error:.2g} of a result's largest number ({self.tile_largest_error:.2g})\n"
        )

    def _take_kept_costs(self, lowered: Any, options: dict) -> None:
        """Under a budget the plan depends on costs. Those of a plan that an earlier process made serve as well as new
        ones where they are near, and then that plan does too. Guesses are not taken where costs have been measured,
        except for what is only rehearsed."""
        kept = plan_cache.kept_costs(lowered.graph, options, measured=self._guessed < _GUESSED_ENOUGH)
        if kept is None:
            return
        costs_ns, provisional = kept
        if not provisional:
            lowered.set_costs_ns(costs_ns)
        elif not self._rehearsed:
            lowered.set_costs_ns(costs_ns)
            self._guessed = 1.0

    def _lane_gbps(self, graph: _core.Graph) -> float | None:
        if self.room.link_gbps is not None or self.budget is None:
            return self.room.link_gbps
        device = self.recording.tape.device
        with shown("measuring copies to the host"):
            if device == "cpu":
                return self._costs.lane_gbps(self.host, self.room.store)
            return self._costs.lane_gbps(self.host, self.room.store, device, self.budget - graph.resident_bytes)

    @property
    def host_bytes(self) -> int:
        """What the plan's swaps need in the host store."""
        return self._executor.host_bytes

    @property
    def swapped_bytes(self) -> int:
        """What one step moves to the host."""
        return self._executor.swapped_bytes

    # ---- Guards

    def inputs(self, arguments: list[torch.Tensor]) -> list[int]:
        """Addresses of all that comes anew with each call: the tensors among the arguments, those that the step will
        replace, and gradients given from outside. Valid until the call ends."""
        self._own_memory()
        return addresses([*arguments, *self._memory, *(p.grad if p is not None else None for p in self._grads.inputs)])

    def _own_memory(self) -> None:
        """What is in the places that the step will fill anew, before it. Held for the length of a call, and no
        longer."""
        now = [place.get() for place in self.recording.replaced]
        if [storage_address(t) for t in now] != [storage_address(t) for t in self._memory]:
            self._memory = now

    def unfit(self, arguments: list[torch.Tensor], key: Any) -> str:
        """Why the recorded operations cannot serve this call, whatever its Python would do; "" when they can: where
        ``undecided`` is "", as they are, else Python has to say what it does."""
        self.undecided = ""
        if why := self._other_tensors(arguments):
            return why
        tape, inputs = self.recording.tape, self.inputs(arguments)
        self.undecided, serves = tape.decided(inputs, self.key != key)
        if not serves and self.recording.world.guard.changed():
            self.undecided, serves = tape.decided(inputs, True)
        return "" if serves else self.undecided

    def _other_tensors(self, arguments: list[torch.Tensor]) -> str:
        for place in self.recording.replaced:
            tensor = place.get()
            if tensor is None or metadata(tensor) != place.meta:
                return place.name
        for p, meta in self._grads.given:
            if p.grad is None or metadata(p.grad) != meta:
                return "a gradient that the step adds to"
        for p in self._grads.absent:
            if p.grad is not None:
                return "a gradient that was None"
        if self.recording.nodes.now() != self.recording.node_hooks:
            return "a hook on the autograd node of a parameter or tensor"
        if not self._executor.residents_unchanged():
            return "the memory of a parameter, buffer or optimizer state"
        return "" if self._executor.accepts(self.inputs(arguments)) else "where an argument lies in its storage"

    def changed(self, arguments: list[torch.Tensor]) -> str:
        """What no longer is as it was when the step was recorded, or ""."""
        return (
            self.recording.world.guard.changed()
            or self._other_tensors(arguments)
            or self.recording.tape.decided(self.inputs(arguments), False)[0]
        )

    # ---- Running

    def run(self, arguments: list[torch.Tensor]) -> Any:
        """One planned step. Returns what the user's function would.

        Raises Mismatch when the optimizer's Python differs, Error when memory cannot be had, whatever a kernel raises,
        or an interrupt. The state is then as before the step, or as after it, and the error says which
        (executor_undo.cpp)."""
        inputs = self.inputs(arguments)

        def step(undo: Undo) -> Any:
            self.match(inputs)
            return self.run_matched(inputs, arguments)

        return self.transaction(step, inputs=inputs)

    def run_matched(self, inputs: list[int], arguments: Sequence[torch.Tensor] = ()) -> Any:
        """run(), after match(), within transaction() or host_state()."""
        outputs = self._fresh_outputs()

        def finish() -> None:
            self._executor.hand_out(inputs, addresses(outputs))
            for p in self._grads.gone:
                p.grad = None
            for p, slot in zip(self._grads.returned, self._grads.slots):
                p.grad = outputs[slot]

        self._execute(inputs, finish)
        for slot, name in self.recording.output_graphs.items():
            _runtime.end_with_spent_graph(address(outputs[slot]), name)
        leaves = [
            outputs[slot] if slot >= 0 and leaf is None else leaf
            for slot, leaf in zip(self.recording.output_slots, self.recording.output_leaves)
        ]
        for leaf, argument in self.recording.output_arguments.items() if arguments else ():
            leaves[leaf] = arguments[argument]
        return unflatten(leaves, self.recording.output_spec)

    def _execute(self, inputs: list[int], finish: Callable[[], None]) -> None:
        """finish(): hands out the results; may run twice."""
        timed = self._timed_runs < _TIMED_RUNS
        self._finish = finish
        self.last_run = self._executor.run(inputs, timed)
        finish()
        self._finish = _nothing
        self._executor.drop_results()
        if timed:
            self._learn_costs()

    def _fresh_outputs(self) -> list[torch.Tensor]:
        """What the executor hands out into."""
        return [torch.empty(0, dtype=dtype, device=device) for dtype, device in self.recording.output_forms]

    def match(self, inputs: list[int]) -> None:
        """Runs the optimizers' and schedulers' Python; their numbers go onto the tape. Raises Mismatch."""
        for p in self._grads.cleared:
            p.grad = None
        self._matcher.bind(inputs)
        for event in self.events:
            if not isinstance(event, OptimizerEvent):
                event.scheduler.step(*event.args, **event.kwargs)
                continue
            made = {id(p) for p, _ in event.gradients}
            for p, slot in event.moved:
                self._matcher.adopt_shell(address(p), slot)
            for p, slot in event.gradients:
                p.grad = self._shells[id(p), slot]
            with self.recording.world.optimizer_view(event.optimizer):
                mismatch = self._matcher.section(event.section, event.optimizer.step)
            for p in self._parameters:
                if id(p) in made:
                    p.grad = None
            if mismatch:
                raise Mismatch(mismatch)

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
        self._executor.reserve()
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
            self._let_go(others)

    def _let_go(self, others: Sequence[Replay]) -> None:
        self._matcher.bind([])
        for replay in (self, *others):
            replay._memory = []

    @contextlib.contextmanager
    def host_state(self, *, always_back: bool = False) -> Iterator[Undo]:
        """transaction() as a block, for steps that are split over ranks. always_back: in any case."""
        self._executor.reserve()
        undo = Undo(self, (), False)
        try:
            yield undo
        except BaseException as error:
            undo.error = error
            _runtime.uninterrupted(undo.now, error, undo.thread)
            raise
        finally:
            self._let_go(())
        if always_back:
            undo.now()

    # ---- With the user's own Python

    def shadow(
        self,
        call: Callable[[], Any],
        arguments: list[torch.Tensor],
        others: list[Replay],
        within: Callable[[], contextlib.AbstractContextManager],
        passing: Sequence[Any] = (),
    ) -> Shadow:
        """Runs the user's function once, over shells, and matches what it does with the recordings: this one, then
        ``others``.

        passing: arrays among the call's arguments, over which tensors may lie.
        within(): the block that it runs in if it leaves them; then it has happened eagerly. An exception of the
        function passes through; what it did before has happened then, as in eager. Nothing has when it was interrupted
        before it left them."""
        matcher = self._matcher
        raised: list[BaseException] = []  # within an operator, which passes it on as a RuntimeError

        def run_within(run: Callable[[], None]) -> None:
            with within():
                run()

        with contextlib.ExitStack() as eager:

            def leaving() -> None:
                eager.enter_context(within())

            try:
                tapes = [other.recording.tape for other in others]
                executors = [replay._executor if replay.trusted else None for replay in (self, *others)]
                arrays = [array for replay in (self, *others) for array in replay.recording.arrays]
                arrays += passing
                contents = ToldContents(matcher, arrays)
                around = run_within if self.budget is not None else None
                decided = [not replay.undecided for replay in (self, *others)]
                matcher.begin_step(
                    [replay.inputs(arguments) for replay in (self, *others)],
                    tapes,
                    leaving,
                    self.budget is not None,
                    executors,
                    around,
                    raised,
                    decided,
                    ToldKernels(),
                )
                result = matcher.step(lambda: self._python_of(call, contents))
                difference = matcher.difference
                chosen = self if matcher.chosen < 0 else others[matcher.chosen]
                if not difference and not self._returns(chosen, result):
                    difference = "the step returns or keeps other tensors than when it was recorded"
                    matcher.leave(difference)
                if not difference and self._keeps_lost_states():
                    difference = "the step keeps a state of a random generator, and reads numbers"
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
            matcher.other_operator,
            contents.handed_out,
        )

    def _python_of(self, call: Callable[[], Any], contents: ToldContents) -> Any:
        regions = self.room.regions
        if self.recording.world.compiled is not None or regions.inside:
            with compiled_regions.seen(self._matcher.leave):
                return contents.beside(call)
        with compiled_regions.looked_for(self._matcher.leave, regions, contents):
            return contents.within(call)

    def run_shadowed(self, shadow: Shadow, inputs: list[int]) -> None:
        """The planned step, after the user's Python has run over shells, which get their content here."""
        handover = shadow.began._matcher.handover()
        handover.begin(self._executor)
        self._execute(inputs, lambda: handover.take_results(self._executor))

    def _held(self, result: Any) -> list[torch.Tensor | None]:
        """What Python holds in the places of the outputs."""
        return [
            *(leaf for leaf in flatten(result)[0] if isinstance(leaf, torch.Tensor)),
            *(p.grad for p in self._grads.returned),
        ]

    def _returns(self, chosen: Replay, result: Any) -> bool:
        if self._matcher.returns(addresses(chosen._held(result))):
            return True
        gc.collect()  # what only cycles hold is nobody's
        return self._matcher.returns(addresses(chosen._held(result)))

    def _keeps_lost_states(self) -> bool:
        if self._matcher.keeps_lost_states:
            gc.collect()
        return self._matcher.keeps_lost_states

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
                self.last_run, state = self._executor.rehearse(inputs, self._matcher, learn)
        finally:
            kernels.put_back()
            self.arena.release()  # the eager step that follows has its own memory
            self.host.release()
        if learn:
            self._learn_costs()
        outputs = self._fresh_outputs()
        self._executor.hand_out(inputs, addresses(outputs))
        self._executor.drop_returned()
        return Rehearsal(state, [output if self._executor.is_result(i) else None for i, output in enumerate(outputs)])

    def agrees(self, rehearsal: Rehearsal, result: Any, inputs: list[int], kept: bool = True) -> bool:
        """After the same step done without a plan: has it done the same, bit for bit? ``inputs``: as they were before
        it. ``kept``: so are the tensors that Python keeps."""
        return kept and rehearsal.agrees(self._executor.state(inputs, self._matcher), result, self._grads.returned)

    def look_closely(self, on: bool) -> None:
        """Whether rehearsals note which op differs first, where nobody has said so (Room.looks)."""
        if self.room.looks:
            return
        self._looks = "closely" if on else ""
        self._matcher.look_closely(on)
        self._executor.look_closely(on, False)

    def _learn_costs(self) -> None:
        self._costs.add((self._cost_keys[op], ns) for op, ns in self._executor.op_times())
        self._timed_runs += 1
        if self._timed_runs == _TIMED_RUNS:
            self._costs.save()

    def replan_if_learned(self) -> bool:
        """After a rehearsal. Plans again when it saw other allocations than the plan was made for, or when, under a
        budget, the plan rests on costs that nobody had measured. (Without a budget costs decide nothing.)

        Raises Infeasible when nothing fits what it saw. A plan for other costs that cannot be found is no reason to
        give up this one, which keeps the budget whatever its ops cost."""
        self._rehearsed = True
        if self._executor.learned_something:
            self._make_plan()
            return True
        if self._guessed < _GUESSED_ENOUGH:
            return False
        if self.budget is not None:
            with contextlib.suppress(Infeasible):
                self._make_plan()
                return True
        self._guessed = self._costs.price(self.recording.tape)
        self.graph = self._lower().graph
        self.plan = self.plan.with_costs_of(self.graph)
        return False


_OPTIMIZERS = ("torch.optim.", "accelerate.optimizer")


def _keeps_state_in_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """So that a step() that has begun over shells can be taken back: what it has counted is in tensors, which are put
    back. Others count in numbers of Python, which would count twice when the plan turns out not to fit, and the step
    runs anew."""
    hooks = any(getattr(optimizer, name, None) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))
    return type(optimizer).__module__.startswith(_OPTIMIZERS) and not hooks


def _host_refusal(executor: _runtime.Executor) -> str:
    """Why what the plan sends to the host cannot wait there; "" where it can."""
    try:
        executor.reserve_host()
    except Error as error:
        return str(error)
    return ""


def _slicing(on: bool, product_columns: int | None = None) -> _runtime.RowSlicing:
    if product_columns is None:
        return _runtime.RowSlicing(on=on)
    return _runtime.RowSlicing(on=on, product_columns=product_columns)


def _tiling(on: bool) -> _runtime.TileOptions:
    return _runtime.TileOptions(on=on)


def _nothing() -> None:
    pass


__all__ = ["Mismatch", "ReadsShell", "Replay", "Room", "Shadow", "Undo", "why_python_must_run"]
