"""What a training step is made of: tensors, modules, optimizers, schedulers, gradient scalers, random generators.

Numbers in tensors are the step's own business and are not compared. Compared is what Python may look at without any operator:
shapes, hooks, requires_grad, which parameters a module has; where code asks for them, strides, .grad, is_leaf,
retains_grad and is_shared(). The .grad of what a module or an optimizer holds is watched elsewhere (record/gradients.py). All
of it is noted in Found, too. O(parameters)."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from stowage._torch.private import is_shell
from stowage.step.guards.blind import type_name
from stowage.step.guards.edges import ASKS_FOR_PLACE, GroupKey
from stowage.step.guards.graph import Graph
from stowage.step.guards.group_keys import ANY
from stowage.step.guards.memory import HEAD_BYTES, opaque
from stowage.step.guards.objects import attributes, dict_of, enter_object, shape_of

_TENSOR_BYTES = torch._C.TensorBase.__basicsize__
_BARE = (torch.Tensor, torch.nn.Parameter)
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")


def enter_tensor(graph: Graph, i: int, value: torch.Tensor, path: str, trusted: bool) -> None:
    if not trusted and path:
        graph.found.tensors.append((path, value))
    enter_parameter(graph, i, value, path, trusted)
    if trusted or value.layout != torch.strided:
        return
    for name in ("shape", "dtype"):  # Python may look, without any operator
        graph.add(i, graph.guard.getter(value, name, trusted, path), trusted)
    place = functools.partial(_place, value)
    graph.fact(i, ASKS_FOR_PLACE, graph.guard.call(place, True, f"strides of '{path}'"))
    graph.fact(i, "is_shared", graph.guard.call(functools.partial(_is_shared, value), True, f"is_shared() of '{path}'"))
    for name in ("is_leaf", "retains_grad"):
        graph.fact(i, name, graph.guard.getter(value, name, True, path))
    if not value.is_leaf:
        return
    index = graph.fact(i, "grad", graph.guard.getter(value, "grad", True, path))
    graph.leaves.append((index, value))
    if value.grad is not None:
        graph.reach(index, None, value.grad, f"{path}.grad", trusted)


def enter_parameter(graph: Graph, i: int, value: torch.Tensor, path: str, trusted: bool) -> None:
    graph.add(i, graph.guard.memory(value, HEAD_BYTES, _TENSOR_BYTES, trusted, f"hooks of '{path}'"), trusted)
    graph.add(i, graph.guard.getter(value, "requires_grad", trusted, path), trusted)
    graph.add(i, graph.guard.of_class(value, path))
    if type(value) not in _BARE:
        graph.reach(i, None, type(value), type_name(type(value)), False)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = getattr(value, name)
        graph.reach(i, None, hooks, f"{path}.{name}", trusted)
    namespace = dict_of(value)
    if namespace is not None:
        graph.add(i, graph.guard.dict(namespace, True, trusted, path), trusted)
        for name, item in list(namespace.items()):
            graph.attribute(i, name, item, path, trusted, trusted)


def enter_module(graph: Graph, i: int, value: torch.nn.Module, path: str, trusted: bool) -> None:
    if is_compiled(value):
        graph.found.compiled = path
        graph.reach(i, None, value._modules["_orig_mod"], path, trusted)
        return
    if id(value) not in graph.entered:
        graph.found.modules.append((path, value))
        graph.entered.update(id(m) for m in value.modules())
    _attributes_of_module(graph, i, value, path)
    shape = shape_of(type(value))
    if shape.c_base is not None:
        opaque(graph, i, value, shape.c_base, path, trusted)


def _attributes_of_module(graph: Graph, i: int, module: torch.nn.Module, path: str) -> None:
    cls = type(module)
    shape = shape_of(cls)
    if shape.reads_itself:
        graph.whole.add(i)
    graph.add(i, graph.guard.of_class(module, path))
    namespace = module.__dict__
    graph.add(i, graph.guard.dict(namespace, True, False, path))
    for name, value in list(namespace.items()):
        if name in _MODULE_DICTS:
            _children(graph, i, value, path)
        else:
            graph.attribute(i, name, value, path, False, False)
    if shape.slots:
        graph.add(i, graph.guard.slots(module, shape.slots, False, path))
        for name, _ in shape.slots:
            graph.attribute(i, name, getattr(module, name, None), path, False, False)
    graph.reach(i, None, cls, type_name(cls), False)


def _children(graph: Graph, i: int, children: dict, path: str) -> None:
    """Of a module: parameters, buffers or modules by name. Entered at once, as they are no constants of the
    step."""
    if not isinstance(children, dict):
        graph.tell(f"'{path}' is a scripted module")
        return
    index = graph.index[id(children)] = graph.new(children)
    graph.add(index, graph.guard.dict(children, False, False, path))
    graph.edges[i].append((None, index))
    for name, child in list(children.items()):
        if not isinstance(child, torch.Tensor):
            graph.reach(index, None, child, f"{path}.{name}", False)
            continue
        at = graph.index.get(id(child))
        if at is None:
            at = graph.index[id(child)] = graph.new(child)
            graph.of_modules.add(at)
            enter_parameter(graph, at, child, f"{path}.{name}", False)
        graph.edges[index].append((None, at))


def enter_optimizer(graph: Graph, i: int, value: Optimizer, path: str, trusted: bool) -> None:
    """Its step() runs in each call. What else reads it is watched: its groups by the keys that code reads of them, and which
    parameters they have in any case, as zero_grad() goes through them; its state where code reads an attribute of that
    name. Tensors deep in its state are found, whoever reads them."""
    graph.found.optimizers.append(value)
    graph.tells_questions(i)
    attributes(graph, i, value, path, False, quiet=True, skip=("param_groups", "state"))
    graph.add(i, graph.guard.list(value.param_groups, f"'{path}.param_groups'"))
    for at, group in enumerate(value.param_groups):
        _group(graph, i, group, f"{path}.param_groups[{at}]")
    state = value.__dict__.get("state")
    if isinstance(state, dict):
        _optimizer_state(graph, i, state, f"{path}.state")


def _group(graph: Graph, i: int, group: dict, path: str) -> None:
    if type(group.get("params")) is list:
        graph.add(i, graph.guard.list(group["params"], f"'{path}.params'"))
    for key, value in list(group.items()):
        if key == "params":
            continue
        index = graph.index[id(group), key] = graph.new(group)
        graph.add(index, graph.guard.name(group, key, True, f"'{path}.{key}'"))
        graph.edges[i].append((GroupKey(key), index))
        if not _bare(value):
            graph.reach(index, None, value, f"{path}.{key}", False)
    index = graph.new(group)
    graph.add(index, graph.guard.dict(group, False, True, f"'{path}'"))
    graph.edges[i].append((GroupKey(ANY), index))


def _optimizer_state(graph: Graph, i: int, state: dict, path: str) -> None:
    index = graph.index[id(state)] = graph.new(state)
    graph.add(index, graph.guard.dict(state, False, True, f"'{path}'"))
    graph.edges[i].append(("state", index))
    for at, values in enumerate(list(state.values())):
        where = f"{path}[{at}]"
        if type(values) is not dict:
            if not _bare(values):
                graph.reach(index, None, values, where, False)
            continue
        graph.add(index, graph.guard.dict(values, False, True, f"'{where}'"))
        for key, value in list(values.items()):
            if not _bare(value):
                graph.reach(index, None, value, f"{where}.{key}", False)


def _bare(value: Any) -> bool:
    """A tensor, without attributes of the user's."""
    return isinstance(value, torch.Tensor) and not dict_of(value)


def enter_scheduler(graph: Graph, i: int, value: LRScheduler, path: str, trusted: bool) -> None:
    graph.found.schedulers.append(value)
    graph.tells_questions(i)
    attributes(graph, i, value, path, False, quiet=True)


def enter_scaler(graph: Graph, i: int, value: torch.amp.GradScaler, path: str, trusted: bool) -> None:
    graph.found.scalers.append(value)
    enter_object(graph, i, value, path, trusted)


def enter_torch_generator(graph: Graph, i: int, value: torch.Generator, path: str, trusted: bool) -> None:
    """What it holds is told by what is drawn from it."""
    graph.found.generators.append(value)
    graph.found.meets_generator(value)


def _place(tensor: torch.Tensor) -> tuple:
    return tensor.stride(), int(tensor.storage_offset())


def _is_shared(tensor: torch.Tensor) -> bool:
    """Asked of a tensor without memory, PyTorch throws through Python's frames, and the interpreter is lost."""
    return not is_shell(tensor) and tensor.is_shared()


def is_compiled(value: Any) -> bool:
    """torch.compile'd, told without importing the compiler."""
    if isinstance(value, torch.nn.Module):
        return type(value).__name__ == "OptimizedModule"
    return (
        isinstance(value, types.FunctionType)
        and "_torchdynamo_orig_callable" in value.__dict__
        and not value.__dict__.get("_torchdynamo_disable")  # what torch._dynamo.disable gives runs as it is
    )


__all__ = [
    "enter_module",
    "enter_optimizer",
    "enter_scaler",
    "enter_scheduler",
    "enter_tensor",
    "enter_torch_generator",
    "is_compiled",
]
