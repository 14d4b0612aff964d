"""One recorded step, planned and executable: match the optimizer's Python against the tape, run the plan, hand out the results."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stowage import _runtime, plan_cache
from stowage.costs import cost_file
from stowage.planning import Plan, check, parse_bytes, plan, plan_options
from stowage.progress import shown
from stowage.recording import OptimizerEvent, Recording
from stowage.rehearsal import Rehearsal
from stowage.signature import metadata
from stowage.torch_private import address, addresses, flatten, is_shell, storage_address, unflatten


_TIMED_RUNS = 4  # the rehearsal and the first planned steps
_GUESSED_ENOUGH = 0.02  # share of the step's cost


class Mismatch(Exception):
    """The user's Python no longer does what was recorded; nothing has been changed."""


class ReadsShell(Exception):
    """The user's Python reads bytes on the host, beside PyTorch's dispatcher, of a tensor that has none yet. What it did is taken back
    as far as it is known."""


@dataclass(frozen=True)
class Shadow:
    """A call whose Python has run. ``difference``: where it left all recordings, and has happened eagerly; "": ``replay`` can execute it.
    ``refreshed``: Python numbers were others than recorded."""

    began: Replay
    replay: Replay
    result: Any
    difference: str
    refreshed: bool
    in_optimizer: bool  # what differed; there no guard is needed, as its Python runs in every call

    def done(self) -> None:
        self.began._matcher.forget_step()

    def kept_agree(self) -> bool:
        """After a rehearsal and run_plainly(): what Python keeps has the same bits in both."""
        return self.began._matcher.kept_agree(self.replay._executor)

    def run_plainly(self) -> None:
        self.began._matcher.run_plainly()


@dataclass(frozen=True)
class Room:
    """What the plans of one compiled step share."""

    arena: _runtime.Arena
    host: _runtime.Host
    link_gbps: float | None
    store: str  # what the host store is, as costs are kept by it

    @classmethod
    def of_environment(cls, arena: _runtime.Arena, link_gbps: float | None) -> Room:
        """With the host store that the environment wants: in memory, or in a file of a directory; as large as needed, or limited."""
        directory = os.environ.get("STOWAGE_HOST_STORE", "")
        limit = parse_bytes(os.environ.get("STOWAGE_HOST_LIMIT") or None)
        return cls(arena, _runtime.Host(directory, limit or 0, link_gbps or 0.0), link_gbps, directory or "memory")


class Undo:
    """What the Python of one call can change and the executor does not put back: optimizers' numbers, schedulers, gradients.

    A step that has been executed is never taken back: an interrupt that arrives between its end and here finds it finished.
    """

    def __init__(self, began: Replay, others: Sequence[Replay]):
        world = began.recording.world
        self._began = began
        self._runs = [(replay, replay._executor.runs) for replay in (began, *others)]
        cleared = {id(p) for p in began._grads.cleared}  # not held meanwhile: the step's first act on them is to let them go
        self._cleared = began._grads.cleared
        self._grads = [(p, p.grad) for p in began._parameters if id(p) not in cleared]
        self._saved = [(s.__dict__, dict(s.__dict__)) for s in world.schedulers]
        for optimizer in world.optimizers:
            self._saved.extend((group, dict(group)) for group in optimizer.param_groups)
        self._memory = [(place, place.get()) for place in began.recording.replaced]
        self._done = False

    def forget(self) -> None:
        """From now on what the call does stays."""
        self._done = True
        self._memory = []

    def now(self) -> None:
        if self._done:
            return
        self._done = True
        for replay, runs in self._runs:
            if replay._executor.runs != runs:
                replay._finish()
                return
        self._began._matcher.roll_back()
        for live, copy in self._saved:
            live.clear()
            live.update(copy)
        for p, grad in self._grads:
            p.grad = grad
        for p in self._cleared:
            p.grad = None
        for place, tensor in self._memory:
            place.put_back(tensor)
        self._memory = []


class Replay:
    """Executes a Recording. Not thread-safe; residents are the user's own tensors."""

    def __init__(self, recording: Recording, room: Room, name: str, budget: int | None, takeover: bool = True):
        self.recording = recording
        self.room = room
        self.arena = room.arena
        self.host = room.host
        self.name = name
        self.budget = budget
        self.takeover = takeover
        self.events = recording.events
        self.outputs_template = recording.output_tensors
        self.last_run: Any = None
        recording.result = None
        self._costs = cost_file()
        self._cost_keys = recording.tape.cost_keys()
        self._timed_runs = 0
        self._rehearsed = False
        self._finish: Callable[[], None] = _nothing
        self._make_plan()
        self._grads = recording.gradients
        self._parameters = recording.world.parameters()
        self.key: Any = None  # signature of the recorded call
        self.trusted = False  # has agreed with the step done without a plan
        self.rehearsals = 0
        self.planned_calls = 0
        # Why its Python must run in every call; "" when guards see all that it reads.
        blind = recording.world.guard.blind
        self.shadowed_because = ""
        if recording.keeps:
            self.shadowed_because = f"{recording.keeps}: the step keeps this tensor beyond its end"
        elif keeper := next((o for o in recording.world.optimizers if not _keeps_state_in_tensors(o)), None):
            self.shadowed_because = f"{type(keeper).__qualname__} may keep state in Python objects"
        elif recording.sets:
            self.shadowed_because = f"the step sets {recording.sets} by itself"
        elif recording.returns:
            self.shadowed_because = f"it returns {recording.returns}"
        elif recording.tape.reads:
            self.shadowed_because = "it reads numbers that it makes"
        elif recording.changes:
            self.shadowed_because = f"the step changes {recording.changes}, which it also reads"
        elif blind:
            self.shadowed_because = blind[0]
        self._optimizers = recording.world.optimizers
        self._schedulers = recording.world.schedulers
        self._matcher = _runtime.Matcher(recording.tape)
        self._memory: list[torch.Tensor] = []
        self._shells: dict[tuple[int, int], torch.Tensor] = {}
        for event in self.events:
            if isinstance(event, OptimizerEvent):
                for p, slot in event.gradients:
                    if (id(p), slot) not in self._shells:
                        shell = torch.empty(0, dtype=p.dtype if p.grad is None else p.grad.dtype)
                        self._matcher.adopt_shell(address(shell), slot)
                        self._shells[id(p), slot] = shell

    def _make_plan(self) -> None:
        self._guessed = self._costs.price(self.recording.tape)
        lowered = _runtime.lower(self.recording.tape, self.name)
        link_gbps = self._lane_gbps()
        options = plan_options(self.budget, takeover=self.takeover, link_gbps=link_gbps)
        if self.budget is not None:
            self._take_kept_costs(lowered, options)
        self.graph = lowered.graph
        self.plan: Plan = plan(self.graph, self.budget, takeover=self.takeover, link_gbps=link_gbps)
        if self.budget is not None and self._guessed >= _GUESSED_ENOUGH and not self.plan.from_cache:
            plan_cache.keep(self.graph, options, plan_cache.Entry(self.plan._plan, self.plan.summary(), self.graph.costs_ns, provisional=True))
        with shown("checking the plan and making it executable"):
            check(self.graph, self.plan)
            self._executor = _runtime.Executor(self.recording.tape, lowered, self.plan._plan, self.arena, self.host)

    def _take_kept_costs(self, lowered: Any, options: dict) -> None:
        """Under a budget the plan depends on costs. Those of a plan that an earlier process made serve as well as new ones where they are
        near, and then that plan does too. Guesses are not taken where costs have been measured, except for what is only rehearsed."""
        kept = plan_cache.kept_costs(lowered.graph, options, measured=self._guessed < _GUESSED_ENOUGH)
        if kept is None:
            return
        costs_ns, provisional = kept
        if not provisional:
            lowered.set_costs_ns(costs_ns)
        elif not self._rehearsed:
            lowered.set_costs_ns(costs_ns)
            self._guessed = 1.0

    def _lane_gbps(self) -> float | None:
        if self.room.link_gbps is not None or self.budget is None:
            return self.room.link_gbps
        with shown("measuring copies to the host"):
            return self._costs.lane_gbps(self.host, self.room.store)

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
        """Addresses of all that comes anew with each call: the tensors among the arguments, those that the step will replace, and gradients
        given from outside. Valid until the call ends."""
        self._own_memory()
        return addresses([*arguments, *self._memory, *(p.grad if p is not None else None for p in self._grads.inputs)])

    def _own_memory(self) -> None:
        """What is in the places that the step will fill anew, before it. Held for the length of a call, and no longer."""
        now = [place.get() for place in self.recording.replaced]
        if [storage_address(t) for t in now] != [storage_address(t) for t in self._memory]:
            self._memory = now

    def unfit(self, arguments: list[torch.Tensor]) -> str:
        """Why the recorded operations cannot serve this call, whatever its Python would do; "" when they can."""
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
        if not self._executor.residents_unchanged():
            return "the memory of a parameter, buffer or optimizer state"
        inputs = self.inputs(arguments)
        if not self._executor.accepts(inputs):
            return "where an argument lies in its storage"
        return self.recording.tape.changed_decision(inputs)

    def changed(self, arguments: list[torch.Tensor]) -> str:
        """What no longer is as it was when the step was recorded, or ""."""
        return self.recording.world.guard.changed() or self.unfit(arguments)

    # ---- Running

    def run(self, arguments: list[torch.Tensor]) -> Any:
        """One planned step. Returns what the user's function would.

        Raises Mismatch, with the state as before, when the optimizer's Python differs. When a kernel raises, scheduler, step
        counters and hyperparameters are as before the step. Raises Error, with nothing changed, when memory cannot be had.
        """
        inputs = self.inputs(arguments)
        with self.host_state():
            self.match(inputs)
            return self.run_matched(inputs)

    def run_matched(self, inputs: list[int]) -> Any:
        """run(), after host_state() and match()."""
        outputs = self._fresh_outputs()

        def finish() -> None:
            for p in self._grads.gone:
                p.grad = None
            for p, grad in zip(self._grads.returned, outputs[len(outputs) - len(self._grads.returned) :]):
                p.grad = grad

        self._execute(inputs, outputs, finish)
        leaves = [outputs[slot] if slot >= 0 else leaf for slot, leaf in zip(self.recording.output_slots, self.recording.output_leaves)]
        return unflatten(leaves, self.recording.output_spec)

    def _execute(self, inputs: list[int], outputs: list[torch.Tensor], finish: Callable[[], None]) -> None:
        """finish(): hands out the results; may run twice."""
        timed = self._timed_runs < _TIMED_RUNS
        self._finish = finish
        self.last_run = self._executor.run(inputs, self._arena_outputs(outputs, inputs), timed)
        finish()
        self._finish = _nothing
        if timed:
            self._learn_costs()

    def _fresh_outputs(self) -> list[torch.Tensor]:
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in self.outputs_template]

    def _arena_outputs(self, outputs: list[torch.Tensor], inputs: list[int]) -> list[int]:
        """Addresses of the outputs to copy into; 0 for those that are residents or inputs, which are aliased here."""
        into = []
        for i, output in enumerate(outputs):
            external = self._executor.fill_external_output(i, inputs, address(output))
            into.append(0 if external else address(output))
        return into

    def match(self, inputs: list[int]) -> None:
        """Runs the optimizers' and schedulers' Python; their numbers go onto the tape. Raises Mismatch."""
        for p in self._grads.cleared:
            p.grad = None
        self._matcher.remember()
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
            error: Exception | None = None
            with self.recording.world.optimizer_view(event.optimizer):
                mismatch = "the optimizer was interrupted"
                try:
                    self._matcher.begin(event.section)
                    event.optimizer.step()
                except Exception as e:  # a mismatch ends the user's step() by an exception from the hook
                    error = e
                finally:
                    mismatch = self._matcher.end()
            for p in self._parameters:
                if id(p) in made:
                    p.grad = None
            if mismatch:
                raise Mismatch(mismatch)
            if error is not None:
                raise error

    @contextlib.contextmanager
    def host_state(self, others: Sequence[Replay] = (), *, always_back: bool = False) -> Iterator[Undo]:
        """Takes memory for the step; then what the optimizers' Python changes goes back if the step fails, or in any case.

        others: recordings of the same function, one of which may come to be executed instead.
        """
        self._executor.reserve()
        undo = Undo(self, others)
        try:
            yield undo
        except BaseException:
            undo.now()
            raise
        finally:
            self._matcher.bind([])
            for replay in (self, *others):
                replay._memory = []
        if always_back:
            undo.now()

    # ---- With the user's own Python

    def shadow(
        self, call: Callable[[], Any], arguments: list[torch.Tensor], others: list[Replay],
        within: Callable[[], contextlib.AbstractContextManager], undo: Undo,
    ) -> Shadow:
        """Runs the user's function once, over shells, and matches what it does with the recordings: this one, then ``others``.

        within(): the block that it runs in if it leaves them; then it has happened eagerly. An exception of the function passes
        through; what it did before has happened then.
        """
        matcher = self._matcher
        matcher.remember()

        def run_within(run: Callable[[], None]) -> None:
            with within():
                run()

        with contextlib.ExitStack() as eager:

            def leaving() -> None:
                undo.forget()
                eager.enter_context(within())

            try:
                tapes = [other.recording.tape for other in others]
                executors = [replay._executor if replay.trusted else None for replay in (self, *others)]
                around = run_within if self.budget is not None else None
                matcher.begin_step(self.inputs(arguments), tapes, leaving, self.budget is not None, executors, around)
                result = call()
                difference = matcher.end_step()
                chosen = self if matcher.chosen < 0 else others[matcher.chosen]
                if not difference and not self._returns(chosen, result):
                    difference = "the step returns or keeps other tensors than when it was recorded"
                    matcher.leave(difference)
            except BaseException as error:
                failed_by_us = matcher.abandon_step(str(error))
                matcher.forget_step()
                if failed_by_us:
                    raise ReadsShell(str(error)) from None
                raise
        return Shadow(self, chosen, result, difference, matcher.refreshed, matcher.left_in_section)

    def run_shadowed(self, shadow: Shadow, inputs: list[int]) -> None:
        """The planned step, after the user's Python has run over shells, which get their content here."""
        outputs = self._fresh_outputs()

        def finish() -> None:
            for held, output in zip(self._held(shadow.result), outputs):
                if is_shell(held):  # not a resident or an argument, which is what it is
                    _runtime.Matcher.fill(address(held), address(output))
            shadow.began._matcher.take_kept(self._executor)

        self._execute(inputs, outputs, finish)

    def _held(self, result: Any) -> list[torch.Tensor | None]:
        """What Python holds in the places of the outputs."""
        return [*(leaf for leaf in flatten(result)[0] if isinstance(leaf, torch.Tensor)), *(p.grad for p in self._grads.returned)]

    def _returns(self, chosen: Replay, result: Any) -> bool:
        if self._matcher.returns(addresses(chosen._held(result))):
            return True
        gc.collect()  # what only cycles hold is nobody's
        return self._matcher.returns(addresses(chosen._held(result)))

    # ---- Trust

    def serves_as(self, recording: Recording) -> bool:
        """The recording holds what this one holds."""
        return not self.recording.tape.same_program(recording.tape)

    def rehearse_matched(self, inputs: list[int]) -> Rehearsal:
        """Runs the planned step, remembers a digest of what it did, and puts everything back. Learns the ops' true allocations.

        After match() or shadow(). Needs the plan's memory, and beside it that of the residents that are being changed at one moment.
        """
        outputs = self._fresh_outputs()
        try:
            into = self._arena_outputs(outputs, inputs)
            with shown("rehearsing the plan"):
                self.last_run, state = self._executor.rehearse(inputs, into, self._matcher)
        finally:
            self.arena.release()  # the eager step that follows has its own memory
            self.host.release()
        self._learn_costs()
        return Rehearsal(state, [output if where else None for output, where in zip(outputs, into)])

    def agrees(self, rehearsal: Rehearsal, result: Any, inputs: list[int], kept: bool = True) -> bool:
        """After the same step done without a plan: has it done the same, bit for bit? ``inputs``: as they were before it. ``kept``: so are
        the tensors that Python keeps."""
        return kept and rehearsal.agrees(self._executor.state(inputs, self._matcher), result, self._grads.returned)

    def _learn_costs(self) -> None:
        self._costs.add((self._cost_keys[op], ns) for op, ns in self._executor.op_times())
        self._timed_runs += 1
        if self._timed_runs == _TIMED_RUNS:
            self._costs.save()

    def replan_if_learned(self) -> bool:
        """After a rehearsal. Plans again when it saw other allocations than the plan was made for, or when, under a budget, the plan
        rests on costs that nobody had measured. (Without a budget costs decide nothing.)"""
        self._rehearsed = True
        if self._executor.learned_something:
            self._make_plan()
            return True
        if self._guessed < _GUESSED_ENOUGH:
            return False
        if self.budget is not None:
            self._make_plan()
            return True
        self._guessed = self._costs.price(self.recording.tape)
        self.graph = _runtime.lower(self.recording.tape, self.name).graph
        self.plan = self.plan.with_costs_of(self.graph)
        return False


_OPTIMIZERS = ("torch.optim.", "accelerate.optimizer")


def _keeps_state_in_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """So that a step() that has begun over shells can be taken back: what it has counted is in tensors, which are put back. Others
    count in numbers of Python, which would count twice when the plan turns out not to fit, and the step runs anew."""
    hooks = any(getattr(optimizer, name, None) for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"))
    return type(optimizer).__module__.startswith(_OPTIMIZERS) and not hooks


def _nothing() -> None:
    pass


__all__ = ["Mismatch", "ReadsShell", "Replay", "Room", "Shadow", "Undo"]
