"""A training step's state before a call that may have to be taken back: who holds its tensors and its numbers, and
the tensors' bytes, kept where no allocator of PyTorch's counts them.

    holders    p.grad, dicts of optimizers, schedulers, scalers, buffers      put back without any tensor being there
    content    the bytes of what they hold, and the generators                written back into the same memory

What the step's Python reaches beside these: python_state.py. O(objects), and a copy of the bytes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._C import TensorBase

from stowage import _runtime
from stowage._torch.private import address, local_tensor, storage_address, storage_bytes
from stowage.step.reach.parts import parts
from stowage.step.reach.places import is_plain
from stowage.step.reach.world import World

Range = tuple[torch.Tensor, int, int]  # of a tensor's storage, in bytes


def own_ranges(world: World, inputs: list[torch.Tensor]) -> list[Range]:
    """All that the step finds: of arguments, which may be slices of a data set, what they look into; else whole
    storages."""
    found = [*(t for _, _, t in world.owned()), *(t for _, t in world.tensors), *lasting(world)]
    plain = (TensorBase.detach(t) for t in map(local_tensor, found) if is_plain(t))
    whole = {storage_address(t): (t, 0, storage_bytes(t)) for t in plain}
    slices = [
        (TensorBase.detach(t), p.start_bytes, p.end_bytes)
        for i, (t, p) in enumerate(zip(inputs, parts(inputs)))
        if p.first == i
    ]
    own = [*whole.values(), *(s for s in slices if storage_address(s[0]) not in whole)]
    return [(t, start, end) for t, start, end in own if end > start]


def lasting(world: World) -> list[torch.Tensor]:
    """Parameters, gradients, buffers, and what optimizers hold, as they are now."""
    parameters = world.parameters()
    found: list[torch.Tensor] = [*parameters, *(p.grad for p in parameters if p.grad is not None)]
    for _, module in world.modules:
        found += module.buffers()
    return found + [v for counters in world.counters() for v in counters.values() if isinstance(v, torch.Tensor)]


def leaves_of(inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Arguments whose .grad a step may fill."""
    return [t for t in inputs if t.requires_grad and t.is_leaf]


class Holders:
    """Whatever holds a training step's tensors and its Python numbers, as it is now."""

    def __init__(self, parameters: Iterable[torch.Tensor], dicts: Iterable[dict]):
        self._grads = [(p, p.grad) for p in parameters]
        self._dicts = [(held, dict(held)) for held in dicts]

    @classmethod
    def of(cls, world: World, inputs: Iterable[torch.Tensor] = ()) -> Holders:
        buffers = [m._buffers for _, root in world.modules for m in root.modules() if isinstance(m._buffers, dict)]
        return cls([*world.parameters(), *leaves_of(inputs)], world.counters() + buffers)

    def put_back(self) -> None:
        """Needs no tensor to be there."""
        for p, grad in self._grads:
            p.grad = grad
        for held, items in self._dicts:
            held.clear()
            held.update(items)


class State:
    """Holders, content and generators. ``own``: what own_ranges() gives."""

    def __init__(self, world: World, own: list[Range], inputs: Iterable[torch.Tensor] = ()):
        self.holders = Holders.of(world, inputs)
        self._content = _runtime.KeptContent([(address(t), start, end) for t, start, end in own])
        if (there := on_accelerator(own)) is not None:
            _runtime.take_up(address(there))
        self._generators = _runtime.GeneratorState(world.generators)

    def put_back(self) -> None:
        self.holders.put_back()
        self._content.put_back()
        self._generators.put_back()


def on_accelerator(own: list[Range]) -> torch.Tensor | None:
    """The first of the tensors that does not lie on the CPU."""
    return next((t for t, _, _ in own if t.device.type != "cpu"), None)


__all__ = ["Holders", "State", "leaves_of", "on_accelerator", "own_ranges"]
