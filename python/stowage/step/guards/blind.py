"""What no guard can see, in plain words: functions of C whose answers change by themselves, and objects that keep their
state to themselves.

Where recorded Python used one of these, comparing what can be compared is not enough: the guard says so
(``Guard.blind``), and each call has to be checked in another way. Output (print, logging) must appear in each call;
messages of libraries, which come once, do not count.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

from stowage.step.guards.reads import PACKAGES, STANDARD_FOLDERS, is_library

# Functions of these modules, by what they do; None: all of them.
_CLOCK = {"time": None}
_FILES = {"_io": None, "io": None, "posix": None, "nt": None, "mmap": None, "select": None}
_ELSEWHERE = {
    "_socket": None,
    "_posixsubprocess": None,
    "_sqlite3": None,
    "_ctypes": None,
    "resource": None,
    "gc": None,
    "sys": {
        "getallocatedblocks",
        "getprofile",
        "getrecursionlimit",
        "getrefcount",
        "getswitchinterval",
        "gettrace",
        "is_finalizing",
        "_current_frames",
        "_getframe",
        "exc_info",
        "exception",
        "setrecursionlimit",
        "setswitchinterval",
        "set_int_max_str_digits",
    },
    "_locale": None,
    "_uuid": None,
    "_signal": {"getitimer", "getsignal", "signal", "setitimer", "alarm"},
    "faulthandler": {"is_enabled"},
    "_thread": {"start_new_thread", "start_joinable_thread", "get_ident"},
    "builtins": {"input", "breakpoint", "id", "hash"},
    "_multiprocessing": None,
}
# Those that Python's own library asks only on behalf of somebody (signal.getsignal, uuid.uuid1), ...
_ASKED_FOR = {"time", "_locale", "_signal", "_uuid", "resource"}
# ... but for its parts that wait, or note when something was.
_WAITERS = ("logging", "threading", "queue", "selectors", "subprocess", "socket", "asyncio", "concurrent", "multiprocessing",
            "sched", "importlib", "tempfile", "unittest", "warnings", "traceback", "contextlib", "random", "gzip", "zipfile",
            "tarfile", "http", "urllib", "ssl", "profile", "cProfile", "pdb", "bdb", "xmlrpc", "smtplib", "pathlib")  # fmt: skip
# Methods of objects of C that tell what those keep to themselves: by class, and whether it matters who asks.
_TELLING = {
    ("lock", "locked"): False,
    ("lock", "acquire"): False,
    ("RLock", "acquire"): False,
    ("RLock", "_is_owned"): False,
    ("Generator", "initial_seed"): True,
}
_HARMLESS = {
    "fspath",
    "getpid",
    "strerror",
    "WIFEXITED",
    "sleep",
    "register_at_fork",
    "urandom_",
    "cpu_count",
    "text_encoding",
    "collect",
    "path_normpath",
}
# They read files for messages or to load code.
_READERS = (
    "importlib",
    "linecache.py",
    "tokenize.py",
    "warnings.py",
    "logging",
    "traceback.py",
    "inspect.py",
    "<frozen importlib",
    "<frozen zipimport",
    "<frozen runpy",
    "_bootstrap",
)
_MEMORY_TAKEN = "asks how much memory is taken"
# What no replay can do, nor a call over shells: other streams wait for the step's kernels.
ORDERS_WORK = "uses streams or events of a device"
# Nor that: shells have no memory, and that of other tensors is behind until the step has been executed.
HANDS_OUT_MEMORY = "hands a tensor's memory to other libraries"
REACHES_MEMORY = "may read or write the memory of tensors by its address"
HANDS_TO_THREAD = "hands tensors to another thread"
NEVER_PLANNED = (ORDERS_WORK, HANDS_OUT_MEMORY, REACHES_MEMORY, HANDS_TO_THREAD)
# Of ctypes: functions that take an address, and ways to functions of C. And types of C whose objects stand for either
_BY_ADDRESS = ("memmove", "memset", "string_at", "wstring_at", "memoryview_at", "cast", "CDLL", "PyDLL", "cdll", "pydll", "pythonapi",
               "CFUNCTYPE", "PYFUNCTYPE")  # fmt: skip
_POINTERS = ("_ctypes.CFuncPtr", "_ctypes._Pointer", "_cffi_backend._CDataBase", "_cffi_backend.Lib")
# Packages whose C functions keep no state that their objects do not show, or none that matters to numbers.
_KNOWN_PACKAGES = {"torch", "numpy", "stowage", "nanobind", "builtins"} | set(sys.stdlib_module_names)
# Types of C whose objects never change, or whose changes change no number.
_QUIET_TYPES = {
    "builtin_function_or_method",
    "ellipsis",
    "NotImplementedType",
    "range",
    "re.Pattern",
    "re.Match",
    "_thread.lock",
    "_thread.RLock",
    "datetime.datetime",
    "datetime.date",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "code",
    "traceback",
    "frame",
    "PyCapsule",
    "_abc._abc_data",
    "_collections._tuplegetter",
    "_ctypes.CField",
    "types.GenericAlias",
    "types.UnionType",
    "ParamSpec",
    "TypeVar",
    "operator.itemgetter",
    "operator.attrgetter",
    "operator.methodcaller",
    "mappingproxy",
    "classmethod",
    "staticmethod",
    "property",
    "Struct",
    "_struct.Struct",
    "_contextvars.Token",
    "zoneinfo.ZoneInfo",
    "functools._lru_cache_wrapper",
    "_functools._lru_cache_wrapper",
    "Token",
}


def module_of(cls: type) -> str:
    """Of a class: some hide it, or answer with something else."""
    own = cls.__dict__.get("__module__")
    module = own if isinstance(own, str) else getattr(cls, "__module__", "")
    return module if isinstance(module, str) else ""


def type_name(cls: type) -> str:
    module = module_of(cls)
    return cls.__qualname__ if module in ("builtins", "") else f"{module}.{cls.__qualname__}"


def is_quiet(cls: type) -> bool:
    """Objects of this type of C need no watch."""
    name = type_name(cls)
    if name in _QUIET_TYPES or cls.__qualname__ in _QUIET_TYPES:
        return True
    # What pybind11 keeps of a function of C++ that it has bound is the function
    return module_of(cls).split(".")[0] in ("torch", "pybind11_builtins") and cls.__qualname__ not in ("Generator",)


def matters(function: Any) -> bool:
    """Does it matter who calls this C function, and on which object?"""
    if pickles(function):
        return True
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        module = getattr(function, "__module__", None) or getattr(owner, "__name__", None) or ""
        return bool(_kind_of_function(module, function.__name__)) or _unknown(module)
    if isinstance(owner, type):
        name = function.__name__
        return _clock_of_class(owner, name) or _takes_an_address(owner, name) or _unknown(module_of(owner))
    if (
        draws(owner)
        or _orders_work(owner)
        or _wakes(owner, function.__name__)
        or (type(owner).__name__, function.__name__) in _TELLING
    ):
        return True
    module = module_of(type(owner))
    return module in ("_io", "mmap", "_ctypes", "_socket") or _unknown(module)


def pickles(function: Any) -> bool:
    """It reads all attributes of what it is given."""
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or module_of(type(owner))
    return module == "_pickle" and function.__name__ in ("dump", "dumps")


def draws(owner: Any) -> bool:
    """A generator of random numbers whose memory tells its state."""
    random = sys.modules.get("_random")
    return random is not None and isinstance(owner, random.Random)


def why(function: Any, caller: types.CodeType) -> str:
    """Why a call of this C function cannot be seen through, or ""."""
    owner = getattr(function, "__self__", None)
    by_user = not is_library(caller)
    where = f"at {os.path.basename(caller.co_filename)}:{caller.co_firstlineno}"
    if owner is None or isinstance(owner, types.ModuleType):
        module = getattr(function, "__module__", None) or getattr(owner, "__name__", None) or ""
        kind = _kind_of_function(module, function.__name__)
        if kind == "reads files" and not any(part in caller.co_filename for part in _READERS):
            return f"{kind} ({module}.{function.__name__}) {where}"
        if kind and (
            by_user
            or kind in (_MEMORY_TAKEN, HANDS_OUT_MEMORY)
            or (module in _ASKED_FOR and _asks_for_somebody(caller))
        ):
            return f"{kind} ({module}.{function.__name__}) {where}"
        return (
            f"calls {module}.{function.__name__} of a C extension, whose state cannot be seen, {where}"
            if by_user and _unknown(module)
            else ""
        )
    if isinstance(owner, type):
        if by_user and _takes_an_address(owner, function.__name__):
            return f"{REACHES_MEMORY} ({owner.__name__}.{function.__name__}) {where}"
        if _clock_of_class(owner, function.__name__):
            return f"reads the clock ({owner.__name__}.{function.__name__}) {where}" if by_user else ""
        return (
            f"calls {owner.__name__}.{function.__name__} of a C extension, whose state cannot be seen, {where}"
            if by_user and _unknown(module_of(owner))
            else ""
        )
    if _orders_work(owner):
        return f"{ORDERS_WORK} ({type_name(type(owner))}.{function.__name__}) {where}"
    if by_user and _wakes(owner, function.__name__):  # what it is given cannot be seen
        return f"{HANDS_TO_THREAD} (SimpleQueue.{function.__name__}) {where}"
    if (by_anyone := _TELLING.get((type(owner).__name__, function.__name__))) is not None and (by_anyone or by_user):
        return f"asks what a {type(owner).__name__} keeps to itself ({function.__name__}) {where}"
    module = module_of(type(owner))
    if module in ("_io", "mmap", "_ctypes", "_socket"):
        by_logging = function.__name__ == "write" and os.sep + "logging" + os.sep in caller.co_filename
        return (
            f"uses a {type(owner).__name__} ({function.__name__}) {where}"
            if (by_user or by_logging) and function.__name__ != "flush"
            else ""
        )
    if by_user and _unknown(module):
        return (
            f"calls {type_name(type(owner))}.{function.__name__} of a C extension, whose state cannot be seen, {where}"
        )
    return ""


def reaches_memory(code: types.CodeType, globals_: dict) -> str:
    """Why this code, of the user's or what it has called, may pass PyTorch by; or ""."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is None:
        return ""
    if code in (ctypes.string_at.__code__, ctypes.wstring_at.__code__):
        return f"{REACHES_MEMORY} (ctypes.{code.co_name})"
    if is_library(code):
        return ""
    names = [name for name in _BY_ADDRESS if name in code.co_names]
    if not names or not ("ctypes" in code.co_names or any(globals_.get(name) is ctypes for name in code.co_names)):
        ways = {id(getattr(ctypes, name, None)): name for name in _BY_ADDRESS if hasattr(ctypes, name)}
        names = [ways[id(globals_[name])] for name in code.co_names if id(globals_.get(name)) in ways]
    if not names:
        return ""
    return f"{REACHES_MEMORY} (ctypes.{names[0]}) at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"


@functools.cache
def _links_to_torch(module_name: str) -> bool:
    try:
        with open(sys.modules[module_name].__file__ or "", "rb") as library:
            return b"libc10.so" in library.read()
    except (AttributeError, KeyError, OSError):
        return False


def knows_tensors(function: Any) -> bool:
    """A function of C of an extension that was built against PyTorch."""
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and _unknown(module) and _links_to_torch(module)


def stands_for_memory(value: Any, cls: type) -> bool:
    """A pointer, or a function of C that may take one: ``cls`` is its type of C. Not a function of ctypes whose declared
    arguments are too small for an address."""
    declared = getattr(value, "argtypes", None)
    small = ("c_int", "c_uint", "c_short", "c_ushort", "c_byte", "c_ubyte", "c_bool", "c_float", "c_double")
    return type_name(cls) in _POINTERS and (declared is None or any(kind.__name__ not in small for kind in declared))


def _takes_an_address(owner: type, name: str) -> bool:
    return name == "from_address" and module_of(type(owner)) == "_ctypes"


def _asks_for_somebody(caller: types.CodeType) -> bool:
    """Code of Python's own library that is called for what it answers."""
    place = caller.co_filename
    if not place.startswith(STANDARD_FOLDERS) or any(f"{os.sep}{name}{os.sep}" in place for name in PACKAGES):
        return False
    parts = place.removesuffix(".py").split(os.sep)
    return not any(name in parts for name in _WAITERS)


def _wakes(owner: Any, name: str) -> bool:
    """A thread that waits for what comes."""
    return type(owner).__name__ == "SimpleQueue" and name in ("put", "put_nowait")


def _orders_work(owner: Any) -> bool:
    """A stream or an event of a device."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(owner, (torch.Stream, torch.Event))


def _kind_of_function(module: str, name: str) -> str:
    if name in _HARMLESS:
        return ""
    if module == "torch._C" and any(word in name.lower() for word in ("memorystats", "devicestats", "memoryinfo")):
        return _MEMORY_TAKEN
    if module == "torch._C" and name in ("_to_dlpack", "_to_dlpack_versioned"):
        return HANDS_OUT_MEMORY
    if (module, name) == ("builtins", "print"):
        return "prints"
    if module == "_warnings" and name in ("warn", "warn_explicit"):
        return "warns"
    for kind, table in (
        ("reads the clock", _CLOCK),
        ("reads files", _FILES),
        ("reads what is outside Python", _ELSEWHERE),
    ):
        if module in table and ((names := table[module]) is None or name in names):
            return "starts a thread" if name.startswith("start_") else kind
    return ""


def _clock_of_class(owner: type, name: str) -> bool:
    return module_of(owner) == "datetime" and name in ("now", "utcnow", "today")


def _unknown(module: str) -> bool:
    return bool(module) and module.split(".")[0] not in _KNOWN_PACKAGES and module != "__main__"
