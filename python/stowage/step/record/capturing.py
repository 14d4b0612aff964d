"""stowage.capture: a step's graph, without planning it. Also for models that do not fit: under FakeTensorMode nothing
is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowage import _runtime
from stowage._core import Graph
from stowage._torch.fakes import fake_mode_active, is_fake
from stowage._torch.settings import foreign_mode
from stowage.cache.costs import cost_file
from stowage.errors import Unsupported
from stowage.report.progress import shown
from stowage.step.reach.world import World
from stowage.step.record.recording import record
from stowage.step.signature.signature import signature


def capture(train_step: Callable, *args: Any, warmup: int = 1, name: str | None = None, **kwargs: Any) -> Graph:
    """Runs the step ``warmup`` times, then once more under the recorder.

    The warm-up lets optimizers make their state, so that the graph is that of a steady step. On real tensors the steps
    are real: they train. Their costs are those of earlier planned steps on this machine, where known. Under
    FakeTensorMode, or with fake arguments, nothing is computed. Costs are then estimates from shapes, and allocations
    inside ops are not in the graph.

    Args:
        train_step: forward, backward, the optimizer's step, zero_grad: the user's own function.
        args, kwargs: its arguments, passed as train_step(*args, **kwargs).
        warmup: calls before the one that is recorded.
        name: of the graph; None: the function's.

    Returns:
        The Graph: bytes of every buffer, nanoseconds of every op. What the step returns is a buffer with its bytes; a compiled
        step makes most of it in the memory in which it is handed out, and leaves some gradients in the arena.

    Raises:
        Unsupported: the step cannot be recorded; the message has the source line.
    """
    tape = recorded_tape(train_step, args, kwargs, warmup)
    return _runtime.lower(tape, name or name_of(train_step), _runtime.RowSlicing()).graph


def name_of(train_step: Callable) -> str:
    return getattr(train_step, "__name__", "step")


def recorded_tape(train_step: Callable, args: tuple, kwargs: dict, warmup: int) -> _runtime.Tape:
    """Of capture()."""
    if mode := foreign_mode():
        raise Unsupported(f"a mode of yours that sees each operation is open ({mode}): capture outside of it")
    objects: list = []
    _, inputs = signature(args, kwargs, objects)
    fake = fake_mode_active() or any(is_fake(t) for t in inputs)
    if not fake:
        _runtime.require_allocator()
    for _ in range(warmup):
        train_step(*args, **kwargs)
    with shown("recording a step"):
        world = World(train_step, objects)
        recording = record(train_step, args, kwargs, inputs, fake=fake, world=world, objects=objects)
    if recording.tape is None:
        raise Unsupported(recording.refusal)
    if not fake:
        cost_file(_runtime.kernel_threads()[1]).price(recording.tape)
    return recording.tape
