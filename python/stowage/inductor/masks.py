"""Masks are made again from what is saved anyway.

    saved by the planner      relu ──▶ view (for a product)      le = relu <= 0 (for the gradient of relu)
    saved here                relu                               ╴ made again in backward, within the kernel that reads it

A mask is a boolean tensor. It is dropped where comparisons, logic and integers lead to it from tensors that are saved, or
from nothing: all these are exact, so the bits are the same. A view that is saved gives its base for that, which is
the same memory. On a CPU that is faster, too: Inductor's kernels write booleans slowly.

Complexity: linear in the joint graph, and _MOST_NODES for each mask. Known weakness: what is saved for a mask may live a
little longer; only the lowering that follows says whether the limit is kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MOST_NODES = 16  # between a mask and what it is made of
_EXACT = frozenset([
    "eq", "ne", "le", "lt", "ge", "gt", "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_not", "bitwise_xor", "isnan", "isinf",
])  # fmt: skip
_OF_INTEGERS = frozenset(
    ["add", "sub", "mul", "neg", "abs", "minimum", "maximum", "where", "clamp", "clamp_min", "clamp_max"]
)
_FROM_NOTHING = frozenset(["full", "arange", "iota", "scalar_tensor"])
_VIEWS = frozenset([
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "slice", "alias", "detach",
])  # fmt: skip


def made_again(joint: torch.fx.GraphModule, saved: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of the masks among what is saved, those that need not be, and what else of the saved each is made of. saved: names
    of nodes of the joint graph."""
    wanted = set(saved)
    kept = {node.name: node for node in joint.graph.nodes if node.name in wanted}
    bases = {_base(node): name for name, node in kept.items()}
    found = {}
    for name, node in kept.items():
        sources = _sources(node, bases) if _dtype(node) == torch.bool else None
        if sources is not None:
            found[name] = tuple(bases[source] for source in sources)
    return found


def without(joint: torch.fx.GraphModule, saved: Sequence[str]) -> tuple[str, ...]:
    """The names of what is to be saved then."""
    again = made_again(joint, saved)
    nodes = {node.name: node for node in joint.graph.nodes}
    sources = {name for names in again.values() for name in names}
    return tuple(
        dict.fromkeys(_base(nodes[name]).name if name in sources else name for name in saved if name not in again)
    )  # fmt: skip


def _sources(mask: torch.fx.Node, bases: dict[torch.fx.Node, str]) -> list[torch.fx.Node] | None:
    """What of the saved it is made of; None: of something else."""
    sources: dict[torch.fx.Node, None] = {}
    seen: set[torch.fx.Node] = set()
    waiting = [mask]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node is not mask and node in bases and _dtype(node) != torch.bool:
            sources[node] = None
        elif len(seen) <= _MOST_NODES and _is_exact(node):
            waiting += node.all_input_nodes
        else:
            return None
    return list(sources)


def _is_exact(node: torch.fx.Node) -> bool:
    name = _name(node)
    exact = name in _EXACT or name in _VIEWS or name in _FROM_NOTHING
    return exact or (name in _OF_INTEGERS and _is_whole(_dtype(node)))


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """Of a view of all its elements."""
    while _name(node) in _VIEWS and _elements(node.all_input_nodes[0]) == _elements(node):
        node = node.all_input_nodes[0]
    return node


def _name(node: torch.fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "") if node.op == "call_function" else ""


def _dtype(node: torch.fx.Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _is_whole(dtype: torch.dtype | None) -> bool:
    return dtype is not None and not dtype.is_floating_point and not dtype.is_complex


def _elements(node: torch.fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else -1


__all__ = ["made_again", "without"]
