"""stowage.verify: the planned step against the eager one, on the user's own model and batches.

    state ──► eagerly, batch by batch ──► digests of all tensors after each call ─┐
    state ──► planned, batch by batch ──► digests of all tensors after each call ─┴─► the first that differs
    state                                                                              and it is as it was

The state is put back before each of the two and at the end: parameters, buffers, gradients, optimizers, schedulers,
generators."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from stowage import _runtime
from stowage._torch.private import address, flatten, local_tensor, storage_address
from stowage.errors import Error
from stowage.step.compile import compile
from stowage.step.compiled import CompiledStep
from stowage.step.reach.python_state import PythonState
from stowage.step.reach.state import State, own_ranges
from stowage.step.reach.world import World
from stowage.step.signature.signature import objects_of

_LEAST_CALLS = 8  # warm-up, recording, rehearsal, and some planned ones
_BITS = "the planned step does not give the bits"


@dataclass(frozen=True)
class Verification:
    """What verify() has found; true where planned calls were made and all agree.

    Args:
        equal: no difference was found.
        calls: those compared, of which ``planned_calls`` executed the plan.
        call: the first that differs, from 0 on, or -1.
        difference: what differs first, in plain words, or "".
        op: the first operator that made something else in the plan, with the line of the user's code, where that could
            be told, or "".
        refusal: why the step is not planned, or "".
        left: what of the step's Python could not be put back to where it was, an iterator of C for one, or "".
    """

    equal: bool
    calls: int
    planned_calls: int
    call: int = -1
    difference: str = ""
    op: str = ""
    refusal: str = ""
    left: str = ""

    def __bool__(self) -> bool:
        return self.equal and self.planned_calls > 0

    def __str__(self) -> str:
        return self._found() + (f"; not put back to where it was: {self.left}" if self.left else "")

    def _found(self) -> str:
        where = f"; the first operator that differs is {self.op}" if self.op else ""
        if not self.equal:
            return f"different: {self.difference}{where}"
        if self.planned_calls == 0:
            return f"nothing to compare, the step is not planned: {self.refusal or 'too few calls'}"
        return f"equal, bit for bit, in {self.calls} calls, {self.planned_calls} of them planned"


def verify(
    step: Callable, batches: Iterable[Any], *, budget: int | str | None = None, strict: bool | str = False
) -> Verification:
    """Runs ``step`` eagerly and planned, from the same state, and compares all that both leave, to the bit.

    After each call every parameter, buffer, gradient, tensor and number of an optimizer, scheduler, result and the
    generator are compared. Afterwards model, optimizers, schedulers, generators and what the step reaches in Python
    (counters, lists, attributes) are as before, whatever happened; what is outside Python (prints, files, queues) stays
    done, and ``left`` names what C keeps to itself and cannot be set back (itertools.count, a generator). Needs host memory for one copy of the state, and the time of three times the calls.

    Args:
        step: the training step, as compile() takes it, or what compile() has made of one. Each batch is passed as its
            only argument.
        batches: of any shapes; copied before each call. Where there are fewer than eight, they come again in turn: the
            first calls of a step are eager.
        budget: as for compile(), in bytes or as "2GiB".
        strict: as for compile(); "paranoid" also finds operators that write outside their memory.

    Returns:
        A Verification.

    Raises:
        Error: there are no batches; a module has lazy parameters that no call has given a shape.
        Infeasible: nothing fits the budget.
        Exception: what the step raises.
    """
    function = step._fn if isinstance(step, CompiledStep) else step
    given = list(batches)
    if not given:
        raise Error("verify() needs at least one batch")
    calls = [given[i % len(given)] for i in range(max(len(given), _LEAST_CALLS))]
    world = World(function, objects_of(tuple(given), {}))
    world.take_for_run()  # nobody notes what runs, and what that names
    lazy = next((name for name, m in world.modules if any(map(is_lazy, (*m.parameters(), *m.buffers())))), None)
    if lazy is not None:
        raise Error(
            f"'{lazy}' has lazy parameters without a shape, which cannot be put back; run the step once before verify()"
        )
    everything = World(function, objects_of(tuple(given), {}))
    everything.reach_all()
    state = _Before(world, everything)
    try:
        found = _verified(function, calls, state, budget, strict)
    finally:
        left = state.put_back()
    return dataclasses.replace(found, left=left)


def _verified(
    function: Callable, calls: list[Any], state: _Before, budget: int | str | None, strict: bool | str
) -> Verification:
    eager = list(_run(function, calls, state))
    state.put_back()
    compiled = compile(function, budget, strict=strict)
    compiled._room = dataclasses.replace(compiled._room, looks="paranoid" if strict == "paranoid" else "closely")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _compare(eager, _run(compiled, calls, state), compiled)
    if found.call >= 0 and not found.op:
        state.put_back()
        again = zip(eager, _run(function, calls[: found.call + 1], state))
        if any(_first_difference(a, b) for a, b in again):
            return dataclasses.replace(
                found, difference=found.difference + ", but the step does not repeat itself eagerly either"
            )
    return found


Seen = dict[str, Any]  # what a call leaves, by name: digests of tensors, or numbers


def _compare(eager: list[Seen], planned: Iterator[Seen], compiled: CompiledStep) -> Verification:
    for call, (a, b) in enumerate(zip(eager, planned)):
        name = _first_difference(a, b)
        if name:
            planned_calls = compiled.stats()["planned_steps"]
            return Verification(
                False, call + 1, planned_calls, call, f"{name}, after call {call} (from 0 on)", "", compiled.refusal
            )
    stats, refusal = compiled.stats(), compiled.refusal
    if _BITS in refusal:  # its rehearsal has found it, and the calls were eager
        _, _, op = refusal.partition(": first ")
        return Verification(
            False,
            len(eager),
            stats["planned_steps"],
            -1,
            "the plan, when rehearsed, does not give the bits of eager",
            op,
            refusal,
        )
    return Verification(True, len(eager), stats["planned_steps"], refusal=refusal)


def _first_difference(a: Seen, b: Seen) -> str:
    return next(
        (name for name in [*a, *(n for n in b if n not in a)] if name not in a or name not in b or a[name] != b[name]),
        "",
    )


def _run(step: Callable, batches: list[Any], state: _Before) -> Iterator[Seen]:
    for batch in batches:
        yield state.seen(step(copy.deepcopy(batch)))


class _Before:
    """All that a step changes, where it can be found, as it is when this is made."""

    def __init__(self, world: World, everything: World):
        """``everything``: also what the step is not known to use, whose tensors are not copied."""
        self._world = world
        self._state = State(world, own_ranges(world, []))
        self._python = PythonState(everything)
        self._memory = [(p, p.detach()) for p in world.parameters()]

    def put_back(self) -> str:
        """See PythonState."""
        left = self._python.put_back()
        for p, memory in self._memory:
            if storage_address(p) != storage_address(memory):
                p.data = memory
        self._state.put_back()
        return left

    def seen(self, result: Any) -> Seen:
        """After a call: the results come first, then gradients, parameters, buffers, what optimizers, schedulers and
        scalers hold, the generator."""
        seen: Seen = {f"result {i}": _shown(leaf) for i, leaf in enumerate(flatten(result)[0])}
        names = {id(p): name for path, m in self._world.modules for name, p in m.named_parameters(prefix=path)}
        named = [(names.get(id(p), f"parameter {i}"), p) for i, p in enumerate(self._world.parameters())]
        seen |= {f"the gradient of '{name}'": _shown(p.grad) for name, p in named}
        seen |= {f"'{name}'": _shown(p) for name, p in named}
        seen |= {f"'{name}'": _shown(b) for path, m in self._world.modules for name, b in m.named_buffers(prefix=path)}
        for i, optimizer in enumerate(self._world.optimizers):
            for p, values in optimizer.state.items():
                of = f"of '{names.get(id(p), '?')}' in optimizer {i}"
                seen |= {f"'{k}' {of}": _shown(v) for k, v in (values.items() if isinstance(values, dict) else ())}
            for g, group in enumerate(optimizer.param_groups):
                seen |= {f"'{k}' of group {g} of optimizer {i}": _shown(v) for k, v in group.items() if k != "params"}
        for i, scheduler in enumerate(self._world.schedulers):
            seen |= {f"'{k}' of scheduler {i}": _shown(v) for k, v in scheduler.state_dict().items()}
        for i, scaler in enumerate(self._world.scalers):
            seen |= {f"'{k}' of gradient scaler {i}": _shown(v) for k, v in scaler.state_dict().items()}
        return seen | {"the random generator": _runtime.GeneratorState(self._world.generators)}


def _shown(value: Any) -> Any:
    """Equal for equal bits."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta":
            return tuple(value.shape), str(value.dtype)
        plain = local_tensor(value).detach().resolve_conj().resolve_neg().contiguous()
        return tuple(value.shape), str(value.dtype), _runtime.digest(address(plain))
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return type(value).__name__, repr(value)
    if isinstance(value, (list, tuple)):
        return [_shown(v) for v in value]
    if isinstance(value, dict):
        return {repr(k): _shown(v) for k, v in value.items()}
    return type(value).__name__


__all__ = ["Verification", "verify"]
