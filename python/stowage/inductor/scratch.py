"""What a kernel of PyTorch's own allocates while it runs, beside its results. No compiler knows these bytes, so the kernel
runs once and they are counted.

Each distinct kernel, by operator, shapes, strides and numbers, runs alone on tensors of zeros, and the allocator below
PyTorch tells the most that was live. Kernels that Inductor wrote take nothing from the allocator. Where the runtime is
not there to count, nothing is added."""

from __future__ import annotations

from typing import Any

import torch

from stowage.inductor import private

_EXTERN = ("torch.ops.", "aten.", "extern_kernels.")
_KNOWN: dict[tuple, int] = {}


def of(node: torch.fx.Node | None, target: str, inputs: tuple = ()) -> int:
    """node: the operator that the kernel computes; inputs: size and strides of what it is given. 0 also where it cannot
    be run alone."""
    if node is None or not target.startswith(_EXTERN) or not isinstance(node.target, torch._ops.OpOverload):
        return 0
    if private.acts_outside(node.target):
        return 0
    left = list(inputs)

    def value(n: torch.fx.Node) -> Any:
        known = n.meta.get("val")
        if isinstance(known, torch.Tensor):
            for i, (size, stride) in enumerate(left):
                if size == tuple(known.shape):
                    del left[i]
                    return known if stride == tuple(known.stride()) else known.as_strided(size, stride)
        return known

    values = torch.fx.map_arg((node.args, node.kwargs), value)
    key = (node.target, _described(values), torch.get_num_threads())
    if key not in _KNOWN:
        _KNOWN[key] = _measured(node.target, values)
    return _KNOWN[key]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), tuple(value.stride()), value.dtype, value.device
    if isinstance(value, (tuple, list)):
        return tuple(_described(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _described(v)) for k, v in sorted(value.items()))
    return repr(value)


def _measured(target: Any, values: Any) -> int:
    try:
        from stowage import _runtime
    except Exception:  # no compiler to build it with: nothing counts then
        return 0
    with private.real_tensors():
        try:
            args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, _real, values)
        except (RuntimeError, NotImplementedError):
            return 0
        device = next(
            (v.device for v in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)), None
        )
        if device is None or device.type != "cpu":
            return 0
        before = _runtime.peak_bytes()
        live = _runtime.live_bytes()
        _runtime.reset_peak()
        try:
            result = target(*args, **kwargs)
            most = _runtime.peak_bytes() - live
            returned = _runtime.live_bytes() - live
            del result
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
            return 0
        finally:
            _runtime.raise_peak(before)
    return max(0, most - returned)


def _real(value: torch.Tensor) -> torch.Tensor:
    with torch.device("cpu"):
        real = torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=value.device)
    return real.zero_() if real.numel() else real
