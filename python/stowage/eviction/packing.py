"""Hooks of saved tensors (torch.autograd.graph.saved_tensors_hooks, save_on_cpu, checkpoint). Autograd calls the one that packs
inside an operator, where no budget looks. While a budget is open, what it does is seen:

    saved_tensors_hooks(pack, unpack)  ──►  _push_saved_tensors_default_hooks(Packer(pack), unpack)
    set before, the innermost          ──►  popped, and pushed so; back at the end

Private: torch._C._autograd._push_saved_tensors_default_hooks, _pop_saved_tensors_default_hooks,
_top_saved_tensors_default_hooks. Source: torch/autograd/graph.py, torch/_functorch/_aot_autograd/utils.py of PyTorch 2.11 to
2.13."""

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
        self._before: tuple[Any, Any, Any] | None = None  # set when it began: (pack, unpack), and what stands for pack

    def apply(self) -> None:
        push = self._push = getattr(torch._C._autograd, _PUSH)

        @functools.wraps(push)
        def seen(pack: Any, unpack: Any) -> None:
            push(_seen(pack), unpack)

        if (top := _top()) is not None and (pack := _seen(top[0])) is not top[0]:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            push(pack, top[1])
            self._before = (*top, pack)
        setattr(torch._C._autograd, _PUSH, seen)

    def undo(self) -> None:
        if self._push is not None:
            setattr(torch._C._autograd, _PUSH, self._push)
            top = _top()
            if self._before is not None and top is not None and top[0] is self._before[2]:
                torch._C._autograd._pop_saved_tensors_default_hooks()
                self._push(*self._before[:2])
            self._push = self._before = None


def _top() -> tuple[Any, Any] | None:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _seen(pack: Any) -> Any:
    known = isinstance(pack, (torch.fx.GraphModule, _runtime.Packer))  # torch.compile takes the former in as it is
    return pack if known else _runtime.Packer(pack)


__all__ = ["SeenHooks"]
