"""What a step's Python is told where it runs over shells, which have no content, and asks past PyTorch's dispatcher.

    what was recorded (host_reads.py)           an operator tells all elements: the kernels up to there run
    pickles, storages, DLPack, addresses        what has been matched so far happens, and the rest of the call is eager
    whatever else finds that a shell is empty   the same, and it is asked once more: the step's Python never runs twice for it
    Python that PyTorch itself calls            the same as the step's own (called_back.py)

An array of a tensor that lasts (a parameter, an argument) is over its memory; where a shell stands for the tensor, it is a copy
(runtime/replay/arrays.h). A call that writes below an array which it still holds, or into one, is eager from there."""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C import TensorBase
from torch.overrides import TorchFunctionMode

from stowage import _runtime
from stowage._core import buffer_digest
from stowage._torch.function_modes import aside, asking_frame, back, heard_by, within_function_mode
from stowage._torch.optimizer_steps import only_torchs
from stowage._torch.private import address, elements_as_text, is_shell, storage_address
from stowage._torch.replaced import is_of_torch, meant
from stowage.errors import PACKAGE_FOLDER
from stowage.step.guards.reads import has_handlers, reads
from stowage.step.record import tensor_of
from stowage.step.record.called_back import Fence, calls_others, replaced_reader, within_operators
from stowage.step.record.content import (
    POINTERS,
    TOLD,
    WHOLE,
    array_over,
    as_list,
    bytes_in,
    bytes_of,
    can_be_told,
    content_of,
    copy_with,
    is_read,
    is_shown,
    number_of,
)
from stowage.step.record.copies import can_be_copied, copied

_NESTED = os.path.join(os.path.dirname(torch.__file__), "nested", "_internal", "nested_tensor.py")


class ToldContents(TorchFunctionMode):
    """While the step's Python runs over shells, which have no content: a Matcher's."""

    def __init__(self, matcher: Any, shared: Iterable[Any] = (), split: bool = False):
        """shared: arrays over memory that kernels read, which are not to be written meanwhile. split: over ranks."""
        self._matcher = matcher
        self._split = split
        self.handed_out = False  # memory, which no recording can do
        self._aside = False
        self._telling = False
        self._arrays: list[Any] = []  # references that tell when one is gone
        self._copies: dict[tuple, torch.Tensor] = {}
        self._shared = [(array, buffer_digest(array)) for array in shared]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = meant(func)
        name = getattr(func, "__name__", "")
        if name == "__deepcopy__" and not self._matcher.left and can_be_copied(*args):
            return copied(*args)
        if name == "is_shared" and not self._matcher.left and args[0].layout == torch.strided and is_shell(args[0]):
            return args[0].is_cuda  # as of any memory that an operator allocates; PyTorch itself would end the process
        if name == "__format__" and not self._matcher.left and is_shown(args):
            return heard_by(self, lambda: object.__format__(*args))
        if name in tensor_of.FUNCTIONS and not self._matcher.left:
            args, kwargs = tensor_of.with_numbers(name, args, kwargs or {}, number_of) or (args, kwargs)
        read = name in TOLD and is_read(name, args)
        told = read and can_be_told(name, args[0])
        hands_out = (
            read or (name in WHOLE and not _asks_only_for_size(name, self._split)) or self._is_behind(name, args)
        )
        if not told and hands_out:
            self.leaves(f"Tensor.{name}() inside the step")
        if not told or self._matcher.left:
            before = self._matcher.matched
            others = not self._matcher.left and (within_operators(self._split) or calls_others(name, args, kwargs))
            if others and (replaced := replaced_reader()):
                self._matcher.leave(f"{name}() calls Python of the program's, which may read by its own {replaced}()")
            fence = Fence(self._called_back) if others else None
            try:
                if fence is not None:
                    _runtime.uninterrupted(fence.rises)
                return func(*args, **(kwargs or {}))
            except RuntimeError as error:
                if self._matcher.left or _runtime.SHELL_TEXT not in str(error):
                    raise
                once_more = self._matcher.repeatable_since(before) and not _ran_others_python(error)
                # A handler of the step's would take the shell's error for one of the tensor
                if not once_more and not _is_caught(sys._getframe(1)):
                    raise
            finally:
                if fence is not None:
                    _runtime.uninterrupted(fence.falls)
            self.leaves(f"Tensor.{name}() inside the step")
            return func(*args, **(kwargs or {}))
        content = bytes_of(args[0], content_of(args[0], name))
        if self._matcher.left:  # by asking
            return func(*args, **(kwargs or {}))
        if name == "tolist":
            return as_list(args[0], content)
        if name == "__repr__":
            copy = copy_with(args[0], content)
            elements: Any = _runtime.unrecorded(lambda: elements_as_text(copy))
            return func(*args, tensor_contents=elements)
        memory = self._memory(args[0], content)
        if memory is None:
            self._matcher.leave(f"Tensor.{name}() of memory that waits elsewhere")
            return func(*args, **(kwargs or {}))
        made = _runtime.unrecorded(lambda: array_over(memory))
        number = self._matcher.array_made(address(memory), address(args[0]), is_shell(args[0]))
        self._arrays.append(weakref.ref(made, lambda _: self._matcher.array_gone(number)))
        dtype = (kwargs or {}).get("dtype", args[1] if name == "__array__" and len(args) > 1 else None)
        return made if dtype is None else made.astype(dtype, copy=False)

    def _memory(self, tensor: torch.Tensor, content: bytes) -> torch.Tensor | None:
        """What the array is over. Of a tensor that lasts, its own: whoever keeps the array sees what later calls write, and
        writes what they read. A copy, where the content is nowhere yet (a shell: one for all its arrays), or where that
        waits and nobody will keep the array. Else none."""
        if is_shell(tensor):
            key = storage_address(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
            if key not in self._copies or bytes_in(self._copies[key]) != content:
                self._copies[key] = copy_with(tensor, content)
            return self._copies[key]
        memory: Any = _runtime.unrecorded(lambda: TensorBase.detach(tensor))
        if bytes_in(memory) == content:
            return memory
        return None if self._matcher.array_stays else copy_with(tensor, content)

    def _is_behind(self, name: str, args: tuple) -> bool:
        """Is that memory asked for which the step has written, were it executed?"""
        return name in POINTERS and not self._matcher.left and self._matcher.is_behind(address(args[0]))

    def _called_back(self, method: Any, args: tuple, kwargs: dict) -> Any:
        """What Python asks that PyTorch calls while this mode is off the stack (called_back.py)."""
        if self._telling:
            return method(*args, **kwargs)
        self._telling = True
        try:
            return self.__torch_function__(method, (), args, kwargs)
        finally:
            self._telling = False

    def leaves(self, reason: str) -> None:
        """What follows is eager, for a reason that no recording can do; "" is none."""
        if reason and not self._matcher.left:
            self.handed_out = True
            self._matcher.leave(reason)

    def within(self, call: Callable[[], Any]) -> Any:
        """call(), whose tensors tell what they hold."""
        return self.beside(lambda: within_function_mode(self, call))

    def before_optimizer(self, optimizer: Any, args: tuple, kwargs: dict) -> None:
        """PyTorch's own ask for nothing past its dispatcher, and ask a lot: the mode steps aside. After an error it stays away;
        what reads a shell then makes the step be recorded anew. ``args``: with the optimizer itself."""
        if not (args[1:] or kwargs) and only_torchs(optimizer):
            self._aside = aside(self)

    def after_optimizer(self) -> None:
        if self._aside:
            self._aside = False
            back(self)

    def beside(self, call: Callable[[], Any]) -> Any:
        """call(), whose tensors tell nothing. Raises as a read of a shell does where it writes into an array that is
        shared."""
        result = call()
        if not self._matcher.left and any(buffer_digest(array) != was for array, was in self._shared):
            raise RuntimeError(f"{_runtime.SHELL_TEXT}: the step writes into an array whose memory kernels read")
        return result


def _asks_only_for_size(name: str, split: bool) -> bool:
    """What splits a step over ranks asks which tensors share their memory, and how much that is; a nested tensor how much there is."""
    if name != "untyped_storage":
        return False
    asking = asking_frame(3).f_code.co_filename
    return asking == _NESTED or (split and asking.startswith(PACKAGE_FOLDER))


def _is_caught(frame: types.FrameType | None) -> bool:
    """May Python that runs there catch an error? That of the standard library, too: logging does."""
    while frame is not None and frame.f_code is not within_function_mode.__code__:
        if reads(frame.f_code).catches or has_handlers(frame.f_code):
            return True
        frame = frame.f_back
    return False


def _ran_others_python(error: BaseException) -> bool:
    """Has what raised it called any but PyTorch's own? A hook, for one."""
    passed = error.__traceback__
    codes = []
    while passed is not None:
        codes.append(passed.tb_frame.f_code)
        passed = passed.tb_next
    return not all(is_of_torch(code) for code in codes if code is not ToldContents.__torch_function__.__code__)


__all__ = ["ToldContents"]
