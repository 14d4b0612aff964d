"""Capturing a training step as a program, without computing it.

    user's step ──FakeTensorMode──► ops of forward, backward, optimizer ──Pen──► Program

Nothing of the user's is changed: while the capture runs, modules and optimizers hold fakes; afterwards what they held
before. The step's Python runs twice: once so that the optimizers make their state, once under the pen; and again where it
reads numbers (guesses.py).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stowage._torch import optimizer_steps
from stowage._torch.fakes import DATA_DEPENDENT, FakeTensorMode, is_fake, masks_as_run
from stowage._torch.private import flatten, local_tensor, storage_address, tree_map
from stowage.errors import Error, Unsupported
from stowage.sharding.aliases import stale
from stowage.sharding.element_by_element import Elements
from stowage.sharding.guesses import Guesses, content_of, numbers_of
from stowage.sharding.identity import Identities
from stowage.sharding.past_the_dispatcher import PastTheDispatcher
from stowage.sharding.program import Pen, Program, region_of
from stowage.sharding.schema import schema
from stowage.sharding.stand_in import can_stand_in, hang_over, standing_in
from stowage.sharding.world import flat_weights, is_parts
from stowage.step.fit.made_step import user_line
from stowage.step.reach.python_state import PythonState
from stowage.step.reach.world import World
from stowage.step.signature.signature import held as what_is_held

# ---- Fakes in place of the user's tensors


class _Fakes:
    """One fake for each tensor of the user's, kept in step with who shares memory with whom."""

    def __init__(self, mode: FakeTensorMode):
        self.mode = mode
        self.of: dict[int, torch.Tensor] = {}

    def parameter(self, p: torch.Tensor) -> torch.Tensor:
        if id(p) not in self.of:
            with self.mode:
                self.of[id(p)] = torch.nn.Parameter(_empty(p), requires_grad=p.requires_grad)
            hang_over(p, self.of[id(p)])
        return self.of[id(p)]

    def tensor(self, t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if isinstance(t, torch.nn.Parameter):
            return self.parameter(t)
        if id(t) not in self.of:
            # Step counters decide Python numbers
            number = local_tensor(t).item() if t.dim() == 0 and not is_fake(t) else None
            with self.mode:
                self.of[id(t)] = _empty(t) if number is None else torch.tensor(number, dtype=t.dtype, device=t.device)
        return self.of[id(t)]


def _empty(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


@contextlib.contextmanager
def _faked(world: World, fakes: _Fakes):
    """While open, the modules and optimizers of the world hold fakes."""
    saved: list[tuple[dict, dict]] = []

    def put(live: dict, new: dict) -> None:
        saved.append((live, dict(live)))
        live.clear()
        live.update(new)

    try:
        for _, root in world.modules:
            for module in root.modules():
                put(
                    module._parameters,
                    {k: None if p is None else fakes.parameter(p) for k, p in module._parameters.items()},
                )
                if lists := flat_weights(module):
                    put(module.__dict__, module.__dict__ | lists)
                put(module._buffers, {k: None if b is None else fakes.tensor(b) for k, b in module._buffers.items()})
        for optimizer in world.optimizers:
            state = {fakes.parameter(p): {k: fakes.tensor(v) for k, v in s.items()} for p, s in optimizer.state.items()}
            put(optimizer.state, state)
            for group in optimizer.param_groups:
                put(group, {**group, "params": [fakes.parameter(p) for p in group["params"]]})
        for scheduler in world.all_schedulers():
            put(scheduler.__dict__, dict(scheduler.__dict__))
        yield
    finally:
        for live, before in reversed(saved):
            live.clear()
            live.update(before)


# What the program may hold of parameters and buffers by itself, and these: of those that are cut, what stands for them.
Held = Sequence[tuple[torch.Tensor, torch.Tensor]]


def capture_program(
    train_step: Callable,
    args: tuple,
    kwargs: dict,
    names: list[tuple[str, torch.nn.Parameter]],
    name: str,
    held: Held | None = None,
) -> Program:
    """The TensorProgram of one call of ``train_step``. ``names``: the parameters, each once; ``held``: see Held, None where they
    are whole."""
    if held is None:
        buffers = [b for _, module in World(train_step).modules for b in module.buffers()]
        held = [(t, t) for t in {id(t): t for t in (*(p for _, p in names), *buffers)}.values() if can_stand_in(t)]
    call = _Call(train_step, args, kwargs, names, name, held)
    with masks_as_run():
        try:
            return _capture(call, None)
        except DATA_DEPENDENT:
            pass
    guesses = Guesses()
    while True:
        try:
            return _capture(call, guesses)
        except DATA_DEPENDENT as reason:
            raise Unsupported(
                f"{user_line(reason)}: the step makes shapes of numbers that depend on data, or an optimizer reads such: {reason}"
            ) from None
        except Error:
            raise
        except Exception as error:
            if not guesses.read:
                raise
            if not guesses.others():
                raise Unsupported(
                    f"{guesses.read[-1]}: the step reads numbers that depend on data, and raises for those that it is planned with: {error}"
                ) from error


@dataclass(frozen=True)
class _Call:
    """What is captured: the step, its arguments, the parameters by name and what may stand for them (capture_program())."""

    train_step: Callable
    args: tuple
    kwargs: dict
    names: list[tuple[str, torch.nn.Parameter]]
    name: str
    held: Held


def _capture(call: _Call, guesses: Guesses | None) -> Program:
    for _ in range(2):  # what libraries make when they are first used is there the second time
        program, changed = _captured_and_put_back(call, guesses)
        if not changed:
            program.guessed = guesses.read[0] if guesses is not None and guesses.read else ""
            return program
    raise Unsupported(
        f"the step changes {changed}: stowage.shard runs its Python before the first step, and cannot take that back; do it outside of the step"
    )


def _captured_and_put_back(call: _Call, guesses: Guesses | None) -> tuple[Program, str]:
    """The program, and what the step has changed in Python that could not be put back."""
    world = World(call.train_step)
    world.take_for_run()  # nobody notes which of the user's code runs, and what that names
    fakes = _Fakes(FakeTensorMode(allow_non_fake_inputs=True))
    pen = Pen(Program(call.name))
    generator = torch.get_rng_state()
    state = PythonState(world, of_libraries=True)
    try:
        program = _captured(call, world, fakes, pen, guesses)
    finally:
        torch.set_rng_state(generator)
        state.put_back()
    return program, world.guard.changed()


def _captured(call: _Call, world: World, fakes: _Fakes, pen: Pen, guesses: Guesses | None) -> Program:
    program = pen.program
    if any(isinstance(t, torch.Tensor) and t.requires_grad for t in flatten((call.args, call.kwargs))[0]):
        raise Unsupported(
            "an argument requires grad: let the step ask for it, of a copy (x = x.detach().requires_grad_())"
        )
    owned = _owned(world, call.names)
    held = {id(t): t for t in (*(t for pair in call.held for t in pair), *(p for _, p in call.names))}.values()
    with _faked(world, fakes):
        fake_args, fake_kwargs = tree_map(fakes.tensor, call.args), tree_map(fakes.tensor, call.kwargs)
        by_name = [(n, fakes.parameter(p)) for n, p in call.names]
        identities = Identities(world, held, [fake for _, fake in by_name])
        held_before = what_is_held(fake_args, fake_kwargs)
        stand_ins = [(mine, fakes.tensor(tensor)) for mine, tensor in call.held]
        with (
            standing_in(stand_ins),
            fakes.mode,
            PastTheDispatcher(content_of(guesses, pen)),
            _NothingReal(fakes.mode, owned),
            numbers_of(guesses, pen),
        ):
            with identities.watching():
                call.train_step(*fake_args, **fake_kwargs)
            if what_is_held(fake_args, fake_kwargs) != held_before:
                raise Unsupported(
                    "the step changes what its arguments hold, of which stowage.shard gives it copies: return it instead"
                )
            _declare(
                pen, world, by_name, [t for t in flatten((fake_args, fake_kwargs))[0] if isinstance(t, torch.Tensor)]
            )
            with _watching(pen, by_name), pen:
                result = call.train_step(*fake_args, **fake_kwargs)
        program.left = {program.gradients[n] for n, p in by_name if p.grad is not None and n in program.gradients}
        for leaf in flatten(result)[0]:
            if isinstance(leaf, torch.Tensor):
                entry = program.tensors[pen.tensor(leaf)]
                entry["kind"] = "output" if entry["kind"] == "activation" else entry["kind"]
    before = [0, *itertools.accumulate(not op.get("dropped") for op in program.ops)]
    program.looks = [(before[at], t) for at, t in program.looks]
    program.ops = [op for op in program.ops if not op.get("dropped")]
    stale(program)  # refuses what no ranks could follow
    return program


def _declare(pen: Pen, world: World, names: list[tuple[str, torch.Tensor]], inputs: list[torch.Tensor]) -> None:
    program = pen.program
    for i, t in enumerate(inputs):
        program.inputs.append(pen.tensor(t, "input", name=f"input_{i}"))
    for name, p in names:
        program.parameters[name] = pen.tensor(p, "parameter", name=name)
    for path, module in world.modules:
        for name, b in module.named_buffers(prefix=path):
            if region_of(b) not in pen.ids:
                program.buffers[name] = pen.tensor(b, "module_buffer", name=name)
    by_id = {id(p): name for name, p in names}
    for optimizer in world.optimizers:
        for owner, state in optimizer.state.items():
            for key, value in state.items() if id(owner) in by_id else ():
                if isinstance(value, torch.Tensor):
                    name = by_id[id(owner)]
                    program.states[name, key] = pen.tensor(
                        value, "optimizer_state", name=f"{name}.{key}", of=program.parameters[name]
                    )


class _NothingReal(TorchDispatchMode):
    """Tensors of the step's own (in no module, no optimizer) stay as they are: one that it writes to is a fake from then on.
    Without that, PyTorch runs an operator on real tensors alone."""

    def __init__(self, mode: FakeTensorMode, owned: dict[int, str]):
        """``owned``: names of the parameters and buffers, which are replaced by fakes, by storage."""
        super().__init__()
        self._mode, self._owned = mode, owned
        self._written: set[int] = set()  # storages
        self._real: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id of the fake: the fake, and it

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        real = {storage_address(t) for t in flatten((args, kwargs))[0] if _is_real(t)}
        for storage in real & self._owned.keys():
            raise Unsupported(
                f"the step uses a view of '{self._owned[storage]}' that was made outside of it: that will have memory of its own "
                "then; make the view in the step"
            )
        if real:
            self._written |= {storage_address(t) for t in schema(func).written(args, kwargs) if _is_real(t)}
        if not self._written:
            return func(*args, **kwargs)
        args, kwargs = tree_map(self._fake, args), tree_map(self._fake, kwargs)
        return tree_map(lambda t: self._real[id(t)][1] if id(t) in self._real else t, func(*args, **kwargs))

    def _fake(self, t: Any) -> Any:
        if not _is_real(t) or storage_address(t) not in self._written:
            return t
        fake = self._mode.from_tensor(t)
        self._real[id(fake)] = fake, t
        return fake


def _owned(world: World, names: list[tuple[str, torch.nn.Parameter]]) -> dict[int, str]:
    buffers = [each for path, module in world.modules for each in module.named_buffers(prefix=path)]
    return {storage_address(t): name for name, t in (*buffers, *names) if _is_real(t) and not is_parts(t) and t.numel()}


def _is_real(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and not is_fake(t) and t.layout == torch.strided


@contextlib.contextmanager
def _watching(pen: Pen, names: list[tuple[str, torch.Tensor]]):
    by_id = {id(p): name for name, p in names}
    depth = [0]  # an optimizer may step another

    def before(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and id(p) in by_id:
                    pen.gradient(pen.program.parameters[by_id[id(p)]], by_id[id(p)], p.grad)
        if pen.in_optimizer is None:
            pen.in_optimizer = Elements(pen.program.homes(), type(optimizer).__name__)
        depth[0] += 1

    def after(optimizer, args, kwargs):
        depth[0] -= 1
        if depth[0] == 0:
            pen.in_optimizer = None

    with optimizer_steps.heard(before, after):
        yield
