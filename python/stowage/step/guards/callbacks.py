"""The user's functions in what a library holds: its own code calls them, by names that the user's does not show.

    decorate_context    the function that @torch.no_grad() stands in front of
    LambdaLR            lr_lambdas
    Optimizer           hooks of its step

They are entered with what holds them, as all of the user's functions are: what they read must be known as it was before.
O(what is held, to a depth of one)."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Iterable
from typing import Any

from stowage.step.guards.reads import is_library

_MOST = 64  # of a list or dict
_MAPPINGS = (dict, types.MappingProxyType)


def behind(fn: types.FunctionType) -> list[Any]:
    """A function of a library that has been made around them."""
    held: list[Any] = list(fn.__dict__.values())
    for cell in fn.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not yet assigned
            continue
    return callbacks(held)


def callbacks(values: Iterable[Any]) -> list[Any]:
    """Among the values, and in lists and dicts among them."""
    found = []
    for value in values:
        if isinstance(value, (*_MAPPINGS, list, tuple)):
            inner = value.values() if isinstance(value, _MAPPINGS) else value
            found += [each for each in itertools.islice(inner, _MOST) if _is_callback(each)]
        elif _is_callback(value):
            found.append(value)
    return found


def _is_callback(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        # A decorator may stand in front of the user's
        return not is_library(value.__code__) or "__wrapped__" in value.__dict__
    return isinstance(value, (types.MethodType, functools.partial))


__all__ = ["behind", "callbacks"]
