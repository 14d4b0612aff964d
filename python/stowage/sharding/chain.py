"""A model as layers one after another, with its loss and its optimizer: what a pipeline cuts into stages.

    inputs ──► layers[0] ──► layers[1] ──► ... ──► layers[n - 1] ──► loss(output, target)

Called, it is one training step in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stowage.errors import Unsupported


class Chain:
    """Layers, a loss, an optimizer.

    Args:
        layers: modules; what one returns (a tensor, or a tuple of tensors) the next is called with.
        loss: function (output of the last layer, target) -> a number that is a mean over the batch.
        optimizer: function (parameters) -> optimizer, such as ``lambda ps: torch.optim.AdamW(ps, lr=1e-3)``. Each rank of
            a pipeline makes one of its own parameters: it must not look at all of them together.
        max_norm: to which the gradients are clipped before the optimizer's step, by the norm of all of them, as
            torch.nn.utils.clip_grad_norm_ does; None: they are not.
    """

    def __init__(
        self,
        layers: Sequence[torch.nn.Module],
        loss: Callable[[Any, Any], torch.Tensor],
        optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        max_norm: float | None = None,
    ):
        self.layers = list(layers)
        if not self.layers or not all(isinstance(layer, torch.nn.Module) for layer in self.layers):
            raise TypeError("layers must be modules, at least one")
        if not callable(loss) or not callable(optimizer):
            raise TypeError("loss and optimizer must be functions")
        if max_norm is not None and (isinstance(max_norm, bool) or not isinstance(max_norm, (int, float))):
            raise TypeError(f"max_norm must be a number or None, not {type(max_norm).__name__}")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be above 0, not {max_norm}")
        self.loss, self.optimizer, self.max_norm = loss, optimizer, max_norm
        self._made: torch.optim.Optimizer | None = None

    @property
    def __name__(self) -> str:
        return "chain"

    def parameters(self) -> list[torch.nn.Parameter]:
        """Each once."""
        return trainable(self.layers)

    def __call__(self, *batch: Any) -> torch.Tensor:
        """One step in this process: forward, backward, optimizer. The last argument is the target."""
        *inputs, target = batch
        if self._made is None:
            self._made = self.optimizer(self.parameters())
        values = tuple(inputs)
        for layer in self.layers:
            values = as_tuple(layer(*values))
        loss = self.loss(values[0] if len(values) == 1 else values, target)
        loss.backward()
        if self.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.max_norm)
        self._made.step()
        self._made.zero_grad()
        return loss.detach()


def trainable(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
    found = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
    return list(found.values())


class _Same(torch.autograd.Function):
    """The same bytes, as a tensor of its own to autograd: neither a view nor a leaf, and saved by nobody."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()  # as it is sent


def handed_on(values: tuple) -> tuple:
    """What goes into a stage and comes out of it: PyTorch detaches results in place, which a view cannot be, nor what the stage has
    saved; and a layer may write to its input, which a leaf cannot be."""
    return tuple(_Same.apply(v) if isinstance(v, torch.Tensor) and v.requires_grad else v for v in values)


def as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def micro_batches(batch: Sequence[Any], count: int) -> list[tuple]:
    """``count`` equal parts."""
    for tensor in batch:
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            raise Unsupported("the inputs and the target of a pipeline are tensors with the batch as dimension 0")
        if tensor.shape[0] % count or not tensor.shape[0]:
            raise Unsupported(
                f"a batch of {tensor.shape[0]} is not {count} equal micro-batches: the mean of their losses would be another"
            )
    return list(zip(*(tensor.chunk(count) for tensor in batch)))


__all__ = ["Chain", "as_tuple", "handed_on", "micro_batches", "trainable"]
