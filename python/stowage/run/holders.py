"""What the variables of an error's frames still hold: the containers that keep tensors, and autograd's graphs on them.

    traceback ──► frames of the user's code ──► locals, globals they name, attributes of objects ──► lists, dicts, ...
                                                                                                       │
                             storages  ◄── tensors, and what their graphs have saved for backward  ◄──┘

A container that only a module's forward holds is a part of the step under way, not what outlives it: such frames count
with the attributes of their objects alone. What is a parameter, its gradient, or a buffer of a module counts for
nobody. Bytes are those of storages, each once. O(tensors and graph nodes), at most _MOST of each: what is beyond is not
looked at."""

from __future__ import annotations

import collections
import os
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from stowage.by_class import ByClass
from stowage.doctor.moment import Holder

_MOST = 50_000
_DEPTH = 4  # of containers in containers
_LEAST_TENSORS = 3
_SECONDS = 2.0  # hooks of saved tensors may compute
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)


def of_traceback(trace: types.TracebackType | None, is_own: Callable[[str], bool]) -> list[Holder]:
    """Largest first. is_own: whether a file is the user's."""
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    modules = [value for frame, _ in frames for value in _modules(frame)]
    nobodys = _of_modules(modules)
    found: dict[int, Holder] = {}
    in_module = False
    for frame, line in frames:
        own = is_own(frame.f_code.co_filename)
        in_module |= not own and frame.f_code.co_name in ("_call_impl", "_wrapped_call_impl")
        if not own:
            continue
        place = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
        for name, value in _variables(frame, in_module):
            if id(value) not in found and (holder := _look(name, place, value, nobodys)) is not None:
                found[id(value)] = holder
    return sorted(found.values(), key=lambda holder: -holder.bytes)


def largest_gradient_bytes(trace: types.TracebackType | None) -> int:
    """Of a parameter that a module or an optimizer of these frames has."""
    most = 0
    while trace is not None:
        frame = trace.tb_frame
        for value in [*frame.f_locals.values(), *_named_globals(frame)]:
            if _is_module(value):
                parameters = [*value.parameters()]
            elif isinstance(value, torch.optim.Optimizer):
                parameters = [p for group in value.param_groups for p in group["params"]]
            else:
                continue
            most = max([most, *(p.grad.nbytes for p in parameters if p.grad is not None and not p.grad.is_sparse)])
        trace = trace.tb_next
    return most


def evaluates(trace: types.TracebackType | None, is_own: Callable[[str], bool]) -> bool:
    """Whether the outermost module at work was in eval mode, and autograd noted what it did. (Layers within may be: batch
    norms that are frozen.) Where none was at work, those that the innermost of the user's frames names."""
    training: bool | None = None
    innermost: types.FrameType | None = None
    noted = False
    while trace is not None:
        frame = trace.tb_frame
        if is_own(frame.f_code.co_filename):
            innermost = frame
        if frame.f_code.co_name == "forward":
            for value in frame.f_locals.values():
                if _is_module(value) and training is None:
                    training = value.training
                noted |= _is_noted(value)
        trace = trace.tb_next
    if training is None and innermost is not None:
        training = any(module.training for module in _modules(innermost)) or next(_modules(innermost), None) is None
        noted = any(_is_noted(value) for value in innermost.f_locals.values())
    return training is False and noted


def _is_noted(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _modules(frame: types.FrameType) -> Iterator[torch.nn.Module]:
    for value in [*frame.f_locals.values(), *_named_globals(frame)]:
        if _is_module(value):
            yield value


def _is_module(value: Any) -> bool:
    """And one that is made, not one that copy.deepcopy() has begun."""
    return isinstance(value, torch.nn.Module) and "_parameters" in vars(value)


def _named_globals(frame: types.FrameType) -> Iterator[Any]:
    names = frame.f_code.co_names
    return (frame.f_globals[name] for name in names if name in frame.f_globals)


def _of_modules(modules: Iterable[torch.nn.Module]) -> set[int]:
    storages: set[int] = set()
    for module in modules:
        for tensor in [*module.parameters(), *module.buffers()]:
            storages.add(_storage(tensor)[0])
            if tensor.grad is not None:
                storages.add(_storage(tensor.grad)[0])
    return storages


def _variables(frame: types.FrameType, in_module: bool) -> Iterator[tuple[str, Any]]:
    code = frame.f_code
    seen = list(frame.f_locals.items())
    if frame.f_locals is not frame.f_globals:
        seen += [(name, frame.f_globals[name]) for name in code.co_names if name in frame.f_globals]
    for name, value in seen:
        if isinstance(value, (*_CONTAINERS, torch.Tensor)):
            if not in_module and not name.startswith("__"):
                yield name, value
        elif not isinstance(value, (type, types.ModuleType, torch.optim.Optimizer)):
            for attribute, item in _attributes(value):
                yield f"{name}.{attribute}", item


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for owner in (value, type(value)):
        own = getattr(owner, "__dict__", None)
        for name, item in list(own.items()) if isinstance(own, (dict, types.MappingProxyType)) else ():
            if isinstance(item, _CONTAINERS) and not name.startswith("_"):
                yield name, item


def _look(name: str, place: str, value: Any, nobodys: set[int]) -> Holder | None:
    tensors = list(_tensors(value))
    alone = isinstance(value, torch.Tensor) and value.grad_fn is None  # of a step under way: autograd would know it
    if len(tensors) < _LEAST_TENSORS and not alone:
        return None
    direct = _sizes(tensors, nobodys)
    saved = _sizes(_saved([t.grad_fn for t in tensors if t.grad_fn is not None]), nobodys | direct.keys())
    graph = sum(saved.values())
    total = sum(direct.values()) + graph
    return Holder(name, place, len(tensors), total, graph) if total else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    todo = [(value, 0)]
    count = 0
    while todo and count < _MOST:
        item, depth = todo.pop()
        if isinstance(item, torch.Tensor):
            if not isinstance(item, torch.nn.Parameter):
                count += 1
                yield item
        elif isinstance(item, _CONTAINERS) and depth < _DEPTH and id(item) not in seen:
            seen.add(id(item))
            todo += [(part, depth + 1) for part in (item.values() if isinstance(item, dict) else item)]


def _sizes(tensors: Iterable[torch.Tensor], without: set[int] | Any) -> dict[int, int]:
    sizes = {}
    for tensor in tensors:
        key, size = _storage(tensor)
        if size and key not in without:
            sizes[key] = size
    return sizes


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse, without storage
        return 0, 0


def _saved(nodes: list) -> Iterator[torch.Tensor]:
    """What the graphs above have kept for backward. What is freed, or packed by hooks that fail now, is not counted."""
    seen = set(nodes)
    todo = list(nodes)
    end_s = time.monotonic() + _SECONDS
    while todo and len(seen) < _MOST and time.monotonic() < end_s:
        node = todo.pop()
        yield from _saved_by(node)
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                todo.append(after)


@ByClass
def _names_of_saved(cls: type) -> list[str]:
    """Of a node of the graph: its attributes that hold what it has saved."""
    return [name for name in dir(cls) if name.startswith("_saved_") or name == "saved_tensors"]


def _saved_by(node: Any) -> Iterator[torch.Tensor]:
    for name in _names_of_saved(type(node)):
        try:
            value = getattr(node, name)
        except Exception:
            continue
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch.nn.Parameter):
                yield tensor


__all__ = ["evaluates", "largest_gradient_bytes", "of_traceback"]
