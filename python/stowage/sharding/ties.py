"""Parameters that layers of a chain share. Layers on other ranks hold copies, which stay the same bit for bit.

    rank 0   embedding   w ──► its gradient ──┐
                                              ├── the sum, on both ──► each rank updates its own w, as the other does
    rank 3   head        w ──► its gradient ──┘

Layers that share a buffer cannot be so: they write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_MOST = 64  # that a plan has: kMostPipelineTies


@dataclass(frozen=True)
class Tie:
    layers: tuple[int, ...]  # ascending, at least two
    parameters: tuple[torch.nn.Parameter, ...]  # that all of these have, and no other


def ties(layers: Sequence[torch.nn.Module]) -> list[Tie]:
    """None where there are too many for a plan: those layers are then joined."""
    found = _shared([list(layer.parameters()) for layer in layers])
    by_layers: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for tensor, at in found:
        by_layers.setdefault(at, []).append(tensor)
    return [Tie(at, tuple(of)) for at, of in by_layers.items()] if len(by_layers) <= _MOST else []  # type: ignore[arg-type]


def joined(layers: Sequence[torch.nn.Module]) -> list[bool]:
    """Of each layer: whether it is in one piece with the one before, as a layer up to there and one from there on share a
    buffer, or a parameter that is in no tie."""
    tied = {id(p) for tie in ties(layers) for p in tie.parameters}
    kept = [[t for t in [*layer.parameters(), *layer.buffers()] if id(t) not in tied] for layer in layers]
    result = [False] * len(layers)
    for _, at in _shared(kept):
        for i in range(at[0] + 1, at[-1] + 1):
            result[i] = True
    return result


def _shared(tensors: list[list[torch.Tensor]]) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """Those that several layers have, with these layers."""
    found: dict[int, tuple[torch.Tensor, list[int]]] = {}
    for i, of_layer in enumerate(tensors):
        for tensor in of_layer:
            at = found.setdefault(id(tensor), (tensor, []))[1]
            if i not in at:
                at.append(i)
    return [(tensor, tuple(at)) for tensor, at in found.values() if len(at) > 1]


__all__ = ["Tie", "joined", "ties"]
