"""PyTorch's functions whose places the program has filled in such a way that a mode could not tell which of them runs: PyTorch
looks up who has the name now (_torch/replaced.py).

    T.sum = T.mean = mine              one for two
    T.relu, T.sigmoid = T.sigmoid, T.relu
    T.T = property(mine)

No step is planned then. O(1) as long as nothing changes."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._C import TensorBase

from stowage._core import Guard, class_dict
from stowage._torch.replaced import is_torchs
from stowage._torch.stand_ins import original

# Which of these runs changes no number: texts, and where a tensor would go to, or is
_WITHOUT_NUMBERS = (
    "__repr__",
    "__str__",
    "__format__",
    "__dir__",
    "cuda",
    "xpu",
    "hpu",
    "ipu",
    "mtia",
    "cpu",
    "pin_memory",
    "is_",
)
_OWNERS: tuple[Any, ...] = (torch.Tensor, torch.nn.functional)
_watched: Guard | None = None
_found = ""


def moved() -> str:
    """Why no step can be planned, or ""."""
    global _watched, _found
    if _watched is None or _watched.changed():
        _watched = Guard()
        for owner in _OWNERS:
            namespace = class_dict(owner) if isinstance(owner, type) else vars(owner)
            _watched.dict(namespace, True, False, owner.__name__)
        _found = next(filter(None, map(_moved_in, _OWNERS)), "")
    return _found


def _moved_in(owner: Any) -> str:
    names: dict[int, str] = {}  # of the program's functions, by identity
    for name in list(vars(owner)):
        if name.startswith(_WITHOUT_NUMBERS) or name.endswith("_interface__"):
            continue
        value = original(owner, name)
        of_pytorch = owner is not torch.Tensor or hasattr(TensorBase, name) or name.startswith("__")
        if isinstance(value, property):
            if of_pytorch and not is_torchs(value.fget):
                return f"as {owner.__name__}.{name} is a property of the program's"
        elif not callable(value) or isinstance(value, type):
            continue
        elif is_torchs(value):
            kind = types.MethodDescriptorType if owner is torch.Tensor else types.FunctionType
            own = getattr(value, "__name__", name)
            at_home = original(owner, own) if own != name and isinstance(value, kind) and hasattr(owner, own) else value
            if at_home is not value and is_torchs(at_home):
                return f"as {owner.__name__}.{name} and .{own} have changed places"
        elif of_pytorch and (other := names.setdefault(id(value), name)) != name:
            return f"as one function of the program's stands for {owner.__name__}.{other} and .{name}"
    return ""


__all__ = ["moved"]
