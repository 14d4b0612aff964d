"""Holders of a world (guard_worlds.py): what can hold a value in Python, how code reads it there, and how it is changed."""

from __future__ import annotations

from dataclasses import dataclass


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
    Holder(
        "group of an optimizer",
        "optimizer(group=V)",
        (
            "E.param_groups[0]['k']",
            "E.param_groups[-1]['k']",
            "E.param_groups[0].get('k')",
            "E.param_groups[0][K_]",
            "E.param_groups[0][''.join(['k'])]",
            "[g['k'] for g in E.param_groups][0]",
            "[g for g in E.param_groups][0]['k']",
            "next(g['k'] for g in E.param_groups)",
            "(lambda g: g['k'])(E.param_groups[0])",
            "list(map(operator.itemgetter('k'), E.param_groups))[0]",
            "take_k(E.param_groups[0])",
            "other.take_k(E.param_groups[0])",
            "first_group(E)['k']",
            "group_in_loop(E)",
            "dict(E.param_groups[0])['k']",
            "{**E.param_groups[0]}['k']",
            "dict(E.param_groups[0].items())['k']",
            "getattr(E, 'param_groups')[0]['k']",
            "getattr(E, GROUPS)[0]['k']",
            "vars(E)['param_groups'][0]['k']",
            "E.__dict__['param_groups'][0]['k']",
            "E.state_dict()['param_groups'][0]['k']",
            "copy.copy(E).param_groups[0]['k']",
            "operator.attrgetter('param_groups')(E)[0]['k']",
        ),
        (
            "E.param_groups[0]['k'] = V",
            "E.param_groups[0].update(k=V)",
            "E.param_groups[:] = optimizer(group=V).param_groups",
        ),
    ),
    Holder(
        "state of an optimizer",
        "optimizer(state=V)",
        (
            "E.state['k']",
            "E.state.get('k')",
            "E.state[K_]",
            "list(E.state.values())[-1]",
            "[*E.state.items()][-1][1]",
            "getattr(E, 'state')['k']",
            "getattr(E, STATE)['k']",
            "vars(E)['state']['k']",
            "take_k(E.state)",
        ),
        ("E.state['k'] = V", "E.state.update(k=V)", "E.state.clear(); E.state['k'] = V"),
    ),
    Holder(
        "state of a parameter",
        "optimizer(of_parameter=V)",
        (
            "E.state[E.param_groups[0]['params'][0]]['k']",
            "list(E.state.values())[0]['k']",
            "next(s['k'] for s in E.state.values())",
            "E.state_dict()['state'][0]['k']",
            "vars(E)['state'][E.param_groups[0]['params'][0]]['k']",
            "E.__dict__[STATE][E.param_groups[0]['params'][0]]['k']",
            "take_k([*E.state.values()][0])",
        ),
        ("E.state[E.param_groups[0]['params'][0]]['k'] = V", "[*E.state.values()][0].update(k=V)"),
    ),
    Holder(
        "defaults of an optimizer",
        "optimizer(default=V)",
        ("E.defaults['k']", "E.defaults.get(K_)", "getattr(E, DEFAULTS)['k']", "[*E.defaults.values()][-1]"),
        ("E.defaults['k'] = V", "E.defaults = {'k': V}"),
    ),
    Holder("attribute of an optimizer", "with_a(optimizer(), V)", _OWN_DICT[:12], _SET),
    Holder(
        "optimizer of a scheduler",
        "scheduler(group=V)",
        ("E.optimizer.param_groups[0]['k']",),
        ("E.optimizer.param_groups[0]['k'] = V",),
    ),
    Holder("attribute of a scheduler", "with_a(scheduler(), V)", _OWN_DICT[:12], _SET),
    Holder(
        "number of a scheduler",
        "with_rate(scheduler(), V)",
        (
            "E.base_lrs[0]",
            "vars(E)['base_lrs'][0]",
            "getattr(E, RATES)[0]",
            "E.state_dict()['base_lrs'][0]",
            "[r for r in E.base_lrs][0]",
        ),
        ("E.base_lrs = [V]", "E.base_lrs[0] = V"),
    ),
    Holder("attribute of a scaler", "with_a(torch.amp.GradScaler('cpu'), V)", _OWN_DICT[:12], _SET),
    Holder(
        "attribute of torch's",
        "with_hidden(torch.utils.data.TensorDataset(torch.zeros(1)), V)",
        ("E.hidden", "getattr(E, 'hidden')", "(lambda o: o.hidden)(E)"),
        ("E.hidden = V", "setattr(E, HIDDEN, V)"),
    ),
    Holder("contains", "[V, V]", ("E[0]",), ("E[0] = V",)),
]
