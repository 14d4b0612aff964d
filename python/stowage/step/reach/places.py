"""Places that a step fills anew: the tensor that is there when a call begins is an input of that call, like an
argument.

    p.data = 0.9 * p.data + 0.1 * q.data         Memory: p stays, its memory is another tensor's
    state["previous"] = p.grad.clone()           Entry: another tensor under the same name

Others are filled anew now and then, and written in place meanwhile:

    if it % 100 == 0: self.running = 0.0         Held: 0.0, then another tensor every hundred calls
    self.running += loss.detach()
"""

from __future__ import annotations

import types
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import TensorBase

from stowage._torch.private import has_storage, is_shell, storage_address
from stowage.step.reach.parts import metadata

if TYPE_CHECKING:
    from stowage.step.reach.world import World


class Place(Protocol):
    name: str
    meta: tuple  # of what was there when the place was found; see metadata()

    def get(self) -> torch.Tensor | None: ...

    def put_back(self, tensor: torch.Tensor) -> None:
        """What get() has returned before the step."""

    def holds_plain(self) -> bool:
        """A tensor with memory of its own?"""


class Memory:
    """A tensor's, which ``tensor.data = …`` replaces."""

    def __init__(self, name: str, tensor: torch.Tensor):
        self.name = f"'{name}'"
        self.meta = metadata(TensorBase.detach(tensor))
        self._tensor = tensor

    def get(self) -> torch.Tensor:
        return TensorBase.detach(self._tensor)

    def put_back(self, tensor: torch.Tensor) -> None:
        if storage_address(self._tensor) != storage_address(tensor):
            self._tensor.data = tensor

    def holds_plain(self) -> bool:
        return is_plain(self._tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and other._tensor is self._tensor

    __hash__ = None  # type: ignore[assignment]


class Entry:
    """Of a dict: ``holder()`` is that dict now."""

    def __init__(self, name: str, holder: Callable[[], dict], key: Any):
        self.name = name
        self._holder, self._key = holder, key
        self.meta = metadata(holder()[key])

    def get(self) -> torch.Tensor | None:
        holder = self._holder()
        if self._key not in holder:  # that of a torch.jit.ScriptModule is no dict, and has no get()
            return None
        value = holder[self._key]
        return value if isinstance(value, torch.Tensor) else None  # what is no tensor any more is another step

    def put_back(self, tensor: torch.Tensor) -> None:
        self._holder()[self._key] = tensor

    def holds_plain(self) -> bool:
        tensor = self.get()
        return isinstance(tensor, torch.Tensor) and is_plain(tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and _same_key(other._key, self._key) and other._holder() is self._holder()

    __hash__ = None  # type: ignore[assignment]


class Held:
    """By a dict, an object, a list, or a function's closure, of the user's. Not always by a tensor."""

    def __init__(self, name: str, holder: Any, key: Any, tensor: torch.Tensor):
        self.path, self.name = name, f"'{name}'"
        self.meta = metadata(tensor)
        self._holder, self._key = holder, key

    def get(self) -> torch.Tensor | None:
        try:
            value = _value(self._holder, self._key)
        except (AttributeError, IndexError, KeyError, ValueError):  # deleted, or a cell that is empty
            return None
        return value if isinstance(value, torch.Tensor) else None

    def put_back(self, tensor: torch.Tensor) -> None:
        if isinstance(self._holder, (dict, list)):
            self._holder[self._key] = tensor
        else:
            object.__setattr__(self._holder, self._key, tensor)

    def holds_plain(self) -> bool:
        tensor = self.get()
        return tensor is not None and is_plain(tensor) and not tensor.requires_grad and metadata(tensor) == self.meta

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other._holder is self._holder and _same_key(other._key, self._key)

    __hash__ = None  # type: ignore[assignment]


def _same_key(one: Any, other: Any) -> bool:
    """Of a dict or a list. For keys of other kinds == may be anything: that of tensors gives a tensor."""
    plain = isinstance(one, (str, int)) and isinstance(other, (str, int))
    return one == other if plain else one is other


def _value(holder: Any, key: Any) -> Any:
    if isinstance(holder, types.CellType):
        return holder.cell_contents
    return holder[key] if isinstance(holder, (dict, list)) else vars(holder)[key]


def held_places(world: World, names: Set[str]) -> list[Held]:
    """Where the step finds the tensors of these names (World.tensors), of those that lie in one place alone."""
    wanted = {id(tensor): (name, tensor) for name, tensor in world.tensors if name in names}
    places = []
    for key, holders in world.holders_of(set(wanted)).items():
        name, tensor = wanted[key]
        found = [(holder, where) for holder in holders for where in _where(holder, tensor)]
        if len(holders) == 1 and len(found) == 1:
            places.append(Held(name, *found[0], tensor))
    return [place for place in places if place.holds_plain()]


def _where(holder: Any, tensor: torch.Tensor) -> list[Any]:
    if isinstance(holder, types.CellType):
        return ["cell_contents"]
    if isinstance(holder, list):
        return [i for i, value in enumerate(holder) if value is tensor]
    items = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    return [name for name, value in items.items() if value is tensor]


def lasting_places(world: World) -> list[Place]:
    """Where the lasting tensors of a step are."""
    found: list[Place] = []
    lasting = [
        (f"{path}.{name}", p)
        for path, module in world.modules
        for name, p in (*module.named_parameters(), *module.named_buffers())
    ]
    lasting += [
        (f"a parameter of {type(o).__name__}", p)
        for o in world.optimizers
        for group in o.param_groups
        for p in group["params"]
    ]
    for name, tensor in {id(t): (name, t) for name, t in reversed(lasting + world.tensors)}.values():
        if is_plain(tensor):
            found.append(Memory(name, tensor))
    for path, root in world.modules:
        for prefix, module in root.named_modules(prefix=path):
            found += [
                Entry(f"{prefix}.{name}", _buffers_of(module), name)
                for name, b in module._buffers.items()
                if b is not None and is_plain(b)
            ]
    for optimizer in world.optimizers:
        for p, values in optimizer.state.items():
            for key, value in values.items() if isinstance(values, dict) else ():
                if isinstance(value, torch.Tensor) and is_plain(value):
                    found.append(Entry(f"the optimizer's state '{key}'", _state_of(optimizer, p), key))
    return found


def _buffers_of(module: torch.nn.Module) -> Callable[[], dict]:
    return lambda: module._buffers


def _state_of(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> Callable[[], dict]:
    return lambda: optimizer.state.get(p, {})


def is_plain(tensor: torch.Tensor) -> bool:
    if tensor.is_nested:  # several in one
        return False
    has_memory = tensor.layout == torch.strided and tensor.device.type != "meta" and has_storage(tensor)
    return has_memory and not is_shell(tensor)


__all__ = ["Held", "Place", "held_places", "is_plain", "lasting_places"]
