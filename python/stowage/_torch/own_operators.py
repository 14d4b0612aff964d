"""What operators of users and of other libraries declare of their results.

- ``torch._library.custom_ops.OPDEFS``, ``torch._library.simple_registry.singleton``: their fake kernels.
- ``torch._C._dispatch_has_kernel_for_dispatch_key``: whether one is written in C++."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._library import simple_registry
from torch._library.custom_ops import OPDEFS

_OF_DATA = {"new_dynamic_size", "create_unbacked_symint"}


def declares_form(name: str) -> bool:
    """Does the operator say by a fake kernel what its results look like, whatever tensors hold?

    Args:
        name: as "space::operator.overload".
    """
    operator = name.split(".")[0]
    if operator in OPDEFS:
        fake: Callable | None = OPDEFS[operator]._abstract_fn
    else:
        entries = simple_registry.singleton._data
        kernels = [entries[key].fake_impl.kernel for key in (name, operator) if key in entries]
        fake = next((kernel.func for kernel in kernels if kernel is not None), None)
        if fake is None:
            return torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
    return isinstance(fake, types.FunctionType) and not _OF_DATA & _names(fake)


def _names(function: types.FunctionType) -> set[str]:
    """That it looks up, and those of functions that it holds or that are written within."""
    found: set[str] = set()
    known: list[Any] = []
    todo: list[Any] = [function]
    while todo:
        each = todo.pop()
        if isinstance(each, types.FunctionType) and each not in known:
            known.append(each)
            todo += [each.__code__, *(cell.cell_contents for cell in each.__closure__ or () if _is_full(cell))]
        elif isinstance(each, types.CodeType):
            found |= {*each.co_names}
            todo += each.co_consts
    return found


def _is_full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


__all__ = ["declares_form"]
