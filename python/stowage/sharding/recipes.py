"""Ops whose kernel, run on this rank's parts alone, would not leave the part of the result. What their recipes do
besides:

    rows_of_part      embedding and its backward, the table's rows cut: rows of others are zeros, or passed over; no word to others
    norm_of_parts     a p-norm over numbers that are cut: the root of the sum of the parts' powers
    softmax_of_parts  log_softmax and its backward, the classes cut: the largest number and the sum are those of all parts
    sum_over_total    nll_loss: sums and weights are added up over rows and classes that are cut, and divided for a mean
    classes_of_part   nll_loss_backward, the classes cut: targets of others are ignored; no word to others
    statistics_of_parts   batch norm in training and its backward, the rows cut: mean and variance are those of all parts

The last one puts counts, means and variances of parts together as Chan, Golub and LeVeque do (The American Statistician
37, 1983), so that no digits are lost. As Megatron-LM splits embedding and loss over the vocabulary (Shoeybi et al., 2019), for any cuts on any axes.

A recipe is a function of the op, its arguments by name (parts where they are tensors), and a Cut; it returns what the
op would."""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from stowage._torch.distributed import local_offset, local_shape, make_dtensor
from stowage.sharding.moves import brought

_IGNORED = -100


class Cut(Protocol):
    """How the tensors of an op are cut. ``tensor``: its position among all tensors of all arguments; ``output``: among
    the results."""

    def axes(self, tensor: int, dim: int) -> list[int]:
        """Of the mesh, that cut the dimension."""

    def start(self, tensor: int, dim: int) -> int:
        """Where this part begins in the whole dimension."""

    def output_part(self, output: int, dim: int) -> tuple[int, int]:
        """Where this part of a result begins in the whole dimension, and its size there."""

    def sum(self, part: torch.Tensor, axes: list[int]) -> torch.Tensor:
        """Over the devices along the axes."""

    def max(self, part: torch.Tensor, axes: list[int]) -> torch.Tensor:
        """Over the devices along the axes."""

    def stack(self, part: torch.Tensor, axes: list[int]) -> torch.Tensor:
        """Those of all devices along the axes, in a new first dimension; parts are of one shape."""


class MeshCut:
    """The Cut of an op that runs under a mesh. ``inputs``: placements of its tensors; ``shapes``: of the whole ones."""

    def __init__(self, mesh, placed, inputs: list[tuple | None], shapes: list[tuple]):
        self._mesh, self._placed, self._inputs, self._shapes = mesh, placed, inputs, shapes

    def axes(self, tensor: int, dim: int) -> list[int]:
        return [a for a, p in enumerate(self._inputs[tensor] or ()) if p.is_shard() and p.dim == dim]

    def start(self, tensor: int, dim: int) -> int:
        return local_offset(self._shapes[tensor], self._mesh, self._inputs[tensor])[dim]

    def output_part(self, output: int, dim: int) -> tuple[int, int]:
        whole = self._placed.shapes[output], self._mesh, self._placed.computed[output]
        return local_offset(*whole)[dim], local_shape(*whole)[dim]

    def sum(self, part: torch.Tensor, axes: list[int]) -> torch.Tensor:
        return self._reduced(part, axes, "sum")

    def max(self, part: torch.Tensor, axes: list[int]) -> torch.Tensor:
        return self._reduced(part, axes, "max")

    def stack(self, part: torch.Tensor, axes: list[int]) -> torch.Tensor:
        own = part.unsqueeze(0).contiguous()
        if not axes:
            return own
        places = tuple(Shard(0) if a in axes else Replicate() for a in range(self._mesh.ndim))
        shape = torch.Size((math.prod(self._mesh.size(a) for a in axes), *part.shape))
        whole = make_dtensor(own, self._mesh, places, shape, own.stride())
        return brought(whole, (Replicate(),) * self._mesh.ndim)._local_tensor

    def _reduced(self, part: torch.Tensor, axes: list[int], how: str) -> torch.Tensor:
        if not axes:
            return part
        places = tuple(Partial(how) if a in axes else Replicate() for a in range(self._mesh.ndim))
        whole = brought(
            make_dtensor(part, self._mesh, places, part.shape, part.stride()), (Replicate(),) * self._mesh.ndim
        )
        return whole._local_tensor


def rows_of_part(func, arguments: dict[str, Any], cut: Cut) -> torch.Tensor:
    indices = arguments["indices"]
    if "weight" not in arguments:
        start, count = cut.output_part(0, 0)
        inside = _inside(indices, start, count) & (indices != arguments["padding_idx"])
        mine = torch.where(inside, indices - start, -1)
        # Rows of the number padding_idx are passed over
        return func(**arguments | {"indices": mine, "num_weights": count, "padding_idx": -1})
    start = cut.start(0, 0)
    inside = _inside(indices, start, arguments["weight"].shape[0])
    return func(**arguments | {"indices": torch.where(inside, indices - start, 0)}).masked_fill_(
        ~inside.unsqueeze(-1), 0
    )


def norm_of_parts(func, arguments: dict[str, Any], cut: Cut) -> Any:
    order = float(arguments["ord"])
    if order <= 0:
        raise ValueError(f"a norm of order {order} is no sum of powers")
    tensors = arguments["self"] if isinstance(arguments["self"], (list, tuple)) else [arguments["self"]]
    norms = func(**arguments)
    whole = []
    for i, (t, norm) in enumerate(zip(tensors, norms if isinstance(norms, (list, tuple)) else [norms], strict=True)):
        dims = arguments.get("dim") or range(t.dim())
        axes = sorted({a for d in ([dims] if isinstance(dims, int) else dims) for a in cut.axes(i, d % t.dim())})
        if axes and math.isinf(order):
            norm = cut.max(norm, axes)
        elif axes:
            norm = cut.sum(norm.pow(order), axes).pow(1 / order)
        whole.append(norm)
    return whole if isinstance(norms, (list, tuple)) else whole[0]


def softmax_of_parts(func, arguments: dict[str, Any], cut: Cut) -> torch.Tensor:
    dim = arguments["dim"]
    if "self" in arguments:
        x = arguments["self"].float() if arguments["half_to_float"] else arguments["self"]
        axes = cut.axes(0, dim % x.dim())
        shifted = x - cut.max(x.amax(dim, True), axes)
        return shifted.sub_(cut.sum(shifted.exp().sum(dim, True), axes).log_())
    grad, output = arguments["grad_output"], arguments["output"]
    total = cut.sum(grad.sum(dim, True), cut.axes(0, dim % grad.dim()))
    return (grad - output.exp().mul_(total)).to(arguments["input_dtype"])


def sum_over_total(func, arguments: dict[str, Any], cut: Cut) -> tuple[torch.Tensor, torch.Tensor]:
    mean = arguments["reduction"] == 1
    rows, classes = cut.axes(0, 0), cut.axes(0, 1)
    arguments = _own_targets(arguments, cut.start(0, 1) if classes else None) | {"reduction": 2}
    loss, weight = func(**arguments)
    if not mean:
        return loss, weight
    weight = cut.sum(weight, rows + classes)
    return cut.sum(loss, rows + classes) / weight, weight


def classes_of_part(func, arguments: dict[str, Any], cut: Cut) -> torch.Tensor:
    return func(**_own_targets(arguments, cut.start(1, 1) if cut.axes(1, 1) else None))


def _own_targets(arguments: dict[str, Any], first_class: int | None) -> dict[str, Any]:
    """The arguments of a loss over the classes from ``first_class`` on; None: over all."""
    if first_class is None:
        return arguments
    target = arguments["target"]
    mine = _inside(target, first_class, arguments["self"].shape[1]) & (target != arguments["ignore_index"])
    return arguments | {"target": torch.where(mine, target - first_class, _IGNORED), "ignore_index": _IGNORED}


def _inside(numbers: torch.Tensor, start: int, count: int) -> torch.Tensor:
    return (numbers >= start) & (numbers < start + count)


def statistics_of_parts(func, arguments: dict[str, Any], cut: Cut) -> tuple:
    x = arguments["input"]
    if x.dtype in (torch.half, torch.bfloat16):
        raise NotImplementedError("statistics of half precision are of another type")
    if "grad_out" in arguments:
        return _batch_norm_backward(arguments, cut)
    dims = [0, *range(2, x.dim())]
    var, mean = torch.var_mean(x, dims, correction=0) if x.numel() else x.new_zeros(2, x.shape[1]).unbind()
    own = torch.stack([torch.full_like(mean, x.numel() // x.shape[1]), mean, var])
    counts, means, variances = cut.stack(own, cut.axes(0, 0)).unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    var = (counts * (variances + (means - mean).square())).sum(0) / count
    momentum = arguments["momentum"]
    if arguments.get("running_mean") is not None:
        arguments["running_mean"].mul_(1 - momentum).add_(mean, alpha=momentum)
        arguments["running_var"].mul_(1 - momentum).add_(var * (count / (count - 1)), alpha=momentum)
    given = {"running_mean": mean, "running_var": var, "training": False}
    out = func(**arguments | given)[0] if x.numel() else torch.empty_like(x)
    return out, mean, (var + arguments["eps"]).rsqrt()


def _batch_norm_backward(arguments: dict[str, Any], cut: Cut) -> tuple:
    grad, x, weight = (arguments[name] for name in ("grad_out", "input", "weight"))
    mean, invstd = arguments["save_mean"], arguments["save_invstd"]
    dims, across = [0, *range(2, x.dim())], [1, -1, *(1 for _ in range(2, x.dim()))]
    centred = x - mean.view(across)
    sums = grad.sum(dims), (grad * centred).sum(dims)
    own = torch.stack([torch.full_like(mean, x.numel() // x.shape[1]), *sums])
    count, straight, along = cut.stack(own, cut.axes(1, 0)).sum(0)
    wants_input, wants_weight, wants_bias = arguments["output_mask"]
    scale = invstd if weight is None else invstd * weight
    grad_input = centred.mul_((-invstd.square() * along / count).view(across)).add_(grad)
    grad_input.sub_((straight / count).view(across)).mul_(scale.view(across))
    return (
        grad_input if wants_input else None,
        along * invstd if wants_weight else None,
        straight if wants_bias else None,
    )


RECIPES = {
    f.__name__: f
    for f in (rows_of_part, norm_of_parts, softmax_of_parts, sum_over_total, classes_of_part, statistics_of_parts)
}
