"""What guards watch, kind by kind: what the step draws, what it cannot see, what is PyTorch's own, and what is part of
a signature."""

import collections
import contextvars
import ctypes
import decimal
import fractions
import gc
import glob
import importlib
import inspect
import logging
import operator
import os
import pathlib
import random
import re
import signal
import string
import struct
import sys
import threading
import time
import types
import typing
import uuid
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from stowage._core import python_class, same_bits
from stowage._torch import private as torch_private
from stowage._torch import settings
from stowage.step.guards.blind import is_quiet, type_name
from stowage.step.guards.kinds import how_to_enter
from stowage.step.guards.objects import enter_object
from stowage.step.reach.world import World
from stowage.step.signature.signature import difference, signature


def watched(fn, *args):
    """The world of ``fn`` after one noted call."""
    fn(*args)
    world = World(fn)
    with world.noting():
        fn(*args)
    world.settle()
    return world


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: random.gauss(0, 1),
        lambda: random.choice([1, 2]),
        lambda: random.shuffle([1, 2, 3]),
        np.random.rand,
        lambda: np.random.randint(3),
    ],
)
def test_a_step_that_draws_is_told(draw):
    """Planned calls would draw nothing: the state itself is what the step changes and reads."""

    def step():
        return draw()

    changes = watched(step).changes
    assert "random generator" in changes or "gauss_next" in changes


def test_generators_that_are_not_drawn_from_are_no_matter():
    generator = random.Random(1)

    def step():
        return 0.5 if generator else 0.25

    world = watched(step)
    assert world.changes == ""
    random.random()
    np.random.rand()
    generator.random()
    assert world.guard.changed() == ""


def test_a_numpy_generator_of_its_own():
    generator = np.random.default_rng(3)

    def step():
        return generator.random()

    assert "generator" in watched(step).changes


def read_clock():
    return time.time()


def read_file():
    with open(__file__) as file:
        return file.read(1)


def made():
    yield from range(1000)


class Held:
    scale = 1.0


HOLDERS = {"alone": Held()}
REFERENCE = weakref.ref(HOLDERS["alone"])


def outer():
    scale = 1.0
    return lambda: scale


_CLOSED = outer()


def warned():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("mine", stacklevel=1)


_GENERATOR = made()
_LOCK = threading.Lock()
_POINTER = ctypes.pointer(ctypes.c_double(1.0))


@pytest.mark.parametrize(
    "read,why",
    [
        (read_clock, "clock"),
        (read_file, "files"),
        (lambda: gc.isenabled(), "outside Python"),
        (lambda: sys.getrecursionlimit(), "outside Python"),
        (lambda: next(_GENERATOR), "made"),
        (lambda: _POINTER.contents.value, "state to itself"),
        (lambda: _LOCK.locked(), "keeps to itself"),
        (lambda: threading.Lock().acquire(blocking=False), "keeps to itself"),
        (lambda: threading.RLock().acquire(), "keeps to itself"),
        (lambda: torch.initial_seed(), "keeps to itself"),
        (lambda: signal.getsignal(signal.SIGINT), "outside Python"),  # a function of Python's library asks
        (lambda: uuid.uuid1(), "outside Python"),
        (lambda: sys._getframe().f_back, "outside Python"),
        (warned, "warns"),
        (lambda: os.path.exists(__file__), "files"),  # Python's library asks, and is frozen
        (lambda: os.path.getsize(__file__), "files"),
        (lambda: os.path.isdir(__file__), "files"),
        (lambda: pathlib.Path(__file__).exists(), "files"),
        (lambda: glob.glob(__file__), "files"),
        (lambda: globals()["_" + "CLOSED"], "globals"),
        (lambda: _CLOSED.__closure__[0].cell_contents, "cell_contents"),
        (lambda: outer.__globals__["_" + "CLOSED"], "__globals__"),
        (lambda: inspect.currentframe().f_back, "currentframe"),
        (lambda: REFERENCE().scale, "weak references alone"),
    ],
)
def test_what_cannot_be_seen_is_said(read, why):
    def step():
        return read()

    assert any(why in reason for reason in watched(step).guard.blind), watched(step).guard.blind


_CONTEXT, _VARIABLE = contextvars.copy_context(), contextvars.ContextVar("variable", default=1.0)
_CONTEXT.run(_VARIABLE.set, 1.0)
_HANDLER = logging.Handler()
_ONES, _THIRD = np.ones(3), decimal.Decimal(1) / 3
ABOVE, LOGGER = logging.getLogger("stowage-test.above"), logging.getLogger("stowage-test.above.inner")
ALONE = logging.Logger("alone")
ALONE.addHandler(logging.NullHandler())


def _add_a_handler():
    ALONE.addHandler(_HANDLER)
    return lambda: ALONE.removeHandler(_HANDLER)


def _set(set_to, now, new):
    def change():
        before = now()
        set_to(new)
        return lambda: set_to(before)

    return change


def _level(logger):
    return _set(logger.setLevel, lambda: logger.level, logging.DEBUG)


def _attribute(of, name, new):
    return _set(lambda value: setattr(of(), name, value), lambda: getattr(of(), name), new)


def _divided():
    return float(np.float64(1.0) / 3)


def _seterr():
    before = np.seterr(all="raise")
    return lambda: np.seterr(**before)


SETTINGS = {
    "decimal's precision": (
        lambda: float(decimal.Decimal(1) / 7),
        _attribute(decimal.getcontext, "prec", 5),
    ),
    "decimal's rounding, of numbers that are there": (
        lambda: float(_THIRD * 7),
        _attribute(decimal.getcontext, "rounding", decimal.ROUND_UP),
    ),
    "numpy's errors": (_divided, _seterr),
    "numpy's errors, of arrays that are there": (lambda: float((_ONES / 3).sum()), _seterr),
    "a context": (
        lambda: _CONTEXT.get(_VARIABLE, 0.0),
        _set(lambda v: _CONTEXT.run(_VARIABLE.set, v), lambda: 1.0, 2.0),
    ),
    "the level of a logger above": (
        lambda: LOGGER.isEnabledFor(logging.INFO),
        _level(ABOVE),
    ),
    "all loggers": (
        lambda: LOGGER.isEnabledFor(logging.ERROR),
        _set(logging.disable, lambda: logging.NOTSET, logging.CRITICAL),
    ),
    "a level above, of a logger that the step asks for": (
        lambda: logging.getLogger("stowage-test.above.inner").isEnabledFor(logging.INFO),
        _level(ABOVE),
    ),
    "a handler": (lambda: ALONE.warning("told"), _add_a_handler),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_what_c_and_loggers_keep_is_watched(what):
    read, change = SETTINGS[what]

    def step():
        return read()

    world = watched(step)
    assert world.guard.blind == [], world.guard.blind
    assert world.guard.changed() == ""
    back = change()
    assert world.guard.changed() != ""
    back()
    assert world.guard.changed() == ""


class Inner:
    scale = 1.0


class Outer:
    def __init__(self):
        self.scale, self.inner, self.pattern = 1.0, Inner(), "{0.inner.scale}"

    def scaled(self, by=2.0):
        return self.inner.scale * by


@pytest.mark.parametrize(
    "read",
    [
        (operator.attrgetter("inner.scale"), lambda o, get: get(o)),
        (operator.methodcaller("scaled", by=3.0), lambda o, get: get(o)),
        (operator.methodcaller("scaled"), lambda o, get: list(map(get, [o]))),
        ("{0.inner.scale}", lambda o, text: text.format(o)),
        (string.Formatter(), lambda o, formatter: formatter.vformat(o.pattern, (o,), {})),
    ],
    ids=["attrgetter", "methodcaller with keywords", "methodcaller", "format", "vformat"],
)
def test_attributes_whose_names_no_code_shows(read):
    """They lie in an object of C, or in a text that is made elsewhere."""
    held, outer = read[0], Outer()
    call = read[1]

    def step():
        return call(outer, held)

    world = watched(step)
    assert not (world.guard.changed() or world.guard.blind)
    outer.inner.scale = 2.0
    assert "outer.inner" in world.guard.changed()


def test_modules_that_are_not_there_yet():
    """A step may ask whether a module has been imported."""
    world = watched(lambda: "stowage_imported_later" in sys.modules)
    assert not world.guard.changed()
    sys.modules["stowage_imported_later"] = string
    try:
        assert "stowage_imported_later" in world.guard.changed()
    finally:
        del sys.modules["stowage_imported_later"]


def test_how_long_numbers_are_as_text_is_a_setting():
    if not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("from Python 3.11 on")
    before, limit = signature((), {})[0], sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(limit + 1000)
    try:
        assert "longest numbers as text" in difference(before, signature((), {})[0])
    finally:
        sys.set_int_max_str_digits(limit)


def test_an_array_too_large_to_compare():
    array = np.zeros(10_000_000, np.uint8)

    def step():
        return float(array[0])

    assert any("'array' is an array of 10000000 bytes" in reason for reason in watched(step).guard.blind)


def test_what_the_step_changes_is_told():
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x

    net = Counting()
    assert "net.calls" in watched(lambda: net(1)).changes


class Named(typing.NamedTuple):
    rate: float = 0.5


OLD = collections.namedtuple("OLD", "rate")(0.5)
MADE_ONCE = {
    "named tuple": lambda: Named().rate,
    "old named tuple": lambda: OLD.rate,
    "another named tuple": lambda: Named()._replace(rate=2.0).rate,
    "enumeration": lambda: inspect.Parameter.KEYWORD_ONLY.value,
    "slots": lambda: fractions.Fraction(1, 2).numerator,
    "function of NumPy": lambda: float(np.mean([1.0, 2.0])),
    "ufunc": lambda: float(np.exp(0.5)),
    "itemgetter": lambda: operator.itemgetter(0)((2.0,)),
    "pattern": lambda: len(re.sub("a", "b", "aa")),
    "struct": lambda: struct.unpack("<f", struct.pack("<f", 2.0))[0],
}


@pytest.mark.parametrize("read", MADE_ONCE)
def test_what_never_changes_hides_nothing(read):
    """Planned calls need no Python for it."""
    assert watched(MADE_ONCE[read]).guard.blind == []


MODULES = """argparse array ast bisect calendar collections colorsys contextlib contextvars copy csv ctypes dataclasses
    datetime decimal difflib enum fractions functools heapq importlib inspect io ipaddress itertools json logging math
    numbers operator os pathlib pickle platform pprint queue random re shutil socket statistics string struct subprocess
    sys tempfile textwrap threading time tokenize traceback types typing unittest uuid warnings weakref zoneinfo"""


def test_nothing_in_the_classes_of_the_standard_library_hides_something():
    """Kinds of C whose objects lie in classes. Those that are built in and those of itertools are watched."""
    hidden = set()
    for module in map(importlib.import_module, MODULES.split()):
        for cls in [v for v in vars(module).values() if isinstance(v, type)]:
            for value in cls.__dict__.values():
                kind = type(value)
                if not python_class(kind) and how_to_enter(kind) is enter_object and not is_quiet(kind):
                    hidden.add(type_name(kind))
    assert {kind for kind in hidden if "." in kind and not kind.startswith("itertools.")} <= {"Token.MISSING"}


def test_names_that_nobody_reads_are_no_matter():
    class Log:
        def __init__(self):
            self.scale = 2.0
            self.history = []

    log = Log()

    def step():
        return log.scale

    world = watched(step)
    log.history.append(1)
    log.note = "x"
    assert world.guard.changed() == ""
    log.scale = 2
    assert world.guard.changed() == "'log.scale'"


@pytest.mark.parametrize(
    "a,b",
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ("a", b"a"),
        ((2,), (2.0,)),
        ((0.0, (1,)), (-0.0, (1,))),
        (0j, -0j),
        (None, False),
        (float("nan"), -float("nan")),
        (np.float32(1), np.float64(1)),
        (frozenset({1}), frozenset({True})),
        (slice(1), slice(True)),
    ],
)
def test_bits_and_types_tell_values_apart(a, b):
    assert not same_bits(a, b) and not same_bits(b, a)
    assert same_bits(a, a)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 1e300 * 7,
        lambda: "ab" * 40,
        lambda: (1.5, (2, "x")),
        lambda: 2**80,
        lambda: b"x" * 9,
        lambda: complex(1, 2),
        lambda: np.float64(3),
    ],
)
def test_equal_values_are_the_same(make):
    assert same_bits(make(), make())


@pytest.mark.parametrize(
    "a,b", [(0.0, -0.0), ((2,), (2.0,)), ({1: 2}, {True: 2}), ({"k": [1]}, {"k": (1,)}), (1, True), ("a", b"a")]
)
def test_signatures_tell_values_apart(a, b):
    first, second = signature((a,), {})[0], signature((b,), {})[0]
    assert first != second and first == signature((a,), {})[0]
    assert len({first, second, signature((a,), {})[0]}) == 2


def test_a_nan_is_the_argument_that_it_was():
    key = signature((float("nan"),), {})[0]
    assert key == signature((float("nan"),), {})[0] and hash(key) == hash(signature((float("nan"),), {})[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.conj(),
        lambda t: t.real,
        lambda t: t.clone().requires_grad_(),
        lambda t: nn.Parameter(t, requires_grad=False),
    ],
)
def test_signatures_tell_tensors_apart(change):
    t = torch.zeros(3, dtype=torch.complex64)
    assert signature((t,), {})[0] != signature((change(t),), {})[0]


def test_a_negative_bit_belongs_to_the_signature():
    t = torch.zeros(3, dtype=torch.complex64)
    assert signature((t.imag,), {})[0] != signature((t.conj().imag,), {})[0]


SWITCHES = {
    "flash attention": (
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        lambda: torch.backends.cuda.enable_flash_sdp(True),
    ),
    "math attention": (
        lambda: torch.backends.cuda.enable_math_sdp(False),
        lambda: torch.backends.cuda.enable_math_sdp(True),
    ),
    "precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "oneDNN": (
        lambda: setattr(torch.backends.mkldnn, "enabled", False),
        lambda: setattr(torch.backends.mkldnn, "enabled", True),
    ),
    "oneDNN deterministic": (
        lambda: setattr(torch.backends.mkldnn, "deterministic", True),
        lambda: setattr(torch.backends.mkldnn, "deterministic", False),
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "fill": (
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", True),
    ),
    "default device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True), lambda: torch.autograd.set_detect_anomaly(False)),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.set_autocast_enabled("cpu", False)),
    "autocast of other devices": (
        lambda: torch.set_autocast_enabled("cuda", True),
        lambda: torch.set_autocast_enabled("cuda", False),
    ),
    "autocast's type": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.set_autocast_dtype("cpu", torch.bfloat16),
    ),
    "autocast's cache": (
        lambda: torch.set_autocast_cache_enabled(False),
        lambda: torch.set_autocast_cache_enabled(True),
    ),
    "threads": (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
    "gradients": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "saved tensors": (
        lambda: torch._C._autograd._push_saved_tensors_default_hooks(_pack, _pack),
        lambda: torch._C._autograd._pop_saved_tensors_default_hooks(),
    ),
}


def _pack(t):
    return t


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_belong_to_the_signature(name):
    t = torch.zeros(3)
    before = signature((t,), {})[0]
    assert before == signature((t,), {})[0]
    on, off = SWITCHES[name]
    on()
    try:
        changed = signature((t,), {})[0]
    finally:
        off()
    assert changed != before and "a global setting" in difference(before, changed)
    assert signature((t,), {})[0] == before or name == "precision"  # which sets more than it resets


def test_settings_have_the_names_that_stowage_knows():
    missing = [name for name in settings.SETTINGS if not hasattr(torch._C, name)]
    assert missing == []
    assert len(settings.global_state()) == len(settings.setting_names())
    assert len(torch_private.global_hooks()) >= 11  # of modules and of optimizers
    assert all(isinstance(hooks, dict) for hooks in torch_private.global_hooks())


def test_hooks_of_tensors_lie_in_their_memory():
    """A guard compares the fixed part of a tensor's object: it changes when hooks come."""
    t = torch.zeros(3, requires_grad=True)
    world = watched(lambda: t.sum())
    assert world.guard.changed() == ""
    handle = t.register_hook(lambda grad: grad)
    assert "hooks of 't'" in world.guard.changed()
    handle.remove()


def test_a_profile_function_of_somebody_else_is_called_on():
    import sys

    seen = []

    def step():
        return 1

    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    try:
        world = World(step)
        with world.noting():
            step()
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert "step" in seen


def test_an_exception_of_the_step_passes_and_the_notes_end():
    def step():
        raise ValueError("of the step")

    import sys

    world = World(step)
    with pytest.raises(ValueError, match="of the step"), world.noting():
        step()
    assert sys.getprofile() is None


BASES = {
    "list": [], "dict": [], "int": [], "str": [], "tuple": [], "set": [], "bytes": [], "complex": [], "bytearray": [],
    "collections.deque": [], "collections.OrderedDict": [], "collections.Counter": [], "collections.UserDict": [],
    "types.SimpleNamespace": [], "types.ModuleType": ["name"], "threading.local": [], "random.Random": [],
    "fractions.Fraction": [], "decimal.Decimal": [], "property": [], "type": ["Q", (), {}], "ValueError": [],
    "string.Template": [""], "pathlib.PurePosixPath": [], "logging.Handler": [], "weakref.WeakKeyDictionary": [],
    "torch.Generator": [], "torch.Tensor": [], "nn.Parameter": [], "nn.Module": [], "nn.Sequential": [],
    "torch.nn.ParameterList": [], "torch.utils.data.Dataset": [], "torch.amp.GradScaler": ["cpu"],
}  # fmt: skip


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("change", ["attribute", "attribute that a method reads", "method"])
def test_classes_derived_from_any(base, change):
    """What is read of an object may be its class's."""
    kind = type("Derived", (eval(base),), {"scale": 1, "scaled": lambda self: self.scale})
    held = types.SimpleNamespace(object=kind(*BASES[base]), model=nn.Linear(2, 1))
    if change == "attribute":
        world = watched(lambda x: held.model(x) * held.object.scale, torch.ones(2))
    else:
        world = watched(lambda x: held.model(x) * held.object.scaled(), torch.ones(2))
    assert not world.guard.changed() and not world.guard.blind
    if change == "method":
        kind.scaled = lambda self: 2
    else:
        kind.scale = 2
    assert world.guard.changed()
