"""What the walk finds that training needs to know of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


class Found:
    """What training needs to know of, in the order in which it was found."""

    def __init__(self) -> None:
        self.modules: Any = []  # (name, module)
        self.optimizers: Any = []
        self.schedulers: Any = []
        self.scalers: Any = []
        self.tensors: Any = []  # (name, tensor)
        self.generators: list[torch.Generator] = []
        self.meets_generator: Callable[[torch.Generator], None] = _nobody_asks  # another one
        self.compiled: str | None = None  # name of a torch.compile'd function or module, if one is reachable

    def parameters(self) -> list[torch.nn.Parameter]:
        """Of all modules and optimizers, each once."""
        found: dict[int, torch.nn.Parameter] = {}
        for _, module in self.modules:
            for p in module.parameters():
                found[id(p)] = p
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    found[id(p)] = p
        return list(found.values())

    def lasting(self) -> list[torch.Tensor]:
        """Parameters, buffers, states, and the tensors that were found by themselves."""
        found: list[Any] = [*self.parameters(), *(b for _, module in self.modules for b in module.buffers())]
        for optimizer in self.optimizers:
            held = (*optimizer.param_groups, *(s for s in optimizer.state.values() if isinstance(s, dict)))
            found += [value for each in held for value in each.values()]
        return [t for t in (*found, *(t for _, t in self.tensors)) if isinstance(t, torch.Tensor)]

    def fade(self) -> None:
        """From now on the program may let go of any of them. What a recording reads is held by its guard and its tape; the rest
        could be reached when it was made (a copy of the best weights, another model's optimizer), and is not its own."""
        self.modules, self.optimizers = Fading(self.modules), Fading(self.optimizers)
        self.schedulers, self.scalers = Fading(self.schedulers), Fading(self.scalers)
        self.tensors = Fading(self.tensors)
        self.meets_generator = _nobody_asks


class Fading(Sequence[Any]):
    """Of objects, or of (name, object): those that are still there."""

    def __init__(self, items: Sequence[Any]):
        named = (item if isinstance(item, tuple) else (None, item) for item in items)
        self._items = [(name, _weakly(value)) for name, value in named]

    def __iter__(self) -> Iterator[Any]:
        there = ((name, ref()) for name, ref in self._items)
        return iter([value if name is None else (name, value) for name, value in there if value is not None])

    def __len__(self) -> int:
        return sum(ref() is not None for _, ref in self._items)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def names_of_gone(self) -> list[str]:
        return [name for name, ref in self._items if ref() is None]


def _nobody_asks(generator: torch.Generator) -> None:
    pass


def _weakly(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # of a class with slots
        return lambda: value


__all__ = ["Fading", "Found"]
