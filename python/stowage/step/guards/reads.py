"""Which names a Python function can read, told from its code object alone.

    globals     LOAD_GLOBAL, LOAD_NAME (and STORE_GLOBAL: what a function writes is noted before it does)
    attributes  LOAD_ATTR, LOAD_METHOD and the like, names given to getattr() as constants, keywords of patterns and formats
    constants   strings: names of modules that are imported by name
    compares    objects by ==, or shows them as text
    group keys  of the parameter groups of optimizers (group_keys.py)
    catches     it has handlers of exceptions; catches_kernels: other than those that let the errors of PyTorch's kernels pass
    dynamic     it reads attributes by names that the code does not show: ``getattr(o, name)``, ``vars(o)``, ``o.__dict__``

Code of libraries is taken whole, without decoding: each of its names counts as a global and as an attribute. O(length
of the code), kept for each code object.
"""

from __future__ import annotations

import dis
import itertools
import os
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from stowage.errors import PACKAGE_FOLDER
from stowage.step.guards.group_keys import group_keys

# Where packages lie: this environment's, and all others that Python looks into (a path file, the user's own, Debian's).
PACKAGES = ("site-packages", "dist-packages")
LIBRARY_FOLDERS = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.dirname(os.path.dirname(torch.__file__)) + os.sep}
    | {os.path.abspath(path) + os.sep for path in sys.path if os.path.basename(os.path.normpath(path)) in PACKAGES}
)
STANDARD_FOLDERS = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})

_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_WHOLE = {
    "vars",
    "dir",
    "__dict__",
    "attrgetter",
    "methodcaller",
    "eval",
    "exec",
    "globals",
    "getattr_static",
    "__getattribute__",
    "__getstate__",
    "__reduce_ex__",
}
_ASKED = {"vars", "dir", "__dict__"}  # of these, what the object itself is asked for by
_COPIERS_BY_NAME = {"asdict", "astuple"}
# Methods that set what they are told by name, and where among the arguments, bound or not, the name stands.
_SETTERS = {"__setattr__": -2, "__delattr__": -1}
# What functions and frames keep of themselves: it is not compared where it is asked for as a value.
_INTERNALS = {
    "globals",
    "__globals__",
    "__closure__",
    "cell_contents",
    "getclosurevars",
    "currentframe",
    "gi_frame",
    "cr_frame",
    "f_back",
    "f_globals",
    "f_locals",
}
# Of the standard library and of torch: they read all attributes of what they are given. None: each function of the file but those
# below
_READERS_OF_ALL = {
    "copyreg.py": None,
    "pickle.py": None,
    "pprint.py": None,
    "argparse.py": {"__eq__", "__contains__", "_get_kwargs"},
    "lr_scheduler.py": {"state_dict"},
}
# Of their first argument, and of nothing else
_COPIERS = {
    "copy.py": {"deepcopy", "copy"},
    "dataclasses.py": {"asdict", "_asdict_inner", "astuple", "_astuple_inner", "replace", "_replace"},
}
# What these call, of new objects
_OF_COPIERS = {"copyreg.py": {"__newobj__", "__newobj_ex__", "_slotnames"}}
# By ==, or as a text
_COMPARERS = {
    "repr",
    "str",
    "ascii",
    "print",
    "format",
    "pformat",
    "pprint",
    "eq",
    "ne",
    "contains",
    "index",
    "count",
    "remove",
}
_SHOWS = {"CONTAINS_OP", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"}
# What a function sets counts as read: it must be there after the call, whoever has set something else before
_ATTRIBUTE_READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "STORE_ATTR", "DELETE_ATTR"}
_GLOBAL_READS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_BEFORE_CALLS = {"PRECALL", "PUSH_NULL", "EXTENDED_ARG", "CACHE", "NOP"}
_CALLS = ("PRECALL",) if "PRECALL" in dis.opmap else ("CALL", "CALL_FUNCTION", "CALL_METHOD")
_NOT_STRAIGHT = ("JUMP", "POP_JUMP", "FOR_ITER", "RETURN", "CALL_FUNCTION_EX", "KW_NAMES")
# Numbers past a byte are of the compiler's own, and stand in no code
_HANDLERS = [op for name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH", "SETUP_FINALLY")
             if (op := dis.opmap.get(name, 256)) < 256]  # fmt: skip
_PUSH, _WITH = (
    dis.opmap.get(name, -1) if "PUSH_EXC_INFO" in dis.opmap else -1 for name in ("PUSH_EXC_INFO", "WITH_EXCEPT_START")
)
_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
# By no kernel of PyTorch's because of what tensors hold
_OTHER_ERRORS = frozenset([
    "TypeError", "AttributeError", "KeyError", "NameError", "ImportError", "ModuleNotFoundError", "StopIteration",
    "StopAsyncIteration", "GeneratorExit", "FileNotFoundError", "PermissionError", "EOFError", "UnicodeError",
    "KeyboardInterrupt", "SystemExit",
])  # fmt: skip
_KNOWN_STATE = ("torch", "numpy", "builtins", "stowage", "nanobind", "pybind11_builtins")
IDENTIFIER = re.compile(r"[^\W\d]\w*")
_GENERATES = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_MODULE_BODY = "<module>"
EXITS = ("__exit__", "__aexit__")


@dataclass(frozen=True)
class Reads:
    globals: frozenset[str]
    attributes: frozenset[str]
    constants: frozenset[str]
    dynamic: bool
    library: bool  # not the user's own code
    generates: bool
    imports: tuple[tuple[str, int], ...] = ()  # statements: name and level
    imports_by_name: bool = False  # import_module(name), sys.modules[name]
    internals: frozenset[str] = frozenset()  # of functions and frames
    compares: bool = False  # by ==, or shows as text
    catches: bool = False  # exceptions
    has_blocks: bool = False  # of ``with``
    group_keys: frozenset[str] = frozenset()
    catches_kernels: bool = False  # exceptions that kernels of PyTorch's raise because of what tensors hold
    evaluates: bool = False  # texts, by Python's own eval()
    copies: bool = False  # its first argument, of which it reads all
    names_copiers: bool = False  # calls such code
    bypasses: bool = False  # dynamic, and not by asking the object


_NOTHING = Reads(frozenset(), frozenset(), frozenset(), False, True, False)


_INTEGRATIONS = PACKAGE_FOLDER + "integrations" + os.sep
_STEPS = (PACKAGE_FOLDER + "demo.py", _INTEGRATIONS + "transformers.py", _INTEGRATIONS + "lightning.py")


def is_library(code: types.CodeType) -> bool:
    return code.co_filename.startswith(LIBRARY_FOLDERS) or code.co_filename.startswith("<frozen ") or is_own(code)


def is_own(code: types.CodeType) -> bool:
    """Of Stowage itself, but for the steps that it brings: those of the demo and of the Trainers."""
    return code.co_filename.startswith(PACKAGE_FOLDER) and code.co_filename not in _STEPS


def is_library_module(module: types.ModuleType) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(LIBRARY_FOLDERS)


def is_standard(module_name: str) -> bool:
    """Of Python's own library, or of those whose state is known: they may keep caches and counters."""
    top = module_name.split(".")[0]
    return top in sys.stdlib_module_names or top in _KNOWN_STATE


def reads(code: types.CodeType) -> Reads:
    key = id(code)
    known = _known.get(key)
    if known is None or known[0]() is not code:
        known = _known[key] = (weakref.ref(code, lambda _: _known.pop(key, None)), _reads(code))
    return known[1]


_known: dict[int, tuple] = {}


def _reads(code: types.CodeType) -> Reads:
    generates = bool(code.co_flags & _GENERATES)
    # A module's body runs once, on import
    if is_own(code) or (code.co_name == _MODULE_BODY and code.co_filename.endswith(".py")):
        return _NOTHING
    if is_library(code):
        names = frozenset(code.co_names)
        if names & (_BY_NAME | _WHOLE | _SETTERS.keys()):
            names |= {c for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
        return Reads(
            names,
            names,
            frozenset(),
            _reads_all(code),
            True,
            generates,
            catches=_catches(code, names),
            has_blocks=_has_blocks(code),
            group_keys=group_keys(code),
            catches_kernels=_catches_kernels(code, names),
            evaluates="eval" in names,
            copies=_copies(code),
            bypasses=_reads_all(code),
        )
    return _reads_of_user(code, generates)


def _of_python(code: types.CodeType) -> bool:
    of_packages = any(f"{os.sep}{name}{os.sep}" in code.co_filename for name in PACKAGES)
    return code.co_filename.startswith(STANDARD_FOLDERS) and not of_packages


def _reads_all(code: types.CodeType) -> bool:
    if not _of_python(code) and not code.co_filename.startswith(_TORCH_FOLDER):
        return False
    if _copies(code) or code.co_name in _OF_COPIERS.get(os.path.basename(code.co_filename), ()):
        return False
    functions = _READERS_OF_ALL.get(os.path.basename(code.co_filename), ())
    return functions is None or code.co_name in functions


def _copies(code: types.CodeType) -> bool:
    return _of_python(code) and code.co_name in _COPIERS.get(os.path.basename(code.co_filename), ())


def _reads_of_user(code: types.CodeType, generates: bool) -> Reads:
    instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    found_globals = {i.argval for i in instructions if i.opname in _GLOBAL_READS}
    attributes = {i.argval for i in instructions if i.opname in _ATTRIBUTE_READS}
    constants = set(_strings(code.co_consts))
    attributes |= {c for c in constants if c.isidentifier()}
    # Attrgetter("a.b")
    attributes |= {part for c in constants if "." in c and " " not in c for part in c.split(".") if part.isidentifier()}
    if "format" in code.co_names or "format_map" in code.co_names:
        attributes |= {name for c in constants if "{" in c for name in IDENTIFIER.findall(c)}
    evaluates = names_builtin_eval(instructions) or "eval" in constants
    whole = _WHOLE if evaluates else _WHOLE - {"eval"}
    dynamic = (
        bool(whole & (found_globals | attributes))
        or not constants.isdisjoint(_SETTERS)  # asked for by name: where they are called is not seen
        or _name_not_constant(instructions)
        or _pattern_not_constant(instructions)
    )
    imports = tuple(
        (i.argval, _level(instructions, at)) for at, i in enumerate(instructions) if i.opname == "IMPORT_NAME"
    )
    by_name = bool({"import_module", "__import__", "modules"} & (found_globals | attributes))
    return Reads(
        frozenset(found_globals),
        frozenset(attributes),
        frozenset(constants),
        dynamic,
        False,
        generates,
        imports,
        by_name,
        frozenset(_INTERNALS & (found_globals | attributes)),
        bool(_COMPARERS & (found_globals | attributes)) or any(map(_compares, instructions)),
        _catches(code, found_globals | attributes),
        _has_blocks(code),
        group_keys(code),
        _catches_kernels(code, found_globals | attributes),
        evaluates,
        names_copiers=bool(_COPIERS_BY_NAME & (found_globals | attributes)),
        bypasses=bool((whole - _ASKED) & (found_globals | attributes))
        or not _SETTERS.keys().isdisjoint(found_globals | attributes | constants)
        or "__dict__" in constants
        or _pattern_not_constant(instructions),
    )


def names_builtin_eval(instructions: Iterable[dis.Instruction]) -> bool:
    """Python's own eval() may be meant: by its name, or as an attribute that is not called without arguments, as a module's
    method of that name is."""
    shown = [i for i in instructions if i.opname not in _BEFORE_CALLS]
    for i, after in itertools.zip_longest(shown, shown[1:]):
        if i.argval == "eval" and i.opname in _GLOBAL_READS:
            return True
        if i.argval == "eval" and i.opname in _ATTRIBUTE_READS:
            is_method = i.opname in ("LOAD_ATTR", "LOAD_METHOD") and after is not None and after.arg == 0
            if not is_method or after.opname not in ("CALL", "CALL_METHOD", "CALL_FUNCTION"):
                return True
    return False


def _catches(code: types.CodeType, names: frozenset[str] | set[str]) -> bool:
    """Has it handlers of exceptions, other than the ends of ``with``? Those of Python's and torch's own code let a
    kernel's error pass, or take it for another reason."""
    if code.co_filename.startswith((*STANDARD_FOLDERS, "<frozen ", _TORCH_FOLDER)) and not _in_package(code):
        return False
    return code.co_name in EXITS or "suppress" in names or has_handlers(code)


def _catches_kernels(code: types.CodeType, names: frozenset[str] | set[str]) -> bool:
    """As _catches(), but for handlers that let pass what kernels of PyTorch's raise: ``finally``, and those of other errors."""
    if not _catches(code, names):
        return False
    if code.co_name in EXITS or "suppress" in names or _PUSH < 0:
        return True
    instructions = list(dis.get_instructions(code))
    starts = [at for at, i in enumerate(instructions) if i.opcode == _PUSH]
    return not all(_lets_pass(instructions[at + 1 : end]) for at, end in zip(starts, [*starts[1:], None]))


def _lets_pass(handler: list[dis.Instruction]) -> bool:
    """Of one handler, up to the next. It ends with COPY, POP_EXCEPT, RERAISE, for errors of its own.

    finally       ...                                            RERAISE
    except Name   LOAD_GLOBAL Name  CHECK_EXC_MATCH  (else ──►)  ...  RERAISE"""
    names = [i.opname for i in handler]
    if "WITH_EXCEPT_START" in names:  # the end of a ``with``: blocks have a rule of their own
        return True
    ends = [at for at in range(len(names) - 2) if names[at : at + 3] == ["COPY", "POP_EXCEPT", "RERAISE"]]
    if not ends or "RERAISE" not in names[: ends[0]] or "CHECK_EG_MATCH" in names:
        return False
    own = handler[: ends[0]]
    checks = [at for at, i in enumerate(own) if i.opname == "CHECK_EXC_MATCH"]
    if not checks:
        return not {"POP_EXCEPT", "RAISE_VARARGS"} & set(names[: ends[0]])
    reraised = {i.offset for i in own if i.opname == "RERAISE"}
    return all(_other_errors(own[:at]) for at in checks) and any(
        i.opname.startswith("POP_JUMP") and i.argval in reraised for i in own
    )


def _other_errors(before: list[dis.Instruction]) -> bool:
    """Does the check that follows ask for names of errors alone that no kernel raises?"""
    asked: list[dis.Instruction] = []
    while before and before[-1].opname in ("LOAD_GLOBAL", "BUILD_TUPLE", "CACHE"):
        asked.append(before.pop())
    loaded = [i.argval for i in asked if i.opname == "LOAD_GLOBAL"]
    return bool(loaded) and all(name in _OTHER_ERRORS for name in loaded)


def has_handlers(code: types.CodeType) -> bool:
    """Of exceptions, other than the ends of ``with``; PyTorch's own take an error for what it says."""
    ops = code.co_code[::2]
    return not code.co_filename.startswith(_TORCH_FOLDER) and (
        any(ops.count(op) for op in _HANDLERS) or (_PUSH >= 0 and ops.count(_PUSH) > ops.count(_WITH))
    )


def _has_blocks(code: types.CodeType) -> bool:
    return _WITH < 0 or _WITH in code.co_code[::2]


def _in_package(code: types.CodeType) -> bool:
    """In one that is neither Python's nor torch's; those lie below Python's folder, too."""
    return any(f"{os.sep}{name}{os.sep}" in code.co_filename for name in PACKAGES) and not code.co_filename.startswith(
        _TORCH_FOLDER
    )


def _compares(instruction: dis.Instruction) -> bool:
    if instruction.opname == "COMPARE_OP":
        return any(sign in str(instruction.argval) for sign in ("==", "!="))
    return instruction.opname in _SHOWS


def _level(instructions: list[dis.Instruction], at: int) -> int:
    """Of an import statement: how many packages up."""
    level = instructions[at - 2].argval if at >= 2 else 0
    return level if isinstance(level, int) else 0


def _strings(constants):
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _strings(constant)


def _name_not_constant(instructions: list[dis.Instruction]) -> bool:
    """Does it use getattr() or the like, or a __setattr__(), other than by calls with a constant as the name?"""
    for at, used in enumerate(instructions):
        if used.opname in ("LOAD_GLOBAL", "LOAD_NAME") and used.argval in _BY_NAME:
            place = 1
        elif used.opname in _ATTRIBUTE_READS and used.argval in _SETTERS:
            place = _SETTERS[used.argval]
        else:
            continue
        makers = _makers_of_arguments(instructions[at + 1 :])
        shown = -len(makers) <= place < len(makers) and makers[place]
        if not shown or shown.opname != "LOAD_CONST" or not isinstance(shown.argval, str):
            return True
    return False


def _makers_of_arguments(after: list[dis.Instruction]) -> list[dis.Instruction]:
    """Of the call of a function that was loaded just before: the instruction that ends each argument. [] where it is not
    called at once, in a straight line, by place."""
    depth = 0  # of the stack, above the function
    makers: dict[int, dis.Instruction] = {}  # by depth: the last that left so many values
    for i in after:
        if i.opname in _CALLS and depth == i.arg:
            return [makers[n + 1] for n in range(depth)] if all(n + 1 in makers for n in range(depth)) else []
        if i.opname.startswith(_NOT_STRAIGHT):
            break
        depth += dis.stack_effect(i.opcode, i.arg) if i.opcode >= dis.HAVE_ARGUMENT else dis.stack_effect(i.opcode)
        makers[depth] = i
        if depth < 0:
            break
    return []


def _pattern_not_constant(instructions: list[dis.Instruction]) -> bool:
    """Is format() or format_map() asked of something that the code does not show? Patterns name attributes."""
    return any(
        i.opname in _ATTRIBUTE_READS
        and i.argval in ("format", "format_map", "vformat")
        and (before.opname != "LOAD_CONST" or not isinstance(before.argval, str))
        for before, i in itertools.pairwise(instructions)
    )


def global_names(code: types.CodeType) -> set[str]:
    """Names that the code, or code nested in it, looks up as globals (attribute names are not among them)."""
    names = set(reads(code).globals)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= global_names(constant)
    return names
