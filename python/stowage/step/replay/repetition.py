"""Steps whose kernels do not repeat their bits.

Some kernels add in any order, as many on GPUs do. Eager itself then gives other bits each time, and no rehearsal can give
those of one run. What a plan has to keep is that each operator gets eager's inputs and runs eager's kernel. That is shown
by rehearsals of three kinds:

    rehearsal     kernels          what it shows
    the first     as they come     bits differ; the first operator whose results do is named
    told          deterministic    planned and plain give the same bits: the plan reads and writes what eager does
    again         as they come     what the plan makes again has the bits that it had the first time

An operator that was seen to give other bits is made once: a plan that makes it again is made anew without (the trait
"once" of the graph), as far as the budget allows, and rehearsed anew.

"Told": PyTorch's deterministic algorithms are switched on for that rehearsal alone. An operator that has none raises, and
the step is refused, as is one whose bits differ all the same. With ``strict`` nothing of this is tried, nor where the
operator is PyTorch's own and runs on the CPU.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.deterministic

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # PyTorch asks for it before it calls cuBLAS repeatable; one stream is, anyway


class Stage(enum.Enum):
    USUAL = "bits are compared"
    TOLD = "the next rehearsal is by deterministic algorithms"
    AGAIN = "it gave the same bits by these; what is made again is compared"
    FAILED = "it gave other bits by these, too, or there are none"


class Repetition:
    """Of one replay."""

    def __init__(self) -> None:
        self.stage = Stage.USUAL
        self.first = ""  # the operator that gave other bits
        self.kinds: set[str] = set()  # of the operators that then did not repeat their bits
        self.no_way = ""  # why there is no plan that makes such operators once

    @property
    def told(self) -> bool:
        return self.stage is Stage.TOLD

    @property
    def tries(self) -> bool:
        """Other rehearsals may still show that the plan is right."""
        return self.stage in (Stage.TOLD, Stage.AGAIN)

    @property
    def accepted(self) -> str:
        """The operator, of a plan that is trusted although its bits are not eager's; else ""."""
        return self.first if self.stage is Stage.AGAIN else ""

    def suspects(self, first: str, device: str, made_otherwise: set[str] | None = None) -> None:
        """Bits differ, first those of an operator, where that is known. PyTorch's own kernels for the CPU repeat theirs:
        where they differ, the plan is to blame.

        made_otherwise: kinds of operators that the plan has made again with other results; what differs may follow from
        these."""
        own = device == "cpu" and first.startswith("aten::")
        if self.stage is Stage.USUAL and first and not own and not torch.are_deterministic_algorithms_enabled():
            self.stage, self.first = Stage.TOLD, first
            self.kinds = set(made_otherwise or {first.partition(" (")[0]})

    def answers(self, agrees: bool) -> None:
        """After a rehearsal by deterministic algorithms."""
        self.stage = Stage.AGAIN if agrees else Stage.FAILED

    def plan_changes(self) -> None:
        if self.stage is Stage.AGAIN:
            self.stage = Stage.TOLD

    def in_words(self) -> str:
        return (
            f"{self.first} does not repeat its bits: planned calls run the same kernels on the same inputs, and gave "
            "eager's bits when these were told to repeat them (torch.use_deterministic_algorithms)"
        )


@contextlib.contextmanager
def told_to_repeat() -> Iterator[None]:
    """PyTorch's deterministic algorithms, of the whole process. What is made without content stays so.

    Raises, within: RuntimeError, by an operator that has no such algorithm."""
    filling: Any = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory
    config = os.environ.get(_CUBLAS)
    try:
        os.environ.setdefault(_CUBLAS, ":4096:8")
        filling.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True)
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        filling.fill_uninitialized_memory = fills
        if config is None:
            os.environ.pop(_CUBLAS, None)


__all__ = ["Repetition", "Stage", "told_to_repeat"]
