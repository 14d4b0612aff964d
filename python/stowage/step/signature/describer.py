"""What a recording assumes of an argument."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
from collections import UserDict
from collections.abc import Mapping
from typing import Any

import torch

from stowage._core import class_dict, python_class, slot_offset
from stowage._torch.private import has_storage
from stowage.by_class import ByClass
from stowage.errors import Unsupported
from stowage.step.guards.blind import module_of
from stowage.step.guards.given import ByContent
from stowage.step.guards.reads import is_library_module, is_standard
from stowage.step.guards.scalars import SCALARS
from stowage.step.signature.key_values import Content, Same, Value, numpy_numbers, told_by_text
from stowage.step.signature.passing import Passing

_NOTHING: Mapping = {}
_ABSENT = "a field that is not set"
_ATOMS = (*SCALARS, enum.Enum, type(...), range, slice)
_NESTED = "an argument is a nested tensor; padded to one length, or made in the step of values and offsets (jagged), it is planned"
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
_DEEPEST = 32
_MOST_HELD = 1024  # parts of objects that are told by what they hold
_BARE = {torch.Tensor, torch.nn.Parameter, dict, list, tuple, torch.Size}
_CONTENT_UNKNOWN = (bytearray, memoryview)
_EMPTY: dict = {}
_VIEWS: Any = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_ITERABLES: tuple[Any, ...] = ([], (), range(0), range(1 << 70), set(), "", _EMPTY, _EMPTY.values(), _EMPTY.items())
_ITERATORS: tuple[type, ...] = (
    types.GeneratorType,
    *(type(iter(made)) for made in _ITERABLES),
    type(reversed([])),
    type(reversed(_EMPTY)),
    enumerate,
    filter,
    map,
    reversed,
    zip,
)
# Which one it is, is what counts
_PARTS_OF_TRAINING = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
    torch.nn.Parameter,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    type,
)


class _Unlike(Exception):
    """An object that is not told by what it holds."""


class Describer:
    """What a recording assumes of an argument: of tensors their form, of containers and plain objects what they hold, of
    other objects which one it is."""

    def __init__(self, tensors: list[torch.Tensor], given: list | None, passing: Passing | None = None):
        self._tensors = tensors
        self._given = given
        self._passing = passing
        self._functions: list[Any] = []  # that are being described
        self._depth = 0
        self._in_object = 0
        self._held = 0  # by objects
        self._met: dict[int, tuple[int, Any]] = {}  # containers so far, and which they were

    def __call__(self, value: Any) -> Any:
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise (
                    _Unlike
                    if self._in_object
                    else Unsupported(f"an argument in which containers are nested {_DEEPEST} deep")
                )
            return self._describe(value)
        finally:
            self._depth -= 1

    def _describe(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        cls = type(value)
        if isinstance(value, _ATOMS):
            return (cls, Value(value))
        if self._passing is not None and isinstance(value, (list, dict, set)) and self._passing.is_growing(value):
            return ("growing", cls)
        if isinstance(value, (list, dict, set)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            if known := self._again(value):
                return known
            if self._depth > 1:  # not the call's own dict of keywords
                self._meets(value)
        if isinstance(value, Mapping):
            items = tuple((Value(key), self(item)) for key, item in value.items())
            return (cls, items, self._attributes(value, but=value))
        if isinstance(value, (list, tuple)):
            return (cls, tuple(self(item) for item in value), self._attributes(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name, _ABSENT) for f in dataclasses.fields(value)}
            content = tuple((name, self(item)) for name, item in fields.items())
            return (cls, content, self._attributes(value, but=fields))
        if cls in numpy_numbers():
            return (cls, Value(value))
        if told_by_text(value):
            return (cls, Value(repr(value)))
        if isinstance(value, (set, frozenset)):  # the room that it takes decides where what is added comes
            items = tuple(self(item) for item in value)
            return (cls, items, value.__sizeof__(), self._attributes(value))
        if isinstance(value, _VIEWS):
            return (cls, tuple(self(item) for item in value))
        if self._passing is not None and _is_array(value):
            self._passing.arrays.append(value)
            return (cls, _form(value), Content(value))
        if self._passing is not None and isinstance(value, _ITERATORS):
            return self._iterator(value)
        return self._object(value)

    def _again(self, value: Any) -> tuple | None:
        """Of a container or an object that has come before: which one. From now on this one has."""
        if id(value) in self._met:
            return ("again", self._met[id(value)][0])
        self._met[id(value)] = (len(self._met), value)
        return None

    def _meets(self, value: Any) -> None:
        if self._passing is not None:
            self._passing.met.append(id(value))

    def _mark(self) -> tuple[int, int, int, int, int]:
        met = len(self._passing.met) if self._passing is not None else 0
        return len(self._tensors), len(self._given or ()), self._held, len(self._met), met

    def _back_to(self, mark: tuple[int, int, int, int, int]) -> None:
        """What has been described since counts no more."""
        tensors, given, self._held, known, met = mark
        del self._tensors[tensors:]
        if self._given is not None:
            del self._given[given:]
        for key in list(self._met)[known:]:
            del self._met[key]
        if self._passing is not None:
            del self._passing.met[met:]

    def _tensor(self, value: torch.Tensor) -> Any:
        if isinstance(value, torch.nn.Parameter) and self._given is not None:
            return self._object(value)
        if value.is_nested:
            raise Unsupported(_NESTED)
        if value.layout != torch.strided:
            return self._sparse(value)
        if not has_storage(value):
            raise Unsupported("an argument is a tensor within a transform of torch.func")
        if (self._in_object or self._functions) and value.requires_grad:
            raise _Unlike
        if self._functions and not self._is_passing_tensor(value):
            raise _Unlike
        self._tensors.append(value)
        self._meets(value)
        return (
            "tensor",
            value.shape,
            value.stride(),
            value.dtype,
            value.device,
            value.requires_grad,
            type(value),
            value.is_leaf,
            value.is_conj(),
            value.is_neg(),
            value.is_inference(),
            self._attributes(value),
        )

    def _sparse(self, value: torch.Tensor) -> tuple:
        """Kernels that only read it get that of the call, whatever it holds."""
        if value.layout not in _SPARSE or value.requires_grad or type(value) is not torch.Tensor:
            raise Unsupported(f"an argument is a tensor of layout {value.layout}")
        coalesced = value.layout == torch.sparse_coo and value.is_coalesced()
        form = (value.layout, value.shape, value._nnz(), coalesced, value.dtype, value.device)
        return ("sparse tensor", *form, self._attributes(value))

    def _object(self, value: Any) -> Any:
        """By what it holds, where that is plain: a batch, settings. Else by which one it is."""
        cls: Any = type(value)
        if self._given is None or isinstance(value, _CONTENT_UNKNOWN) or module_of(cls) == "numpy":
            if self._in_object:
                raise _Unlike
            raise Unsupported(
                f"an argument of type {cls.__name__} (tensors, numbers, strings, containers and objects of them are fine)"
            )
        if self._in_object and isinstance(value, _PARTS_OF_TRAINING):
            raise _Unlike
        if self._passing is not None and not self._in_object and (told := self._passing_object(value)):
            return told
        if isinstance(value, types.MethodType):
            return ("method", self._same(value.__func__), self._same(value.__self__))
        mark = self._mark()
        if plain_object(cls) and not isinstance(value, _PARTS_OF_TRAINING):
            if known := self._again(value):
                return known
            self._in_object += 1
            try:
                content = self._attributes(value, private=True)
                self._given.append(cls)
                self._meets(value)
                return (cls, content)
            except (_Unlike, Unsupported):
                if self._in_object > 1:
                    raise _Unlike from None
            finally:
                self._in_object -= 1
            self._back_to(mark)
        if self._in_object:
            raise _Unlike
        return self._same(value)

    def _passing_object(self, value: Any) -> tuple | None:
        """One of a kind of which calls give ever others, by what it holds."""
        assert self._passing is not None and self._given is not None
        if isinstance(value, types.FunctionType):
            return self._function(value) if self._passing.is_other(value.__code__, value) else None
        if type(value) is functools.partial:
            if not self._passing.is_other((functools.partial, _code_or_type(value.func)), value):
                return None
            return (
                functools.partial,
                *(self._attribute(v) for v in (value.func, value.args, value.keywords, vars(value))),
            )
        if isinstance(value, types.MethodType):
            owner = value.__self__
            kind: Any = type(owner)
            if not plain_object(kind) or not self._passing.is_other(("method", value.__func__), owner):
                return None
            return ("method", self._same(value.__func__), self._attribute(owner))
        if isinstance(value, torch.nn.Module):
            if next(value.parameters(), None) is not None or not self._passing.is_other(type(value), value):
                return None
            self._given.append(type(value))
            return (type(value), tuple((name, self._attribute(item)) for name, item in vars(value).items()))
        if isinstance(value, torch.Generator):  # what it holds is told by what is drawn from it
            kind = (type(value), str(value.device))
            return kind if self._passing.is_other(kind, value) else None
        return None

    def _function(self, value: types.FunctionType) -> tuple:
        """Made from the same code as another, in the same module, it does the same where it holds the same."""
        assert self._given is not None
        for depth, known in enumerate(self._functions):
            if known is value:
                return ("function", depth)
        self._functions.append(value)
        try:
            cells = tuple(self._cell(cell) for cell in value.__closure__ or ())
            parts = (value.__defaults__, value.__kwdefaults__, vars(value), value.__name__, value.__qualname__)
            told = tuple(self._attribute(part) for part in parts)
        finally:
            self._functions.pop()
        self._given.append(ByContent(value))
        return ("function", Same(value.__code__), Same(value.__globals__), cells, told)

    def _is_passing_tensor(self, value: torch.Tensor) -> bool:
        """Held by a function: another one in each call, as an argument is, or always the same."""
        assert self._passing is not None
        return self._passing.is_other(("tensor", self._functions[-1].__code__, self._held), value)

    def _cell(self, cell: Any) -> Any:
        try:
            return self._attribute(cell.cell_contents)
        except ValueError:  # not yet assigned
            return _ABSENT

    def _iterator(self, value: Any) -> tuple:
        """Where it stands cannot be told; the step's Python will have to run."""
        assert self._passing is not None
        if self._in_object:
            raise _Unlike
        if isinstance(value, types.GeneratorType) and not self._passing.is_other(value.gi_code, value):
            return self._same(value)
        self._passing.unseen = f"a {type(value).__name__} is passed: where it stands cannot be seen"
        return ("iterator", type(value))

    def _same(self, value: Any) -> Any:
        assert self._given is not None
        self._given.append(value)
        return ("object", type(value), Same(value))

    def _attributes(self, value: Any, but: Mapping = _NOTHING, private: bool = False) -> tuple:
        """What the user has put on a tensor, a container or an object as attributes. private: also those of a library's
        own, which say nothing of a container beside its elements, but all of an object."""
        cls: Any = type(value)
        if self._given is not None and cls not in _BARE and all(known is not cls for known in self._given):
            self._given.append(cls)
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return ()
        if not own:
            return ()
        found = []
        of_library = not private and is_library_class(cls)
        for name, item in own.items():
            if (of_library and name.startswith("_")) or (name in but and but[name] is item):
                continue
            if isinstance(item, _ATOMS):
                found.append((name, (type(item), Value(item))))
            elif self._given is not None and not (name == "data" and isinstance(value, UserDict)):
                found.append((name, self._attribute(item)))
        return tuple(found)

    def _attribute(self, item: Any) -> Any:
        assert self._given is not None
        self._held += 1
        mark = self._mark()
        try:
            if self._held > _MOST_HELD:
                raise _Unlike
            return self(item)
        except (_Unlike, Unsupported):
            if self._in_object:
                raise _Unlike from None
            held = self._held
            self._back_to(mark)
            self._held = held
            return self._same(item)


@ByClass
def plain_object(cls: type) -> bool:
    """All that its objects hold are attributes in a dict."""
    return (
        (python_class(cls) or cls is types.SimpleNamespace)
        and all(base in (object, types.SimpleNamespace) or python_class(base) for base in cls.__mro__)
        and not any(
            slot_offset(member) >= 0
            for base in cls.__mro__
            if python_class(base)
            for member in class_dict(base).values()
        )
    )


@ByClass
def is_library_class(cls: type) -> bool:
    """Whose private attributes are its own affair."""
    module = sys.modules.get(module_of(cls))
    return module is not None and (is_standard(module.__name__) or is_library_module(module))


def _is_array(value: Any) -> bool:
    """Of NumPy, that holds nothing but bytes."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None) and not value.dtype.hasobject


def _form(array: Any) -> tuple:
    return array.shape, array.strides, array.dtype.str, array.dtype, array.flags.writeable


def _code_or_type(value: Any) -> Any:
    return getattr(value, "__code__", None) or type(value)


__all__ = ["Describer"]
