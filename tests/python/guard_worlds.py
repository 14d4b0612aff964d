"""Random worlds of Python state for the guards: where a number lies, how the step reads it, and one change (or none).

A world is source code. A leaf value lies in a chain of holders (lists, slots, closures, classes, weak references, ...),
each with an expression that makes it, some that read it and some statements that change it:

    root (a global, a closure, a default, another module, ...)  ->  holder  ->  holder  ->  leaf

The chain is read by a function that runs in the step itself, in a called function of another module, in forward, in a
hook, in a comprehension or as a callback. What is read becomes a number (num) that the step's result depends on.
``python guard_worlds.py SEED COUNT`` tries worlds without planning: thousands a minute. All that is random comes from
the seed."""

from __future__ import annotations

import random
import struct
import sys
import textwrap
import types
import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

# ---- What a leaf is to the step: a number that differs whenever a bit or a type does


def token(value) -> bytes:
    kind = type(value)
    if kind is float:
        return b"f" + struct.pack("d", value)
    if kind is complex:
        return b"c" + struct.pack("dd", value.real, value.imag)
    if kind in (tuple, list):
        return kind.__name__.encode() + b"(" + b",".join([token(v) for v in value]) + b")"
    if kind in (set, frozenset):
        return b"s" + b",".join(sorted([token(v) for v in value]))
    if kind is dict:
        return b"d" + b",".join([token(k) + b":" + token(v) for k, v in value.items()])
    if kind in (bytearray, memoryview):
        return b"b" + bytes(value)
    if hasattr(value, "tobytes"):
        return str(getattr(value, "dtype", getattr(value, "typecode", ""))).encode() + value.tobytes()
    if callable(value):
        return b"()" + token(value())
    return kind.__name__.encode() + repr(value).encode()


def num(value) -> float:
    return 0.5 + zlib.crc32(token(value)) / 2**32


# ---- Leaves: source of a value, and of one that differs (sometimes only in a bit or a type)

LEAVES = [
    ("1.5", "2.5"),
    ("0.0", "-0.0"),
    ("1", "True"),
    ("1", "1.0"),
    ("'a'", "'b'"),
    ("'a'", "b'a'"),
    ("(2,)", "(2.0,)"),
    ("None", "0"),
    ("3", "4"),
    ("2**70", "2**70 + 1"),
    ("1j", "-1j"),
    ("complex(0.0, 0.0)", "complex(0.0, -0.0)"),
    ("(1, (0.0,))", "(1, (-0.0,))"),
    ("float('nan')", "-float('nan')"),
    ("frozenset({1})", "frozenset({2})"),
    ("torch.float32", "torch.float64"),
    ("np.float32(1)", "np.float32(2)"),
    ("np.float64(0.0)", "np.float64(-0.0)"),
    ("torch.Size([2])", "torch.Size([3])"),
    ("Color.RED", "Color.BLUE"),
    ("range(3)", "range(4)"),
    ("slice(1, 2)", "slice(1, 3)"),
    ("lambda: 1.0", "lambda: 2.0"),
    ("float('inf')", "-float('inf')"),
    ("5e-324", "0.0"),
    ("'x' * 300", "'x' * 299 + 'y'"),
    ("Fraction(1, 3)", "Fraction(1, 4)"),
    ("Decimal('1.0')", "Decimal('1.00')"),
]
# Leaves that change in place: source, statements that change them.
MUTABLE = [
    (
        "[1.0, 2.0]",
        ["E[0] = 3.0", "E.append(1)", "E.pop()", "E.reverse()", "E[0] = 1", "E.clear()", "del E[:1]", "E += [2]"],
    ),
    (
        "{'x': 1.0, 'y': 2.0}",
        [
            "E['x'] = 5.0",
            "E['z'] = 1",
            "del E['y']",
            "E['x'] = E.pop('x')",
            "E.clear()",
            "E.update(x=-1)",
            "E |= {'q': 1}",
        ],
    ),
    ("{1, 2, 3}", ["E.add(9)", "E.discard(2)", "E.clear()", "E ^= {1}"]),
    ("bytearray(b'abc')", ["E[0] = 1", "E.append(1)"]),
    ("np.array([1.0, 2.0])", ["E[0] = 7.0", "E *= -1", "E.sort(); E[1] = 9"]),
    ("np.zeros((3, 4))[:, ::2]", ["E[0, 1] = 7.0", "E[...] = -0.0"]),
    ("np.zeros(70000, np.uint8)", ["E[69999] = 1", "E[0] = 1"]),
    ("array.array('d', [1.0])", ["E[0] = -1.0"]),
    ("[[1.0], [2.0]]", ["E[0][0] = 3.0", "E[1] = [4.0]"]),
    ("[{'x': {1: [0.0]}}]", ["E[0]['x'][1][0] = -0.0", "E[0]['x'][2] = 1"]),
    ("memoryview(bytearray(b'abcd'))", ["E[1] = 0"]),
]


@dataclass(frozen=True)
class Holder:
    """``make``: V is the source of what it holds. ``read``: E is the holder. ``write``: statements over E, V is the new
    content."""

    name: str
    make: str
    read: tuple[str, ...]
    write: tuple[str, ...] = ()


_ATTRIBUTE = (
    "E.a",
    "getattr(E, 'a')",
    "getattr(E, 'a', None)",
    "operator.attrgetter('a')(E)",
    "getattr(E, ATTR)",
    "[E.a for _ in (1,)][0]",
    "(lambda o: o.a)(E)",
    "next(E.a for _ in (1,))",
    "MATCH(E)",
    "list(map(lambda o: o.a, [E]))[0]",
    "take_a(E)",
    "other.take_a(E)",
    "max([E], key=id).a",
    "reduce(lambda p, q: q.a, [0, E])",
)
_OWN_DICT = (
    *_ATTRIBUTE,
    "E.__dict__['a']",
    "vars(E)['a']",
    "copy.copy(E).a",
    "dict(vars(E))['a']",
    "{k: v for k, v in vars(E).items()}['a']",
)
_SET = ("E.a = V", "setattr(E, 'a', V)", "del E.a; E.a = V", "object.__setattr__(E, 'a', V)")
_SET_DICT = (
    *_SET,
    "E.__dict__['a'] = V",
    "E.__dict__.update(a=V)",
    "E.__dict__ = {'a': V}",
    "vars(E).clear(); E.a = V",
)
_ITEM = (
    "E['k']",
    "E.get('k')",
    "list(E.values())[0]",
    "[*E.items()][0][1]",
    "operator.itemgetter('k')(E)",
    "{**E}['k']",
    "next(iter(E.values()))",
)
_SET_ITEM = ("E['k'] = V", "E.update(k=V)", "E.clear(); E['k'] = V", "E.pop('k'); E.setdefault('k', V)")
_CALL = ("E()", "[f() for f in (E,)][0]", "call(E)")

HOLDERS = [
    Holder("object", "Obj(V)", _OWN_DICT, (*_SET_DICT, "E.__class__ = Doubled")),
    Holder("slots", "Slots(V)", _ATTRIBUTE, _SET),
    Holder("slots of a base", "SlotsChild(V)", _ATTRIBUTE, _SET),
    Holder(
        "dataclass",
        "Data(V)",
        (*_OWN_DICT, "dataclasses.replace(E).a", "dataclasses.astuple(Data(1)) and E.a"),
        _SET_DICT,
    ),
    Holder(
        "slotted dataclass",
        "DataSlots(V)",
        (*_ATTRIBUTE, "[getattr(E, f.name) for f in dataclasses.fields(E)][0]"),
        _SET,
    ),
    Holder("frozen dataclass", "Frozen(V)", _ATTRIBUTE, ("object.__setattr__(E, 'a', V)",)),
    Holder("namespace", "types.SimpleNamespace(a=V)", _OWN_DICT[:14], ("E.a = V", "E.__dict__['a'] = V")),
    Holder("argparse", "argparse.Namespace(a=V)", _OWN_DICT, _SET),
    Holder(
        "list",
        "[0, V]",
        (
            "E[1]",
            "E[-1]",
            "[*E][1]",
            "list(reversed(E))[0]",
            "(lambda p, q: q)(*E)",
            "E[1:][0]",
            "next(itertools.islice(E, 1, 2))",
        ),
        ("E[1] = V", "E[:] = [0, V]", "E.pop(); E.append(V)"),
    ),
    Holder("dict", "{'k': V}", _ITEM, _SET_ITEM),
    Holder("dict by object", "{KEY: V}", ("E[KEY]",), ("E[KEY] = V",)),
    Holder("ordered", "collections.OrderedDict(k=V)", _ITEM, _SET_ITEM),
    Holder(
        "order",
        "collections.OrderedDict(k=V, z=0)",
        ("next(iter(E.values()))",),
        ("E['k'] = V", "E.move_to_end('k')", "E['k'] = V; E.move_to_end('z', last=False)"),
    ),
    Holder("default dict", "collections.defaultdict(int, k=V)", _ITEM, _SET_ITEM),
    Holder("user dict", "collections.UserDict(k=V)", _ITEM[:4], _SET_ITEM[:3]),
    Holder("chain map", "collections.ChainMap({}, {'k': V})", _ITEM[:2], ("E['k'] = V", "E.maps[1]['k'] = V")),
    Holder("proxy", "types.MappingProxyType({'k': V, 'self': None})", _ITEM[:2], ()),
    Holder(
        "deque",
        "collections.deque([V])",
        ("E[0]", "[*E][0]", "next(iter(E))"),
        ("E[0] = V", "E.appendleft(V)", "E.pop(); E.append(V)"),
    ),
    Holder("tuple", "(0, V)", ("E[1]", "E[-1]", "[x for x in E][1]")),
    Holder("named tuple", "Named(V)", ("E.a", "E[0]", "E._asdict()['a']")),
    Holder("closure", "closed(V)", _CALL, ("E.__closure__[0].cell_contents = V", "E.set(V)")),
    Holder("default", "defaulted(V)", _CALL, ("E.__defaults__ = (V,)",)),
    Holder("keyword default", "kwdefaulted(V)", _CALL, ("E.__kwdefaults__ = {'x': V}", "E.__kwdefaults__['x'] = V")),
    Holder(
        "function attribute",
        "with_attribute(V)",
        ("E.a", "getattr(E, 'a')", "E.__dict__['a']"),
        ("E.a = V", "E.__dict__['a'] = V"),
    ),
    Holder("constant code", "closed(V)", _CALL, ("E.__code__ = other_code(E)", "E.set(V)")),
    Holder("partial", "functools.partial(same, V)", _CALL, ("E.__setstate__((same, (V,), {}, {}))",)),
    Holder("partial keywords", "functools.partial(same, x=V)", _CALL, ("E.keywords['x'] = V",)),
    Holder("bound method", "Obj(V).get", _CALL, ("E.__self__.a = V",)),
    Holder("property", "Prop(V)", ("E.p", "getattr(E, 'p')"), ("E._a = V", "E.p = V")),
    Holder(
        "cached property", "CachedProp(V)", ("E.p",), ("E.__dict__['p'] = V", "E.__dict__.pop('p', None); E._a = V")
    ),
    Holder("descriptor", "Described(V)", ("E.d",), ("E.d = V", "E.__dict__['_d'] = V")),
    Holder(
        "__getattr__",
        "Fallback(V)",
        ("E.a", "getattr(E, 'a')", "E.anything"),
        ("E._content['a'] = V; E._content['anything'] = V", "E.a = V; E.anything = V"),
    ),
    Holder("__getattribute__", "Intercepting(V)", ("E.a", "E.alias"), ("E.__dict__['real'] = V",)),
    Holder("__getitem__", "Indexed(V)", ("E[0]", "E['k']", "next(iter(E))"), ("E.content = V",)),
    Holder("__call__", "Called(V)", _CALL, ("E.content = V",)),
    Holder("__len__", "Called(V)", _CALL, ("E.content = V",)),
    Holder(
        "class attribute",
        "type('C', (), {'a': V})",
        ("E.a", "getattr(E, 'a')", "E().a", "E.__dict__['a']", "vars(E)['a']"),
        ("E.a = V", "setattr(E, 'a', V)", "type.__setattr__(E, 'a', V)"),
    ),
    Holder(
        "inherited",
        "type('C', (type('B', (), {'a': V}),), {})",
        ("E.a", "E().a", "getattr(E(), 'a')", "super(E, E()).a"),
        ("E.a = V", "E.__bases__[0].a = V", "E.__bases__ = (type('D', (), {'a': V}),)"),
    ),
    Holder(
        "instance of inherited",
        "type('C', (type('B', (), {'a': V}),), {})()",
        ("E.a", "getattr(E, 'a', 0)"),
        ("E.a = V", "type(E).a = V", "type(E).__bases__[0].a = V", "type(E).__bases__ = (type('D', (), {'a': V}),)"),
    ),
    Holder(
        "class method",
        "type('C', (), {'b': V, 'get': classmethod(lambda cls: cls.b)})",
        ("E.get()", "E().get()"),
        ("E.b = V", "E.get = classmethod(lambda cls: V)", "E.get = staticmethod(lambda: V)"),
    ),
    Holder("metaclass", "Meta('C', (), {})._with(V)", ("E.of_meta",), ("type(E).content[E] = V",)),
    Holder("slotted class attribute", "type('C', (), {'__slots__': (), 'a': V})()", ("E.a",), ("type(E).a = V",)),
    Holder(
        "method",
        "type('C', (), {'get': lambda self: self.b, 'b': V})()",
        ("E.get()",),
        ("type(E).b = V", "type(E).get = lambda self: V", "E.get = lambda: V"),
    ),
    Holder("weak reference", "weak(V)", ("E().a",), ("E().a = V",)),
    Holder("weak values", "weak_values(V)", ("E['k'].a",), ("E['k'].a = V", "E['k'] = keep(Obj(V))")),
    Holder("weak keys", "weak_keys(V)", ("E[KEY]",), ("E[KEY] = V",)),
    Holder("context variable", "context(V)", ("E.get()",), ("E.set(V)",)),
    Holder("thread local", "local(V)", ("E.a", "E.__dict__['a']"), ("E.a = V",)),
    Holder("enumeration", "enum_with(V)", ("E.X.a", "E['X'].a"), ("E.X.a = V",)),
    Holder(
        "module",
        "module_with(V)",
        ("E.a", "getattr(E, 'a')", "E.__dict__['a']", "vars(E)['a']"),
        ("E.a = V", "E.__dict__['a'] = V"),
    ),
    Holder("module function", "module_with_function(V)", ("E.get()",), ("E.a = V", "E.get = lambda: V")),
    Holder(
        "nn.Module", "net_with(V)", ("E.a", "getattr(E, 'a')", "E.__dict__['a']"), ("E.a = V", "E.__dict__['a'] = V")
    ),
    Holder(
        "nn.Sequential",
        "nn.Sequential(net_with(V))",
        ("E[0].a", "[m for m in E][0].a", "list(E.children())[0].a", "getattr(E, '0').a"),
        ("E[0].a = V", "E[0] = net_with(V)", "E._modules['0'] = net_with(V)"),
    ),
    Holder(
        "nn.ModuleDict", "nn.ModuleDict({'k': net_with(V)})", ("E['k'].a",), ("E['k'].a = V", "E['k'] = net_with(V)")
    ),
    Holder("tensor attribute", "tensor_with(V)", ("E.a", "getattr(E, 'a')"), ("E.a = V",)),
    Holder("list subclass", "MyList([0], V)", ("E.a", "getattr(E, 'a')"), ("E.a = V",)),
    Holder("dict subclass", "MyDict(k=V)", ("E['k']", "E.k"), ("E['k'] = V",)),
    Holder("tuple subclass", "MyTuple([0], V)", ("E.a",), ("E.a = V",)),
    Holder("str subclass", "MyStr('x', V)", ("E.a",), ("E.a = V",)),
    Holder("int subclass", "MyInt(3, V)", ("E.a",), ("E.a = V",)),
    Holder("exception", "MyError(V)", ("E.args[0]",), ("E.args = (V,)",)),
    Holder("exception attribute", "MyError(V)", ("E.a",), ("E.a = V",)),
    Holder("array subclass", "MyArray.of(V)", ("E.a",), ("E.a = V",)),
    Holder("cached function", "cached(V)", _CALL, ("E.cache_clear(); E.source[0] = V",)),
    Holder("wrapped", "wrapped(V)", _CALL, ("E.__wrapped__.__closure__[0].cell_contents = V",)),
    Holder("dispatch", "dispatched(V)", ("E(1)",), ("E.register(int, lambda x: V)",)),
    Holder("string io", "Reader(V)", ("E.content()",), ("E.data[0] = V",)),
    Holder("private", "Private(V)", ("E.get()",), ("E._Private__a = V",)),
    Holder("object array", "object_array(V)", ("E[0]",), ("E[0] = V",)),
    Holder("count", "Counting(V)", ("E.read()",), ("E.inner.append(V)",)),
    Holder(
        "operator",
        "Adding(V)",
        ("(E + 1)", "(-E)"),
        ("E.a = V", "type(E).__add__ = lambda s, o: V; type(E).__neg__ = lambda s: V"),
    ),
    Holder("with", "Entering(V)", ("entered(E)",), ("E.a = V",)),
    Holder("iterable", "Iterating(V)", ("[*E][0]", "next(iter(E))", "(lambda x: x)(*E)"), ("E.a = V",)),
    Holder("generator method", "Iterating(V)", ("[*E.each()][0]",), ("E.a = V",)),
    Holder("contains", "[V, V]", ("E[0]",), ("E[0] = V",)),
]

PRELUDE = """
import argparse, array, builtins, collections, contextlib, contextvars, copy, dataclasses, enum, functools, itertools, operator, threading, types, weakref
from decimal import Decimal
from fractions import Fraction
from functools import reduce
import numpy as np
import torch
from torch import nn
ATTR = "a"
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Obj:
    def __init__(self, a): self.a = a
    def get(self): return self.a
class Doubled(Obj):
    a = property(lambda self: (2, self.__dict__["a"]), lambda self, v: self.__dict__.__setitem__("a", v))
KEY = Obj(0)
class Slots:
    __slots__ = ("b", "a", "__weakref__")
    def __init__(self, a): self.a = a
class SlotsChild(Slots):
    __slots__ = ("c",)
@dataclasses.dataclass
class Data: a: object = None
@dataclasses.dataclass(slots=True)
class DataSlots: a: object = None
@dataclasses.dataclass(frozen=True)
class Frozen: a: object = None
Named = collections.namedtuple("Named", "a")
def take_a(o): return o.a
def call(f): return f()
def same(x): return x
def MATCH(o):
    match o:
        case object(a=found): return found
def closed(v):
    def get(): return v
    def set(new):
        nonlocal v
        v = new
    get.set = set
    return get
def other_code(f):
    v = 0
    def get(): return (v, 1)
    return get.__code__
def defaulted(v):
    def get(x=v): return x
    return get
def kwdefaulted(v):
    def get(*, x=v): return x
    return get
def with_attribute(v):
    def f(): return 0
    f.a = v
    return f
class Prop:
    def __init__(self, a): self._a = a
    @property
    def p(self): return self._a
    @p.setter
    def p(self, v): self._a = v
class CachedProp:
    def __init__(self, a): self._a = a
    @functools.cached_property
    def p(self): return self._a
class Descriptor:
    def __get__(self, o, cls): return o.__dict__["_d"]
    def __set__(self, o, v): o.__dict__["_d"] = v
class Described:
    d = Descriptor()
    def __init__(self, a): self.d = a
class Fallback:
    def __init__(self, a): self._content = {"a": a, "anything": a}
    def __getattr__(self, name):
        if name.startswith("_"): raise AttributeError(name)
        return self._content[name]
class Intercepting:
    def __init__(self, a): self.real = a
    def __getattribute__(self, name):
        if name in ("a", "alias"): name = "re" + "al"
        return object.__getattribute__(self, name)
class Indexed:
    def __init__(self, a): self.content = a
    def __getitem__(self, i): return self.content
class Called:
    def __init__(self, a): self.content = a
    def __call__(self): return self.content
class Meta(type):
    content = {}
    @property
    def of_meta(cls): return Meta.content[cls]
    def _with(cls, v):
        Meta.content[cls] = v
        return cls
KEPT = []
def keep(o):
    KEPT.append(o)
    return o
def weak(v): return weakref.ref(keep(Obj(v)))
def weak_values(v):
    d = weakref.WeakValueDictionary(); d["k"] = keep(Obj(v)); return d
def weak_keys(v):
    d = weakref.WeakKeyDictionary(); d[KEY] = v; return d
def context(v):
    c = contextvars.ContextVar("c"); c.set(v); return c
def local(v):
    l = threading.local(); l.a = v; return l
def enum_with(v):
    class E(enum.Enum):
        X = 1
        Y = 2
    E.X.a = v
    return E
def module_with(v):
    m = types.ModuleType("made"); m.a = v; return m
def module_with_function(v):
    m = types.ModuleType("made_with_function"); m.a = v
    exec("def get(): return a", m.__dict__)
    return m
def net_with(v):
    m = nn.Module(); m.a = v; return m
def tensor_with(v):
    t = torch.zeros(1); t.a = v; return t
class MyList(list):
    def __init__(self, items, a): super().__init__(items); self.a = a
class MyDict(dict):
    def __getattr__(self, name):
        if name in self: return self[name]
        raise AttributeError(name)
class MyTuple(tuple):
    def __new__(cls, items, a): return super().__new__(cls, items)
    def __init__(self, items, a): self.a = a
class MyStr(str):
    def __new__(cls, s, a): return super().__new__(cls, s)
    def __init__(self, s, a): self.a = a
class MyInt(int):
    def __new__(cls, s, a): return super().__new__(cls, s)
    def __init__(self, s, a): self.a = a
class MyError(Exception):
    def __init__(self, a): super().__init__(a); self.a = a
class MyArray(np.ndarray):
    @classmethod
    def of(cls, v):
        x = np.zeros(2).view(cls); x.a = v; return x
def cached(v):
    source = [v]
    @functools.lru_cache
    def get(): return source[0]
    get.source = source
    return get
def wrapped(v):
    def inner(): return v
    @functools.wraps(inner)
    def outer(): return inner()
    return outer
def dispatched(v):
    @functools.singledispatch
    def f(x): return v
    return f
class Reader:
    def __init__(self, v): self.data = [v]
    def content(self):
        with contextlib.nullcontext(self.data) as d: return d[0]
class Private:
    def __init__(self, a): self.__a = a
    def get(self): return self.__a
def object_array(v):
    x = np.empty(1, object); x[0] = v; return x
class Counting:
    def __init__(self, v): self.inner = [v]
    def read(self): return self.inner[len(self.inner) - 1]
class Adding:
    def __init__(self, a): self.a = a
    def __add__(self, other): return self.a
    def __neg__(self): return self.a
class Entering:
    def __init__(self, a): self.a = a
    def __enter__(self): return self.a
    def __exit__(self, *e): return None
def entered(o):
    with o as found: return found
class Iterating:
    def __init__(self, a): self.a = a
    def __iter__(self): return iter([self.a])
    def each(self): yield self.a
"""

# Where the chain begins: definitions (R is its source), the expression that reads it inside ``def read():``, how to
# rebind it from outside.
ROOTS = {
    "global": ("root = R\n", "root", "W.root = V"),
    "global of another module": ("other.root = R\n", "other.root", "other.root = V"),
    "imported within": ("other.root = R\n", "(lambda: __import__(OTHER).root)()", "other.root = V"),
    "from import within": ("other.root = R\n", "imported()", "other.root = V"),
    "closure": (
        "def make(root):\n    def get(): return root\n    def put(v):\n        nonlocal root\n        root = v\n    return get, put\nget, put = make(R)\n",
        "get()",
        "W.put(V)",
    ),
    "default": ("def get(x=R): return x\n", "get()", "W.get.__defaults__ = (V,)"),
    "class": ("class CFG:\n    inner = R\n", "CFG.inner", "W.CFG.inner = V"),
    "nested class": ("class CFG:\n    class Sub:\n        inner = R\n", "CFG.Sub.inner", "W.CFG.Sub.inner = V"),
    "instance": ("cfg = Obj(R)\n", "cfg.a", "W.cfg.a = V"),
    "appearing attribute": ("cfg = Obj(0)\nroot = R\n", "getattr(cfg, 'later', root)", "W.cfg.later = V"),
    "appearing global": (
        "root = R\ndef get():\n    try: return later\n    except NameError: return root\n",
        "get()",
        "W.later = V",
    ),
    "appearing attribute of a module": ("root = R\n", "getattr(other, 'later', root)", "other.later = V"),
    "appearing attribute of a class": (
        "class CFG:\n    inner = R\n",
        "(CFG.later if hasattr(CFG, 'later') else CFG.inner)",
        "W.CFG.later = V",
    ),
    "shadowed builtin": (
        "root = R\n",
        "(root if len((1,)) == 1 else None, sorted([3, 1]))[0] if len('ab') == 2 else 7",
        "W.len = lambda x: 5",
    ),
    "environment": (
        "import os\nos.environ['GUARD_WORLD'] = 'x'\nroot = R\n",
        "(os.environ.get('GUARD_WORLD'), root)[1] if os.environ.get('GUARD_WORLD') == 'x' else 7",
        "__import__('os').environ['GUARD_WORLD'] = 'y'",
    ),
    "getenv": (
        "import os\nos.environ.pop('GUARD_NEW', None)\nroot = R\n",
        "(root if os.getenv('GUARD_NEW') is None else 7)",
        "__import__('os').environ['GUARD_NEW'] = 'y'",
    ),
    "command line": (
        "import sys\nsys.argv[:] = [a for a in sys.argv if a != 'guard_world']\nroot = R\n",
        "(root if 'guard_world' not in sys.argv else 7)",
        "__import__('sys').argv.append('guard_world')",
    ),
    "command line, through a value": (
        "import sys\nsys.argv[:] = [a for a in sys.argv if a != 'guard_world']\nkept = {'sys': sys}\nroot = R\n",
        "(root if 'guard_world' not in kept['sys'].argv else 7)",
        "__import__('sys').argv.append('guard_world')",
    ),
    "membership": ("seen = {1, 2}\nroot = R\n", "(root if 3 not in seen else 7)", "W.seen.add(3)"),
    "length": ("seen = [1, 2]\nroot = R\n", "(root if len(seen) == 2 else 7)", "W.seen.append(3)"),
    "type of": (
        "cfg = Obj(R)\n",
        "(cfg.a if isinstance(cfg, Obj) and not isinstance(cfg, Doubled) else 7)",
        "W.cfg.__class__ = W.Doubled",
    ),
    "function replaced": ("root = R\ndef get(): return root\n", "get()", "W.get = lambda: V"),
    "function of another module": (
        "other.root = R\nexec('def get(): return root', other.__dict__)\n",
        "other.get()",
        "other.get = lambda: V",
    ),
    "global of a called function": (
        "other.root = R\nexec('def get(): return root', other.__dict__)\nfrom_other = other.get\n",
        "from_other()",
        "other.root = V",
    ),
    "code replaced": (
        "root = R\ndef get(): return root\ndef wrong(): return 7\n",
        "get()",
        "W.get.__code__ = W.wrong.__code__",
    ),
    "library flag": ("import json.decoder\njson.decoder.FLAG = R\n", "json.decoder.FLAG", "W.json.decoder.FLAG = V"),
    "library class": (
        "import string\nstring.Formatter.guard_world = R\n",
        "string.Formatter.guard_world",
        "W.string.Formatter.guard_world = V",
    ),
    "library class patched": (
        "import string\nroot = R\nclass F(string.Formatter):\n    pass\n",
        "(root if F().format('{}', 1) == '1' else 7)",
        "W.F.format = lambda *a: ''",
    ),
}
# The same, of modules that are read elsewhere than where they are named. (Apart, so that the others' seeds keep their worlds.)
MODULE_ROOTS = {
    "module handed on": ("other.root = R\ndef handed(m): return m.root\n", "handed(other)", "other.root = V"),
    "module returned": ("other.root = R\ndef which(): return other\n", "which().root", "other.root = V"),
    "module imported and handed on": (
        "other.root = R\ndef handed(m): return m.root\n",
        "handed(__import__('importlib').import_module(OTHER))",
        "other.root = V",
    ),
    "module in a module": (
        "other.root = R\nouter = types.ModuleType('outer')\nouter.inner = other\ndef handed(m): return m.inner.root\n",
        "handed(outer)",
        "other.root = V",
    ),
    "module of a module handed on": (
        "other.root = R\nouter = types.ModuleType('outer')\nouter.inner = other\ndef handed(m): return m.root\n",
        "handed(outer.inner)",
        "other.root = V",
    ),
    "module of a library handed on": (
        "import torchgen\ntorchgen.root = R\ndef handed(m): return m.root\n",
        "handed(torchgen)",
        "W.torchgen.root = V",
    ),
    "module of a function's globals": (
        "other.root = R\nexec('def get(m): return m.root', other.__dict__)\n",
        "other.get(other)",
        "other.root = V",
    ),
}

PLACES = (
    "step",
    "called",
    "other module",
    "forward",
    "forward hook",
    "forward pre hook",
    "tensor hook",
    "post accumulate hook",
    "backward hook",
    "autograd function",
    "comprehension",
    "sort key",
    "generator",
    "static method",
    "thread of calls",
    "loss class",
    "wrapped by a library",
)


@dataclass
class World:
    """``step(x)`` reads the chain; ``change()`` alters one thing; ``told``: what, for messages."""

    seed: int
    source: str
    module: types.ModuleType
    other: types.ModuleType
    told: str
    changes: str
    names: list[str] = field(default_factory=list)

    def step(self, x: torch.Tensor):
        return self.module.step(x)

    def change(self) -> None:
        exec(self.changes, {"W": self.module, "other": self.other, **vars(self.module)})

    def close(self) -> None:
        sys.modules.pop(self.module.__name__, None)
        sys.modules.pop(self.other.__name__, None)


def _through(expression: str, read: str) -> str:
    return read.replace("E", f"({expression})") if _plain_e(read) else read


def _plain_e(read: str) -> bool:
    return "E" in read


def _substitute(template: str, **parts: str) -> str:
    """Replaces the single capital letters that stand alone."""
    import re

    return re.sub(r"\b([EVR])\b", lambda m: parts.get(m.group(1), m.group(1)), template)


def make(seed: int, kinds: list[Holder] | None = None, roots: dict[str, tuple[str, str, str]] | None = None) -> World:
    """The world of a seed."""
    r = random.Random(seed)
    root_name = (
        r.choice(list(roots or ROOTS))
        if roots or r.random() < 0.6
        else r.choice(["global", "closure", "class", "instance", "global of a called function"])
    )
    define, root_read, rebind = (roots or ROOTS)[root_name]
    depth = r.choice([0, 1, 1, 1, 2, 2, 3, 5, 12])
    chain = [r.choice(kinds or HOLDERS) for _ in range(depth)]
    if r.random() < 0.3:
        leaf, mutations = r.choice(MUTABLE)
        other_leaf = "7.25"
    else:
        leaf, other_leaf = r.choice(LEAVES)
        mutations = []
        if r.random() < 0.5:
            leaf, other_leaf = other_leaf, leaf

    def made(from_level: int, leaf_source: str) -> str:
        source = leaf_source
        for holder in reversed(chain[from_level:]):
            source = _substitute(holder.make, V=f"({source})")
        return source

    reads = [r.choice(h.read) for h in chain]
    expression = root_read
    outside = {
        "global": "W.root",
        "closure": "W.get()",
        "class": "W.CFG.inner",
        "nested class": "W.CFG.Sub.inner",
        "instance": "W.cfg.a",
    }.get(root_name, root_read)
    places = [outside]  # expression for each holder, from outside
    for read in reads:
        expression = _substitute(read, E=f"({expression})")
        outside = _substitute(read, E=f"({outside})")
        places.append(outside)

    options: list[tuple[str, str]] = [
        (f"rebind the {root_name}", _substitute(rebind, V=f"({made(0, other_leaf)})"))
    ] * 2
    for level, holder in enumerate(chain):
        for write in holder.write:
            told = f"level {level}, {holder.name}: {write}"
            options.append(
                (told, f"e = {places[level]}\n" + _substitute(write, E="e", V=f"({made(level + 1, other_leaf)})"))
            )
    for mutation in mutations:
        options += [(f"leaf {leaf}: {mutation}", f"e = {places[-1]}\n" + _substitute(mutation, E="e"))] * 2
    told, changes = r.choice(options)
    if r.random() < 0.06:
        told, changes = "nothing", "pass"
    elif r.random() < 0.06:
        told, changes = (
            "something that nobody reads",
            r.choice(["W.unread = 3", "other.unread = 3", "W.Obj.unread = 3", "W.KEY.unread = 1", "KEPT.append(1)"]),
        )

    place = r.choice(PLACES)
    source = PRELUDE + _substitute(define, R=f"({made(0, leaf)})")
    source += textwrap.dedent(_PLACES_SOURCE).replace("EXPRESSION", expression).replace("PLACE", repr(place))
    name = f"guard_world_{seed}"
    module, other = types.ModuleType(name), types.ModuleType(name + "_other")
    sys.modules[name], sys.modules[other.__name__] = module, other
    exec(
        compile(PRELUDE.split("ATTR =")[0] + "def take_a(o): return o.a\n", f"/worlds/{name}_other.py", "exec"),
        other.__dict__,
    )
    module.__dict__.update(other=other, num=num, OTHER=other.__name__)
    exec(compile(source, f"/worlds/{name}.py", "exec"), module.__dict__)
    described = (
        f"{root_name} > {' > '.join(h.name for h in chain)} > {leaf}; read in {place} by {expression}; change: {told}"
    )
    return World(seed, source, module, other, described, changes, [root_name, place, *(h.name for h in chain)])


_PLACES_SOURCE = """
def imported():
    import importlib
    return importlib.import_module(OTHER).root
def read():
    return EXPRESSION
place = PLACE
net = nn.Linear(3, 2)
with torch.no_grad():
    net.weight.copy_(torch.arange(6.0).reshape(2, 3) / 7); net.bias.zero_()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net
    def forward(self, x):
        y = self.inner(x)
        return y * num(read()) if place == "forward" else y
model = Net()
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, g): return g * num(read())
class Helper:
    @staticmethod
    def scale(): return num(read())
class Loss:
    weight = 1.0
    def __call__(self, y): return y.sum() * self.scale()
    def scale(self): return num(read())
if place == "forward hook": model.inner.register_forward_hook(lambda m, i, o: o * num(read()))
if place == "forward pre hook": model.inner.register_forward_pre_hook(lambda m, i: (i[0] * num(read()),))
if place == "tensor hook": net.weight.register_hook(lambda g: g * num(read()))
if place == "backward hook": model.inner.register_full_backward_hook(lambda m, gi, go: (gi[0] * num(read()),))
if place == "post accumulate hook":
    def after(p): p.grad.mul_(num(read()))
    net.weight.register_post_accumulate_grad_hook(after)
@contextlib.contextmanager
def managed():
    yield num(read())
def deep(n): return deep(n - 1) if n else num(read())
def step(x):
    net.weight.grad = net.bias.grad = None
    x = x.detach().requires_grad_() if place == "backward hook" else x
    y = model(x)
    if place == "step": y = y * num(EXPRESSION)
    elif place == "called": y = y * num(read())
    elif place == "other module": y = y * other.take_a(types.SimpleNamespace(a=num(read())))
    elif place == "autograd function": y = Scaled.apply(y)
    elif place == "comprehension": y = y * [num(read()) for _ in range(1)][0]
    elif place == "sort key": y = y * sorted([0.25, 0.75], key=lambda v: (v - num(read())) ** 2)[0] * num(read())
    elif place == "generator": y = y * sum(num(read()) for _ in range(2))
    elif place == "static method": y = y * Helper.scale()
    elif place == "thread of calls": y = y * deep(30)
    elif place == "wrapped by a library":
        with managed() as s: y = y * s
    loss = Loss()(y) if place == "loss class" else y.sum()
    loss.backward()
    return loss.detach(), net.weight.grad, net.bias.grad, x.grad if place == "backward hook" else None
"""


# ---- The guards alone, without planning


@dataclass
class Outcome:
    missed: str = ""
    false_alarm: str = ""
    alarm_without_change: str = ""
    blind: str = ""
    self_changing: str = ""
    impossible: str = ""
    noticed: bool = False
    differed: bool = False


def outcome(world: World) -> Outcome:
    """Records what the step reads, makes the change, and compares what the guard says with what the step then gives."""
    from stowage.step.world import World as Reach

    x = torch.tensor([[1.0, -2.0, 3.0]])
    found = Outcome()
    try:
        world.step(x)  # as before every recording
    except Exception as error:  # holders that do not go together: a function in a class is a method
        found.impossible = f"{type(error).__name__}: {error}"
        return found
    reach = Reach(world.module.step)
    with reach.noting():
        before = _bits(world.step(x))
    found.self_changing = reach.settle()
    if found.self_changing:
        return found
    found.alarm_without_change = reach.guard.changed()
    if found.alarm_without_change:
        return found
    found.blind = "; ".join(reach.guard.blind)
    try:
        world.change()
    except Exception as error:  # this combination has no such change
        found.impossible = f"{type(error).__name__}: {error}"
        return found
    found.noticed = bool(reach.guard.changed())
    try:
        after = _bits(world.step(x))
    except Exception as error:
        after = [repr(error).encode()]
    found.differed = before != after
    if found.differed and not found.noticed and not found.blind:
        found.missed = world.told
    if found.noticed and not found.differed:
        found.false_alarm = world.told
    return found


def _bits(results) -> list[bytes]:
    return [b"" if t is None else t.numpy().tobytes() for t in results]


def survey(
    first: int, count: int | None = None, seconds: float | None = None, report=print, **of_worlds: Any
) -> dict[str, int]:
    """Tries worlds from seed ``first`` on; raises AssertionError with the seeds when something went unnoticed.
    ``of_worlds``: what make() is given."""
    import time

    counts: dict[str, int] = {}
    wrong: list[str] = []
    end = time.monotonic() + seconds if seconds is not None else None
    seed = first
    while (count is None or seed < first + count) and (end is None or time.monotonic() < end):
        try:
            world = make(seed, **of_worlds)
        except Exception as error:
            counts["impossible"] = counts.get("impossible", 0) + 1
            if "--impossible" in sys.argv:
                report(f"seed {seed}: not made: {type(error).__name__}: {error}")
            seed += 1
            continue
        try:
            found = outcome(world)
        finally:
            world.close()
        kind = (
            "missed"
            if found.missed
            else "alarm without a change"
            if found.alarm_without_change
            else "self-changing"
            if found.self_changing
            else "impossible"
            if found.impossible
            else "false alarm"
            if found.false_alarm
            else "noticed"
            if found.noticed
            else "blind, differed"
            if found.differed
            else "quiet"
        )
        counts[kind] = counts.get(kind, 0) + 1
        if found.blind:
            counts["(blind)"] = counts.get("(blind)", 0) + 1
        if kind in ("missed", "alarm without a change", "self-changing"):
            wrong.append(
                f"seed {seed}: {kind}: {found.missed or found.alarm_without_change or found.self_changing} [{world.told}]"
            )
            report(wrong[-1])
        elif "--" + kind.split()[0] in sys.argv or (found.blind and "--blind" in sys.argv):
            report(f"seed {seed}: {kind}: {world.told} {found.blind} {found.impossible}")
        seed += 1
    report(f"worlds {first} to {seed - 1}: " + ", ".join(f"{k} {v}" for k, v in sorted(counts.items())))
    assert not wrong, "\n".join(wrong)
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    survey(int(arguments[0]) if arguments else 0, int(arguments[1]) if len(arguments) > 1 else 1000)
