"""What an operator's schema says. PyTorch makes its arguments anew each time that they are asked for: worked out once each."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

_UPDATE_STATISTICS = frozenset(
    f"aten::{name}"
    for name in (
        "batch_norm",
        "instance_norm",
        "native_batch_norm",
        "_batch_norm_impl_index",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
)
_STATISTICS = ("running_mean", "running_var")


class Schema:
    """``names``, ``defaults``: of the arguments. ``writes``: the positions of those that it changes, as it says or without: norms
    update their running statistics. ``leaf_is_new``: no argument is returned."""

    def __init__(self, func: Any):
        arguments = func._schema.arguments
        said = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        unsaid = [a.name in _STATISTICS and func._schema.name in _UPDATE_STATISTICS for a in arguments]
        self.text = str(func)
        self.name: str = func._schema.name.partition("::")[2]
        self.names: tuple[str, ...] = tuple(a.name for a in arguments)
        self.defaults: tuple[Any, ...] = tuple(a.default_value for a in arguments)
        self.writes = tuple(i for i, pair in enumerate(zip(said, unsaid)) if any(pair))
        self.written_names = frozenset(self.names[i] for i in self.writes)
        self.writes_unsaid = any(unsaid)
        self.leaf_is_new = not any(said)
        self.makes_views = any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        # It works out the shape of an attention on meta tensors, which a recording refuses, takes the weights of a convolution for
        # whole ones, and their gradients for summands, gives a rank's summand for the number, takes an operator for one that
        # writes where its name ends as theirs do (__lshift__), and gives batch norms copies of the statistics that they update
        self.is_kept_from_dtensor = (
            (self.name.endswith("_") and self.leaf_is_new)
            or self.writes_unsaid
            or func._schema.name in ("aten::_local_scalar_dense", "aten::equal")
            or "scaled_dot_product" in self.name
            or "convolution" in self.name
        )

    def arguments(self, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
        """Name and value of each, in order."""
        given = len(args)
        yield from zip(self.names, args)
        for i in range(given, len(self.names)):
            yield self.names[i], kwargs.get(self.names[i], self.defaults[i])

    def tensors(self, args: tuple, kwargs: dict) -> Iterator[torch.Tensor]:
        for _, value in self.arguments(args, kwargs):
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from (t for t in value if isinstance(t, torch.Tensor))

    def written(self, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        """Of the arguments, those that it changes."""
        found: list[torch.Tensor] = []
        for i in self.writes:
            value = args[i] if i < len(args) else kwargs.get(self.names[i])
            listed = value if isinstance(value, (list, tuple)) else (value,)
            found += [t for t in listed if isinstance(t, torch.Tensor)]
        return found


schema = functools.lru_cache(maxsize=4096)(Schema)

__all__ = ["Schema", "schema"]
