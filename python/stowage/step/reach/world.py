"""What a training step can see: the modules, optimizers, schedulers and tensors reachable from the user's function, and
a guard over all that its Python reads.

    world = World(fn)          what fn reaches; the guard remembers it as it is now
    with world.noting():       while fn runs, each function that runs adds what it can read
        fn(...)
    world.settle()             the guard is narrowed to what the functions that ran can read

After that ``world.guard.changed()`` tells whether a replay would still read the same, and ``world.guard.blind`` what no
guard can see. How the graph of objects is walked: guards/walk.py; which names code reads: guards/reads.py; what cannot
be seen: guards/blind.py."""

from __future__ import annotations

import contextlib
import enum
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stowage._core import Guard, Notes, without_collections
from stowage.step.guards.computed_names import Listener
from stowage.step.guards.found import Fading, Found
from stowage.step.guards.reads import reads
from stowage.step.guards.scalars import SCALARS
from stowage.step.guards.walk import Walk


def is_plain(value: Any) -> bool:
    """Scalars and tuples of them: compared by value."""
    return isinstance(value, (*SCALARS, enum.Enum)) or (isinstance(value, tuple) and all(is_plain(v) for v in value))


def _with_nested(holder: dict) -> list[dict]:
    """The dict and those in it, each once."""
    found = [holder]
    for each in found:
        found.extend(v for v in each.values() if isinstance(v, dict) and all(v is not known for known in found))
    return found


class World:
    """Everything reachable from ``fn``, and from what it is given, found once."""

    distributed = False  # parameters are DTensors
    deaf: tuple[type, ...] = (
        torch.Tensor,
        torch.nn.Parameter,
    )  # classes that do not hear what Python asks their tensors

    def __init__(self, fn: Any, given: Iterable[Any] = ()):
        """given: objects among the arguments, and the classes of others (signature())."""
        path = getattr(fn, "__name__", type(fn).__name__)
        walk: Any = without_collections(lambda: Walk(fn, path, Found(), given))
        self._walk: Walk | None = walk
        self.notes: Notes | None = None  # running
        self.guard: Guard = walk.guard
        self.guard.blind = ["what ran was not noted"]
        # Weak references are read: what the guard holds must not outlive what the user has dropped
        self.weak = False
        # Arrays that it may read: name, array, has the step changed it? Known after settle()
        self.arrays: list[tuple[str, Any, bool]] = []
        self.catches = False  # its Python may catch what a kernel raises; known after settle()
        self._leaves_blocks = True  # a ``with`` that it leaves may do the same
        self.reads_gradients = True  # the user's Python may read a parameter's .grad; known after settle()
        self._read: set[int] | None = None  # ids of what code that ran may read; known after settle()
        self.changes = ""  # what the step itself changes of what it can reach; known after settle()
        found: Found = walk.found
        self.found = found
        # Their ids before the function has run: what runs leads to more
        self.tensors_before = frozenset(id(tensor) for _, tensor in self.tensors)
        self.generators: list[torch.Generator] = found.generators
        self.compiled: str | None = found.compiled  # name of a torch.compile'd function or module, if one is reachable

    @property
    def modules(self) -> list[tuple[str, torch.nn.Module]]:
        return self.found.modules

    @property
    def optimizers(self) -> list[Optimizer]:
        return self.found.optimizers

    @property
    def schedulers(self) -> list[LRScheduler]:
        return self.found.schedulers

    @property
    def scalers(self) -> list[torch.amp.GradScaler]:
        return self.found.scalers

    @property
    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        return self.found.tensors

    def fade(self) -> None:
        """Once all is recorded: see Found."""
        self.found.fade()

    def names_of_gone(self) -> list[str]:
        """After fade(): of tensors that are there no more."""
        return self.found.tensors.names_of_gone()

    def reached(self) -> list[Any]:
        """What the function can reach, before it has run."""
        return self._walk.reached() if self._walk is not None else []

    def holders_of(self, ids: set[int]) -> dict[int, list[Any]]:
        """By id: what holds these objects, of what is reached before the function has run."""
        return self._walk.graph.holders_of(ids) if self._walk is not None and ids else {}

    def know_generators(self, know: Callable[[torch.Generator], None]) -> None:
        """know(): takes the random generators that are found, and those that are found later."""
        for generator in self.generators:
            know(generator)
        if self._walk is not None:
            self._walk.found.meets_generator = know

    # ---- what runs

    @contextlib.contextmanager
    def noting(self, ops: Callable[[], int] = lambda: 0, compiles: bool = False):
        """While the step runs on this thread, once: notes the Python functions that run. ops(): how many operators have; -1: one
        does. compiles: torch.compile may trace what runs, and would see that schedulers and optimizers are listened to."""
        walk = self._walk
        if walk is None:
            raise RuntimeError("this world is settled")
        walk.ops = ops
        self.notes = Notes(walk.note, walk.copies, walk.matters, walk.called, walk.returned)
        questions = Listener(walk.asks)
        try:
            if compiles:
                walk.ran.bypasses = True
            else:
                questions.comes()
            self.notes.start()
            yield
        finally:
            try:
                questions.leaves()
            finally:
                self._notes_end(walk)

    def _notes_end(self, walk: Walk) -> None:
        try:
            if self.notes is not None and not self.notes.stop():
                walk.tell("the step sets a profile function of its own (sys.setprofile, torch.profiler)")
        except Exception as error:  # of the walk, not of the step
            walk.tell(f"an object that the step reaches cannot be looked into ({type(error).__name__}: {error})")
        self.notes = None
        walk.noted = True

    def take_for_run(self) -> set[str]:
        """In the place of noting(): what runs cannot be noted, and may be all that is reached. The names of attributes
        that the user's own code reads."""
        if self._walk is None:
            raise RuntimeError("this world is settled")
        self._walk.take_for_run()
        return self._walk.ran.own_names

    def reach_all(self) -> None:
        """As take_for_run(), and what objects hold under names that no code of the user's shows."""
        if self._walk is None:
            raise RuntimeError("this world is settled")
        self._walk.graph.reads_unnamed()
        self._walk.take_for_run()

    def pause(self) -> None:
        """Until resume(): what runs now runs before each replay, too (optimizers and schedulers), and need not be
        noted."""
        if self.notes is not None:
            self.notes.pause()

    def resume(self) -> None:
        if self.notes is not None:
            self.notes.resume()

    def tell(self, reason: str) -> None:
        """A reason why the guard is blind, of what runs."""
        if self._walk is not None:
            self._walk.tell(reason)

    def settle(self) -> str:
        """Narrows the guard to what the functions that ran can read. Returns what the step itself has changed of what
        it can reach, "" for nothing: replays would not change it. Without noting() the guard stays as wide as it is."""
        walk = self._walk
        if walk is not None and not walk.noted:
            self.arrays, self.catches = walk.arrays_met(), walk.ran.catches
        if walk is None or not walk.noted:
            self.changes = self.guard.changed()
            return self.changes
        self._walk = None
        self.changes, self.guard.blind = walk.finish()
        self.weak = walk.weak
        self._read = walk.objects_read
        self.reads_gradients = walk.ran.dynamic or "grad" in walk.ran.own_names
        self.arrays, self.catches, self._leaves_blocks = walk.arrays, walk.ran.catches, walk.ran.leaves_blocks
        return self.changes

    def drop(self) -> None:
        """No recording comes of it: what was reached is let go, or it would be a part of cycles."""
        self._walk = None

    def catches_from(self, around: Iterable[types.CodeType | None]) -> bool:
        """May its Python catch what is raised where these codes run, one within the other? With None among them, that may be
        anything, else what kernels of PyTorch's raise."""
        codes = set(around)
        anything = None in codes
        return self.catches and any(
            read.catches_kernels or (anything and read.catches) or (read.has_blocks and self._leaves_blocks)
            for read in (reads(code) for code in codes if code is not None)
        )

    def found_among(self, identities: Sequence[int]) -> tuple[int, ...]:
        """Of arguments' parts: 0 for those that code which ran cannot have come to by itself. After settle(). An identity may be
        that of what has died since; then Python is asked once more than it need be."""
        return tuple(one if one in (self._read or ()) else 0 for one in identities)

    def may_read(self, tensor: torch.Tensor) -> bool:
        """May code that ran have come to this tensor by what the function reaches?"""
        return self._read is None or id(tensor) in self._read

    def parameters(self) -> list[torch.nn.Parameter]:
        """Of all modules and optimizers, each once."""
        return self.found.parameters()

    def fading_parameters(self) -> Sequence[torch.nn.Parameter]:
        """Of those that are reached now: the ones that are still there."""
        return Fading(self.parameters())

    def all_schedulers(self) -> list[LRScheduler]:
        """Those that are made of others (SequentialLR, ChainedScheduler) with these, each once."""
        found = list(self.schedulers)
        for scheduler in found:
            for value in vars(scheduler).values():
                inner = value if isinstance(value, (list, tuple)) else (value,)
                found += [s for s in inner if isinstance(s, LRScheduler) and all(s is not known for known in found)]
        return found

    def counters(self, python: bool = True) -> list[dict]:
        """The dicts in which optimizers, schedulers and gradient scalers keep what is not a tensor's content.
        ``python``: also those that change only where the step's own Python runs."""
        found: list[dict] = [s.__dict__ for s in self.all_schedulers()]
        for optimizer in self.optimizers:
            found += optimizer.param_groups
            if python:
                found += [
                    optimizer.__dict__,
                    optimizer.state,
                    *(values for values in optimizer.state.values() if isinstance(values, dict)),
                ]
        if python:
            found += [nested for scaler in self.scalers for nested in _with_nested(scaler.__dict__)]
        return found

    # ---- where parameters are split over ranks, the optimizer works on other tensors than the model (ShardedWorld)

    def model_parameters(self) -> list[torch.nn.Parameter]:
        """Those whose .grad backward fills."""
        return self.parameters()

    def owned(self) -> list[tuple[str, str, torch.Tensor]]:
        """Tensors of the step that the walk does not find: kind, name, tensor."""
        return []

    def enter_optimizer(self, optimizer: Optimizer) -> None:
        """Before the recorded part of optimizer.step()."""

    def leave_optimizer(self, optimizer: Optimizer) -> None:
        """After it."""

    def moved_parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """After enter_optimizer(): tensors that it has made for the optimizer to work on."""
        return []

    def optimizer_view(self, optimizer: Optimizer):
        """While open, the optimizer holds the tensors that it works on."""
        return contextlib.nullcontext()
