"""Functions by their code: what it reads of its closure, its globals and the modules that it imports.

    function ──▶ closure, defaults       counts when its code has run
    code     ──▶ global by name          where that code has run; builtins that a global could hide, too
             ──▶ name of a module        each attribute that the code may read of a module which it names or imports

Libraries' functions are entered when they run, the user's at once, those that a library's decorator hides as well: what they read
must be known as it was before. O(names in the code)."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

from stowage.step.guards.callbacks import behind
from stowage.step.guards.graph import Graph
from stowage.step.guards.reads import is_library, is_library_module, is_own, is_standard, reads
from stowage.step.guards.training import is_compiled

_SETTINGS_OF_SYS = {"argv", "path", "warnoptions"}  # lists that programs change in place


def enter_python_function(graph: Graph, i: int, fn: types.FunctionType, path: str, trusted: bool) -> None:
    code = fn.__code__
    if is_own(code):
        return
    if is_compiled(fn):
        graph.found.compiled = path
        graph.reach(i, None, fn.__dict__["_torchdynamo_orig_callable"], path, trusted)
        return
    graph.functions.setdefault(code, []).append(i)
    if is_library(code) and code not in graph.ran.codes:
        graph.add(i, graph.guard.function(fn, path))
        for inner in behind(fn):
            graph.reach(i, code, inner, path, trusted)
        graph.unrun.setdefault(code, []).append((i, fn, path))
        return
    graph.add(i, graph.guard.function(fn, path))
    enter_function(graph, i, fn, path)


def enter_function(graph: Graph, i: int, fn: types.FunctionType, path: str) -> None:
    code = fn.__code__
    for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
        _cell(graph, i, code, cell, f"'{name}' in the closure of {path}", name)
    for part in (fn.__defaults__, fn.__kwdefaults__):
        graph.reach(i, code, part, path, False)
    if not is_library(code) or fn.__dict__:
        graph.add(i, graph.guard.dict(fn.__dict__, True, is_library(code), path))
        for name, value in list(fn.__dict__.items()):
            graph.reach(i, name, value, f"{path}.{name}", False)
    if not is_library(code):
        for part in _with_nested(code):
            graph.edges[i].append((part, enter_code(graph, part, fn.__globals__)))


def _cell(graph: Graph, i: int, condition: Any, cell: Any, what: str, path: str) -> None:
    index = graph.index.get(id(cell))
    if index is None:
        index = graph.index[id(cell)] = graph.new(cell)
        graph.add(index, graph.guard.cell(cell, what))
        try:
            graph.reach(index, None, cell.cell_contents, path, False)
        except ValueError:  # not yet assigned
            pass
    graph.edges[i].append((condition, index))


def enter_code(graph: Graph, code: types.CodeType, globals_: dict) -> int:
    key = ("code", id(code), id(globals_))
    if key in graph.index:
        return graph.index[key]
    i = graph.index[key] = graph.new((code, globals_))
    read = reads(code)
    standard = is_standard(str(globals_.get("__name__", "")))
    present = {name for name in read.globals if name in globals_} if read.library else read.globals
    for name in sorted(present):
        there = name in globals_
        graph.name(i, None, globals_, name, f"global '{name}'", name, standard and read.library)
        if not there and not read.library:
            graph.name(i, None, builtins.__dict__, name, f"builtin '{name}'", name, True)
        value = globals_.get(name) if there else None
        if isinstance(value, types.ModuleType):
            _module_names(graph, i, value, read, name, set())
    for name, level in read.imports:
        _imported(graph, i, name, level, globals_, read)
    if read.imports_by_name:
        for name in sorted(c for c in read.constants if c and c not in sys.modules):
            graph.name(i, None, sys.modules, name, f"module '{name}'", name, False)
        for name, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType) and not is_standard(name) and not is_library_module(module):
                graph.name(i, None, sys.modules, name, f"module '{name}'", name, False)
                graph.any_modules.add(id(module))
                graph.reach(i, None, module, name, False)
    return i


def _imported(graph: Graph, i: int, name: str, level: int, globals_: dict, read: Any) -> None:
    """An import statement within a function: it finds what was imported before."""
    package = str(globals_.get("__package__") or "")
    for _ in range(level - 1):
        package = package.rpartition(".")[0]
    full = f"{package}.{name}".strip(".") if level else name
    parts = full.split(".")
    for end in range(1, len(parts) + 1):
        part = ".".join(parts[:end])
        module = sys.modules.get(part)
        if isinstance(module, types.ModuleType):
            graph.name(i, None, sys.modules, part, f"module '{part}'", part, is_standard(part))
            _module_names(graph, i, module, read, part, set())


def _module_names(graph: Graph, i: int, module: types.ModuleType, read: Any, path: str, seen: set[int]) -> None:
    """Of a module that code names: the attributes that this code may read, and those of modules in it. Code of the
    user's may hand the module on, as any object, to what reads others."""
    if id(module) in seen or module is sys.modules:
        return
    seen.add(id(module))
    standard = is_standard(module.__name__)
    namespace = module.__dict__
    if not standard and not read.library:
        graph.reach(i, None, module, path, False)
    for name in sorted(read.attributes):
        if name not in namespace:
            if not standard and not read.library:
                graph.name(i, None, namespace, name, f"'{path}.{name}'", f"{path}.{name}", False)
            continue
        if namespace[name] is sys.modules:
            continue
        known = standard and not (module is sys and name in _SETTINGS_OF_SYS)
        graph.name(i, None, namespace, name, f"'{path}.{name}'", f"{path}.{name}", known)
        if isinstance(namespace[name], types.ModuleType):
            _module_names(graph, i, namespace[name], read, f"{path}.{name}", seen)


def enter_namespace(graph: Graph, i: int, module: types.ModuleType, path: str, trusted: bool) -> None:
    """A module that is reached as a value: by the names that code reads of anything."""
    standard = is_standard(module.__name__)
    if standard:
        graph.standard.add(i)
        if module is sys:
            for name in sorted(_SETTINGS_OF_SYS):
                graph.attribute(i, name, getattr(sys, name), path, True, False)
        return
    graph.add(i, graph.guard.dict(module.__dict__, True, True, path))
    for name, value in list(module.__dict__.items()):
        if not name.startswith("__"):
            graph.attribute(i, name, value, path, True, trusted)


def _with_nested(code: types.CodeType):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_nested(constant)


__all__ = ["enter_code", "enter_function", "enter_namespace", "enter_python_function"]
