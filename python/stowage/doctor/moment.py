"""The moment when memory ran out: what was asked for, what there was, what was live and why."""

from __future__ import annotations

import dataclasses

PARAMETERS, STATE, GRADIENTS, ACTIVATIONS, UPDATE, OTHER = (
    "parameters",
    "optimizer state",
    "gradients",
    "activations",
    "temporaries of the update",
    "other",
)
_LOSSES = ("cross_entropy", "log_softmax", "nll_loss")


@dataclasses.dataclass(frozen=True)
class Block:
    """Live at the moment, or several of one line and kind. line: "train.py:12", the user's own."""

    bytes: int
    line: str
    kind: str
    of_loss: bool


@dataclasses.dataclass(frozen=True)
class Holder:
    """A variable that keeps tensors. name: as the code has it. place: "train.py:12", where its frame stood. tensors:
    how many, those of containers in it, too. graph_bytes: of ``bytes``, what only autograd's graphs of them hold."""

    name: str
    place: str
    tensors: int
    bytes: int
    graph_bytes: int


@dataclasses.dataclass(frozen=True)
class Moment:
    """request_bytes: what was asked for and not given; 0 where the snapshot holds no such entry. device_free_bytes: what
    the device had left then. free_blocks: holes in what PyTorch had reserved, by segment, those of whole segments apart:
    PyTorch gives these back before it gives up. kept: the line that holds on to the most of steps that are over, and how
    many bytes. holder: of the variables that are known, the one that keeps most. evaluating: a module in eval mode was at
    work, and autograd noted it. largest_gradient_bytes: of one parameter. on_host: the memory is the machine's own, no device's."""

    request_bytes: int
    request_line: str
    request_kind: str
    request_of_loss: bool
    device_free_bytes: int
    reserved_bytes: int
    blocks: tuple[Block, ...]
    free_blocks: tuple[int, ...]
    empty_segments_bytes: int
    in_forward: bool
    kept: tuple[str, int] = ("", 0)
    holder: Holder | None = None
    evaluating: bool = False
    largest_gradient_bytes: int = 0
    on_host: bool = False

    @property
    def live_bytes(self) -> int:
        return sum(block.bytes for block in self.blocks)


def is_loss(function: str) -> bool:
    """Of torch.nn.functional's, whose memory is logits, their logarithms, and gradients of both."""
    return function in _LOSSES


__all__ = ["ACTIVATIONS", "GRADIENTS", "OTHER", "PARAMETERS", "STATE", "UPDATE", "Block", "Holder", "Moment", "is_loss"]
