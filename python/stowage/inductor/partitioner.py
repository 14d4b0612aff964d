"""The partitioner that Inductor asks where forward ends and backward begins: it keeps a limit in bytes.

Inductor's own partition stays where this one cannot help or must not: shapes that change, higher-order
operators, activation checkpointing or a budget of the user's own, a PyTorch that lacks what private.py names."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import time
from typing import Any

import torch

from stowage import _core
from stowage.errors import Infeasible, warn
from stowage.inductor import costs, masks, private, trial
from stowage.inductor.program import Unreadable
from stowage.inductor.search import Candidate, Ladder
from stowage.sizes import in_words

_FILES = (
    "costs", "joint", "kernels", "masks", "order", "partitioner", "private", "program", "scratch", "search", "trial"
)  # fmt: skip
_LADDERS: dict[str, Ladder] = {}  # of this process, by graph
_MOST_LADDERS = 16
NO_LIMIT = 1 << 62


@dataclasses.dataclass
class Record:
    """Of one graph that was compiled with a budget."""

    number: int
    budget_bytes: int
    chosen: Candidate | None  # None: Inductor's own partition, by `reason`
    reason: str
    ladder: Ladder | None
    seconds: float


@functools.cache
def _partitioner_class() -> type:
    class StowagePartitioner(private.partitioner_base()):  # type: ignore[misc]
        """Its uuid names everything that it decides by, so that compiled graphs are found by later processes."""

        def __init__(self, budget_bytes: int):
            self.budget_bytes = budget_bytes
            self.records: list[Record] = []

        def uuid(self) -> Any:
            return ("stowage", _digest(), self.budget_bytes, torch.get_num_threads())

        def __call__(self, gm: torch.fx.GraphModule, joint_inputs: Any, **options: Any) -> tuple:
            return _partition(self, gm, joint_inputs, options)

        def __deepcopy__(
            self, memo: dict
        ) -> Any:  # Inductor copies its configuration; the records stay with the user's
            return self

        def __reduce__(self) -> tuple:  # part of the key that AOTAutograd's cache files by
            return make, (self.budget_bytes,)

        def __eq__(self, other: Any) -> bool:
            return type(other) is type(self) and other.budget_bytes == self.budget_bytes

        def __hash__(self) -> int:
            return hash(self.budget_bytes)

        def __repr__(self) -> str:
            return f"<stowage.inductor: budget {self.budget_bytes} bytes>"

    return StowagePartitioner


def make(budget_bytes: int) -> Any:
    return _partitioner_class()(budget_bytes)


@functools.cache
def _digest() -> str:
    """Of the code that decides: this room's files, the planner, the rates that costs are made with."""
    digest = hashlib.sha256(
        repr((_core.version, costs.OPERATIONS_PER_NS, costs.BYTES_PER_NS, costs.LAUNCH_NS)).encode()
    )
    for name in _FILES:
        with open(os.path.join(os.path.dirname(__file__), name + ".py"), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def _partition(ours: Any, joint: torch.fx.GraphModule, inputs: Any, options: dict) -> tuple:
    start = time.perf_counter()
    reason = reason_to_leave(joint)
    if reason:
        _tell(reason)
        ours.records.append(Record(len(ours.records), ours.budget_bytes, None, reason, None, 0.0))
        return private.partition(joint, inputs, None, **options)
    modules: dict[tuple[str, ...] | None, tuple] = {}  # of the partitions that are tried
    try:
        ladder = _ladder(joint, inputs, options, modules)
        chosen = ladder.choose(ours.budget_bytes)
        taken = modules.get(chosen.saved)
    except Infeasible as error:
        raise private.infeasible(
            _infeasible_text(ours.budget_bytes, error.smallest_bytes, error.bound_bytes, len(ours.records)),
            error.smallest_bytes, error.bound_bytes,
        ) from None  # fmt: skip
    except Exception as error:  # whatever a trial runs into: the model compiles as it would without us
        what = f"its program has a line of a kind that is not known: {error}" if isinstance(error, Unreadable) else (
            f"lowering it on trial failed ({type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''})"
        )  # fmt: skip
        _tell(what)
        ours.records.append(Record(len(ours.records), ours.budget_bytes, None, what, None, 0.0))
        return private.partition(joint, inputs, None, **options)
    finally:
        modules.clear()  # the ladder, which is kept, knows them
    ours.records.append(
        Record(len(ours.records), ours.budget_bytes, chosen, "", ladder, time.perf_counter() - start)
    )  # fmt: skip
    if len(ours.records) == 2:
        warn(
            "the model is compiled as several graphs (a graph break, or more than one call): each keeps the budget by itself,"
            " which is no limit for the step"
        )
    return taken or private.partition(joint, inputs, chosen.saved, **options)


def _infeasible_text(budget: int, smallest: int, bound: int, number: int) -> str:
    return (
        f"graph {number} of the compiled model: no partition within {in_words(budget)} was found for forward and backward;"
        f" below {in_words(bound, -1)} there is none; the smallest that works: {in_words(smallest, 1)} ({smallest} bytes)"
    )


def _ladder(joint: torch.fx.GraphModule, inputs: Any, options: dict, modules: dict) -> Ladder:
    """Budgets of one graph share what was tried. modules: by what is saved, filled with forward and backward."""
    key = _key(joint, options)
    user_outputs = options["num_fwd_outputs"]
    source = private.copied(joint)

    def evaluate(saved: tuple[str, ...] | None) -> tuple[trial.Trial, tuple[str, ...]]:
        wanted = None if saved is None else masks.without(source, saved)
        # Collections would look through all that Inductor has made, again and again
        found: Any = _core.without_collections(lambda: tried(saved, wanted))
        return found

    def tried(saved: tuple[str, ...] | None, wanted: tuple[str, ...] | None) -> tuple[trial.Trial, tuple[str, ...]]:
        forward, backward, real = partition_safely(source, inputs, wanted, options)
        modules[None if saved is None else real] = forward, backward
        return trial.run(forward, backward, user_outputs, options.get("static_lifetime_input_indices")), real

    if key in _LADDERS:
        _LADDERS[key].evaluate = evaluate  # the same graph, of another compilation: its tensors are this one's
        return _LADDERS[key]
    default = evaluate(None)[0]
    ladder = Ladder(default, evaluate, masks.made_again(source, default.saved))
    while len(_LADDERS) >= _MOST_LADDERS:
        del _LADDERS[next(iter(_LADDERS))]
    _LADDERS[key] = ladder
    return ladder


def partition_safely(joint: torch.fx.GraphModule, inputs: Any, saved: tuple[str, ...] | None, options: dict) -> tuple:
    """(forward, backward, saved): what draws random numbers or acts outside is saved, whatever was asked for."""
    forward, backward = private.partition(joint, inputs, saved, **options)
    if saved is None:
        return forward, backward, ()
    for _ in range(len(saved) + 64):
        once = {n.name for n in forward.graph.nodes if private.is_random(n.target) or private.acts_outside(n.target)}
        again = [n for n in backward.graph.nodes if n.op == "call_function" and n.name in once]
        more = [m.name for n in again for m in (_parts(n) or [n])]
        new = [name for name in more if name not in saved]
        if not new:
            break
        saved = (*saved, *new)
        forward, backward = private.partition(joint, inputs, saved, **options)
    return forward, backward, saved


def _parts(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Of a tuple: what is saved is each of its tensors that is used."""
    return [user for user in node.users if getattr(user.target, "__name__", "") == "getitem"]


def _key(joint: torch.fx.GraphModule, options: dict) -> str:
    text = joint.print_readable(print_output=False, include_stride=True, include_device=True)
    digest = hashlib.sha256(text.encode())
    digest.update(repr((options.get("num_fwd_outputs"), options.get("static_lifetime_input_indices"))).encode())
    digest.update(repr((torch.get_num_threads(), private.settings())).encode())
    return digest.hexdigest()


def reason_to_leave(joint: torch.fx.GraphModule) -> str:
    """Why this graph is partitioned as Inductor does it; empty: it is not."""
    missing = private.missing()
    if missing:
        return f"PyTorch {torch.__version__} lacks {missing[0]}"
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) or (
            isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)
        ):
            return "its shapes are dynamic, and bytes are those of one shape: compile with dynamic=False"
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return f"it has the higher-order operator {node.target.name()}"
    if private.user_tags(joint):
        return "the model says itself what is recomputed (activation checkpointing, or a budget of a region)"
    return ""


_TOLD_REASONS: set[str] = set()


def _tell(reason: str) -> None:
    if reason not in _TOLD_REASONS:
        _TOLD_REASONS.add(reason)
        warn(f"no budget for a compiled graph, which Inductor partitions as always: {reason}")


__all__ = ["NO_LIMIT", "Record", "make", "partition_safely", "reason_to_leave"]
