"""What a recorded step may assume of its arguments and of PyTorch's global state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from stowage.errors import Unsupported
from stowage.torch_private import dispatch_mode_active, storage_address


def signature(args: tuple, kwargs: dict) -> tuple[tuple, list[torch.Tensor]]:
    """A hashable key, equal for calls that one recording can serve, and the tensors among the arguments in a fixed order.

    Raises Unsupported for arguments that cannot be compared by value.
    """
    tensors: list[torch.Tensor] = []
    structure = (_describe(args, tensors), _describe(kwargs, tensors))
    storages: dict[int, int] = {}
    sharing = tuple(storages.setdefault(storage_address(t), i) for i, t in enumerate(tensors))
    return (structure, sharing, _global_state()), tensors


def _describe(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise Unsupported(f"an argument is a tensor of layout {value.layout}")
        tensors.append(value)
        return ("tensor", value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, value.requires_grad)
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)):
        return (type(value), value)
    if isinstance(value, Mapping):
        return (type(value), tuple((key, _describe(item, tensors)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_describe(item, tensors) for item in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value), tuple((f.name, _describe(getattr(value, f.name), tensors)) for f in dataclasses.fields(value)))
    raise Unsupported(f"an argument of type {type(value).__name__} (tensors, numbers, strings and containers of them are fine)")


def _global_state() -> tuple:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        dispatch_mode_active(),
    )
