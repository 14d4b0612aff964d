"""The settings of PyTorch, outside the program's own objects, that decide which operators a step runs, or what they compute.

- ``torch._C._get_*`` and the like.
- ``torch._C._get_function_stack_at``, ``_get_dispatch_stack_at``, ``DeviceContext``: the modes that are open.
- ``torch._C._autograd._saved_tensors_hooks_get_disabled_error_message``, ``_top_saved_tensors_default_hooks``."""

from __future__ import annotations

import functools
import operator
import sys
import types
import weakref
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from stowage._torch.fakes import FakeTensorMode

# Functions without arguments of torch._C, by name. A name that a version lacks is left out there.
SETTINGS = (
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_anomaly_enabled",
    "is_anomaly_check_nan_enabled",
    "is_autocast_cache_enabled",
    "get_default_dtype",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_mkldnn_enabled",
    "_get_mkldnn_deterministic",
    "_get_onednn_allow_tf32",
    "_get_nnpack_enabled",
    "_get_float32_matmul_precision",
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled",
    "_get_fa3_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_tf32",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_cudnn_allow_tf32",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_enabled",
    "_get_qengine",
    "_get_backcompat_broadcast_warn",
    "_len_torch_dispatch_stack",
    "_is_torch_function_enabled",
    "_is_torch_function_all_disabled",
    "_get_tracing_state",
)
# Older names of precisions, which raise where a program has used the newer ones, too.
_OLDER = {
    "_get_onednn_allow_tf32",
    "_get_float32_matmul_precision",
    "_get_cublas_allow_tf32",
    "_get_cudnn_allow_tf32",
}
_PRECISIONS = [(backend, op) for backend in ("generic", "mkldnn", "cuda") for op in ("all", "matmul", "conv", "rnn")]


def _made_settings() -> list[tuple[str, Any]]:
    found = [(name, getattr(torch._C, name)) for name in SETTINGS if hasattr(torch._C, name)]
    found = [(name, functools.partial(_unless_mixed, read) if name in _OLDER else read) for name, read in found]
    for device in _autocast_devices():
        found.append((f"autocast {device}", functools.partial(torch.is_autocast_enabled, device)))
        found.append((f"autocast dtype {device}", functools.partial(torch.get_autocast_dtype, device)))
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        for backend, op in _PRECISIONS:
            try:
                torch._C._get_fp32_precision_getter(backend, op)
            except RuntimeError:  # no such operator there
                continue
            found.append(
                (f"precision {backend} {op}", functools.partial(torch._C._get_fp32_precision_getter, backend, op))
            )
    found.append(("saved tensors hooks", _saved_tensors_hooks))
    found.append(("saved tensors hooks disabled", torch._C._autograd._saved_tensors_hooks_get_disabled_error_message))
    for name, kind in (
        ("_get_sdp_priority_order", tuple),
        ("_get_linalg_preferred_backend", int),
        ("_get_blas_preferred_backend", int),
    ):
        if hasattr(torch._C, name):
            found.append((name, functools.partial(_read_as, kind, getattr(torch._C, name))))
    found.append(("multithreading", torch._C._is_multithreading_enabled))
    found.append(("view replay", torch._C._is_view_replay_enabled))
    found.append(("default device", _default_devices))
    if hasattr(sys, "get_int_max_str_digits"):  # from Python 3.11 on
        found.append(("longest numbers as text", sys.get_int_max_str_digits))
    found.append(("autocast around the step", within_autocast))
    return found


def _saved_tensors_hooks() -> tuple[Any, ...] | None:
    """Which are set. They are not held: what they have packed may be theirs."""
    top = hooks_of_saved_tensors()
    return top and tuple(map(_stands_for, top))


def hooks_of_saved_tensors() -> tuple[Any, Any] | None:
    """Those that are set innermost: one packs, one unpacks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


class _Hook:
    """Stands for one, without holding it."""

    def __init__(self, hook: Any):
        self._name = getattr(hook, "__qualname__", type(hook).__qualname__)

    def __repr__(self) -> str:
        return self._name


_hooks: weakref.WeakKeyDictionary[Any, dict[Any, _Hook]] = (
    weakref.WeakKeyDictionary()
)  # by function, or object and method


def _stands_for(hook: Any) -> Any:
    owner, what = (hook.__self__, hook.__func__) if isinstance(hook, types.MethodType) else (hook, None)
    try:
        known = _hooks.setdefault(owner, {})
    except TypeError:  # of no weak references, or without a hash
        return hook
    return known.setdefault(what, _Hook(hook))


def _autocast_devices() -> list[str]:
    """Which blocks of autocast can be open."""
    accelerator = torch.accelerator.current_accelerator()
    return sorted({"cpu", "cuda", *([accelerator.type] if accelerator is not None else [])})


def _unless_mixed(read: Any) -> Any:
    try:
        return read()
    except RuntimeError:
        return "mixed"


def _read_as(kind: Any, read: Any) -> Any:
    return kind(read())


_NESTINGS = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
_call = operator.methodcaller("__call__")


def within_autocast() -> bool:
    """Is an autocast block open, enabled or not? What is cast in it is remembered until the outermost one ends."""
    return max(map(_call, _NESTINGS)) > 1  # one up and one down, both by functions of C: no interrupt comes between


def _default_devices() -> tuple[str, ...]:
    """Of torch.set_default_device() and ``with torch.device(...)``, which are function modes."""
    modes = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    return tuple([str(mode.device) for mode in modes if isinstance(mode, DeviceContext)])


def foreign_mode() -> str:
    """What is open on this thread and means to see each operation of whoever runs now: a mode, by its class, one of
    torch.func's transforms, or a level of forward-mode differentiation; "" for none. Modes of Stowage, default devices
    and FakeTensorMode do not count."""
    if (transform := torch._C._functorch.peek_interpreter_stack()) is not None:
        return f"torch.func's {transform.key().name.lower()}"
    if forward_ad._current_level >= 0:
        return "torch.autograd.forward_ad.dual_level"
    functions, dispatches = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    if functions + dispatches == 0:
        return ""
    modes = [torch._C._get_function_stack_at(i) for i in range(functions)]
    modes += [torch._C._get_dispatch_stack_at(i) for i in range(dispatches)]
    known = (DeviceContext, FakeTensorMode)
    foreign = (m for m in modes if not isinstance(m, known) and not type(m).__module__.startswith("stowage."))
    return next((type(mode).__name__ for mode in foreign), "")


_settings: list[tuple[str, Any]] = []


def global_state() -> tuple:
    """Every setting of PyTorch, outside the program's own objects, on which the operators of a step may depend."""
    if not _settings:
        _settings.extend(_made_settings())
    return tuple([read() for _, read in _settings])


def setting_names() -> tuple[str, ...]:
    """Of what global_state() returns."""
    global_state()
    return tuple(name for name, _ in _settings)


__all__ = [
    "SETTINGS",
    "foreign_mode",
    "global_state",
    "hooks_of_saved_tensors",
    "setting_names",
    "within_autocast",
]
