"""The training step of tests in which only the model matters."""

from __future__ import annotations

from collections.abc import Callable

import torch


def mean_square_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Backward from the mean square of what the model gives, then an update. No gradient is left at the end."""

    def train_step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


__all__ = ["mean_square_step"]
