"""A training step's state before a call that may have to be taken back: who holds its tensors and its numbers, and
the tensors' bytes, kept where no allocator of PyTorch's counts them.

    holders    p.grad, dicts of optimizers, schedulers, scalers, buffers      put back without any tensor being there
    content    the bytes of what they hold, and the generator                 written back into the same memory

What the step's Python reaches beside these: python_state.py. O(objects), and a copy of the bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch

from stowage._torch.private import is_shell, local_tensor, storage_address
from stowage.step.signature import parts
from stowage.step.world import World

Range = tuple[torch.Tensor, int, int]  # of a tensor's storage, in bytes


def own_ranges(world: World, inputs: list[torch.Tensor]) -> list[Range]:
    """All that the step finds: of arguments, which may be slices of a data set, what they look into; else whole
    storages."""
    parameters = world.parameters()
    found = [*(t for _, _, t in world.owned()), *(t for _, t in world.tensors), *parameters]
    found += [p.grad for p in parameters if p.grad is not None]
    for _, module in world.modules:
        found += module.buffers()
    found += [v for counters in world.counters() for v in counters.values() if isinstance(v, torch.Tensor)]
    plain = (
        t.detach()
        for t in map(local_tensor, found)
        if t.layout == torch.strided and t.device.type == "cpu" and not is_shell(t)
    )
    whole = {storage_address(t): (t, 0, t.untyped_storage().nbytes()) for t in plain}
    slices = [
        (t.detach(), p.start_bytes, p.end_bytes) for i, (t, p) in enumerate(zip(inputs, parts(inputs))) if p.first == i
    ]
    own = [*whole.values(), *(s for s in slices if storage_address(s[0]) not in whole)]
    return [(t, start, end) for t, start, end in own if end > start]


class Holders:
    """Whatever holds a training step's tensors and its Python numbers, as it is now."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], dicts: Iterable[dict]):
        self._grads = [(p, p.grad) for p in parameters]
        self._dicts = [(held, dict(held)) for held in dicts]

    @classmethod
    def of(cls, world: World) -> Holders:
        buffers = [m._buffers for _, root in world.modules for m in root.modules()]
        return cls(world.parameters(), world.counters() + buffers)

    def put_back(self) -> None:
        """Needs no tensor to be there."""
        for p, grad in self._grads:
            p.grad = grad
        for held, items in self._dicts:
            held.clear()
            held.update(items)


class State:
    """Holders, content and generator. ``own``: what own_ranges() gives."""

    def __init__(self, world: World, own: list[Range]):
        self.holders = Holders.of(world)
        self._content = [(t, start, bytes_of(t, start, end)) for t, start, end in own]
        self._generator = bytes_of(torch.get_rng_state())

    def put_back(self) -> None:
        self.holders.put_back()
        for tensor, start, content in self._content:
            ctypes.memmove(tensor.untyped_storage().data_ptr() + start, content, len(content))
        torch.set_rng_state(torch.frombuffer(bytearray(self._generator), dtype=torch.uint8))


def bytes_of(tensor: torch.Tensor, start: int = 0, end: int | None = None) -> bytes:
    """Of its storage, all of it or a range."""
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr() + start, (storage.nbytes() if end is None else end) - start)


__all__ = ["Holders", "State", "bytes_of", "own_ranges"]
