"""What a recorder is told before the step runs: by which names the function reaches its tensors, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stowage._torch.private import address, storage_address
from stowage.step.reach.parts import parts
from stowage.step.reach.world import World


def declare_world(recorder, world: World, inputs: list[torch.Tensor], earlier: Sequence[Any]) -> None:
    for kind, name, tensor in world.owned():
        recorder.declare(address(tensor), kind, name)
    where = parts(inputs)
    # Those that parts begin with are declared before others
    for i in sorted(range(len(inputs)), key=lambda i: where[i].first != i):
        recorder.declare_input(address(inputs[i]), "input", f"input_{i}", i, where[i].start_bytes, where[i].end_bytes)
    for path, module in world.modules:
        for name, parameter in module.named_parameters(prefix=path):
            recorder.declare(address(parameter), "parameter", name)
        for name, buffer in module.named_buffers(prefix=path):
            recorder.declare(address(buffer), "module_buffer", name)
    for optimizer in world.optimizers:
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                recorder.declare(address(parameter), "parameter", f"group.{g}.{i}")
        declare_optimizer(recorder, optimizer)
    for path, tensor in world.tensors:
        recorder.declare(address(tensor), "constant", path)
    world.know_generators(lambda generator: recorder.know_generator(generator, earlier))


def declare_optimizer(recorder, optimizer) -> None:
    for i, (_parameter, state) in enumerate(optimizer.state.items()):
        for key, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                recorder.declare(address(value), "optimizer_state", f"state.{i}.{key}")
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                recorder.declare(address(value), "optimizer_state", f"group.{i}.{key}")


def lasting_argument(world: World, inputs: list[torch.Tensor]) -> str:
    """Arguments are bound anew in every call, parameters and buffers are not: one tensor cannot be both."""
    storages = _storages(inputs)
    for path, module in world.modules:
        for name, tensor in (*module.named_parameters(prefix=path), *module.named_buffers(prefix=path)):
            if storage_address(tensor) in storages:
                return name
    return ""


def found_arguments(world: World, inputs: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """Takes from the tensors that the function reaches by itself those that share their memory with an argument: they are
    bound anew in every call."""
    storages = _storages(inputs)
    found = [(path, tensor) for path, tensor in world.tensors if storage_address(tensor) in storages]
    if found:
        world.tensors[:] = [item for item in world.tensors if storage_address(item[1]) not in storages]
    return found


def leave_out_gradients(world: World) -> None:
    """Takes the parameters' .grad from the tensors that the function reaches by itself: other ones may be there in each
    call, and they come like arguments."""
    gradients = {id(p.grad) for p in world.model_parameters() if p.grad is not None}
    if any(id(tensor) in gradients for _, tensor in world.tensors):
        world.tensors[:] = [item for item in world.tensors if id(item[1]) not in gradients]


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {storage_address(t) for t in tensors} - {0}


__all__ = ["declare_optimizer", "declare_world", "found_arguments", "lasting_argument", "leave_out_gradients"]
