"""torch.tensor([a, b]) of tensors without dimensions: PyTorch reads their numbers past the dispatcher. They are asked for before
it, and it is given the numbers, with the type that it would have found.

    torch.tensor([loss, 2.0])  ->  torch.tensor([0.25, 2.0], dtype=torch.float32)

O(elements)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stowage.step.record.content import PLAIN

FUNCTIONS = ("tensor", "as_tensor", "asarray", "new_tensor")


def with_numbers(
    name: str, args: tuple, kwargs: dict, tell: Callable[[torch.Tensor], Any]
) -> tuple[tuple, dict] | None:
    """The arguments of one of FUNCTIONS, with numbers, or None where it makes no tensor of such a list. ``tell``: gives a
    tensor's number."""
    place = 1 if name == "new_tensor" else 0
    by_name = "obj" if "obj" in kwargs else "data"
    data = args[place] if len(args) > place else kwargs.get(by_name)
    if not isinstance(data, (list, tuple)) or not _tensors(data):
        return None
    numbers = _numbers(data, tell)
    dtype = kwargs.get("dtype") or (args[0].dtype if name == "new_tensor" else _dtype(data))
    if len(args) > place:
        return (*args[:place], numbers, *args[place + 1 :]), {**kwargs, "dtype": dtype}
    return args, {**kwargs, by_name: numbers, "dtype": dtype}


def _tensors(data: Any) -> list[torch.Tensor]:
    """All tensors, where all are plain ones without dimensions, beside Python's numbers alone. Else none."""
    found: list[torch.Tensor] = []
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if type(value) in (list, tuple):
            waiting.extend(value)
        elif type(value) in PLAIN and value.dim() == 0 and value.layout == torch.strided:
            found.append(value)
        elif type(value) not in (bool, int, float, complex):
            return []
    return found


def _numbers(data: Any, tell: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(data, torch.Tensor):
        return tell(data)
    return [_numbers(value, tell) for value in data] if isinstance(data, (list, tuple)) else data


def _dtype(data: Any) -> torch.dtype:
    if isinstance(data, torch.Tensor):
        return data.dtype
    if isinstance(data, (list, tuple)):
        found = [_dtype(value) for value in data]
        kind = found[0] if found else torch.get_default_dtype()
        for other in found[1:]:
            kind = torch.promote_types(kind, other)
        return kind
    default = torch.get_default_dtype()
    return {bool: torch.bool, int: torch.int64, float: default, complex: default.to_complex()}[type(data)]


__all__ = ["FUNCTIONS", "with_numbers"]
