"""What a recorded step may assume of its arguments and of PyTorch's global state."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from stowage import _runtime
from stowage._core import same_bits
from stowage._torch.private import addresses
from stowage._torch.settings import global_state, setting_names
from stowage.errors import Unsupported
from stowage.step.reach.parts import parts
from stowage.step.signature.describer import Describer
from stowage.step.signature.key_values import Same, Value
from stowage.step.signature.passing import Passing


def signature(
    args: tuple, kwargs: dict, given: list | None = None, passing: Passing | None = None
) -> tuple[tuple, list[torch.Tensor]]:
    """A hashable key, equal for calls that one recording can serve, and the tensors among the arguments in a fixed
    order.

    given: takes the objects that are told apart as objects (modules, optimizers, functions), and the classes of others;
    what Python can read of them has to be watched; and ByContent(function) for others. passing: takes what comes anew with each call.

    Raises Unsupported for arguments that cannot be compared by value; of None for ``given``, for objects, too.
    """
    tensors: list[torch.Tensor] = []
    if passing is not None:
        passing.begin()
    describe = Describer(tensors, given, passing)
    structure = (describe(args), describe(kwargs))
    return (structure, (_sharing(tensors), _repeated(tensors)), Value(settings())), tensors


_OF_THREAD = {"number of threads": _runtime.kernel_threads, "flush_denormal": _runtime.flushes_denormals}


def settings() -> tuple:
    """Outside of the program's own objects, all on which operators may depend."""
    return (*global_state(), *(read() for read in _OF_THREAD.values()))


def _sharing(tensors: list[torch.Tensor]) -> tuple:
    """Those that look into a part of a storage that another one begins with: which, and where in it."""
    if all(type(t) is torch.Tensor for t in tensors):
        storages = _runtime.storages(addresses(tensors))
        if 0 not in storages and len(set(storages)) == len(storages):
            return ()
    return tuple((i, p.first, p.offset_bytes) for i, p in enumerate(parts(tensors)) if p.first != i)


def _repeated(tensors: list[torch.Tensor]) -> tuple:
    """Those that are an object that came before: Python may ask for that."""
    first: dict[int, int] = {}
    return tuple((i, first[id(t)]) for i, t in enumerate(tensors) if first.setdefault(id(t), i) != i)


def objects_of(args: tuple, kwargs: dict) -> list:
    """Those of signature(given=...)."""
    given: list[Any] = []
    describe = Describer([], given)
    with contextlib.suppress(Unsupported):
        describe(args)
        describe(kwargs)
    return given


def held(args: tuple, kwargs: dict, passing: Passing | None = None) -> tuple | None:
    """What the arguments hold: equal before and after a call that changes no container, attribute or dataclass among
    them. None where that cannot be told."""
    tensors: list[torch.Tensor] = []
    describe = Describer(tensors, [], passing)
    try:
        structure = (describe(args), describe(kwargs))
    except (Unsupported, RuntimeError):  # a view made without gradients, whose base has been written since
        return None
    return structure, [id(t) for t in tensors]


def difference(old: tuple, new: tuple) -> str:
    """The first thing in which two signatures differ, as far as it can be named."""
    for what, a, b in zip(("the arguments", "which arguments share memory"), old, new):
        if a != b:
            return _first_difference(a, b) or what
    for name, a, b in zip((*setting_names(), *_OF_THREAD), old[2].value, new[2].value):
        if not same_bits(a, b):
            return f"a global setting ({name.lstrip('_')}: {a!r}, then {b!r})"
    return "nothing"


_OF_TENSORS = (
    "",
    "shape",
    "strides",
    "dtype",
    "device",
    "requires_grad",
    "class",
    "leaf",
    "conjugate bit",
    "negative bit",
    "inference",
    "attributes",
)


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, Value) and isinstance(b, Value):
        told = all(isinstance(v.value, (int, float, str)) and not isinstance(v.value, bool) for v in (a, b))
        return f"an argument is {a!r}, then {b!r}" if told and a != b else ""
    if isinstance(a, Same) and isinstance(b, Same):
        return "an argument is another object" if a != b else ""
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return ""
    if a[:1] == ("tensor",) == b[:1]:
        return next(
            (f"a tensor's {name} is {_plain(x)}, then {_plain(y)}" for name, x, y in zip(_OF_TENSORS, a, b) if x != y),
            "",
        )
    if len(a) != len(b):
        return ""
    return next(filter(None, (_first_difference(x, y) for x, y in zip(a, b) if x != y)), "")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


__all__ = ["difference", "held", "objects_of", "settings", "signature"]
