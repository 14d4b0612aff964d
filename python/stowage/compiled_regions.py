"""Regions that torch.compile has compiled, as the recorder and the matcher of a step see them, and a stowage.budget. What
of PyTorch is private here: the modules that Inductor writes, their names, and Dynamo's callbacks.

A region runs under Python of Inductor's, which allocates, and calls kernels and operators:

    buf0 = empty_strided_cpu((16, 64), (64, 1), torch.float32)      past the dispatcher    torch.empty_strided
    extern_kernels.addmm(…, out=buf0)                               an operator            as it is
    cpp_fused_gelu_0(buf0, buf1)                                    a C function           stowage::compiled_kernel

In its module the names on the left are bound to functions that do what stands on the right while a thread records or
matches a step, or a budget sees its operators, and else what they did. So each kernel and each allocation is an op of
the tape, and the bits are those of the compiled step; and a budget knows what a kernel reads and writes while it runs,
and that it keeps no address.

- ``torch._inductor.codecache.PyCodeCache.modules``: the modules; the source of each tells which kernels it has, and which
  of their parameters are pointers to const.
- A kernel's extension module exports it as the C function ``kernel``.
- ``torch._guards.CompileContext``: tells whether a thread compiles.
- ``torch._dynamo.eval_frame.OptimizeContext``: one is made by each torch.compile(); ``cached_backends`` has those of before.
- ``torch._dynamo.callback_handler``: tells when a compilation begins and ends. What it does in between is no part of the
  step. Functions of PyTorch's compile, too (torch.cond): where nothing compiled is reached beforehand, that is noticed
  then, and the step is recorded anew as one with compiled regions.
- ``torch._functorch._aot_autograd.runtime_wrappers._FirstInvocationContext``: a region's first run is under a dispatch
  mode that looks for aliases among what custom operators return. Before PyTorch 2.13 the operators under a mode are
  unseen, and a budget does not see them at all; so a run that is recorded or matched, or within a budget, has none: the
  check comes with the region's next other run.

- ``torch._dynamo.trace_rules.add``: packages whose functions Dynamo leaves as they are. Those of this one run in the midst of
  regions, where a number is asked for.

Dynamo's guards compare the dispatch keys of tensors, which differ while a step is recorded: the calls that are not
recorded run with these keys as well (``run_alike``), or each region would be compiled twice. So do all calls of a step with
a budget have the key by which that watches, and all of a budget's block where torch.compile has been called.

Source: torch/_inductor/codegen/wrapper.py and cpp_wrapper_cpu.py, torch/_dynamo/callback.py, of PyTorch 2.11 to 2.13."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stowage import _runtime
from stowage._torch.arrival import when_imported
from stowage._torch.function_modes import take_off
from stowage._torch.private import storage_address

_KERNEL = re.compile(r"^(\w+) = async_compile\.cpp_pybinding\(\[(.*?)\], r?'''", re.MULTILINE | re.DOTALL)
_OTHER_KERNEL = re.compile(r"^(\w+) = async_compile\.(?!cpp_pybinding\()(\w+)\(", re.MULTILINE)
_CPP_WRAPPER = "CppWrapperCodeCache.load_pybinding("
_LOCK = threading.Lock()
_EXPOSED = "__stowage_exposed__"
_WRAPPED = threading.Event()  # torch.compile has been called in this process
_here = threading.local()  # .listener: of the step that this thread records or matches; .keys: of its budget's block


class UnknownKernel(Exception):
    """A region has a kernel that cannot be an operator; says which, and why."""


def in_use() -> bool:
    """Has torch.compile been called in this process? PyTorch's optimizers import the compiler, which is no sign."""
    return _WRAPPED.is_set()


def compiling() -> bool:
    """This thread compiles: it looks at tensors' storages, and keeps none."""
    return torch._guards.CompileContext.current_compile_id() is not None


def _operators_are_seen() -> bool:
    return _runtime.intercepting() or _runtime.thread_attached()


class _OneSetOfKeys:
    """Of a budget's block: the dispatch keys that the guards of compiled code see, whether the budget sleeps or not. Each
    operator pays for that, so they are kept only where something is to be compiled, or from there on."""

    def __init__(self) -> None:
        self._kept = contextlib.ExitStack()
        self._settled = False

    def keep(self) -> None:
        if not self._settled:
            self._settled = True
            self._kept.enter_context(_key_kept())

    def done(self) -> None:
        self._settled = True
        self._kept.close()


@contextlib.contextmanager
def seen_by_budgets() -> Iterator[None]:
    """In this block a budget watches: regions are exposed, those to come as soon as they are compiled. The guards see one
    set of dispatch keys, whether the budget sleeps or not."""
    keys = _OneSetOfKeys()
    before, _here.keys = getattr(_here, "keys", None), keys
    try:
        if in_use():
            _listen()
            expose()
            keys.keep()
        yield
    finally:
        _here.keys = before
        keys.done()


def expose() -> None:
    """Binds the names anew in the modules that have been loaded since."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    with _LOCK:
        for module in list(getattr(cache, "modules", ())):
            if callable(getattr(module, "call", None)) and _EXPOSED not in vars(module):
                vars(module)[_EXPOSED] = True
                _expose(module)


def _expose(module: Any) -> None:
    with open(module.__file__) as file:
        source = file.read()
    names = vars(module)
    for name, types in _KERNEL.findall(source):
        if name in names:
            names[name] = _as_operator(name, re.findall(r"'([^']*)'", types), names[name])
    for name, kind in _OTHER_KERNEL.findall(source):
        if name in names:
            names[name] = _Unseen(names[name], f"torch.compile has made the kernel {name} by async_compile.{kind}")
    if _CPP_WRAPPER in source:  # its call(args) asks for torch.Tensor before it enters the wrapper
        names["torch"] = _Unseen(torch, "torch.compile has made the wrapper of a region in C++ (config.cpp_wrapper)")
    if "empty_strided_cpu" in names:
        names["empty_strided_cpu"] = _EmptyStrided(names["empty_strided_cpu"])


def _as_operator(name: str, types: list[str], binding: Any) -> Any:
    try:
        parameters = "".join(_letter(name, each) for each in types)
        if len(parameters) > _runtime.MOST_KERNEL_PARAMETERS:
            raise UnknownKernel(f"torch.compile's kernel {name} has {len(parameters)} parameters")
        library = getattr(sys.modules.get(getattr(binding, "__module__", "")), "__file__", None) or getattr(
            getattr(binding, "__self__", None), "__file__", None
        )
        if library is None:
            raise UnknownKernel(f"torch.compile's kernel {name} is no function of an extension module")
    except UnknownKernel as reason:
        return _Unseen(binding, str(reason))
    address = ctypes.cast(ctypes.CDLL(library).kernel, ctypes.c_void_p).value
    known_as = f"{name}:{Path(library).name}"  # Inductor names it by a digest of the code and of the compiler's command
    return _Kernel(binding, known_as, address or 0, parameters)


def _letter(name: str, type_: str) -> str:
    if type_.endswith("*"):
        return "r" if type_.startswith("const ") else "w"
    if type_.replace("const ", "") in ("int64_t", "long"):
        return "n"
    raise UnknownKernel(f"torch.compile's kernel {name} has a parameter of type {type_}")


class _Unseen:
    """In the place of what runs past the dispatcher, and cannot be an operator: whoever records or matches a step is
    told when it is used."""

    def __init__(self, plain: Any, why: str):
        self._plain, self._why = plain, why

    def _tell(self) -> None:
        if _runtime.intercepting() and (listener := getattr(_here, "listener", None)):
            listener.tell(self._why)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._tell()
        return self._plain(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        self._tell()
        return getattr(self._plain, name)


class _Kernel:
    """In the place of a kernel's Python binding. A parameter to const whose memory another one may write (a part of a
    joined tensor, a buffer that is updated) counts as written, too: what is read there the kernel may have written."""

    def __init__(self, binding: Any, name: str, address: int, parameters: str):
        self._binding, self._name, self._address, self._parameters = binding, name, address, parameters
        self._tensors = [i for i, letter in enumerate(parameters) if letter != "n"]
        self._numbers = [i for i, letter in enumerate(parameters) if letter == "n"]
        self._operators: dict[tuple[int, ...], tuple[str, list[int], list[int]]] = {}  # by what counts as written

    def __call__(self, *args: Any) -> None:
        if not _operators_are_seen():
            return self._binding(*args)
        storages = {i: storage_address(args[i]) for i in self._tensors}
        written = {storages[i] for i in self._tensors if self._parameters[i] == "w"}
        name, reads, writes = self._operator(tuple(i for i in self._tensors if storages[i] in written))
        return torch.ops.stowage.compiled_kernel.default(
            name, [args[i] for i in reads], [args[i] for i in writes], [args[i] for i in self._numbers]
        )

    def _operator(self, writes: tuple[int, ...]) -> tuple[str, list[int], list[int]]:
        if writes not in self._operators:
            letters = [letter if letter == "n" else "r" for letter in self._parameters]
            for i in writes:
                letters[i] = "w"
            name = f"{self._name}:{''.join(letters)}"
            _runtime.add_compiled_kernel(name, self._address, "".join(letters))
            self._operators[writes] = (name, [i for i in self._tensors if i not in writes], list(writes))
        return self._operators[writes]


class _EmptyStrided:
    """In the place of empty_strided_cpu."""

    def __init__(self, plain: Any):
        self._plain = plain

    def __call__(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        if not _operators_are_seen():
            return self._plain(size, stride, dtype)
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


@dataclass
class Regions:
    """What is known of a step. inside: it has compiled regions. Where it reaches nothing that was compiled, that is
    known when torch.compile compiles within (torch.cond, flex_attention). limited: it has a budget."""

    inside: bool = False
    limited: bool = False


def run_alike(call: Callable[[], Any], regions: Regions) -> Any:
    """call(), eagerly, with the dispatch keys of a recorded call."""
    return _runtime.with_step_keys(call, regions.limited)


class _Listener:
    """Of a call that is recorded or matched: what it does while something is compiled is no part of the step."""

    def __init__(self, tell: Callable[[str], None], unforeseen: Callable[[], None] | None):
        self.tell = tell
        self._unforeseen = unforeseen
        self._deep = 0

    def starts(self) -> None:
        if self._unforeseen is not None:
            self._unforeseen()
            self._unforeseen = None
        self._deep += 1
        _runtime.pass_unseen(True)

    def ends(self) -> None:
        if self._deep > 0:
            self._deep -= 1
            _runtime.pass_unseen(False)
            expose()

    def done(self) -> None:
        while self._deep > 0:  # the compilation was left by an error
            self._deep -= 1
            _runtime.pass_unseen(False)


def _starts(_: Any) -> None:
    if listener := getattr(_here, "listener", None):
        listener.starts()


def _ends(_: Any) -> None:
    if listener := getattr(_here, "listener", None):
        listener.ends()
    elif _runtime.budget_active():
        expose()


def _listen() -> None:
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    if handler is not None and _starts not in handler.start_callbacks:
        handler.register_start_callback(_starts)
        handler.register_end_callback(_ends)


def _listen_always() -> None:
    """torch._dynamo.reset() drops all who listen; what was wrapped before it compiles anew."""
    handler = getattr(sys.modules["torch._dynamo.callback"], "callback_handler", None)
    if handler is None:
        return
    clear = handler.clear

    @functools.wraps(clear)
    def cleared() -> None:
        clear()
        _listen()

    handler.clear = cleared
    _listen()


when_imported("torch._dynamo.callback", _listen_always)


def _tell_of_wraps() -> None:
    eval_frame = sys.modules["torch._dynamo.eval_frame"]
    context = getattr(eval_frame, "OptimizeContext", None)
    if context is None or any(map(callable, getattr(eval_frame, "cached_backends", {}).values())):
        _WRAPPED.set()
    if context is None:
        return
    make = context.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        _WRAPPED.set()
        _listen()
        if keys := getattr(_here, "keys", None):
            keys.keep()

    context.__init__ = __init__


when_imported("torch._dynamo.eval_frame", _tell_of_wraps)


def _is_not_compiled() -> None:
    add = getattr(sys.modules["torch._dynamo.trace_rules"], "add", None)
    if add is not None:
        for package in ("stowage.step", "stowage.eviction", "stowage._torch"):
            add(package)


when_imported("torch._dynamo.trace_rules", _is_not_compiled)


def _put_off_first_check() -> None:
    context = getattr(sys.modules["torch._functorch._aot_autograd.runtime_wrappers"], "_FirstInvocationContext", None)
    if context is None:
        return
    check = context.__call__

    def __call__(self: Any) -> contextlib.AbstractContextManager:
        unseen = getattr(_here, "listener", None) is None and not _runtime.budget_active()
        return check(self) if unseen else contextlib.nullcontext()

    context.__call__ = __call__


when_imported("torch._functorch._aot_autograd.runtime_wrappers", _put_off_first_check)


@contextlib.contextmanager
def _listening(listener: _Listener) -> Iterator[None]:
    _listen()
    before, _here.listener = getattr(_here, "listener", None), listener
    try:
        yield
    finally:
        _here.listener = before
        listener.done()


@contextlib.contextmanager
def seen(tell: Callable[[str], None], regions: Regions) -> Iterator[None]:
    """In this block a step is recorded or matched, and its compiled regions with it. tell(why): one is entered that has
    something that cannot be seen. What is compiled within is no part of the step."""
    expose()
    with _key_kept() if regions.limited else contextlib.nullcontext(), _listening(_Listener(tell, None)):
        yield


@contextlib.contextmanager
def _key_kept() -> Iterator[None]:
    _runtime.keep_attached_key(True)
    try:
        yield
    finally:
        _runtime.keep_attached_key(False)


@contextlib.contextmanager
def looked_for(tell: Callable[[str], None], regions: Regions, mode: Any) -> Iterator[None]:
    """In this block a step is recorded or matched under ``mode``, which a compiled region would not be compiled under.
    Where something is compiled nevertheless, the mode is gone from then on, ``regions`` and tell(why) are told."""

    def unforeseen() -> None:
        regions.inside = True
        take_off(mode)
        tell("torch.compile compiles in the step")

    with _listening(_Listener(tell, unforeseen)):
        yield


__all__ = ["Regions", "compiling", "in_use", "looked_for", "run_alike", "seen", "seen_by_budgets"]
