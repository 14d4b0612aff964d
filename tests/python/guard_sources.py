"""The source around a world's chain (guard_worlds.py): the classes and functions that it is made of, and the step that reads
it at one of PLACES."""

from __future__ import annotations

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
def take_k(o): return o["k"]
K_ = "k"
GROUPS, STATE, DEFAULTS, RATES = "param_groups", "state", "defaults", "base_lrs"
def optimizer(**what):
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    where = {"group": made.param_groups[0], "state": made.state, "default": made.defaults}
    if "of_parameter" in what: made.state[made.param_groups[0]["params"][0]]["k"] = what["of_parameter"]
    for name, value in what.items():
        if name in where: where[name]["k"] = value
    return made
def scheduler(**what): return torch.optim.lr_scheduler.ExponentialLR(optimizer(**what), 0.9)
def with_a(o, v):
    o.a = v
    return o
HIDDEN = "hidden"
def with_hidden(o, v):
    o.hidden = v
    return o
def with_rate(o, v):
    o.base_lrs = [v]
    return o
def first_group(o):
    groups = o.param_groups
    return groups[0]
def group_in_loop(o):
    for group in o.param_groups:
        return group["k"]
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

PLACES_SOURCE = """
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
