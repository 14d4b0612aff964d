"""Private interfaces of PyTorch about tensors, operators and autograd. Others: fakes.py, settings.py, function_modes.py,
distributed.py. tests/python/test_torch_private.py fails when one of them changes.

- ``Tensor._cdata``: the address of the TensorImpl. Tensors cross into C++ by it, so that nothing links libtorch_python.
- ``UntypedStorage._cdata``: the address of the StorageImpl, equal for tensors that share memory; ``_storage_Use_Count``: who has it.
- ``TorchDispatchMode``: what sees each operator of a run on fake tensors.
- ``torch.utils._pytree``: how nested outputs are taken apart and put together.
- ``torch._library.custom_ops.OPDEFS``: operators whose kernels are Python functions.
- ``torch._C._current_graph_task_id``: whether backward is running.
- ``torch._ops._higher_order_ops``: operators that are written in Python, and the keys that they let pass.
- ``torch._tensor_str._tensor_str``: the elements of a tensor as text.
- where Inductor writes its code.
- ``torch._C._functorch.peek_interpreter_stack``: the transform of torch.func under way.
- the dispatch key of the hook, which a Python dispatch mode closes.
- the dicts of hooks that run for all modules and all optimizers.
- ``flop_registry``: how many operations an operator does."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any

import torch
from torch._C import TensorBase
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from stowage._torch.fakes import is_fake


def address(tensor: torch.Tensor | None) -> int:
    """Address of the TensorImpl, 0 for None."""
    if tensor is None:
        return 0
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    return local_tensor(tensor)._cdata


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    return getattr(tensor, "_local_tensor", tensor)


def storage_address(tensor: torch.Tensor | None) -> int:
    """Address of the StorageImpl; tensors that share memory have the same. 0 for None, and for tensors without one
    (sparse)."""
    if tensor is None or tensor.layout != torch.strided or not has_storage(tensor):
        return 0
    return TensorBase.untyped_storage(
        local_tensor(tensor)
    )._cdata  # not by a name under which a budget sees it handed out


def storage_bytes(tensor: torch.Tensor) -> int:
    """Of all that shares its memory."""
    return TensorBase.untyped_storage(tensor).nbytes()


def shell_address(tensor: torch.Tensor) -> int:
    """As storage_address(), of a DTensor itself, which has a StorageImpl without memory."""
    return TensorBase.untyped_storage(tensor)._cdata


def is_shared_storage(tensor: torch.Tensor) -> bool:
    """Somebody else holds the tensor's storage. A guess: yes, where PyTorch does not count."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    storage = TensorBase.untyped_storage(tensor)
    return count is None or count(storage._cdata) > 2  # the tensor, and what was asked for here


def addresses(tensors) -> list[int]:
    return [address(t) for t in tensors]


def flatten(value: Any, containers: list[Any] | None = None) -> tuple[list[Any], Any]:
    """Leaves of nested dicts, lists, tuples and registered classes, and what unflatten() needs. ``containers``: takes
    those that are entered. (PyTorch itself makes a tuple of a torch.Size.)"""

    into = [containers]

    def is_leaf(part: Any) -> bool:
        if isinstance(part, torch.Size):
            return True
        if into[0] is not None and (isinstance(part, tuple) or type(part) in _pytree.SUPPORTED_NODES):
            into[0].append(part)
        return False

    try:
        return _pytree.tree_flatten(value, is_leaf)
    finally:
        into.clear()  # tree_flatten()'s own functions hold each other, and is_leaf, until a collection comes


def unflatten(leaves: list[Any], spec: Any) -> Any:
    return _pytree.tree_unflatten(leaves, spec)


def tree_map(function, value: Any) -> Any:
    return _pytree.tree_map(function, value)


def in_backward() -> bool:
    """Autograd's engine is at work on this thread."""
    return torch._C._current_graph_task_id() != -1


def global_hooks() -> list[dict]:
    """Of torch.nn.modules.module and torch.optim.optimizer: hooks that run for every module, every optimizer."""
    spaces = (sys.modules["torch.nn.modules.module"].__dict__, sys.modules["torch.optim.optimizer"].__dict__)
    return [
        value
        for space in spaces
        for name, value in space.items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]


def dispatch_mode_active() -> bool:
    """Any Python dispatch mode of the user's (FlopCounterMode and the like): such a mode would not see a replay."""
    return torch._C._len_torch_dispatch_stack() > 0


def flops_of(func, args: tuple, kwargs: dict, result: Any) -> int:
    """Of one call of an operator; 0 where PyTorch does not count it."""
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(func._overloadpacket)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


def has_storage(tensor: torch.Tensor) -> bool:
    """Not so of what torch.func wraps around a tensor (vmap's batches), which may outlive it."""
    return torch._C._has_storage(tensor)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Not so of a view of before its base was written to, of which PyTorch does not say what it is."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def is_shell(tensor: torch.Tensor) -> bool:
    """A tensor whose storage has bytes but no memory, or of which it may not be asked."""
    if is_fake(tensor):  # asking it warns
        return True
    storage = TensorBase.untyped_storage(tensor)
    try:
        return storage.data_ptr() == 0 and storage.nbytes() > 0
    except RuntimeError:  # also of one without bytes
        return True


class hook_open:
    """PyTorch closes the keys above Python while a dispatch mode works, but where a tensor is detached past the dispatcher. The
    dispatcher's hook sees what happens in this block, or, where ``is_open`` says so, does not. Within unrecorded() it never
    does."""

    __slots__ = ("_closed", "_open")

    def __init__(self, is_open: bool = True):
        self._open = is_open

    def __enter__(self) -> None:
        self._closed = torch._C._dispatch_tls_is_dispatch_key_excluded(_HOOK_KEYS[0])
        torch._C._dispatch_tls_set_dispatch_key_excluded(_HOOK_KEYS[0], not self._open)

    def __exit__(self, *raised: object) -> None:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_HOOK_KEYS[0], self._closed)


@contextlib.contextmanager
def unseen():
    """Neither modes, of operators and of functions, nor the dispatcher's hook see what happens."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), hook_open(False):
        yield


def elements_as_text(tensor: torch.Tensor) -> str:
    """As repr() shows them: for its ``tensor_contents``."""
    return torch._tensor_str._tensor_str(tensor, len("tensor("))


# Above and below autograd: runtime/torch/hook.cpp
_HOOK_KEYS = tuple(torch._C._dispatch_key_parse(key) for key in ("TESTING_ONLY_GenericMode", "Fake"))


def _let_higher_order_operators_pass() -> None:
    """Operators that are written in Python (torch.cond, those that torch.compile makes) have no kernel for the keys of
    the hook. It sees the operators that they call."""
    for key in _HOOK_KEYS:
        torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
        for operator_ in torch._ops._higher_order_ops.values():
            operator_.fallthrough(key)


_let_higher_order_operators_pass()


def generated_code() -> list[str]:
    """How the names of files begin that Inductor has written: no user's line is there. It is where
    TORCHINDUCTOR_CACHE_DIR says, and else in a folder for each user of the machine."""
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folders = [os.path.abspath(chosen) + os.sep] if chosen else []
    return [*folders, os.path.join(tempfile.gettempdir(), "torchinductor_")]


__all__ = [
    "TorchDispatchMode",
    "address",
    "addresses",
    "dispatch_mode_active",
    "elements_as_text",
    "flatten",
    "flops_of",
    "generated_code",
    "global_hooks",
    "has_storage",
    "hook_open",
    "in_backward",
    "is_leaf",
    "is_shared_storage",
    "is_shell",
    "local_tensor",
    "shell_address",
    "storage_address",
    "storage_bytes",
    "tree_map",
    "unflatten",
    "unseen",
]
