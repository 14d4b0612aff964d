"""How a step may come to state beside its model, from the plain to the odd: a way makes what the step calls, of a state whose
touch() changes a tensor and a counter.

    touch = WAYS["by_partial"](state, model, optimizer)        a step that calls touch() changes the state once"""

import contextlib
import contextvars
import functools
import operator
import sys
import threading
import types
import weakref

import torch


class State:
    def __init__(self):
        self.average = torch.zeros(6)
        self.calls = [0]

    def touch(self, *_):
        self.average.mul_(0.5).add_(1)
        self.calls[0] += 1


def direct(s, model, optimizer):
    return lambda: s.touch()


def by_partial(s, model, optimizer):
    return functools.partial(s.touch)


def by_method(s, model, optimizer):
    return s.touch


def _decorated(with_):
    def way(s, model, optimizer):
        @with_
        def helper():
            s.touch()

        return lambda: helper()

    return way


def by_manager(s, model, optimizer):
    @contextlib.contextmanager
    def manager():
        s.touch()
        yield

    def go():
        with manager():
            pass

    return go


def by_cache(s, model, optimizer):
    @functools.lru_cache(maxsize=1)
    def helper(n):
        s.touch()
        return n

    count = [0]

    def go():
        count[0] += 1
        helper(count[0])

    return go


def by_wraps(s, model, optimizer):
    def deco(f):
        @functools.wraps(f)
        def inner():
            return f()

        return inner

    return deco(lambda: s.touch())


def by_dispatch(s, model, optimizer):
    @functools.singledispatch
    def helper(x):
        raise TypeError

    @helper.register
    def _(x: int):
        s.touch()

    return lambda: helper(1)


def by_partialmethod(s, model, optimizer):
    class Has:
        def two(self, what):
            what.touch()

        one = functools.partialmethod(two, s)

    h = Has()
    return lambda: h.one()


def by_property(s, model, optimizer):
    class Has:
        @property
        def one(self):
            s.touch()

    h = Has()
    return lambda: h.one


def by_cached_property(s, model, optimizer):
    class Has:
        @functools.cached_property
        def one(self):
            s.touch()

    return lambda: Has().one


def by_classmethod(s, model, optimizer):
    class Has:
        state = s

        @classmethod
        def one(cls):
            cls.state.touch()

    return lambda: Has.one()


def by_static(s, model, optimizer):
    class Has:
        @staticmethod
        @torch.no_grad()
        def one():
            s.touch()

    return lambda: Has.one()


def by_callable(s, model, optimizer):
    class Has:
        def __call__(self):
            s.touch()

    h = Has()
    return lambda: h()


def by_map(s, model, optimizer):
    return lambda: [*map(s.touch, [1])]


def by_table(s, model, optimizer):
    table = {"a": [torch.no_grad()(s.touch)]}
    return lambda: [f() for f in table["a"]]


def by_forward_hook(s, model, optimizer):
    model.register_forward_hook(torch.no_grad()(lambda m, a, o: s.touch()))
    return lambda: None


def by_module_hook(s, model, optimizer):
    model[0].register_forward_pre_hook(lambda m, a: s.touch())
    return lambda: None


def by_tensor_hook(s, model, optimizer):
    model[0].weight.register_hook(torch.no_grad()(lambda g: s.touch()))
    return lambda: None


def by_accumulate_hook(s, model, optimizer):
    model[0].weight.register_post_accumulate_grad_hook(torch.no_grad()(lambda p: s.touch()))
    return lambda: None


def by_optimizer_hook(s, model, optimizer):
    optimizer.register_step_post_hook(torch.no_grad()(lambda o, a, k: s.touch()))
    return lambda: None


def by_optimizer_pre_hook(s, model, optimizer):
    optimizer.register_step_pre_hook(lambda o, a, k: s.touch())
    return lambda: None


def by_backward_hook(s, model, optimizer):
    model[0].register_full_backward_hook(lambda m, a, b: s.touch())
    return lambda: None


def by_function(s, model, optimizer):
    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            s.touch()
            return g

    x = torch.ones(2, requires_grad=True)
    return lambda: Through.apply(x).sum().backward()


def by_scheduler(s, model, optimizer):
    def factor(epoch):
        s.touch()
        return 1.0

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return lambda: scheduler.step()


def by_optimizer_class(s, model, optimizer):
    class Mine(torch.optim.Optimizer):
        def __init__(self, p):
            super().__init__(p, {})
            self.inner = s

        @torch.no_grad()
        def step(self, closure=None):
            self.inner.touch()

    mine = Mine(model.parameters())
    return lambda: mine.step()


def by_wrapped_optimizer(s, model, optimizer):
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(model.parameters(), {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step()

    class Inner(torch.optim.Optimizer):
        def step(self, closure=None):
            s.touch()

    outer = Outer(Inner(model.parameters(), {}))
    return lambda: outer.step()


def by_stack(s, model, optimizer):
    def go():
        with contextlib.ExitStack() as stack:
            stack.callback(s.touch)

    return go


def by_getattr(s, model, optimizer):
    class Has:
        def __init__(self):
            self.hidden_name = s

        def __getattr__(self, name):
            return getattr(self.hidden_name, name)

    h = Has()
    return lambda: h.touch()


def by_computed_name(s, model, optimizer):
    ns = types.SimpleNamespace(abc=s)
    return lambda: getattr(getattr(ns, "".join(["a", "bc"])), "tou" + "ch")()


def by_vars(s, model, optimizer):
    ns = types.SimpleNamespace(abc=s)
    return lambda: [v.touch() for v in vars(ns).values()]


def by_caller(s, model, optimizer):
    return lambda: operator.methodcaller("touch")(s)


def by_variable(s, model, optimizer):
    v = contextvars.ContextVar("v")
    v.set(s)
    return lambda: v.get().touch()


def by_local(s, model, optimizer):
    v = threading.local()
    v.s = s
    return lambda: v.s.touch()


def by_weak(s, model, optimizer):
    ref = weakref.ref(s)
    return lambda: (ref().touch(), s)[0]


def by_default(s, model, optimizer):
    def go(s=s):
        s.touch()

    return go


def by_generator(s, model, optimizer):
    def items():
        s.touch()
        yield 1

    return lambda: sum(items())


def by_comprehension(s, model, optimizer):
    return lambda: [x.touch() for x in [s]]


def by_exception(s, model, optimizer):
    class Stop(Exception):
        pass

    def go():
        try:
            raise Stop(s)
        except Stop as e:
            e.args[0].touch()

    return go


def by_module(s, model, optimizer):
    m = types.ModuleType("mine_of_user")
    m.s = s
    sys.modules["mine_of_user"] = m

    def go():
        import mine_of_user

        mine_of_user.s.touch()

    return go


def by_meta(s, model, optimizer):
    class Meta(type):
        def __call__(cls):
            s.touch()
            return super().__call__()

    class Has(metaclass=Meta):
        pass

    return lambda: Has()


def by_init(s, model, optimizer):
    class Has:
        def __init__(self):
            s.touch()

    return lambda: Has()


def by_operator(s, model, optimizer):
    class Has:
        def __add__(self, o):
            s.touch()
            return self

        def __enter__(self):
            s.touch()

        def __exit__(self, *a):
            pass

    h = Has()
    return lambda: h + 1


def by_del(s, model, optimizer):
    class Has:
        def __del__(self):
            s.touch()

    def go():
        Has()

    return go


def by_parametrization(s, model, optimizer):
    class P(torch.nn.Module):
        def forward(self, w):
            s.touch()
            return w

    torch.nn.utils.parametrize.register_parametrization(model[1], "weight", P(), unsafe=True)
    return lambda: None


def by_sequence(s, model, optimizer):
    class Q(list):
        def append(self, v):
            s.touch()
            super().append(v)

    q = Q()
    return lambda: q.append(1)


def by_sort_key(s, model, optimizer):
    return lambda: sorted([1], key=lambda v: s.touch() or v)


def by_attribute_hooked(s, model, optimizer):
    class Has:
        def __setattr__(self, n, v):
            s.touch()

    h = Has()

    def go():
        h.x = 1

    return go


def by_saved_hooks(s, model, optimizer):
    x = torch.ones(2, requires_grad=True)

    def go():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (s.touch(), t)[1], lambda t: t):
            x.exp()

    return go


WAYS = {name: way for name, way in list(globals().items()) if name.startswith("by_") or name == "direct"}
_DECORATORS = {
    "no_grad": torch.no_grad(),
    "enable_grad": torch.enable_grad(),
    "set_grad": torch.set_grad_enabled(True),
    "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
    "record_function": torch.profiler.record_function("a"),
    "jit_ignore": torch.jit.ignore,
}
for name, decorator in _DECORATORS.items():
    WAYS[f"decorated_{name}"] = _decorated(decorator)
