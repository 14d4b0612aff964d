"""What a step returns, and what of that a call gives whose Python does not run.

    tensors      copies out of the arena; an argument, a parameter or a buffer is that object itself
    their graph  where backward has used it up: a node of the same name, at which another backward raises the same
    containers   new ones, of the same kind
    numbers      int, float, str and the like: as recorded; all that they follow from is watched
                 float, int, bool that the step makes, and of which its Python makes nothing else: those of the call

All else only Python can make (Recording.returns): graphs that can still be used, leaves that require grad, attributes and
hooks on tensors, tensors over arrays or in the memory of other results or of what lasts, containers that somebody else holds,
keys that are no plain values, objects."""

from __future__ import annotations

import collections
import enum
import gc
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from stowage import _runtime
from stowage._torch.fakes import is_fake
from stowage._torch.private import address, flatten

_PLAIN = {int, bool, str, bytes, type(None)}
_CONSTANT = _PLAIN | {float, complex, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format}
_FACTORIES = {None, int, float, str, list, dict, set, tuple}
_NO_PARTS = (torch.Tensor, torch.nn.Module, type, types.FunctionType, types.ModuleType)
_MOST_PARTS = 10_000


def take_outputs(recording: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The tensors that the step returns, in order."""
    containers: list[Any] = []
    leaves, recording.output_spec = flatten(recording.result, containers)
    recording.returns = _why_not_new(recording.result, containers, recording.world.reached(), (args, kwargs))
    tensors: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            recording.output_slots.append(len(tensors))
            tensors.append(leaf)
            recording.output_leaves.append(None)
            continue
        recording.output_slots.append(-1)
        recording.output_leaves.append(leaf)
    return tensors


def take_numbers(
    recording: Any, reads: Iterable[int], numbers: dict[int, tuple[list[int], type]], own: Iterable[int]
) -> None:
    """``reads``: the ops that tell what the step makes, known once it is recorded. ``numbers``: returned_numbers(). ``own``: those
    that the step's own code asks for."""
    left: set[int] = set(reads)
    returned = {op: found for op, found in numbers.items() if op in left}
    kinds = {leaf: (op, kind) for op, (leaves, kind) in returned.items() for leaf in leaves}
    recording.reads, recording.output_numbers = left != returned.keys(), kinds
    recording.asks_itself = not (left - returned.keys()).isdisjoint(own)
    for leaf, value in enumerate(recording.output_leaves):
        if leaf in kinds:
            recording.output_leaves[leaf] = None
        elif recording.output_slots[leaf] < 0 and not _is_constant(value):
            recording.returns = recording.returns or f"a {type(value).__name__}"


def _is_constant(leaf: Any) -> bool:
    return type(leaf) in _CONSTANT or isinstance(leaf, enum.Enum)


def find_places(recording: Any, recorder: Any, returned: list[torch.Tensor], arguments: list[torch.Tensor]) -> None:
    """A tensor that is returned twice, is a gradient too, made by the step or there before, or an argument, or one that
    lasts is one object in later calls as well."""
    given = {id(t): i for i, t in enumerate(arguments)}
    world = recording.world
    lasting = {id(t) for t in [*world.parameters(), *(b for _, m in world.modules for b in m.buffers())]}
    lasting |= {id(t) for t in _others_that_last(world) if recorder.lasts(address(t))}
    gradients = {id(p.grad): p for p in world.model_parameters() if p.grad is not None}
    made: dict[int, torch.Tensor] = {}  # those of which later calls return others
    for leaf, slot in enumerate(recording.output_slots):
        if slot < 0:
            continue
        if id(returned[slot]) in given:
            recording.output_arguments[leaf] = given[id(returned[slot])]
        elif id(returned[slot]) in lasting and not recorder.made_in_step(address(returned[slot])):
            recording.output_leaves[leaf] = returned[slot]
        elif id(returned[slot]) in gradients and not recorder.made_in_step(address(returned[slot])):
            recording.output_gradients[leaf] = gradients[id(returned[slot])]
        else:
            made[slot] = returned[slot]
    first: dict[int, int] = {}
    for i, tensor in enumerate(returned):
        first.setdefault(id(tensor), i)
    recording.output_slots = [slot if slot < 0 else first[id(returned[slot])] for slot in recording.output_slots]
    recording.gradients.slots = [first[id(p.grad)] for p in recording.gradients.returned]
    if not recording.world.distributed and not any(is_fake(t) for t in returned[:1]):
        grads = [p.grad for p in recording.gradients.returned]
        recording.returns = recording.returns or _why_not_plain([*made.values(), *grads])
        if any(_runtime.lies_over_foreign(address(t)) for t in made.values()):
            recording.returns = recording.returns or "a tensor over memory of another library"
        others = [*world.parameters(), *_others_that_last(world), *arguments]
        if _share([*made.values(), *grads], [*others, *(b for _, m in world.modules for b in m.buffers())]):
            recording.returns = (
                recording.returns or "tensors that share their memory, with each other or with what lasts"
            )
        graphs = {first[id(t)]: t.grad_fn for t in made.values() if t.grad_fn is not None}
        recording.output_graphs = {slot: node.name() for slot, node in graphs.items()}
        if not recording.returns and any(_can_be_used(node, graphs.values()) for node in graphs.values()):
            recording.returns = "a tensor whose autograd graph can still be used"


def _others_that_last(world: Any) -> Iterator[torch.Tensor]:
    for optimizer in world.optimizers:
        for values in optimizer.state.values():
            yield from (v for v in values.values() if isinstance(v, torch.Tensor)) if isinstance(values, dict) else ()
    yield from (tensor for _, tensor in world.tensors)


def _share(made: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Does one of ``made`` lie in the memory of another, as a view or detached? They count what is written together."""
    mine = {id(t): address(t) for t in made if t.layout == torch.strided}
    storages = _runtime.storages(list(mine.values()))
    known = _runtime.storages([address(t) for t in others if id(t) not in mine and t.layout == torch.strided])
    return len(set(storages)) < len(storages) or not set(known).isdisjoint(storages)


def _why_not_plain(tensors: Iterable[torch.Tensor]) -> str:
    for t in tensors:
        if type(t) is not torch.Tensor:
            return f"a {type(t).__name__} that it makes"
        if t.is_leaf and t.requires_grad:
            return "a tensor that it makes and that requires grad"
        if t.is_inference():
            return "a tensor that it makes in inference mode"
        if t.__dict__:
            return f"a tensor with an attribute '{next(iter(t.__dict__))}'"
        if t._backward_hooks or t.retains_grad:
            return "a tensor with a hook for its gradient"
    return ""


def _can_be_used(root: Any, others: Iterable[Any]) -> bool:
    """Does backward from ``root`` come to a leaf, or to another result, before it comes to a node whose saved tensors are
    gone, where it raises?"""
    seen, stack = {root}, [root]
    while stack:
        node = stack.pop()
        if _is_used_up(node):
            continue
        nexts = [following for following, _ in node.next_functions if following is not None]
        if not nexts or any(following in others for following in nexts):
            return True
        stack += [following for following in nexts if following not in seen]
        seen.update(nexts)
    return False


def _is_used_up(node: Any) -> bool:
    """Told by what it saved. What a Function of Python's has saved it need not ask for: of these it is not known."""
    for name in dir(node):
        if name.startswith("_raw_saved_") and name != "_raw_saved_tensors":
            try:
                getattr(node, name.removeprefix("_raw"))
            except RuntimeError:
                return True
    return False


def _why_not_new(result: Any, containers: list[Any], reached: Iterable[Any], given: Any) -> str:
    containers[:] = [c for c in containers if not isinstance(c, tuple) or getattr(c, "__dict__", None)]
    if not containers:
        return ""
    if len({id(c) for c in containers}) < len(containers):
        return "one container in two places"
    if odd := next((c for c in containers if isinstance(c, _WITH_ATTRIBUTES) and getattr(c, "__dict__", None)), None):
        return f"a {type(odd).__name__} with attributes"
    for container in containers:
        kinds = {type(key) for key in container} if isinstance(container, dict) else set()
        if strange := next((k for k in kinds if k not in _PLAIN and not issubclass(k, enum.Enum)), None):
            return f"a dict with a {strange.__name__} among its keys"
        if getattr(container, "default_factory", None) not in _FACTORIES:
            return "a defaultdict with a factory of its own"
    held = {id(value) for value in reached} | _parts(given)
    while containers:
        container = containers.pop()
        known = _REFERENCES_OF_NEW + (_MORE_OF_RESULT if container is result else 0)
        if id(container) in held or sys.getrefcount(container) > known:
            return f"a {type(container).__name__} that was there before"
    return ""


# To a container that nobody but the result holds: what it is in, the variable, and the argument of getrefcount(). The result
# itself is an argument here (which Python 3.10 keeps on the caller's stack as well), and a variable of whoever records
_REFERENCES_OF_NEW = 3
_MORE_OF_RESULT = 2 if sys.version_info >= (3, 11) else 3


_WITH_ATTRIBUTES = (tuple, collections.OrderedDict, collections.defaultdict, collections.deque)


def _parts(value: Any) -> set[int]:
    """All that can be reached of containers and objects among the arguments."""
    seen: set[int] = set()
    stack = [value]
    while stack and len(seen) < _MOST_PARTS:
        part = stack.pop()
        if id(part) not in seen and not isinstance(part, _NO_PARTS):
            seen.add(id(part))
            stack += gc.get_referents(part)
    return seen


__all__ = ["find_places", "take_numbers", "take_outputs"]
