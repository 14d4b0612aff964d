"""What eager holds at each moment of a training run, without running it: a run on tensors that have shapes but no memory,
with the birth and the death of every storage.

    ops         mm ── relu ── mm ── mm_backward ── ...         each with what it takes, makes, and the line that calls it
    storage 7   |█████████████████████|                        from the op that makes it to the moment Python or autograd lets go
    storage 8         |███████|

A graph (capture.py) frees a buffer after its last use; eager frees it when nothing refers to it any more, so a variable
that a function keeps counts here to its end. A fake run differs from a real one in one respect that matters: autograd adds
a gradient to an earlier one in place where nobody else has that one (a view does not: its base has it, too), but fakes
out of place. Such sums are told by the death of their first term, and take its storage.

Space and time are linear in the ops of the run."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from stowage._torch.fakes import DATA_DEPENDENT
from stowage._torch.private import TorchDispatchMode, in_backward
from stowage.step.record.recording import LIBRARY_FOLDERS

_LIBRARIES = tuple(LIBRARY_FOLDERS)
_ENGINE_SUM = "aten::add.Tensor"


@dataclass(frozen=True)
class TensorForm:
    """A tensor as an op takes it: its view of a storage, by number."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: str
    storage: int
    storage_bytes: int


@dataclass
class Storage:
    """``kind``: as in graphs; settled when the run has ended. ``op``: the number of the op that made it, or -1."""

    bytes: int
    device: str
    op: int
    line: str
    backward: bool
    grad_mode: bool
    kind: str = ""


@dataclass
class TracedOp:
    """``takes``: arguments with TensorForms in the place of tensors; ``makes``: new storages, by number."""

    func: Any
    takes: tuple[Any, ...]
    line: str
    grad_mode: bool
    makes: list[int] = field(default_factory=list)
    fake_bytes: dict[int, int] = field(default_factory=dict)  # of those, as the fake told
    adds_to_view: bool = False  # a sum whose first term is a view
    made_forms: list[TensorForm | None] = field(default_factory=list)  # per output leaf that is a tensor

    @property
    def name(self) -> str:
        """As graphs name it: "aten::mul.Tensor"."""
        schema = self.func._schema
        return schema.name + (f".{schema.overload_name}" if schema.overload_name else "")

    def forms(self) -> list[TensorForm]:
        return forms_in(self.takes)


def forms_in(takes: tuple[Any, ...]) -> list[TensorForm]:
    """Those among the arguments of an op (TracedOp.takes), in order."""
    return [leaf for leaf in _leaves(takes) if isinstance(leaf, TensorForm)]


def _leaves(value: Any) -> Iterator[Any]:
    """Operators take and give tensors, numbers, and lists of these."""
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


@dataclass(frozen=True)
class Moment:
    """A peak: bytes, the op under way (or -1), the storages that are live, by number, and what the op allocates besides."""

    bytes: int
    op: int
    live: tuple[int, ...]
    inside_bytes: int


class Trace(TorchDispatchMode):
    """``with FakeTensorMode(), trace: ...`` notes what happens in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[TracedOp] = []
        self.storages: list[Storage] = []
        # What happened, in order: an op begins (~number) or a storage dies (number). Births are in TracedOp.makes.
        self._happened: list[int] = []
        self._numbers: dict[int, int] = {}  # by the address of the storage
        self._watches: dict[int, weakref.ref] = {}
        self._views: dict[TensorForm, bool] = {}  # was it last made by an op that only makes views?
        self._heirs: dict[int, int] | None = None
        # Lines that asked for a number of the data; they were told 1.0. Whole numbers and decisions are never guessed.
        self.guessed: dict[str, None] = {}
        self.first_call = self.last_call = 0  # the numbers of the ops at which the step's calls begin
        self.ended = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.ended:
            return func(*args, **kwargs)
        backward = in_backward() and not torch.is_grad_enabled()
        op = TracedOp(func, self._forms((args, kwargs)), _line(), torch.is_grad_enabled())
        number = len(self.ops)
        if op.name == _ENGINE_SUM and isinstance(op.takes[0][0], TensorForm):
            op.adds_to_view = self._views.get(op.takes[0][0], False)
        self.ops.append(op)
        self._happened.append(~number)
        try:
            result = func(*args, **kwargs)
        except DATA_DEPENDENT:
            if func is not torch.ops.aten._local_scalar_dense.default or not args[0].is_floating_point():
                raise
            self.guessed.setdefault(op.line)
            return 1.0
        for leaf in _leaves(result):
            if isinstance(leaf, torch.Tensor):
                known = len(self.storages)
                form = self._form(leaf, number, op.line, backward)
                op.made_forms.append(form)
                if form is not None:
                    self._views[form] = bool(func.is_view)
                for new in range(known, len(self.storages)):
                    op.makes.append(new)
                    op.fake_bytes[new] = self.storages[new].bytes
        return result

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Of the storage of a tensor that is alive."""
        return self._numbers.get(_storage(tensor)._cdata) if tensor.layout == torch.strided else None

    def mark(self, kind: str, tensors: Iterable[torch.Tensor | None]) -> None:
        """Their storages are of this kind. The first mark counts."""
        for tensor in tensors:
            number = self.number_of(tensor) if isinstance(tensor, torch.Tensor) else None
            if number is not None and not self.storages[number].kind:
                self.storages[number].kind = kind

    def kind_of(self, number: int) -> str:
        """As in graphs; of what nobody has marked by where it was made."""
        storage, heirs = self.storages[number], self.sums_in_place()
        if storage.kind:
            return storage.kind
        if kinds := {self.storages[s].kind for s, first in heirs.items() if first == number} - {""}:
            return min(kinds)
        return (
            "activation"
            if storage.op >= self.first_call and storage.grad_mode and not storage.backward
            else "temporary"
        )

    def end(self) -> None:
        """No more is noted. Deaths that come later are none."""
        self.ended = True
        self._watches.clear()

    # ---- while it runs

    def _forms(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return self._form(value, -1, "", False)  # type: ignore[return-value]
        if isinstance(value, (list, tuple)):
            return tuple([self._forms(v) for v in value])
        if isinstance(value, dict):
            return tuple([(k, self._forms(v)) for k, v in value.items()])
        return value

    def _form(self, tensor: torch.Tensor, op: int, line: str, backward: bool) -> TensorForm | None:
        if tensor.layout != torch.strided:  # its parts are what holds the bytes
            if tensor.layout == torch.sparse_coo:
                for part in (tensor._indices(), tensor._values()):
                    self._form(part, op, line, backward)
            return None
        storage = _storage(tensor)
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._born(storage, str(tensor.device), op, line, backward)
        return TensorForm(
            tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype, str(tensor.device),
            number, self.storages[number].bytes,
        )  # fmt: skip

    def _born(self, storage: torch.UntypedStorage, device: str, op: int, line: str, backward: bool) -> int:
        number, address = len(self.storages), storage._cdata
        self.storages.append(Storage(storage.nbytes(), device, op, line, backward, torch.is_grad_enabled()))
        self._numbers[address] = number

        def died(_: weakref.ref) -> None:
            if self._numbers.get(address) == number:
                del self._numbers[address]
            self._watches.pop(number, None)
            if not self.ended:
                self._happened.append(number)

        self._watches[number] = weakref.ref(storage, died)
        return number

    # ---- when it has ended

    def sums_in_place(self) -> dict[int, int]:
        """Storages that autograd does not make on real tensors -> the storage of the first term that it adds into."""
        if self._heirs is not None:
            return self._heirs
        heirs: dict[int, int] = {}
        dies_after = self._deaths()
        for number, op in enumerate(self.ops):
            if op.name != _ENGINE_SUM or len(op.makes) != 1 or not self.storages[op.makes[0]].backward:
                continue
            term, result = op.takes[0][0], op.made_forms[0]
            if not isinstance(term, TensorForm) or result is None:
                continue
            alike = (term.shape, term.dtype) == (result.shape, result.dtype) and _dense(term)
            if alike and not op.adds_to_view and dies_after.get(term.storage) == number:
                heirs[op.makes[0]] = heirs.get(term.storage, term.storage)
        self._heirs = heirs
        return heirs

    def _deaths(self) -> dict[int, int]:
        """Storage -> the latest op that had begun when it died."""
        deaths, op = {}, -1
        for what in self._happened:
            if what < 0:
                op = ~what
            else:
                deaths[what] = op
        return deaths

    def peak(self, device: str, inside: Callable[[int], int]) -> Moment:
        """The largest sum of live bytes at an op, of equal ones the first of the last call. inside(op): what the op
        allocates at its own peak, results included."""
        best = Moment(-1, -1, (), 0)
        for bytes_, op, live, extra in self._moments(device, inside):
            if bytes_ > best.bytes or (bytes_ == best.bytes and best.op < self.last_call <= op):
                best = Moment(bytes_, op, tuple(live), extra)
        return best

    def _moments(self, device: str, inside: Callable[[int], int]) -> Iterator[tuple[int, int, dict[int, None], int]]:
        """At each op: bytes, the op, the live storages, and the op's own bytes besides. The dict of live storages
        changes afterwards."""
        heirs = self.sums_in_place()
        last_of = {}  # the storage that a sum lies in lives as long as the latest sum in it
        for sum_, first in heirs.items():
            last_of[first] = sum_
        live: dict[int, None] = {}
        total = 0

        def add(number: int) -> None:
            nonlocal total
            if self.storages[number].device == device and number not in live:
                live[number] = None
                total += self.storages[number].bytes

        found_by_ops = self._found()
        for number in found_by_ops.get(-1, ()):
            add(number)
        for what in self._happened:
            if what < 0:
                op = ~what
                for number in found_by_ops.get(op, ()):
                    add(number)
                made = [n for n in self.ops[op].makes if n not in heirs]
                before = total
                own = sum(self.storages[n].bytes for n in made if self.storages[n].device == device)
                for n in made:
                    add(n)
                extra = max(inside(op) - own, 0)
                yield before + own + extra, op, live, extra
            else:
                first = heirs.get(what, what)
                if last_of.get(first, first) == what and first in live:
                    del live[first]
                    total -= self.storages[first].bytes

    def _found(self) -> dict[int, list[int]]:
        """Storages that no op was seen to make, by the op that first takes them."""
        seen: dict[int, list[int]] = {}
        known: set[int] = set()
        for number, op in enumerate(self.ops):
            for form in op.forms():
                if form.storage not in known and self.storages[form.storage].op == -1:
                    seen.setdefault(number, []).append(form.storage)
                known.add(form.storage)
            known.update(op.makes)
        return seen


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _dense(form: TensorForm) -> bool:
    """Non-overlapping and dense."""
    wanted = 1
    for stride, size in sorted((st, n) for st, n in zip(form.stride, form.shape) if n != 1):
        if stride != wanted:
            return False
        wanted *= size
    return True


def _line() -> str:
    """The innermost line of the user's own code, as "file:line", or ""."""
    frame = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
