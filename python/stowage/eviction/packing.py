"""Hooks of saved tensors (torch.autograd.graph.saved_tensors_hooks, save_on_cpu, checkpoint). Autograd calls the one that packs
inside an operator, where no budget looks. What it does is seen where the hook is set while a budget is open:

    saved_tensors_hooks(pack, unpack)  ──►  _push_saved_tensors_default_hooks(Packer(pack), unpack)

Private: torch._C._autograd._push_saved_tensors_default_hooks. Source: torch/autograd/graph.py,
torch/_functorch/_aot_autograd/utils.py of PyTorch 2.11 to 2.13."""

from __future__ import annotations

import functools
from typing import Any

import torch

from stowage import _runtime

_PUSH = "_push_saved_tensors_default_hooks"


class SeenHooks:
    """Between apply() and undo()."""

    def __init__(self) -> None:
        self._push: Any = None

    def apply(self) -> None:
        push = self._push = getattr(torch._C._autograd, _PUSH)

        @functools.wraps(push)
        def seen(pack: Any, unpack: Any) -> None:
            traced = isinstance(pack, torch.fx.GraphModule)  # torch.compile takes it in where it stays what it is
            push(pack if traced else _runtime.Packer(pack), unpack)

        setattr(torch._C._autograd, _PUSH, seen)

    def undo(self) -> None:
        if self._push is not None:
            setattr(torch._C._autograd, _PUSH, self._push)
            self._push = None


__all__ = ["SeenHooks"]
