"""The memory of a program that Inductor wrote, read from its text.

A program is straight: names are bound to allocations, views and results of kernels, and deleted; so Python's own rule,
that a storage is freed when its last name is gone, can be followed statement by statement:

    buf0 = empty_strided_cpu((32, 64), (64, 1), torch.float32)        +8192
    extern_kernels.mm(x, w, out=buf0)                                 a kernel: reads x, w; makes buf0
    buf1 = buf0; del buf0  # reuse                                    buf1 lies where buf0 lay
    cpp_fused_relu_0(buf1)                                            a kernel: makes buf1 over buf0
    return (buf1, )

So in-place reuse, and buffers that wait in Inductor's pool, are in the figures as the program has them. A name that
lies where another lay is a buffer of its own here: whoever plans may give it a place of its own.

Complexity: O(statements + names). Known weakness: what the user's own code does between forward and backward is not
seen; what it holds of forward's outputs counts as held."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

_KEPT_BY_NAME = ("assert_size_stride", "assert_alignment", "get_raw_stream")


@dataclasses.dataclass
class Buffer:
    """A content with a name, in a storage that others may have used before it."""

    name: str
    bytes: int
    storage: int
    given: bool = False  # it exists before the program runs
    held: bool = False  # and somebody else holds it until the end
    aliases: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Kernel:
    target: str
    reads: list[int]
    makes: list[int]
    scratch_bytes: int = 0
    over: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # (read, made): made lies over what is read
    changes: list[int] = dataclasses.field(default_factory=list)  # of what it reads


@dataclasses.dataclass
class Program:
    buffers: list[Buffer]
    kernels: list[Kernel]
    inputs: list[int | None]  # buffers, by position
    outputs: list[int | None]
    peak_bytes: int
    end_bytes: int  # what its outputs, and inputs that are held, leave live


@dataclasses.dataclass(frozen=True)
class Given:
    """An input. Those of one key share a storage; one that is held stays until the end."""

    key: object
    bytes: int
    held: bool = False


class Unreadable(Exception):
    """A statement of a kind that is not known."""


class _Reader:
    def __init__(self, sizes: Callable[[str], tuple[tuple[int | None, ...], bool]], reads: Callable[[str], frozenset[str]],
                 given: Mapping[str, Given], scratch: Callable[[str, str], int],
                 changes: Callable[[str], frozenset[str]]):  # fmt: skip
        self.sizes, self.reads_of, self.given, self.scratch, self.changes_of = sizes, reads, given, scratch, changes
        self.buffers: list[Buffer] = []
        self.kernels: list[Kernel] = []
        self.inputs: list[int | None] = []
        self.outputs: list[int | None] = []
        self.names: dict[str, int | tuple | None] = {}
        self.shared: dict[object, int] = {}  # key of an input: its buffer
        self.storage_bytes: list[int] = []
        self.holders: list[int] = []
        self.filled: set[int] = set()  # buffers that have content
        self.before: dict[int, int] = {}  # buffer: the one whose place it has
        self.live = self.peak = 0

    # ---- Storages

    def new_storage(self, size: int) -> int:
        self.storage_bytes.append(size)
        self.holders.append(0)
        self.live += size
        self.peak = max(self.peak, self.live)
        return len(self.storage_bytes) - 1

    def new_buffer(self, name: str, size: int, storage: int | None = None) -> int:
        self.buffers.append(Buffer(name, size, self.new_storage(size) if storage is None else storage))
        return len(self.buffers) - 1

    def hold(self, value: int | tuple | None, by: int) -> None:
        for buffer in value if isinstance(value, tuple) else (value,):
            if isinstance(buffer, int):
                storage = self.buffers[buffer].storage
                self.holders[storage] += by
                if self.holders[storage] == 0:
                    self.live -= self.storage_bytes[storage]

    def bind(self, name: str, value: int | tuple | None) -> None:
        self.hold(value, 1)
        if isinstance(value, int):
            self.buffers[value].aliases.append(name)
        if name in self.names:
            self.hold(self.names[name], -1)
        self.names[name] = value

    def delete(self, name: str) -> None:
        self.hold(self.names.pop(name, None), -1)

    # ---- Statements

    def run(self, body: Sequence[ast.stmt]) -> None:
        for i, statement in enumerate(body):
            following = body[i + 1] if i + 1 < len(body) else None
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self.assign(statement.targets[0], statement.value, following)
            elif isinstance(statement, ast.Delete):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self.delete(target.id)
            elif isinstance(statement, ast.Expr):
                if isinstance(statement.value, ast.Call):
                    self.call(statement.value, [])
            elif isinstance(statement, ast.With):
                self.run(statement.body)
            elif isinstance(statement, ast.Return):
                self.leave(statement.value)
            elif not isinstance(statement, (ast.Pass, ast.Assert, ast.Import, ast.ImportFrom, ast.Global)):
                raise Unreadable(ast.unparse(statement)[:100])

    def assign(self, target: ast.expr, value: ast.expr, following: ast.stmt | None) -> None:
        if isinstance(target, ast.Tuple):
            if not (isinstance(value, ast.Name) and value.id == "args"):
                raise Unreadable(ast.unparse(value)[:100])
            for element in target.elts:
                self.take_input(element)
            return
        if not isinstance(target, ast.Name):
            raise Unreadable(ast.unparse(target)[:100])
        name = target.id
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id == "args":
            self.take_input(target)
        elif isinstance(value, ast.Call) and _function(value).split(".")[-1].startswith("empty_strided"):
            self.bind(name, self.new_buffer(name, _allocated(value)))
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "as_strided":
            inner = value.func.value
            if not isinstance(inner, ast.Call):
                raise Unreadable(ast.unparse(value)[:100])
            self.assign(target, inner, following)
        elif isinstance(value, ast.Call) and _function(value) != "reinterpret_tensor":
            self.result(name, value)
        else:
            of = self.value(value)
            if isinstance(of, int) and _deletes(following, self.names, of):
                self.bind(name, self.over(name, of))
            else:
                self.bind(name, of)

    def over(self, name: str, old: int) -> int:
        """A buffer where the old one lay."""
        if name.startswith("arg") or not self.reads_known(name):
            return old
        new = self.new_buffer(name, self.buffers[old].bytes, self.buffers[old].storage)
        self.before[new] = old
        return new

    def reads_known(self, name: str) -> bool:
        return bool(self.sizes(name)[0])

    def take_input(self, element: ast.expr) -> None:
        if not isinstance(element, ast.Name):
            raise Unreadable(ast.unparse(element)[:100])
        name = element.id
        given = self.given.get(name, Given(name, 0))
        if given.key not in self.shared:
            self.shared[given.key] = buffer = self.new_buffer(name, given.bytes)
            self.buffers[buffer].given = True
            self.filled.add(buffer)
        buffer = self.shared[given.key]
        self.inputs.append(buffer)
        if given.held:
            self.buffers[buffer].held = True
            self.hold(buffer, 1)
        self.bind(name, buffer)

    def result(self, name: str, call: ast.Call) -> None:
        """name = kernel(...): whatever it returns is new."""
        if _function(call).split(".")[-1] in _KEPT_BY_NAME:
            return
        sizes, single = self.sizes(name)
        made = tuple(None if n is None else self.new_buffer(f"{name}[{i}]", n) for i, n in enumerate(sizes))
        self.call(call, [m for m in made if m is not None])
        self.bind(name, made[0] if single and made else made)

    def value(self, expression: ast.expr) -> int | tuple | None:
        if isinstance(expression, ast.Name):
            return self.names.get(expression.id)
        if isinstance(expression, ast.Subscript):
            of = self.value(expression.value)
            index = expression.slice.value if isinstance(expression.slice, ast.Constant) else None
            if isinstance(of, tuple) and isinstance(index, int):
                return of[index] if index < len(of) else None
            return of
        if isinstance(expression, ast.Call):
            found = [self.value(a) for a in expression.args[:1]]
            if _function(expression) == "reinterpret_tensor" and found:
                return found[0]
            if isinstance(expression.func, ast.Attribute):  # a view of what it is called on
                return self.value(expression.func.value)
        if isinstance(expression, ast.Attribute):
            return self.value(expression.value)
        return None

    def call(self, call: ast.Call, made: list[int]) -> None:
        target = _function(call)
        if target.split(".")[-1] in _KEPT_BY_NAME or target == "args.clear":
            return
        arguments: dict[int, None] = {}
        for part in [*call.args, *(k.value for k in call.keywords)]:
            for node in ast.walk(part):
                if isinstance(node, ast.Name):
                    value = self.names.get(node.id)
                    for buffer in value if isinstance(value, tuple) else (value,):
                        if isinstance(buffer, int):
                            arguments[buffer] = None
        if not arguments and not made:
            return
        fresh = [b for b in arguments if b not in self.filled]
        kernel = Kernel(target, [b for b in arguments if b in self.filled], [*fresh, *made])
        for new in fresh:
            old = self.before.get(new)
            while old is not None and old not in self.filled:  # a place that went through several names at once
                old = self.before.get(old)
            if old is not None and self.buffers[old].name in self.reads_of(self.buffers[new].name):
                kernel.reads.append(old)
                kernel.over.append((old, new))
        changed = {name for b in kernel.makes for name in self.changes_of(self.buffers[b].name.split("[")[0])}
        kernel.changes = [b for b in kernel.reads if changed & {self.buffers[b].name, *self.buffers[b].aliases}]
        self.filled.update(kernel.makes)
        named = self.buffers[kernel.makes[0]].name if kernel.makes else ""
        kernel.scratch_bytes = self.scratch(named.split("[")[0], target)
        self.peak = max(self.peak, self.live + kernel.scratch_bytes)
        self.kernels.append(kernel)

    def leave(self, value: ast.expr | None) -> None:
        for element in value.elts if isinstance(value, (ast.Tuple, ast.List)) else []:
            of = self.value(element)
            buffer = of if isinstance(of, int) else None
            self.outputs.append(buffer)
            self.hold(buffer, 1)
        for name in list(self.names):
            self.delete(name)


def read(code: str, sizes: Callable[[str], tuple[tuple[int | None, ...], bool]], reads: Callable[[str], frozenset[str]],
         given: Mapping[str, Given], scratch: Callable[[str, str], int] = lambda name, target: 0,
         changes: Callable[[str], frozenset[str]] = lambda name: frozenset()) -> Program:  # fmt: skip
    """What a program does to memory.

    Args:
        sizes: of a name that a kernel's result is bound to: bytes of each tensor, and whether it is one tensor.
        reads: names that the kernel which makes a name reads.
        given: inputs that count; others are residents.
        changes: names whose content the kernel which makes a name changes.
        scratch: bytes that the kernel (of this target) which makes a name has for itself while it runs.

    Raises:
        Unreadable: with the statement.
    """
    body = None
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            body = node.body
    if body is None:
        raise Unreadable("no function of the name call")
    reader = _Reader(sizes, reads, given, scratch, changes)
    reader.run(body)
    return Program(
        reader.buffers, reader.kernels, reader.inputs, reader.outputs, reader.peak, reader.live
    )  # fmt: skip


def _function(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _allocated(call: ast.Call) -> int:
    size, stride = (ast.literal_eval(a) for a in call.args[:2])
    if math.prod(size) == 0:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(size, stride))) * _item_bytes(call)


def _item_bytes(call: ast.Call) -> int:
    import torch

    for part in [*call.args[2:], *(k.value for k in call.keywords)]:
        text = ast.unparse(part)
        dtype = getattr(torch, text.removeprefix("torch."), None)
        if isinstance(dtype, torch.dtype):
            return dtype.itemsize
    raise Unreadable(ast.unparse(call)[:100])


def _deletes(statement: ast.stmt | None, names: Mapping[str, int | tuple | None], buffer: int) -> bool:
    """The statement deletes the name that the buffer had until now."""
    return isinstance(statement, ast.Delete) and any(
        isinstance(t, ast.Name) and names.get(t.id) == buffer for t in statement.targets
    )


__all__ = ["Buffer", "Given", "Kernel", "Program", "Unreadable", "read"]
