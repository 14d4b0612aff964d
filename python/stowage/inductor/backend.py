"""``torch.compile(model, backend="stowage", options=...)``: Inductor, with what ``stowage.inductor.options`` gives.

Found by PyTorch through the entry point ``torch_dynamo_backends``, and loaded when the name is first used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stowage.inductor import options as with_budget
from stowage.inductor import private


def stowage(module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Callable:
    """options: those of stowage.inductor.options, and others of Inductor's; without them nothing is limited."""
    return private.compile_with(with_budget() if options is None else options, module, inputs)


__all__ = ["stowage"]
