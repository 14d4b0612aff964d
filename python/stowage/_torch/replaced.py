"""Functions of PyTorch that a program has replaced by its own, as a TorchFunctionMode sees them.

    F.relu = mine, which calls PyTorch's relu

    mine ──► PyTorch's relu ──► the mode is told of F.relu, which is mine now, and calls it: mine would run twice

PyTorch looks the function up by its name, while the one that had the name is running. That one is to run, as without a
mode. Where it is written in Python its frame tells it; where it is of C, the class below torch.Tensor still has it."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from typing import Any

import torch

from stowage._torch import collector

_OF_C: tuple[type, ...] = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    type(torch.ops.aten.add),  # which a program that has put its own there does not call
    type(torch.ops.aten.add.Tensor),
)
_OF_TORCH = os.path.dirname(torch.__file__) + os.sep
_OF_PYTHON = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_functions: dict[types.CodeType, types.FunctionType | None] = {}  # of PyTorch's, which last
_TELLS_MODES = torch.overrides.handle_torch_function.__code__


def meant(func: Any) -> Any:
    """PyTorch's own, where a mode was told of ``func``. Called by its ``__torch_function__``."""
    return func if is_torchs(func) else _replaced_by(func, sys._getframe(2))


def is_torchs(func: Any) -> bool:
    code = func.__code__ if isinstance(func, types.FunctionType) else None
    return is_of_torch(code) if code is not None else isinstance(func, _OF_C)


def is_of_torch(code: types.CodeType) -> bool:
    return code.co_filename.startswith(_OF_TORCH)


def is_of_python(code: types.CodeType) -> bool:
    """Of its standard library."""
    return code.co_filename.startswith((_OF_PYTHON, "<frozen ")) and not code.co_filename.startswith(_PACKAGES)


def _replaced_by(func: Any, caller: types.FrameType) -> Any:
    """PyTorch's function that ``func`` has taken the place of; where there is none, ``func``. ``caller`` has called the
    mode: the user's function where PyTorch's is of C, else what tells modes, called by PyTorch's."""
    if caller.f_code is not _TELLS_MODES:
        names = [name for name, value in vars(torch.Tensor).items() if value is func]
        return getattr(torch._C.TensorBase, names[0], func) if names else func
    running = caller.f_back
    if running is None or running.f_code is getattr(func, "__code__", None) or not is_of_torch(running.f_code):
        return func
    taken = any(value is func for namespace in (running.f_globals, vars(torch.Tensor)) for value in namespace.values())
    return (_function_of(running.f_code) or func) if taken else func


def _function_of(code: types.CodeType) -> types.FunctionType | None:
    """The one that has this code, where there is one: with its defaults, and what it closes over."""
    if code not in _functions:
        found = [f for f in collector.get_referrers(code) if isinstance(f, types.FunctionType)]
        _functions[code] = found[0] if len(found) == 1 else None
    return _functions[code]


__all__ = ["is_of_python", "is_of_torch", "is_torchs", "meant"]
