"""Memory that a step reaches in more than one way, which a recording would take for different memory.

    arr = numpy.zeros(4); t = torch.from_numpy(arr)      Python reads and writes arr, kernels read and write t
    a, b = torch.from_numpy(arr), torch.from_numpy(arr)  two storages over the same bytes

Python runs over shells before the kernels do, and kernels run in the plan's order: what one writes, the other must not
look at. Arrays that are only read beside tensors that are only read are watched (ToldContents)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stowage._core import buffer_memory
from stowage._torch.private import addresses


def shared_memory(
    tape: Any, inputs: Sequence[torch.Tensor], arrays: Sequence[tuple[str, Any, bool]]
) -> tuple[str, list[Any]]:
    """Why the recorded step cannot be replayed, or "", and the arrays that lie over what it reads."""
    found = sorted(tape.memory(addresses(inputs)))  # by first byte
    if clash := _clash(found):
        return clash, []
    watched = []
    for name, array, changed in arrays:
        begin, end = buffer_memory(array)
        over = [(written, of) for start, stop, written, of in found if start < end and begin < stop]
        if any(written for written, _ in over):
            return f"the step writes into memory that it also reaches as the array '{name}'", []
        if over and changed:
            return f"the step writes into the array '{name}', over whose memory a tensor of it lies", []
        if over:
            watched.append(array)
    return "", watched


def _clash(found: list[tuple[int, int, bool, str]]) -> str:
    """``found``: by first byte."""
    for i, (_, end, written, name) in enumerate(found):
        for start, _, also_written, other in found[i + 1 :]:
            if start >= end:
                break
            if written or also_written:
                return f"'{name}' and '{other}' lie over the same memory, each by itself, and the step writes into one"
    return ""


__all__ = ["shared_memory"]
