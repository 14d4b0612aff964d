"""Optimizer steps run on the parts of tensors, as they are: right where they work element by element, and nowhere else.

    rank 0 holds    p[:2]  p.grad[:2]  exp_avg[:2]
    right           p.mul_(0.99)   exp_avg.lerp_(p.grad, 0.1)   p.addcdiv_(exp_avg, denominator)
    wrong           p.norm()   p.grad.mean(0)   p @ p.T   randn_like(p)       of a part, not of the tensor: refused

A tensor of the step is a part (a parameter, its gradient, its state, and what element-wise ops make of them), uniform (made
in the step, the same value everywhere, so of any shape), or whole. Parts meet parts of the same shape, uniform ones, and numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from stowage.errors import Unsupported

_MAKES_UNIFORM = ("zeros", "ones", "full", "empty", "empty_strided", "scalar_tensor", "new_zeros", "new_ones", "new_full", "new_empty")  # fmt: skip
_OF_ELEMENTS = (
    "copy_", "fill", "fill_", "zero", "zero_", "_to_copy", "masked_fill", "masked_fill_",
    "zeros_like", "ones_like", "full_like", "empty_like", "view_as_real", "view_as_complex",
    "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_",
)  # fmt: skip
_FOREACH = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "copy", "cos", "cosh", "div",
    "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "maximum", "minimum",
    "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh",
    "trunc", "zero",
)  # fmt: skip


def works_by_elements(func: Any, args: tuple) -> bool:
    """Each element of its results depends on the elements at the same place, and on numbers, alone."""
    name = func._schema.name.removeprefix("aten::")
    if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if name == "index_put_":  # sign[sign > 0] = 1.2
        return [i.dtype for i in args[1]] == [torch.bool] and args[1][0].shape == args[0].shape
    if name.startswith("_foreach_"):
        return name.removeprefix("_foreach_").removesuffix("_") in _FOREACH
    return torch.Tag.pointwise in func.tags or name in _OF_ELEMENTS


class Elements:
    """Of one optimizer step that is captured. ``parts``: names of the tensors that are cut, by their id."""

    def __init__(self, parts: dict[int, str], optimizer: str):
        self._parts, self._optimizer = parts, optimizer
        self._uniform: set[int] = set()

    def op(
        self, func: Any, args: tuple, tensors: dict[int, torch.Tensor], lists: list[list[int]], made: list[int]
    ) -> None:
        """``tensors``: all that the op reads or writes, by id; ``lists``: of a foreach or fused op, those of each of its
        lists; ``made``: its results. Raises Unsupported where a part would be taken for the tensor."""
        sized = {i: t for i, t in tensors.items() if t.dim() > 0}
        parts = [i for i in sized if i in self._parts]
        by_elements = works_by_elements(func, args)
        if not parts:
            makes = func._schema.name.removeprefix("aten::") in _MAKES_UNIFORM
            if makes or (sized and by_elements and sized.keys() <= self._uniform):
                self._uniform.update(made)
            return
        if not by_elements:
            self._refuse(f"calls {func}", parts[0])
        for together in zip(*lists, strict=True) if lists else [tuple(sized)]:
            met = [i for i in together if i in sized and i not in self._uniform]
            if len({tuple(sized[i].shape) for i in met}) > 1 or any(i not in self._parts for i in met):
                self._refuse(f"calls {func} with a tensor of another shape, or with one that is no part", parts[0])
        self._parts.update(dict.fromkeys(made, self._parts[parts[0]]))

    def _refuse(self, what: str, part: int) -> None:
        raise Unsupported(
            f"{self._optimizer}.step() {what}: it runs on each rank's part of '{self._parts[part]}', so it must work element by "
            "element (hooks and closures of it, too); do the rest in the step, before or after it"
        )
