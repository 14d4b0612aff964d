"""Every private PyTorch interface that the Python side uses, in one place; tests/python/test_torch_private.py fails
when one changes.

- ``Tensor._cdata``: the address of the TensorImpl. Tensors cross into C++ by it, so that nothing links libtorch_python.
- ``UntypedStorage._cdata``: the address of the StorageImpl, equal for tensors that share memory; ``_storage_Use_Count``: who has it.
- ``FakeTensorMode`` and what it raises when a number or a shape depends on data.
- ``TorchDispatchMode``: what sees each operator of a run on fake tensors.
- ``torch.utils._pytree``: how nested outputs are taken apart and put together.
- ``transformers.masking_utils``: how it tells fake tensors.
- ``torch.nn.init._no_grad_trunc_normal_``: what draws by its own results; ``FakeTensor.__deepcopy__``
  and ``__hash__``, which it lacks.
- ``torch._library.custom_ops.OPDEFS``: operators whose kernels are Python functions.
- ``torch._C._current_graph_task_id``: whether backward is running.
- ``torch._ops._higher_order_ops``: operators that are written in Python, and the keys that they let pass.
- ``torch._tensor_str._tensor_str``: the elements of a tensor as text.
- where Inductor writes its code.
- ``torch._C._functorch.peek_interpreter_stack``: the transform of torch.func under way.
- ``torch.autograd.forward_ad._current_level``: whether tensors may carry tangents.
- ``torch._C._get_function_stack_at``, ``_get_dispatch_stack_at``, ``DeviceContext``: the modes that are open.
- ``torch._C._push_on_torch_function_stack``, ``_pop_torch_function_stack``, ``_len_torch_function_stack``: what a
  TorchFunctionMode calls.
- the dispatch key of the hook, which a Python dispatch mode closes.
- ``_functional_collectives._maybe_wrap_tensor``: what a collective hands out.
- ``ProcessGroup._get_backend``, ``Backend.options._timeout``, ``Backend._set_default_timeout``: how long a collective
  may take.
- the dicts of hooks that run for all modules and all optimizers.
- ``DecompShardingStrategy.has_decomp``: whether DTensor finds placements of an op that has no rule.
- ``torch._C._get_*`` and the like: the global settings that decide which operators a step runs, or what they compute.
- ``torch.distributed.pipelining``: the two halves of a backward, the order of a schedule.
- ``flop_registry``: how many operations an operator does.
- ``DTensor._local_tensor``, ``DTensor(local, spec)``, ``redistribute_local_tensor``: a rank's part of a tensor, and how
  parts move."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import re
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._C import TensorBase
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd import forward_ad
from torch.utils import _pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


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
    if tensor is None or tensor.layout != torch.strided:
        return 0
    return TensorBase.untyped_storage(
        local_tensor(tensor)
    )._cdata  # not by a name under which a budget sees it handed out


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


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def constant_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real tensor that a fake keeps of a number, as torch.tensor(0) makes one."""
    return tensor.constant if isinstance(tensor, FakeTensor) else None


def global_hooks() -> list[dict]:
    """Of torch.nn.modules.module and torch.optim.optimizer: hooks that run for every module, every optimizer."""
    spaces = (sys.modules["torch.nn.modules.module"].__dict__, sys.modules["torch.optim.optimizer"].__dict__)
    return [
        value
        for space in spaces
        for name, value in space.items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]


DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException)  # raised under FakeTensorMode


def fake_mode_active() -> bool:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def dispatch_mode_active() -> bool:
    """Any Python dispatch mode of the user's (FlopCounterMode and the like): such a mode would not see a replay."""
    return torch._C._len_torch_dispatch_stack() > 0


# ---- Global settings

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


# ---- Process groups


def group_timeout(group) -> Any:
    """As init_process_group was told; a group that is made later has another unless it is told as well."""
    return group._get_backend(group._device_types[0]).options._timeout


def set_group_timeout(group, timeout) -> None:
    for device in group._device_types:
        group._get_backend(device)._set_default_timeout(timeout)


# ---- Pipelines (imported when first needed, too)


def backward_of_input(outputs: tuple, gradients: list, inputs: tuple, parameters: list) -> list:
    """As a stage of a pipeline runs it; what backward_of_weights needs to go on."""
    from torch.distributed.pipelining._backward import stage_backward_input

    return stage_backward_input(list(outputs), gradients, list(inputs), iter(parameters))[1]


def backward_of_weights(parameters: list, groups: list) -> None:
    from torch.distributed.pipelining._backward import stage_backward_weight

    stage_backward_weight(iter(parameters), groups)


def pipeline_order(schedule, rank: int) -> list[str] | None:
    """The actions of a rank that compute, as texts such as "2F0"; None of a schedule that does not run by such a list
    (1F1B)."""
    if not hasattr(schedule, "pipeline_order_with_comms"):  # it has a list, which is not the one that it runs
        return None
    order = schedule.pipeline_order
    return [str(a) for a in order[rank] if a is not None and re.fullmatch(r"\d+[FBIW]\d+", str(a))]


def flops_of(func, args: tuple, kwargs: dict, result: Any) -> int:
    """Of one call of an operator; 0 where PyTorch does not count it."""
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(func._overloadpacket)
    return 0 if count is None else int(count(*args, **kwargs, out_val=result))


# ---- DTensor (imported when first needed: it takes a second)


def is_shell(tensor: torch.Tensor) -> bool:
    """A tensor whose storage has bytes but no memory, or of which it may not be asked."""
    if is_fake(tensor):  # asking it warns
        return True
    storage = TensorBase.untyped_storage(tensor)
    try:
        return storage.data_ptr() == 0 and storage.nbytes() > 0
    except RuntimeError:  # also of one without bytes
        return True


@contextlib.contextmanager
def hashes_told(tell: Callable[[torch.Tensor, types.FrameType | None], None]) -> Iterator[None]:
    """While open, ``tell`` hears which fake tensors are hashed, and in which frame of Python."""
    before = vars(FakeTensor).get("__hash__")  # none of its own

    def told(self: torch.Tensor) -> int:
        tell(self, sys._getframe(1))
        return id(self)

    FakeTensor.__hash__ = told  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del FakeTensor.__hash__
        else:
            FakeTensor.__hash__ = before  # type: ignore[method-assign]


def make_dtensor(local: torch.Tensor, mesh, placements, shape, stride) -> DTensor:
    """A DTensor over ``local``, without autograd, collectives or checks."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=TensorMeta(torch.Size(shape), tuple(stride), local.dtype))
    return DTensor(local, spec, requires_grad=False)


def dtensor_like(tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of a rank's part, a DTensor that lies as this one; of any other tensor itself."""
    spec = getattr(tensor, "_spec", None)
    if spec is None:
        return lambda part: part
    return lambda part: make_dtensor(part, spec.mesh, spec.placements, spec.shape, spec.stride)


def local_shape(shape, mesh, placements) -> tuple:
    """Of this rank's part."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)[0])


def local_offset(shape, mesh, placements) -> tuple:
    """Where this rank's part begins in each dimension of the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)[1])


def redistribute(tensor: torch.Tensor, placements) -> DTensor:
    """The same DTensor at other placements, below autograd."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._redistribute import redistribute_local_tensor

    assert isinstance(tensor, DTensor)
    spec = DTensorSpec(tensor.device_mesh, tuple(placements), tensor_meta=tensor._spec.tensor_meta)
    local = redistribute_local_tensor(tensor._local_tensor, tensor._spec, spec)
    return DTensor(local, spec, requires_grad=False)


@contextlib.contextmanager
def masks_as_run():
    """Transformers' models make other attention masks for fake tensors than for real ones, and then call other kernels;
    not in here."""
    masks = sys.modules.get("transformers.masking_utils")
    changed = {
        "is_tracing": lambda *args, **kwargs: False,
        "find_packed_sequence_indices": lambda *args, **kwargs: None,
    }
    before = {name: getattr(masks, name) for name in changed if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, changed[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(masks, name, value)


@contextlib.contextmanager
def models_of_fakes():
    """What making a model needs that tensors without values lack. ``nn.init.trunc_normal_`` draws until all values are
    within its bounds; here it leaves fakes as they are. ``copy.deepcopy`` copies storages; here fakes are cloned."""
    name = "_no_grad_trunc_normal_"
    draw = getattr(torch.nn.init, name)

    def drawn(tensor, *args, **kwargs):
        return tensor if is_fake(tensor) else draw(tensor, *args, **kwargs)

    def copied(tensor, memo):
        if id(tensor) not in memo:
            with torch.no_grad():
                clone = tensor.detach().clone()
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made = torch.nn.Parameter(clone, tensor.requires_grad) if is_parameter else clone
            memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    setattr(torch.nn.init, name, drawn)
    FakeTensor.__deepcopy__ = copied
    try:
        yield
    finally:
        setattr(torch.nn.init, name, draw)
        del FakeTensor.__deepcopy__


@contextlib.contextmanager
def hook_open(is_open: bool = True):
    """PyTorch closes the keys above Python while a dispatch mode works, but where a tensor is detached past the dispatcher. The
    dispatcher's hook sees what happens in this block, or, where ``is_open`` says so, does not."""
    key = _HOOK_KEY
    closed = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, not is_open)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, closed)


@contextlib.contextmanager
def unseen():
    """Neither modes, of operators and of functions, nor the dispatcher's hook see what happens."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), hook_open(False):
        yield


@contextlib.contextmanager
def waiting_collectives():
    """Functional collectives give plain tensors that are complete, not subclasses that wait when somebody looks."""
    from torch.distributed import _functional_collectives as collectives

    lazy = collectives._maybe_wrap_tensor
    collectives._maybe_wrap_tensor = collectives.wait_tensor
    try:
        yield
    finally:
        collectives._maybe_wrap_tensor = lazy


@contextlib.contextmanager
def rules_alone():
    """DTensor runs an op by a rule for it, or not at all. What it finds by running the op's decomposition on meta tensors is
    wrong where the op asks for the size of the whole: the mean of parts is no part of the mean."""
    from torch.distributed.tensor._decompositions import DecompShardingStrategy

    found = DecompShardingStrategy.has_decomp
    DecompShardingStrategy.has_decomp = staticmethod(lambda op: False)
    try:
        yield
    finally:
        DecompShardingStrategy.has_decomp = staticmethod(found)


_function_modes = torch._C._len_torch_function_stack


def heard_by(mode: torch.overrides.TorchFunctionMode, call: Callable[[], Any]) -> Any:
    """call(), within a function that ``mode`` was told of, and that it is not told of what that one calls."""
    before = _function_modes()
    try:
        torch._C._push_on_torch_function_stack(mode)
        return call()
    finally:
        while _function_modes() > before:
            torch._C._pop_torch_function_stack()


def aside(mode: torch.overrides.TorchFunctionMode) -> bool:
    """Takes ``mode`` off the thread's stack, where it is the innermost. False where it is not."""
    count = _function_modes()
    if count == 0 or torch._C._get_function_stack_at(count - 1) is not mode:
        return False
    torch._C._pop_torch_function_stack()
    return True


def back(mode: torch.overrides.TorchFunctionMode) -> None:
    """After aside()."""
    torch._C._push_on_torch_function_stack(mode)


def elements_as_text(tensor: torch.Tensor) -> str:
    """As repr() shows them: for its ``tensor_contents``."""
    return torch._tensor_str._tensor_str(tensor, len("tensor("))


def within_function_mode(mode: torch.overrides.TorchFunctionMode, call: Callable[[], Any]) -> Any:
    """call(), whose functions of torch go through ``mode``. By functions of C: an interrupt cannot come between the
    call and what it does, as it can in the mode's own methods. It can come while PyTorch has taken modes off the stack;
    the thread's state brings them back, and the end of the call's turn takes off what a suspended generator of
    PyTorch's puts there later."""
    before = _function_modes()
    opened = (threading.get_ident(), mode)
    try:
        torch._C._push_on_torch_function_stack(mode)
        _within.append(opened)
        torch.overrides.has_torch_function = _has_torch_function_of_others
        torch.autograd._engine_run_backward = _run_backward_within
        return call()
    finally:
        if opened in _within:
            _within.remove(opened)
        if not _within:
            torch.overrides.has_torch_function = _has_torch_function
            torch.autograd._engine_run_backward = _run_backward
        if _within:  # another thread's since
            torch.overrides.has_torch_function = _has_torch_function_of_others
            torch.autograd._engine_run_backward = _run_backward_within
        while _function_modes() > before:
            torch._C._pop_torch_function_stack()


_within: list[tuple[int, Any]] = []  # threads and the modes that they have open


def open_mode() -> Any:
    """The innermost that this thread has opened by within_function_mode(), on the stack or aside; None where there is none."""
    thread = threading.get_ident()
    return next((mode for opened_by, mode in reversed(_within) if opened_by == thread), None)


_run_backward = torch.autograd._engine_run_backward


def _run_backward_within(*args: Any, **kwargs: Any) -> Any:
    """A mode is off the stack while it calls loss.backward(). The program's own functions of that pass (autograd.Function,
    hooks) call functions of torch, too."""
    before, mode = _function_modes(), open_mode()
    on = [torch._C._get_function_stack_at(i) for i in range(before)]
    if mode is None or any(other is mode for other in on):
        return _run_backward(*args, **kwargs)
    try:
        torch._C._push_on_torch_function_stack(mode)
        return _run_backward(*args, **kwargs)
    finally:
        while _function_modes() > before:
            torch._C._pop_torch_function_stack()


_has_torch_function = torch.overrides.has_torch_function


def _has_torch_function_of_others(args: Iterable[Any]) -> bool:
    """As if no mode of Stowage's were open. torch.nn asks, and takes its fast paths only where the answer is no."""
    if _function_modes() == 0 or not type(torch._C._get_function_stack_at(_function_modes() - 1)).__module__.startswith(
        "stowage."
    ):
        return _has_torch_function(args)
    mode = torch._C._pop_torch_function_stack()
    try:
        return _has_torch_function(args)
    finally:
        torch._C._push_on_torch_function_stack(mode)


def take_off(mode: torch.overrides.TorchFunctionMode) -> None:
    """Takes this mode off the thread's stack, for good; the others stay."""
    above = []
    while _function_modes():
        top = torch._C._pop_torch_function_stack()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)


_HOOK_KEY = torch._C._dispatch_key_parse("TESTING_ONLY_GenericMode")
_HOOK_KEYS = (_HOOK_KEY, torch._C._dispatch_key_parse("Fake"))  # above and below autograd: runtime/torch/hook.cpp


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
    "DATA_DEPENDENT",
    "FakeTensorMode",
    "TorchDispatchMode",
    "address",
    "addresses",
    "backward_of_input",
    "backward_of_weights",
    "constant_of",
    "dispatch_mode_active",
    "fake_mode_active",
    "flatten",
    "flops_of",
    "foreign_mode",
    "generated_code",
    "global_hooks",
    "global_state",
    "group_timeout",
    "hook_open",
    "in_backward",
    "is_fake",
    "is_shell",
    "local_offset",
    "local_shape",
    "local_tensor",
    "make_dtensor",
    "masks_as_run",
    "models_of_fakes",
    "pipeline_order",
    "redistribute",
    "rules_alone",
    "set_group_timeout",
    "setting_names",
    "shell_address",
    "storage_address",
    "take_off",
    "tree_map",
    "unflatten",
    "unseen",
    "waiting_collectives",
    "within_autocast",
    "within_function_mode",
]
