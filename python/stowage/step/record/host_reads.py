"""What hands a tensor's data to the host without passing PyTorch's dispatcher, and how a step hears of it.

    tolist(), numpy(), __array__()     asked for by an operator of our own, which tells all elements (runtime/torch/content.h);
    and repr(), by which they are printed   a text is made of those
    composites that look at lengths    noted: what they read must follow from the arguments (data guards)
    DLPack, large arrays               refused: whoever has the memory may read it, and write, at any time

An array of a tensor that lasts (a parameter, an argument) is over its memory; where a shell stands for the tensor, it is
a copy (runtime/replay/arrays.h). A step that writes under an array which it still holds, or into one, is refused where
that was recorded; where only some calls do, the rest of those is eager. Pickling and storages (torch.save of a model)
see what eager would show: before them what has been matched so far happens, and the rest of that call is eager, too.
copy.deepcopy of a tensor is done by operators. Whatever else finds that a shell has no memory (data_ptr()) is asked again
after that: the step's Python never runs twice for it.
"""

from __future__ import annotations

import functools
import itertools
import struct
import sys
import types
import weakref
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stowage import _runtime
from stowage._core import buffer_digest
from stowage._torch.private import (
    address,
    elements_as_text,
    heard_by,
    is_fake,
    is_shell,
    storage_address,
    within_function_mode,
)
from stowage._torch.replaced import asked_for, is_of_torch
from stowage.step.guards.reads import has_handlers, reads
from stowage.step.record import tensor_of

_MOST_BYTES = 1 << 20  # of a tensor whose elements are told: they pass through Python's hands in every call
_FORMATS = {  # of struct, per element
    torch.float64: "d",
    torch.float32: "f",
    torch.float16: "e",
    torch.bfloat16: "H",
    torch.int64: "q",
    torch.int32: "i",
    torch.int16: "h",
    torch.int8: "b",
    torch.uint8: "B",
    torch.uint16: "H",
    torch.uint32: "I",
    torch.uint64: "Q",
    torch.bool: "?",
    torch.complex64: "ff",
    torch.complex128: "dd",
}
_COMPOSITES = {  # which arguments they read
    "tensor_split": (1, "tensor_indices_or_sections", "indices_or_sections"),
    "ctc_loss": (2, "input_lengths", 3, "target_lengths"),
    "_pack_padded_sequence": (1, "lengths"),
    "_pad_packed_sequence": (1, "batch_sizes"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (1, "batch_sizes")),
}
_PACKED = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # packed or not: told by what follows the tensor
_COPIES = "stowage: tensors that were copied by operators"  # of a memo of copy.deepcopy's
_ARRAYS = ("numpy", "__array__", "__dlpack__")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TOLD = ("tolist", "__repr__", *_ARRAYS)
_WHOLE = (
    "__reduce_ex__",
    "__deepcopy__",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "share_memory_",
    "__dlpack__",
)


_POINTERS = ("data_ptr", "const_data_ptr", "mutable_data_ptr")
# What differs between arguments of the same signature: methods and attributes
_OF_ARGUMENT = {
    "storage_offset": "where it lies in its storage",
    "_is_view": "whether it is a view",
    "_base": "what it is a view of",
    "grad": "its gradient",
    "is_shared": "whether its memory is shared",
    "is_pinned": "whether its memory is pinned",
    "_backward_hooks": "its hooks",
}


# Names by which Python reads a tensor past the dispatcher: for code that runs where no mode can listen
PAST_THE_DISPATCHER = frozenset(
    {
        *_ARRAYS,
        *_WHOLE,
        "tolist",
        *_POINTERS,
        "is_shared",
        "untyped_storage",
        "_version",
        "array",
        "asarray",
        "from_dlpack",
    }
)


class _Arrays:
    """What a step has been given as arrays, with their content, as long as somebody holds them."""

    def __init__(self) -> None:
        self._keys = itertools.count()
        self._held: dict[int, tuple[Any, Any, bytes]] = {}
        self._written = False

    def add(self, made: Any, same: Any, content: bytes, gone: Callable[[], None]) -> None:
        """``same``: another array over the memory of ``made``. Calls ``gone()`` when nobody holds ``made`` any more."""
        key = next(self._keys)

        def ends(_: Any) -> None:
            _, memory, was = self._held.pop(key)
            self._written |= memory.tobytes() != was
            gone()

        self._held[key] = weakref.ref(made, ends), same, content

    def written(self) -> bool:
        """Has the content of one changed, while somebody held it?"""
        return self._written or any(same.tobytes() != was for _, same, was in self._held.values())


class HostReads(TorchFunctionMode):
    """While a step is recorded."""

    def __init__(self, recorder: Any, whole_contents: bool, arguments: Iterable[torch.Tensor] = ()):
        self._recorder = recorder
        self._arguments = {id(t) for t in arguments}
        self._whole_contents = whole_contents
        self._arrays = _Arrays()
        self._versions: list[tuple[torch.Tensor, int]] = []
        self.asked = ""  # for something that no guard can see

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in _COMPOSITES:
            self._note(name, args, kwargs or {})
            self._recorder.fills(True)
            try:
                return asked_for(func, args, kwargs or {})
            finally:
                self._recorder.fills(False)
        elif name in _TOLD and _is_read(name, args):
            return self._told(func, name, args, kwargs or {})
        elif name == "__format__" and _is_shown(args):
            return heard_by(self, lambda: object.__format__(*args))
        elif name == "__deepcopy__" and self._whole_contents and can_be_copied(*args):
            return copied(*args)
        elif name in tensor_of.FUNCTIONS and self._whole_contents and tensor_of.data_of(name, args, kwargs or {}):
            args, kwargs = tensor_of.with_numbers(name, args, kwargs or {}, _number)
        elif name in _POINTERS:
            self.asked = self.asked or "it asks where a tensor lies in memory"
        else:
            attribute = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
            if name == "__get__" and attribute == "_version":
                self._note_version(args[0])
            elif attribute in _OF_ARGUMENT and args and id(args[0]) in self._arguments:
                self.asked = self.asked or f"it asks of an argument {_OF_ARGUMENT[attribute]}"
        return asked_for(func, args, kwargs or {})

    def _note(self, name: str, args: tuple, kwargs: dict) -> None:
        if name in _PACKED and not (
            len(args) > 2 and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64
        ):
            return
        for where in _COMPOSITES[name]:
            value = kwargs.get(where) if isinstance(where, str) else args[where] if where < len(args) else None
            if isinstance(value, torch.Tensor) and not is_fake(value):
                self._recorder.reads_on_host(address(value), f"{name}()")

    def _told(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        tensor = args[0]
        if not (self._whole_contents and _can_be_told(name, tensor)):
            if name in _ARRAYS:
                self._recorder.refuse(f"Tensor.{name}() inside the step: numbers that depend on data")
            elif is_fake(tensor):
                return func(*args, **kwargs)
            else:
                self._recorder.reads_on_host(address(tensor), f"Tensor.{name}()")
            return _runtime.unrecorded(lambda: func(*args, **kwargs))
        words = _content(tensor, name)
        teller = self._recorder.latest_op()
        result: Any = _runtime.unrecorded(lambda: func(*args, **kwargs))
        if name not in _ARRAYS:
            return result
        if result.ctypes.data == tensor.data_ptr():
            gone = functools.partial(self._recorder.array_gone, teller)
            same = _runtime.unrecorded(lambda: tensor.detach().numpy())
            self._arrays.add(result, same, _bytes(tensor, words), gone)
        else:  # converted, so it is a copy
            self._recorder.array_gone(teller)
        return result

    def _note_version(self, tensor: torch.Tensor) -> None:
        """Shells of the step's own are written as often as the tensors that they stand for. Others are not."""
        if not is_fake(tensor) and not self._recorder.made_in_step(address(tensor)):
            self.asked = self.asked or "it asks how often a tensor was written"
            self._versions.append((tensor, tensor._version))

    def finish(self) -> None:
        """After the step, whose arrays are still as they were when it asked for them, or it cannot be replayed."""
        if any(tensor._version != version for tensor, version in self._versions):
            self._recorder.refuse("the step asks how often a tensor was written (Tensor._version) that it writes")
        self._versions.clear()
        if self._arrays.written():
            self._recorder.refuse("the step writes into the NumPy array of a tensor, or into the tensor behind it")


class ToldContents(TorchFunctionMode):
    """While the step's Python runs over shells, which have no content: a Matcher's."""

    def __init__(self, matcher: Any, shared: Iterable[Any] = ()):
        """shared: arrays over memory that kernels read, which are not to be written meanwhile."""
        self._matcher = matcher
        self.handed_out = False  # memory, which no recording can do
        self._arrays: list[Any] = []  # references that tell when one is gone
        self._copies: dict[tuple, torch.Tensor] = {}
        self._shared = [(array, buffer_digest(array)) for array in shared]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "__deepcopy__" and not self._matcher.left and can_be_copied(*args):
            return copied(*args)
        if name == "is_shared" and not self._matcher.left and args[0].layout == torch.strided and is_shell(args[0]):
            return args[0].is_cuda  # as of any memory that an operator allocates; PyTorch itself would end the process
        if name == "__format__" and not self._matcher.left and _is_shown(args):
            return heard_by(self, lambda: object.__format__(*args))
        if name in tensor_of.FUNCTIONS and not self._matcher.left and tensor_of.data_of(name, args, kwargs or {}):
            args, kwargs = tensor_of.with_numbers(name, args, kwargs or {}, _number)
        read = name in _TOLD and _is_read(name, args)
        told = read and _can_be_told(name, args[0])
        hands_out = read or name in _WHOLE or self._is_behind(name, args)
        if not told and hands_out and not self._matcher.left:
            self.handed_out = True
            self._matcher.leave(f"Tensor.{name}() inside the step")
        if not told or self._matcher.left:
            before = self._matcher.matched
            try:
                return asked_for(func, args, kwargs or {})
            except RuntimeError as error:
                if self._matcher.left or _runtime.SHELL_TEXT not in str(error):
                    raise
                once_more = self._matcher.repeatable_since(before) and not _ran_others_python(error)
                # A handler of the step's would take the shell's error for one of the tensor
                if not once_more and not _is_caught(sys._getframe(1)):
                    raise
            self.handed_out = True
            self._matcher.leave(f"Tensor.{name}() inside the step")
            return asked_for(func, args, kwargs or {})
        content = _bytes(args[0], _content(args[0], name))
        if self._matcher.left:  # by asking
            return func(*args, **(kwargs or {}))
        if name == "tolist":
            return _as_list(args[0], content)
        if name == "__repr__":
            copy = _copied(args[0], content)
            elements: Any = _runtime.unrecorded(lambda: elements_as_text(copy))
            return func(*args, tensor_contents=elements)
        memory = self._memory(args[0], content)
        if memory is None:
            self._matcher.leave(f"Tensor.{name}() of memory that waits elsewhere")
            return func(*args, **(kwargs or {}))
        made = _runtime.unrecorded(memory.numpy)
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
            if key not in self._copies or _bytes_in(self._copies[key]) != content:
                self._copies[key] = _copied(tensor, content)
            return self._copies[key]
        memory: Any = _runtime.unrecorded(tensor.detach)
        if _bytes_in(memory) == content:
            return memory
        return None if self._matcher.array_stays else _copied(tensor, content)

    def _is_behind(self, name: str, args: tuple) -> bool:
        """Is that memory asked for which the step has written, were it executed?"""
        return name in _POINTERS and not self._matcher.left and self._matcher.is_behind(address(args[0]))

    def within(self, call: Callable[[], Any]) -> Any:
        """call(), whose tensors tell what they hold."""
        return self.beside(lambda: within_function_mode(self, call))

    def beside(self, call: Callable[[], Any]) -> Any:
        """call(), whose tensors tell nothing. Raises as a read of a shell does where it writes into an array that is
        shared."""
        result = call()
        if not self._matcher.left and any(buffer_digest(array) != was for array, was in self._shared):
            raise RuntimeError(f"{_runtime.SHELL_TEXT}: the step writes into an array whose memory kernels read")
        return result


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
    return not all(
        is_of_torch(code)
        for code in codes
        if code not in (ToldContents.__torch_function__.__code__, asked_for.__code__)
    )


def _is_shown(args: tuple) -> bool:
    """Does its format show all elements? Of a tensor of no dimensions, the number is asked for."""
    return type(args[0]) in _PLAIN and args[1:] == ("",) and args[0].dim() > 0


def _is_read(name: str, args: tuple) -> bool:
    """As to its text, of a plain tensor alone: others make that of their parts."""
    tensor = args[0]
    if name != "__repr__":
        return True
    plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
    return plain and tensor.device.type != "meta" and not tensor.is_nested and not is_fake(tensor)


def _can_be_told(name: str, tensor: Any) -> bool:
    """Else the call raises an error of its own, or the tensor is no plain one."""
    if (
        type(tensor) not in _PLAIN
        or tensor.layout != torch.strided
        or (name in _ARRAYS and tensor.device.type != "cpu")
    ):
        return False
    if (
        tensor.is_conj()
        or tensor.is_neg()
        or tensor.dtype not in _FORMATS
        or tensor.numel() * tensor.element_size() > _MOST_BYTES
    ):
        return False
    if name not in _ARRAYS:
        return True
    wants_gradient = tensor.requires_grad and torch.is_grad_enabled()  # then PyTorch raises
    return name != "__dlpack__" and not wants_gradient and tensor.dtype != torch.bfloat16


def can_be_copied(tensor: Any, memo: dict) -> bool:
    """By operators, as tensor.__deepcopy__(memo) does it past the dispatcher: a plain tensor that is all of its storage,
    whose storage was not copied before, or by copied() for a tensor of the same form."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or is_fake(tensor) or id(tensor) in memo:
        return False
    if not tensor.is_leaf or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.device.type == "meta":
        return False
    storage = tensor.untyped_storage()
    whole = storage.nbytes() == tensor.numel() * tensor.element_size() and tensor.storage_offset() == 0
    if not whole or tensor.grad is not None or tensor.__dict__ or not _dense(tensor):
        return False
    before = memo.get(_COPIES, {}).get(storage._cdata)
    if before is None:
        return storage._cdata not in memo.get("torch", {})
    return (before.shape, before.stride(), before.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)


def copied(tensor: torch.Tensor, memo: dict) -> torch.Tensor:
    copies, storage = memo.setdefault(_COPIES, {}), tensor.untyped_storage()
    with torch.no_grad():
        if (before := copies.get(storage._cdata)) is not None:
            made = before.detach()
        else:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            made.copy_(tensor)
            copies[storage._cdata] = made.detach()
            memo.setdefault("torch", {})[storage._cdata] = made.untyped_storage()
    if tensor.requires_grad:
        made.requires_grad_()
    memo[id(tensor)] = made
    return made


def _dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda dimension: dimension[::-1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _content(tensor: torch.Tensor, name: str) -> list[int]:
    return torch.ops.stowage.content(tensor.detach() if tensor.requires_grad else tensor, name in _ARRAYS)


def _number(tensor: torch.Tensor) -> Any:
    return tensor.detach().item()


def _bytes(tensor: torch.Tensor, words: list[int]) -> bytes:
    return array("q", words).tobytes()[: tensor.numel() * tensor.element_size()]


def _copied(tensor: torch.Tensor, content: bytes) -> torch.Tensor:
    """Of its form, with that content, in order."""

    def make() -> torch.Tensor:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        if content:
            copy.view(-1).copy_(torch.frombuffer(bytearray(content), dtype=tensor.dtype))
        return copy

    copy: Any = _runtime.unrecorded(make)
    return copy


def _bytes_in(tensor: torch.Tensor) -> bytes:
    found: Any = _runtime.unrecorded(lambda: tensor.numpy().tobytes())
    return found


def _as_list(tensor: torch.Tensor, content: bytes) -> Any:
    """What tensor.tolist() gives."""
    form = _FORMATS[tensor.dtype]
    numbers: list = list(struct.unpack(f"={tensor.numel() * len(form)}{form[0]}", content))
    if tensor.dtype == torch.bfloat16:  # the upper half of a float
        numbers = [struct.unpack("=f", struct.pack("=I", n << 16))[0] for n in numbers]
    elif len(form) == 2:
        numbers = [complex(*pair) for pair in zip(numbers[::2], numbers[1::2])]
    for size in reversed(tensor.shape[1:]):
        numbers = (
            [numbers[i : i + size] for i in range(0, len(numbers), size)]
            if size
            else [[] for _ in range(tensor.shape[0])]
        )
    return numbers if tensor.dim() else numbers[0]


__all__ = ["PAST_THE_DISPATCHER", "HostReads", "ToldContents"]
