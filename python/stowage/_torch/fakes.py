"""Fake tensors: shapes without values, as PyTorch's own modes make them.

- ``FakeTensorMode`` and what it raises when a number or a shape depends on data.
- ``transformers.masking_utils``: how it tells fake tensors.
- ``torch.nn.init._no_grad_trunc_normal_``: what draws by its own results; ``FakeTensor.__deepcopy__``
  and ``__hash__``, which it lacks."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def constant_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real tensor that a fake keeps of a number, as torch.tensor(0) makes one."""
    return tensor.constant if isinstance(tensor, FakeTensor) else None


DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)  # raised under FakeTensorMode


def fake_mode_active() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@contextlib.contextmanager
def hashes_told(tell: Callable[[torch.Tensor, types.FrameType | None], None]) -> Iterator[None]:
    """While open, ``tell`` hears which fake tensors are hashed, and in which frame of Python."""
    before = vars(FakeTensor).get("__hash__")  # none of its own

    def told(self: torch.Tensor) -> int:
        tell(self, sys._getframe(1))
        return id(self)

    FakeTensor.__hash__ = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del FakeTensor.__hash__
        else:
            FakeTensor.__hash__ = before  # type: ignore[method-assign]


@contextlib.contextmanager
def masks_as_run():
    """Transformers' models make other attention masks for fake tensors than for real ones, and then call other kernels;
    not in here."""
    masks = sys.modules.get("transformers.masking_utils")
    changed = {
        "is_tracing": lambda *args, **kwargs: False,
        "find_packed_sequence_indices": lambda *args, **kwargs: None,
    }
    before = {name: getattr(masks, name) for name in changed if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, changed[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(masks, name, value)


@contextlib.contextmanager
def models_of_fakes():
    """What making a model needs that tensors without values lack. ``nn.init.trunc_normal_`` draws until all values are
    within its bounds; here it leaves fakes as they are. ``copy.deepcopy`` copies storages; here fakes are cloned."""
    name = "_no_grad_trunc_normal_"
    draw = getattr(torch.nn.init, name)

    def drawn(tensor, *args, **kwargs):
        return tensor if is_fake(tensor) else draw(tensor, *args, **kwargs)

    def copied(tensor, memo):
        if id(tensor) not in memo:
            with torch.no_grad():
                clone = tensor.detach().clone()
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made = torch.nn.Parameter(clone, tensor.requires_grad) if is_parameter else clone
            memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    setattr(torch.nn.init, name, drawn)
    FakeTensor.__deepcopy__ = copied
    try:
        yield
    finally:
        setattr(torch.nn.init, name, draw)
        del FakeTensor.__deepcopy__


__all__ = [
    "DATA_DEPENDENT",
    "FakeTensorMode",
    "constant_of",
    "fake_mode_active",
    "hashes_told",
    "is_fake",
    "masks_as_run",
    "models_of_fakes",
]
