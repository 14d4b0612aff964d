"""What the walk finds that training needs to know of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class Found:
    """What training needs to know of, in the order in which it was found."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.optimizers: list[Optimizer] = []
        self.schedulers: list[LRScheduler] = []
        self.scalers: list[torch.amp.GradScaler] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.generators: list[torch.Generator] = []
        self.meets_generator: Callable[[torch.Generator], None] = lambda generator: None  # another one
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


__all__ = ["Found"]
