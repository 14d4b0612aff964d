"""Views of a model's tensors that a program holds when these are about to be cut: they will not follow the model.

    row = model.weight[0]     one memory with the weight ──cut──► the memory that was; the weight has another
    sd = model.state_dict()   the same

O(tensors): PyTorch counts who has a storage. Where there is one, O(objects of the program)."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from stowage._torch.private import is_shared_storage, storage_address
from stowage.errors import UnsupportedWarning, warn
from stowage.sharding.world import is_parts, named_parameters
from stowage.step.reach.world import World


def warn_of_views(world: World) -> None:
    """Once, before anything is cut."""
    named = [each for path, module in world.modules for each in module.named_buffers(prefix=path)]
    named = [(name, t) for name, t in (*named_parameters(world), *named) if not is_parts(t) and t.numel()]
    known, names = {id(t) for _, t in named}, {storage_address(t): name for name, t in named}
    if not any(is_shared_storage(t) for _, t in named):
        return

    def viewed() -> list[str]:
        others = (o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter) and id(o) not in known)
        return sorted({names[storage] for o in others if (storage := storage_address(o)) in names})

    if viewed() and gc.collect() >= 0 and (held := viewed()):  # what only cycles hold is nobody's
        warn(
            f"the program holds a view of '{held[0]}', its .data, or what state_dict() gave{_beside(held)}: that keeps the numbers which it "
            "has now, as the model's will have memory of their own; make it anew where it is needed",
            UnsupportedWarning,
        )


def _beside(names: Sequence[str]) -> str:
    return f" (and of {len(names) - 1} more)" if len(names) > 1 else ""
