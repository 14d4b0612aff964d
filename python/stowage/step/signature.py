"""What a recorded step may assume of its arguments and of PyTorch's global state.

Where in its storage an argument begins is no matter: batches are often slices of one large tensor. Arguments that lie
in one storage are told apart by the parts of it that they look into, and only where they lie to each other within one
part counts:

    storage   ..........xxxxxxxx............yyzzzzzyy....     x: a part of its own     y, z: one part, z two elements after y
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import sys
import types
import weakref
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from stowage import _runtime
from stowage._core import buffer_digest, class_dict, python_class, same_bits, slot_offset
from stowage._torch.private import global_state, local_tensor, setting_names, storage_address
from stowage.errors import Unsupported
from stowage.step.guards.given import ByContent
from stowage.step.guards.reads import is_library_module, is_standard
from stowage.step.guards.scalars import SCALARS


def metadata(t: torch.Tensor) -> tuple:
    """Of two tensors with the same, either can stand in a recording for the other."""
    return type(t), t.shape, t.stride() if t.layout == torch.strided else None, t.dtype, t.device, t.layout


def signature(
    args: tuple, kwargs: dict, given: list | None = None, passing: Passing | None = None
) -> tuple[tuple, list[torch.Tensor]]:
    """A hashable key, equal for calls that one recording can serve, and the tensors among the arguments in a fixed
    order.

    given: takes the objects that are told apart as objects (modules, optimizers, functions), and the classes of others;
    what Python can read of them has to be watched; and ByContent(function) for others. passing: takes what comes anew with each call.

    Raises Unsupported for arguments that cannot be compared by value; of None for ``given``, for objects, too.
    """
    tensors: list[torch.Tensor] = []
    if passing is not None:
        passing.begin()
    describe = _Describer(tensors, given, passing)
    structure = (describe(args), describe(kwargs))
    sharing = tuple((i, p.first, p.offset_bytes) for i, p in enumerate(parts(tensors)) if p.first != i)
    return (structure, (sharing, _repeated(tensors)), Value(settings())), tensors


_OF_THREAD = {"number of threads": _runtime.kernel_threads, "flush_denormal": _runtime.flushes_denormals}


def settings() -> tuple:
    """Outside of the program's own objects, all on which operators may depend."""
    return (*global_state(), *(read() for read in _OF_THREAD.values()))


def _repeated(tensors: list[torch.Tensor]) -> tuple:
    """Those that are an object that came before: Python may ask for that."""
    first: dict[int, int] = {}
    return tuple((i, first[id(t)]) for i, t in enumerate(tensors) if first.setdefault(id(t), i) != i)


def objects_of(args: tuple, kwargs: dict) -> list:
    """Those of signature(given=...)."""
    given: list[Any] = []
    describe = _Describer([], given)
    with contextlib.suppress(Unsupported):
        describe(args)
        describe(kwargs)
    return given


def held(args: tuple, kwargs: dict, passing: Passing | None = None) -> tuple | None:
    """What the arguments hold: equal before and after a call that changes no container, attribute or dataclass among
    them. None where that cannot be told."""
    tensors: list[torch.Tensor] = []
    describe = _Describer(tensors, [], passing)
    try:
        structure = (describe(args), describe(kwargs))
    except Unsupported:
        return None
    return structure, [id(t) for t in tensors]


class Value:
    """A value as part of a key. Equal only to one of the same bits and types: 0.0 is not -0.0, 1 is not True, (2,) is
    not (2.0,)."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any):
        self.value = value
        # NaNs hash by their address, though their bits may be equal; objects that cannot be hashed are equal to
        # themselves alone.
        try:
            self._hash = 0 if value != value else hash(value)
        except (TypeError, RuntimeError, ValueError):
            self._hash = id(type(value))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is Value and same_bits(self.value, other.value)

    def __repr__(self) -> str:
        return repr(self.value)


class Same:
    """An object as part of a key: equal to itself alone. Does not keep it alive where that can be helped."""

    __slots__ = ("_get", "_hash")

    def __init__(self, value: Any):
        self._hash = id(value)
        try:
            self._get: Any = weakref.ref(value)
        except TypeError:
            self._get = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and self._get() is other._get() and self._get() is not None


class Content:
    """Of an array, as part of a key: it may be another one in each call of a signature. Too large to be compared, it is
    like no other."""

    __slots__ = ("_digest",)

    def __init__(self, array: Any):
        self._digest = buffer_digest(array) if memoryview(array).nbytes <= _MOST_COMPARED_BYTES else None

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return type(other) is Content and self._digest is not None and self._digest == other._digest


def loosened(key: Any) -> Any:
    """The signature without the values of Python's own numbers and strings, and without what arrays hold: a step number
    that is passed in, or the name of a file, is another one in every call."""
    if not isinstance(key, tuple):
        return key
    if (
        len(key) == 2
        and isinstance(key[0], type)
        and (key[0] in (int, float, str, bytes) or key[0] in _numpy_numbers())
    ):
        return key[:1]
    return tuple(loosened(part) for part in key if type(part) is not Content)


class Passing:
    """What comes anew with each call of one step.

    An object is known by which one it is, until a call gives another one of its kind: a lambda that stands in the call, a
    loss that is made for it. From then on such objects are known by what they hold, and the guards do not enter
    them."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []  # among the arguments of the latest call; tensors may lie over them
        self.iterator = ""  # the type of one among its arguments that is known by its type alone
        self._kinds: set[Any] = set()  # of which calls give ever others
        self._before: dict[Any, list[Any]] = {}  # by kind: references to those of the call before
        self._now: dict[Any, list[Any]] = {}

    def begin(self) -> None:
        """Of a call."""
        self._before, self._now = self._now, {}
        self.end()

    def end(self) -> None:
        """Lets go of the call's arguments."""
        self.arrays, self.iterator = [], ""

    def is_other(self, kind: Any, value: Any) -> bool:
        """Do calls give ever others of the kind, as this one does?"""
        self._now.setdefault(kind, []).append(_reference(value))
        if kind in self._before and all(known() is not value for known in self._before[kind]):
            self._kinds.add(kind)
        return kind in self._kinds


def _reference(value: Any) -> Callable[[], Any]:
    """Weak where its type allows, as torch.Generator does not with PyTorch 2.11. Those live a call longer."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


@dataclasses.dataclass(frozen=True)
class Part:
    """Of a storage, where an argument lies: [start, end) in bytes. ``first``: the argument that it begins with."""

    first: int
    start_bytes: int
    end_bytes: int
    offset_bytes: int  # of the argument in it


def parts(tensors: list[torch.Tensor]) -> list[Part]:
    """Arguments of one storage whose bytes overlap or interleave share a part."""
    storages: dict[int, list[int]] = {}
    for i, t in enumerate(tensors):
        storages.setdefault(storage_address(t), []).append(i)
    spans = [_span_bytes(t) for t in tensors]
    found: dict[int, Part] = {}
    for members in storages.values():
        members.sort(key=lambda i: (*spans[i], i))
        while members:
            first, end = members[0], spans[members[0]][1]
            count = 1
            while count < len(members) and spans[members[count]][0] < end:
                end = max(end, spans[members[count]][1])
                count += 1
            start = spans[first][0]
            for i in members[:count]:
                found[i] = Part(first, start, end, spans[i][0] - start)
            members = members[count:]
    return [found[i] for i in range(len(tensors))]


def _span_bytes(t: torch.Tensor) -> tuple[int, int]:
    t = local_tensor(t)
    size, first = t.element_size(), int(t.storage_offset())
    if t.numel() == 0:
        return first * size, first * size
    return first * size, (first + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride())) + 1) * size


def difference(old: tuple, new: tuple) -> str:
    """The first thing in which two signatures differ, as far as it can be named."""
    for what, a, b in zip(("the arguments", "which arguments share memory"), old, new):
        if a != b:
            return _first_difference(a, b) or what
    for name, a, b in zip((*setting_names(), *_OF_THREAD), old[2].value, new[2].value):
        if not same_bits(a, b):
            return f"a global setting ({name.lstrip('_')}: {a!r}, then {b!r})"
    return "nothing"


_OF_TENSORS = (
    "",
    "shape",
    "strides",
    "dtype",
    "device",
    "requires_grad",
    "class",
    "leaf",
    "conjugate bit",
    "negative bit",
    "inference",
    "attributes",
)


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, Value) and isinstance(b, Value):
        told = all(isinstance(v.value, (int, float, str)) and not isinstance(v.value, bool) for v in (a, b))
        return f"an argument is {a!r}, then {b!r}" if told and a != b else ""
    if isinstance(a, Same) and isinstance(b, Same):
        return "an argument is another object" if a != b else ""
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return ""
    if a[:1] == ("tensor",) == b[:1]:
        return next(
            (f"a tensor's {name} is {_plain(x)}, then {_plain(y)}" for name, x, y in zip(_OF_TENSORS, a, b) if x != y),
            "",
        )
    if len(a) != len(b):
        return ""
    return next(filter(None, (_first_difference(x, y) for x, y in zip(a, b) if x != y)), "")


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, tuple) else value


_NOTHING: Mapping = {}


class _Unlike(Exception):
    """An object that is not told by what it holds."""


class _Describer:
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
        if isinstance(value, Mapping):
            items = tuple((Value(key), self(item)) for key, item in value.items())
            return (cls, items, self._attributes(value, but=value))
        if isinstance(value, (list, tuple)):
            return (cls, tuple(self(item) for item in value), self._attributes(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name, _ABSENT) for f in dataclasses.fields(value)}
            content = tuple((name, self(item)) for name, item in fields.items())
            return (cls, content, self._attributes(value, but=fields))
        if cls in _numpy_numbers():
            return (cls, Value(value))
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

    def _tensor(self, value: torch.Tensor) -> Any:
        if isinstance(value, torch.nn.Parameter) and self._given is not None:
            return self._object(value)
        if value.layout != torch.strided:
            raise Unsupported(f"an argument is a tensor of layout {value.layout}")
        if (self._in_object or self._functions) and value.requires_grad:
            raise _Unlike
        if self._functions and not self._is_passing_tensor(value):
            raise _Unlike
        self._tensors.append(value)
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

    def _object(self, value: Any) -> Any:
        """By what it holds, where that is plain: a batch, settings. Else by which one it is."""
        cls: Any = type(value)
        if self._given is None or isinstance(value, _CONTENT_UNKNOWN) or cls.__module__ == "numpy":
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
        tensors, given, held = len(self._tensors), len(self._given), self._held
        if plain_object(cls) and not isinstance(value, _PARTS_OF_TRAINING):
            self._in_object += 1
            try:
                content = self._attributes(value, private=True)
                self._given.append(cls)
                return (cls, content)
            except (_Unlike, Unsupported):
                if self._in_object > 1:
                    raise _Unlike from None
            finally:
                self._in_object -= 1
            del self._tensors[tensors:], self._given[given:]
            self._held = held
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
        self._passing.iterator = type(value).__name__
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
        tensors, given = len(self._tensors), len(self._given)
        try:
            if self._held > _MOST_HELD:
                raise _Unlike
            return self(item)
        except (_Unlike, Unsupported):
            if self._in_object:
                raise _Unlike from None
            del self._tensors[tensors:], self._given[given:]
            return self._same(item)


_ABSENT = "a field that is not set"
_ATOMS = (*SCALARS, enum.Enum, type(...), range, slice)
_DEEPEST = 32
_MOST_HELD = 1024  # parts of objects that are told by what they hold
_BARE = {torch.Tensor, torch.nn.Parameter, dict, list, tuple, torch.Size}
_MOST_COMPARED_BYTES = 1 << 20  # of an array
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


@functools.cache
def plain_object(cls: type) -> bool:
    """All that its objects hold are attributes in a dict."""
    return (
        python_class(cls)
        and all(base is object or python_class(base) for base in cls.__mro__)
        and not any(
            slot_offset(member) >= 0
            for base in cls.__mro__
            if python_class(base)
            for member in class_dict(base).values()
        )
    )


@functools.cache
def is_library_class(cls: type) -> bool:
    """Whose private attributes are its own affair."""
    module = sys.modules.get(str(cls.__module__))
    return module is not None and (is_standard(module.__name__) or is_library_module(module))


def _is_array(value: Any) -> bool:
    """Of NumPy, that holds nothing but bytes."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is getattr(numpy, "ndarray", None) and not value.dtype.hasobject


def _form(array: Any) -> tuple:
    return array.shape, array.strides, array.dtype.str, array.dtype, array.flags.writeable


def _code_or_type(value: Any) -> Any:
    return getattr(value, "__code__", None) or type(value)


def _numpy_numbers() -> frozenset[type]:
    numpy = sys.modules.get("numpy")
    return frozenset() if numpy is None or not hasattr(numpy, "float32") else _numbers_of(numpy)


@functools.cache
def _numbers_of(numpy: Any) -> frozenset[type]:
    return frozenset(t for t in vars(numpy).values() if isinstance(t, type) and issubclass(t, numpy.number))
