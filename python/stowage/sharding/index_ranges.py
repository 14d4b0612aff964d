"""Indices among a call's arguments that a kernel refuses: a label that is no class, a token that no table has.

    y [rows] ──cut──► rank 0: rows 0, 1    its kernel raises: label 7 of 5 classes
                      rank 1: rows 2, 3    waits for rank 0 until the group's timeout

Every rank has the whole argument, so that each sees it before the call, and all raise. What an op is given that is no argument as
a whole (a part of one, one that was changed) is not looked at. O(elements of such arguments) a call; on the CPU, where such
kernels raise at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stowage.sharding.program import Program


@dataclass(frozen=True)
class IndexRange:
    argument: int  # its place among the tensors of the call
    op: str
    end: int  # one behind the largest
    besides: int  # may be there, too


def index_ranges(program: Program) -> list[IndexRange]:
    """Of the ops that come to their indices whatever the step does to its arguments."""
    numel = [torch.Size(t["shape"]).numel() for t in program.tensors]
    places = {t: i for i, t in enumerate(program.inputs)}
    for t, tensor in enumerate(program.tensors):  # views of a whole one
        root = tensor.get("alias_of", t)
        if root in places and numel[t] == numel[root]:
            places.setdefault(t, places[root])
    written = {program.tensors[t].get("alias_of", t) for op in program.ops for t in op.get("writes", ())}
    found = []
    for op in program.ops:
        index, end = _index_and_end(program, op)
        if index in places and program.tensors[index].get("alias_of", index) not in written:
            ignored = op.get("attributes", {}).get("ignore_index", 0)
            found.append(IndexRange(places[index], op["target"], end, ignored))
    return list(dict.fromkeys(found))


def refuse_indices(ranges: Sequence[IndexRange], inputs: Sequence[torch.Tensor]) -> None:
    """Raises IndexError, on all ranks alike."""
    for each in ranges:
        t = inputs[each.argument]
        if t.device.type != "cpu" or t.numel() == 0:
            continue
        out = (t < 0) | (t >= each.end)
        if bool(out.any()) and bool((out := out & (t != each.besides)).any()):
            raise IndexError(
                f"{each.op}: index {int(t[out][0])} among the arguments is out of range, there are {each.end}; nothing of this call has "
                "happened, on any rank"
            )


def _index_and_end(program: Program, op: dict) -> tuple[int, int]:
    """The tensor of indices, and what they count; -1 for other ops."""
    name, args = op["target"].split(".")[1], op["args"]
    shape = lambda t: program.tensors[t]["shape"]
    if name in ("nll_loss_forward", "nll_loss2d_forward"):
        of = shape(args["self"])
        return args["target"], of[1] if len(of) > 1 else of[0]
    if name == "embedding":
        return args["indices"], shape(args["weight"])[0]
    return -1, 0
