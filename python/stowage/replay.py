"""One recorded step, planned and executable: match the optimizer's Python against the tape, run the plan, hand out the results."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import torch

from stowage import _runtime, plan_cache
from stowage.costs import cost_file
from stowage.host_copy import GradAside
from stowage.planning import Plan, check, parse_bytes, plan, plan_options
from stowage.progress import shown
from stowage.recording import OptimizerEvent, Recording
from stowage.rehearsal import Rehearsal
from stowage.torch_private import address, addresses, unflatten


_TIMED_RUNS = 4  # the rehearsal and the first planned steps
_GUESSED_ENOUGH = 0.02  # share of the step's cost


class Mismatch(Exception):
    """The user's Python no longer does what was recorded; nothing has been changed."""


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
        self._make_plan()
        self._parameters = recording.world.parameters()
        self._optimizers = [e.optimizer for e in self.events if isinstance(e, OptimizerEvent)]
        self._schedulers = recording.world.schedulers
        self._matcher = _runtime.Matcher(recording.tape)
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

    def changed(self, inputs: list[torch.Tensor]) -> str:
        """What no longer is as it was when the step was recorded, or ""."""
        changed = self.recording.world.guard.changed()
        if changed:
            return changed
        for p, grad in self.recording.resident_grads:
            if p.grad is not grad:
                return "a gradient that the step adds to"
        for p in self.recording.returned_grads:
            if p.grad is not None:
                return "a gradient that was None"
        if not self._executor.residents_unchanged():
            return "the memory of a parameter, buffer or optimizer state"
        return "" if self._executor.accepts(addresses(inputs)) else "where an argument lies in its storage"

    # ---- Running

    def run(self, inputs: list[torch.Tensor]) -> Any:
        """One planned step. Returns what the user's function would.

        Raises Mismatch, with the state as before, when the optimizer's Python differs. When a kernel raises, scheduler, step
        counters and hyperparameters are as before the step. Raises Error, with nothing changed, when memory cannot be had.
        """
        with self.host_state():
            self.match()
            return self.run_matched(inputs)

    def run_matched(self, inputs: list[torch.Tensor]) -> Any:
        """run(), after host_state() and match()."""
        outputs = self._fresh_outputs()
        timed = self._timed_runs < _TIMED_RUNS
        self.last_run = self._executor.run(addresses(inputs), self._arena_outputs(outputs, inputs), timed)
        if timed:
            self._learn_costs()
        for p, grad in zip(self.recording.returned_grads, outputs[len(outputs) - len(self.recording.returned_grads) :]):
            p.grad = grad
        leaves = [outputs[slot] if slot >= 0 else leaf for slot, leaf in zip(self.recording.output_slots, self.recording.output_leaves)]
        return unflatten(leaves, self.recording.output_spec)

    def _fresh_outputs(self) -> list[torch.Tensor]:
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in self.outputs_template]

    def _arena_outputs(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[int]:
        """Addresses of the outputs to copy into; 0 for those that are residents or inputs, which are aliased here."""
        into = []
        for i, output in enumerate(outputs):
            external = self._executor.fill_external_output(i, addresses(inputs), address(output))
            into.append(0 if external else address(output))
        return into

    def match(self) -> None:
        """Runs the optimizers' and schedulers' Python; their numbers go onto the tape. Raises Mismatch."""
        for p in self.recording.dropped_grads:
            p.grad = None
        self._matcher.remember()
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
                self._matcher.begin(event.section)
                try:
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
    def host_state(self, *, always_back: bool = False):
        """Takes memory for the step; then what the optimizers' Python changes goes back if the step fails, or in any case. Yields a
        function that puts it back at once."""
        dropped = [p for p in self.recording.dropped_grads if p.grad is not None]
        aside = [GradAside(p) for p in dropped] if self.budget is not None else []  # eager has left them; the plan does not count them
        grads = [(p, p.grad) for p in self.recording.dropped_grads]
        saved = [(s.__dict__, dict(s.__dict__)) for s in self._schedulers]
        for optimizer in self._optimizers:
            saved.extend((group, dict(group)) for group in optimizer.param_groups)
        undone = False

        def undo() -> None:
            nonlocal undone
            if undone:
                return
            undone = True
            self._matcher.roll_back()
            for live, copy in saved:
                live.clear()
                live.update(copy)
            for p, grad in grads:
                p.grad = grad
            if aside:
                self.arena.release()
            for grad in aside:
                grad.put_back()

        try:
            self._executor.reserve()
            yield undo
        except BaseException:
            undo()
            raise
        if always_back:
            undo()

    # ---- Trust

    def rehearse(self, inputs: list[torch.Tensor]) -> Rehearsal:
        """Runs the planned step, remembers a digest of what it did, and puts everything back. Learns the ops' true allocations.

        Needs the plan's memory, and beside it that of the residents that are being changed at one moment.
        """
        with self.host_state(always_back=True):
            self.match()
            return self.rehearse_matched(inputs)

    def rehearse_matched(self, inputs: list[torch.Tensor]) -> Rehearsal:
        """rehearse(), after host_state(always_back=True) and match()."""
        outputs = self._fresh_outputs()
        try:
            into = self._arena_outputs(outputs, inputs)
            with shown("rehearsing the plan"):
                self.last_run, state = self._executor.rehearse(addresses(inputs), into, self._matcher)
        finally:
            self.arena.release()  # the eager step that follows has its own memory
            self.host.release()
        self._learn_costs()
        return Rehearsal(state, outputs)

    def agrees(self, rehearsal: Rehearsal, result: Any, inputs: list[torch.Tensor]) -> bool:
        """After the eager step that followed: has it done the same, bit for bit?"""
        return rehearsal.agrees(self._executor.state(addresses(inputs), self._matcher), result, self.recording.returned_grads)

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


__all__ = ["Mismatch", "Replay", "Room"]
