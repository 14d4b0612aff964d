"""What hands a tensor's data to the host without passing PyTorch's dispatcher, and how a step hears of it while it is recorded; where its
Python runs over shells: told_contents.py.

    tolist(), numpy(), repr()          asked for by an operator of our own, which tells all elements (content.py)
    composites that look at lengths    noted: what they read must follow from the arguments (data guards)
    torch.tensor([a, b])               given the numbers (tensor_of.py)
    DLPack, large arrays               refused: whoever has the memory may read it, and write, at any time

A step that writes under an array which it still holds, or into one, is refused."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C import TensorBase
from torch.overrides import TorchFunctionMode

from stowage import _runtime
from stowage._torch.fakes import is_fake
from stowage._torch.function_modes import asking_frame, heard_by
from stowage._torch.private import address
from stowage._torch.replaced import meant
from stowage.step.record import tensor_of
from stowage.step.record.calls_of_step import CallsOfStep
from stowage.step.record.content import (
    ARRAYS,
    POINTERS,
    TOLD,
    WHOLE,
    array_over,
    bytes_of,
    can_be_told,
    content_of,
    is_read,
    is_shown,
    number_of,
)
from stowage.step.record.copies import can_be_copied, copied
from stowage.step.record.returned_numbers import NAMES, Number, number

_COMPOSITES = {  # which arguments they read
    "tensor_split": (1, "tensor_indices_or_sections", "indices_or_sections"),
    "ctc_loss": (2, "input_lengths", 3, "target_lengths"),
    "_pack_padded_sequence": (1, "lengths"),
    "_pad_packed_sequence": (1, "batch_sizes"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (1, "batch_sizes")),
}
_PACKED = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # packed or not: told by what follows the tensor
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
        *ARRAYS,
        *WHOLE,
        "tolist",
        *POINTERS,
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

    def __init__(
        self,
        recorder: Any,
        whole_contents: bool,
        step: Callable,
        arguments: Iterable[torch.Tensor] = (),
        numbers_of: tuple[type, ...] = (),
    ):
        """``step``: the user's function. ``numbers_of``: classes of tensors, of whose numbers it is noted what becomes of them."""
        self.calls = CallsOfStep.of(step)
        self._recorder = recorder
        self._step = step
        self._numbers_of = numbers_of
        self._arguments = {id(t) for t in arguments}
        self._whole_contents = whole_contents
        self._arrays = _Arrays()
        self._versions: list[tuple[torch.Tensor, int]] = []
        self.asked = ""  # for something that no guard can see
        self.numbers: list[Number] = []  # for which the step has asked by a method of a tensor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.note(self._recorder.ops)
        told_of, func = func, meant(func)
        name = getattr(func, "__name__", "")
        if name in _COMPOSITES:
            self._note(name, args, kwargs or {})
            self._recorder.fills(True)
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self._recorder.fills(False)
        elif name in TOLD and is_read(name, args):
            return self._told(func, name, args, kwargs or {})
        elif name in NAMES and args and not kwargs and type(args[0]) in self._numbers_of:
            value = func(*args)
            if told_of is getattr(torch._C.TensorBase, name):
                self.numbers.append(
                    number(self._recorder.latest_op(), name, args[0], value, asking_frame(2), self._step)
                )
            return value
        elif name == "__format__" and is_shown(args):
            return heard_by(self, lambda: object.__format__(*args))
        elif name == "__deepcopy__" and self._whole_contents and can_be_copied(*args):
            return copied(*args)
        elif name in tensor_of.FUNCTIONS and self._whole_contents:
            args, kwargs = tensor_of.with_numbers(name, args, kwargs or {}, number_of) or (args, kwargs)
        elif name in POINTERS:
            self.asked = self.asked or "it asks where a tensor lies in memory"
        else:
            attribute = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
            if name == "__get__" and attribute == "_version":
                self._note_version(args[0])
            elif attribute in _OF_ARGUMENT and args and id(args[0]) in self._arguments:
                self.asked = self.asked or f"it asks of an argument {_OF_ARGUMENT[attribute]}"
        return func(*args, **(kwargs or {}))

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
        if not (self._whole_contents and can_be_told(name, tensor)):
            if name in ARRAYS:
                self._recorder.refuse(f"Tensor.{name}() inside the step: numbers that depend on data")
            elif is_fake(tensor):
                return func(*args, **kwargs)
            else:
                self._recorder.reads_on_host(address(tensor), f"Tensor.{name}()")
            return _runtime.unrecorded(lambda: func(*args, **kwargs))
        words = content_of(tensor, name)
        teller = self._recorder.latest_op()
        result: Any = _runtime.unrecorded(lambda: func(*args, **kwargs))
        if name not in ARRAYS:
            return result
        if result.ctypes.data == TensorBase.data_ptr(tensor):
            gone = functools.partial(self._recorder.array_gone, teller)
            same = _runtime.unrecorded(lambda: array_over(tensor))
            self._arrays.add(result, same, bytes_of(tensor, words), gone)
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


__all__ = ["PAST_THE_DISPATCHER", "HostReads"]
