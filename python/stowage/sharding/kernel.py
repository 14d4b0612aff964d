"""One op on this rank's parts of its tensors.

    plan   inputs  a: S0   b: R            global   view(x [6, 10], size [2, 3, 10])    x: S0 over 2 ranks
           computed  out: S0               local    view(x [3, 10], size [1, 3, 10])    sizes in the arguments are those of the part

A planned op's kernel, run on the parts, leaves the part of its result; that is what a rule of the planner says. What
has to change is an argument that spells a size of the result.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from stowage._torch.distributed import local_shape, make_dtensor
from stowage._torch.private import flatten, hook_open, local_tensor, tree_map, unflatten, unseen
from stowage.errors import Unsupported
from stowage.sharding.moves import brought, empty_part, laid_out
from stowage.sharding.recipes import RECIPES, MeshCut
from stowage.sharding.schema import schema

# The argument that is the size of the first result.
_SIZES = {
    "view": "size",
    "_unsafe_view": "size",
    "reshape": "size",
    "expand": "size",
    "zeros": "size",
    "ones": "size",
    "full": "size",
    "empty": "size",
    "new_zeros": "size",
    "new_ones": "size",
    "new_full": "size",
    "new_empty": "size",
    "select_backward": "input_sizes",
    "slice_backward": "input_sizes",
    "new_empty_strided": "size",
    "empty_strided": "size",
}
_VIEWS = ("view", "_unsafe_view")
_OVERWRITE = (
    "copy_",
    "zero_",
    "fill_",
    "bernoulli_",
    "uniform_",
    "normal_",
    "random_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
    "rrelu_with_noise",
)


class Moved:
    """An op's arguments at other placements, and the way back for those that it changes."""

    def __init__(self, func, args: tuple, kwargs: dict, mesh, mode: contextlib.AbstractContextManager | None = None):
        """``mode``: within it tensors are moved; none where it is on."""
        self._mesh = mesh
        self._mode = mode or contextlib.nullcontext()
        self.args, self.kwargs = args, kwargs
        self._schema = schema(func)
        self._writes = self._schema.written_names
        self._overwrites = self._schema.name in _OVERWRITE
        self._laid_out = False
        self._back: list[tuple[DTensor, DTensor]] = []  # what was given, what the op has instead
        self.count = sum(1 for _ in self._schema.tensors(args, kwargs))

    def named(self) -> Iterator[tuple[str, Any]]:
        return self._schema.arguments(self.args, self.kwargs)

    def with_defaults(self) -> dict[str, Any]:
        return dict(self.named())

    def put(self, name: str, value: Any) -> None:
        i = self._schema.names.index(name)
        if i < len(self.args):
            self.args = (*self.args[:i], value, *self.args[i + 1 :])
        else:
            self.kwargs = {**self.kwargs, name: value}

    def bring(self, wanted: list, laid_out: bool = False) -> None:
        """``wanted``: placements of all tensors of all arguments, in schema order; None where any will do. ``laid_out``: they
        lie in memory as the whole tensors do, which decides the element that a random number goes to."""
        self._laid_out = laid_out
        if len(wanted) != self.count:
            raise Unsupported(f"an op has {self.count} tensors where {len(wanted)} were planned")
        places = iter(wanted)
        for name, value in list(self.named()):
            if isinstance(value, torch.Tensor):
                moved = self._at(name, value, next(places))
                if moved is not value:
                    self.put(name, moved)
            elif isinstance(value, (list, tuple)) and any(isinstance(t, torch.Tensor) for t in value):
                self.put(name, [self._at(name, t, next(places)) if isinstance(t, torch.Tensor) else t for t in value])

    def _at(self, name: str, t: torch.Tensor, placements) -> torch.Tensor:
        if not isinstance(t, DTensor):
            if placements is None or all(p.is_replicate() for p in placements) or name in self._writes:
                return t
            with self._mode:
                everywhere = [Replicate()] * self._mesh.ndim
                return brought(make_dtensor(t, self._mesh, everywhere, t.shape, t.stride()), placements)
        if placements is None or (t.placements == placements and not self._laid_out):
            return t
        with self._mode:
            if name in self._writes and self._overwrites:  # what was there does not matter
                local = empty_part(t._local_tensor, local_shape(t.shape, self._mesh, placements), t.shape, t.stride())
                moved = make_dtensor(local, self._mesh, placements, t.shape, t.stride())
            else:
                moved = brought(t, placements)
                moved = laid_out(moved) if self._laid_out else moved
        if name in self._writes and moved is not t:
            self._back.append((t, moved))
        return moved

    def take_back(self, result: Any) -> Any:
        if not self._back:
            return result
        given = {}
        with self._mode:
            for t, moved in self._back:
                t._local_tensor.copy_(brought(moved, t.placements)._local_tensor)
                given[id(moved)] = t
        return tree_map(lambda r: given.get(id(r), r), result)


class _Locals:
    """The parts of DTensors, and the way back to them."""

    def __init__(self) -> None:
        self._by_local: dict[int, DTensor] = {}

    def take(self, t: Any) -> Any:
        if not isinstance(t, DTensor):
            return t
        self._by_local[id(t._local_tensor)] = t
        return t._local_tensor

    def of(self, value: Any) -> Any:
        """Of an argument, which may be a list."""
        if isinstance(value, (list, tuple)):
            return [self.take(v) for v in value]
        return self.take(value)

    def owner(self, t: torch.Tensor) -> DTensor | None:
        return self._by_local.get(id(t))


def run_local(func, moved: Moved, mesh) -> Any:
    """On whole tensors, past DTensor."""
    parts = _Locals()
    with hook_open():
        try:
            result = func(*tree_map(parts.take, moved.args), **tree_map(parts.take, moved.kwargs))
        except NotImplementedError as reason:
            raise Unsupported(f"{func} cannot run under a mesh: {reason}") from None
        except RuntimeError:
            if schema(func).name not in _VIEWS:
                raise
            result = func(parts.take(moved.args[0]).contiguous(), *moved.args[1:], **moved.kwargs)

    def wrap(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or isinstance(t, DTensor):
            return t
        owner = parts.owner(t)
        return owner if owner is not None else make_dtensor(t, mesh, [Replicate()] * mesh.ndim, t.shape, t.stride())

    return tree_map(wrap, result)


def laid_out_as_asked(func, args: tuple, kwargs: dict, result: Any) -> Any:
    """What DTensor made, with the strides of the whole that ``memory_format`` asks for: DTensor remembers those of the first
    call on such placements."""
    if not isinstance(result, DTensor) or "memory_format" not in schema(func).names:
        return result

    def without_content(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    with unseen():
        wholes = tree_map(without_content, args), tree_map(without_content, kwargs)
        strides = func(*wholes[0], **{k: "meta" if k == "device" else v for k, v in wholes[1].items()}).stride()
    if strides == result.stride():
        return result
    return make_dtensor(local_tensor(result), result.device_mesh, result.placements, result.shape, strides)


def run_on_parts(func, moved: Moved, placed, mesh, mode: contextlib.AbstractContextManager) -> Any:
    """Raises when the result is not the part that was planned, or the kernel does not take such parts. Outside of the ``mode``, but
    for recipes: they are many operators."""
    parts = _Locals()
    name = schema(func).name
    shapes = placed.parts(mesh)
    if name in _SIZES and shapes:
        size = shapes[0]
        assert size is not None
        moved.put(_SIZES[name], list(size))
        if name.endswith("empty_strided"):
            moved.put("stride", [math.prod(size[d + 1 :]) for d in range(len(size))])
    if name.startswith("native_group_norm"):
        moved.put("N", local_rows(moved))
    if name == "empty_like":
        whole, strides = placed.shapes[0], placed.strides[0]
        assert whole is not None and strides is not None and shapes[0] is not None
        with mode:
            local = empty_part(moved.args[0]._local_tensor, shapes[0], whole, strides, moved.kwargs.get("dtype"))
        return placed.output(0, local, mesh)
    args = [parts.of(value) for value in moved.args]
    kwargs = {key: parts.of(value) for key, value in moved.kwargs.items()}
    if placed.recipe:
        with mode:
            result = _run_recipe(func, moved, placed, mesh, parts)
    else:
        with hook_open():
            try:
                result = func(*args, **kwargs)
            except RuntimeError:
                if name not in _VIEWS:
                    raise
                result = func(args[0].contiguous(), *args[1:], **kwargs)  # a part need not be laid out as the whole is
    if isinstance(result, torch.Tensor):
        return _as_planned(func, [result], parts, placed, mesh)[0]
    leaves, spec = flatten(result)
    return unflatten(_as_planned(func, leaves, parts, placed, mesh), spec)


def _as_planned(func, leaves: list[Any], parts: _Locals, placed, mesh) -> list[Any]:
    shapes, is_new = placed.parts(mesh), schema(func).leaf_is_new
    out: list[Any] = []
    position = 0
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and not is_new and (owner := parts.owner(leaf)) is not None:
            out.append(owner)
            continue
        if leaf is not None and not isinstance(leaf, torch.Tensor):
            out.append(leaf)
            continue
        shape = shapes[position] if position < len(shapes) else None
        if leaf is None or shape is None:
            out.append(leaf)
        elif tuple(leaf.shape) != shape:
            raise ValueError(f"{func} left {tuple(leaf.shape)} of a part {shape}")
        else:
            out.append(placed.output(position, leaf, mesh))
        position += 1
    return out


def _run_recipe(func, moved: Moved, placed, mesh, parts: _Locals) -> Any:
    if placed.recipe not in RECIPES:
        raise Unsupported(f"the plan runs {func} by a recipe '{placed.recipe}' that is not known")
    given = moved.with_defaults()
    tensors = [
        t
        for value in given.values()
        for t in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(t, torch.Tensor)
    ]
    places = [t.placements if isinstance(t, DTensor) else None for t in tensors]
    cut = MeshCut(mesh, placed, places, [tuple(t.shape) for t in tensors])
    return RECIPES[placed.recipe](func, tree_map(parts.take, given), cut)


def local_rows(moved: Moved) -> int:
    values = moved.with_defaults()
    first = values["input"] if "input" in values else values["grad_out"]
    return first._local_tensor.shape[0] if isinstance(first, DTensor) else first.shape[0]
