"""What a training step can see: the modules, optimizers, schedulers and tensors reachable from the user's function, and a guard over
the plain values it reads.

The function is walked through its closure, defaults, referenced globals, bound object and partial arguments; containers and plain
objects are walked too, libraries are not.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stowage._core import Guard

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
_LIBRARIES = ("torch", "numpy", "builtins", "stowage")
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_LARGE = 4096  # of larger containers only the size is watched
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(value: Any) -> bool:
    """Scalars and tuples of them: compared by value."""
    return isinstance(value, _SCALARS) or (isinstance(value, tuple) and all(is_plain(v) for v in value))


class World:
    """Everything reachable from ``fn``, found once."""

    distributed = False  # parameters are DTensors

    def __init__(self, fn: Any):
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.optimizers: list[Optimizer] = []
        self.schedulers: list[LRScheduler] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.compiled: str | None = None  # name of a torch.compile'd function or module, if one is reachable
        self.guard = Guard()
        self._seen: dict[int, Any] = {}
        self._visit(fn, getattr(fn, "__name__", type(fn).__name__), 0)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Of all modules and optimizers, each once."""
        found: dict[int, torch.Tensor] = {}
        for _, module in self.modules:
            for p in module.parameters():
                found[id(p)] = p
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    found[id(p)] = p
        return list(found.values())

    # ---- where parameters are split over ranks, the optimizer works on other tensors than the model (ShardedWorld)

    def model_parameters(self) -> list[torch.nn.Parameter]:
        """Those whose .grad backward fills."""
        return self.parameters()

    def owned(self) -> list[tuple[str, str, torch.Tensor]]:
        """Tensors of the step that the walk does not find: kind, name, tensor."""
        return []

    def enter_optimizer(self, optimizer: Optimizer) -> None:
        """Before the recorded part of optimizer.step()."""

    def leave_optimizer(self, optimizer: Optimizer) -> None:
        """After it."""

    def moved_parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """After enter_optimizer(): tensors that it has made for the optimizer to work on."""
        return []

    def optimizer_view(self, optimizer: Optimizer):
        """While open, the optimizer holds the tensors that it works on."""
        return contextlib.nullcontext()

    # ---- the walk

    def _visit(self, value: Any, path: str, depth: int) -> None:
        if is_plain(value) or id(value) in self._seen or depth > 8:
            return
        self._seen[id(value)] = value
        if _is_compiled(value):
            self.compiled = path
        elif isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
        elif isinstance(value, torch.nn.Module):
            self._visit_module(value, path, depth)
        elif isinstance(value, Optimizer):
            self.optimizers.append(value)
        elif isinstance(value, LRScheduler):
            self.schedulers.append(value)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, path, depth)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, path, depth + 1)
            self._visit(value.__func__, path, depth + 1)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._visit(part, path, depth + 1)
        elif isinstance(value, dict):
            self._visit_dict(value, path, depth)
        elif isinstance(value, list):
            self._visit_list(value, path, depth)
        elif isinstance(value, (tuple, set, frozenset, Mapping)):
            for item in value.values() if isinstance(value, Mapping) else value:
                self._visit(item, path, depth + 1)
        elif not isinstance(value, (types.ModuleType, type)) and hasattr(value, "__dict__"):
            if type(value).__module__.split(".")[0] not in _LIBRARIES:
                self._visit_dict(value.__dict__, path, depth, hidden=False)

    def _visit_function(self, fn: types.FunctionType, path: str, depth: int) -> None:
        if fn.__code__.co_filename.startswith(_LIBRARY_FOLDERS):
            return
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:  # not yet assigned
                continue
            self.guard.watch_cell(cell, is_plain(content), f"'{name}' in the closure of {path}")
            self._visit(content, name, depth + 1)
        for part in (fn.__defaults__, fn.__kwdefaults__):
            self._visit(part, path, depth + 1)
        for name in _global_names(fn.__code__):
            if name in fn.__globals__:
                content = fn.__globals__[name]
                self.guard.watch_item(fn.__globals__, name, is_plain(content), f"global '{name}'")
                self._visit(content, name, depth + 1)

    def _visit_dict(self, d: dict, path: str, depth: int, hidden: bool = True) -> None:
        if hidden:
            self.guard.watch_size(d, f"size of '{path}'")
        if len(d) > _LARGE:
            return
        for key, value in list(d.items()):
            name = f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
            self.guard.watch_item(d, key, is_plain(value), f"'{name}'")
            self._visit(value, name, depth + 1)

    def _visit_list(self, values: list, path: str, depth: int) -> None:
        self.guard.watch_size(values, f"size of '{path}'")
        if len(values) > _LARGE:
            return
        for i, value in enumerate(values):
            self.guard.watch_element(values, i, is_plain(value), f"'{path}[{i}]'")
            self._visit(value, f"{path}[{i}]", depth + 1)

    def _visit_module(self, root: torch.nn.Module, path: str, depth: int) -> None:
        self.modules.append((path, root))
        for name, module in root.named_modules(prefix=path):
            self._seen[id(module)] = module
            attributes = module.__dict__
            for key, value in list(attributes.items()):
                what = f"'{name}.{key}'"
                if key in ("_parameters", "_buffers", "_modules"):
                    self.guard.watch_size(value, what)
                    for child in list(value):
                        self.guard.watch_item(value, child, False, f"'{name}.{child}'")
                elif key in _HOOKS:
                    self.guard.watch_size(value, what)
                else:
                    self.guard.watch_item(attributes, key, is_plain(value), what)
                    self._visit(value, f"{name}.{key}", depth + 1)
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    self.guard.watch_attribute(parameter, "requires_grad", f"'{name}.{key}.requires_grad'")


def _is_compiled(value: Any) -> bool:
    """torch.compile'd, told without importing the compiler."""
    if isinstance(value, torch.nn.Module):
        return type(value).__name__ == "OptimizedModule"
    return isinstance(value, types.FunctionType) and "_torchdynamo_orig_callable" in value.__dict__


def _global_names(code: types.CodeType) -> set[str]:
    """Names that the code, or code nested in it, looks up as globals (attribute names are not among them)."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
