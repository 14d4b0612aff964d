"""What reads a tensor's memory past the dispatcher, while a budget is open: the memory is brought back first.

    t.numpy(), t.data_ptr(), …    the address is handed out, and may be kept       back, and stays until the block ends
    t.tolist()                    read, and done                                   back meanwhile
    copy.deepcopy(t)              the same; the copy is in memory that counts      back meanwhile
    torch.save(...)               writes one storage after the other               each is back while it is written
    torch.load(...)               reads them, and makes tensors of them            nothing is away
    t.set_(storage)               looks at the storage                             back meanwhile
    torch.compile compiles        looks at storages, and keeps none                back meanwhile

PyTorch's own UntypedStorage.clone(), of which copies consist, takes CPU memory from an allocator that nobody can replace: the
limit would not count it, and it could never leave.

Private: torch._C.PyTorchFileWriter.write_record, torch.UntypedStorage._write_file; torch.serialization asks data_ptr() of
each storage only to compare them.

Source: torch/_tensor.py, torch/storage.py, torch/serialization.py of PyTorch 2.11 to 2.13."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import TensorBase

from stowage import _runtime, compiled_regions
from stowage._torch.private import address
from stowage._torch.stand_ins import StandIn
from stowage.eviction.out_of_memory import OutOfMemory

# Methods of torch.Tensor: the pointer is handed out and may be kept.
EXPORTS = (
    "numpy",
    "__array__",
    "data_ptr",
    "__dlpack__",
    "untyped_storage",
    "storage",
    "_typed_storage",
    "share_memory_",
    "__reduce_ex__",
)
# Of these, what files and copies are made of: they look at the storage through torch.UntypedStorage.
_STORAGES = ("untyped_storage", "storage", "_typed_storage", "__reduce_ex__")
# Read and done.
READS = ("tolist",)


class _Thread(threading.local):
    saving = loading = copying = 0  # how deep it is in torch.save(), torch.load(), in a tensor's __deepcopy__()


class Reads:
    """Between apply() and undo(). Either may be interrupted; undo() then takes back what there is."""

    def __init__(self, runtime: Any, device: torch.device):
        self._runtime, self._device = runtime, device
        self._here = _Thread()
        self._stand_ins: list[StandIn] = []

    def apply(self) -> None:
        for name in EXPORTS:
            self._first(torch.Tensor, name, self._its_storage if name in _STORAGES else self._export)
        for name in READS:
            self._first(torch.Tensor, name, self._hold)
        for module in (torch, torch.utils.dlpack):
            self._first(module, "to_dlpack", self._export)
        self._first(torch.Tensor, "__deepcopy__", self._begin_copy, self._end_copy)
        self._first(torch, "save", self._begin_save, self._end_save)
        self._first(torch, "load", self._begin_load, self._end_load)
        self._first(torch._C.PyTorchFileWriter, "write_record", self._hold_storage, argument=2)
        self._first(torch.UntypedStorage, "_write_file", self._hold_storage)
        self._first(torch.Tensor, "set_", self._hold_storage, argument=1)
        self._set(torch.UntypedStorage, "data_ptr", self._compared)
        if self._device.type == "cpu":
            self._set(torch.UntypedStorage, "clone", self._counted)

    def undo(self) -> None:
        while self._stand_ins:
            self._stand_ins[-1].leaves()
            self._stand_ins.pop()

    def _first(self, owner: Any, name: str, before: Callable, after: Callable | None = None, argument: int = 0) -> None:
        after = after or self._runtime.release
        self._set(owner, name, lambda original: _runtime.Reader(original, before, after, argument))

    def _set(self, owner: Any, name: str, instead_of: Callable[[Any], Any]) -> None:
        self._stand_ins.append(StandIn(owner, name, instead_of))
        self._stand_ins[-1].comes()

    # ---- Tensors

    def _its_storage(self, tensor: Any) -> int | None:
        here = self._here
        return None if here.saving or here.loading or here.copying else self._export(tensor)

    def _export(self, tensor: Any) -> int | None:
        if compiled_regions.compiling():
            return self._hold(tensor)
        return bring(self._runtime.restore, tensor)

    def _hold(self, tensor: Any) -> int | None:
        return bring(self._runtime.hold, tensor)

    # ---- copy.deepcopy()

    def _begin_copy(self, tensor: Any) -> tuple[int | None]:
        held = self._hold(tensor)
        self._here.copying += 1
        return (held,)

    def _end_copy(self, held: tuple[int | None]) -> None:
        self._here.copying -= 1
        if held[0]:
            self._runtime.release(held[0])

    def _counted(self, plain: Callable) -> Callable:
        def clone(storage: torch.UntypedStorage) -> torch.UntypedStorage:
            if type(storage) is not torch.UntypedStorage or storage.device.type != "cpu":
                return plain(storage)
            tensor = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
            if type(tensor) is not torch.Tensor:  # a fake
                return plain(storage)
            if not self._here.copying:  # else no more than a tensor will have it
                bring(self._runtime.restore, tensor)
            return TensorBase.untyped_storage(tensor).copy_(storage)

        return clone

    # ---- torch.save(), torch.load()

    def _begin_save(self, _: Any) -> bool:
        self._here.saving += 1
        return True

    def _end_save(self, _: bool) -> None:
        self._here.saving -= 1

    def _begin_load(self, _: Any) -> bool:
        self._here.loading += 1
        return True

    def _end_load(self, _: bool) -> None:
        self._here.loading -= 1

    def _hold_storage(self, storage: Any) -> int | None:
        if type(storage) is torch.TypedStorage:
            storage = storage._untyped_storage
        if type(storage) is not torch.UntypedStorage or storage.device != self._device:
            return None
        return within_limit(self._runtime.hold_storage, storage._cdata)

    def _compared(self, plain: Callable) -> Callable:
        def data_ptr(storage: torch.UntypedStorage) -> int:
            return storage._cdata if self._here.saving and storage.nbytes() > 0 else plain(storage)

        return data_ptr


def bring(how: Callable[[int], int | None], tensor: Any) -> int | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    return within_limit(how, address(tensor))


def within_limit(how: Callable[[int], int | None], of: int) -> int | None:
    try:
        return how(of)
    except MemoryError as error:
        raise OutOfMemory(str(error)) from None


__all__ = ["Reads", "bring"]
