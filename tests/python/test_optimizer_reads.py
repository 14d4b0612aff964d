"""Steps whose Python reads what an optimizer, a scheduler or a gradient scaler holds: numbers of its groups, by whatever
key, of its state, its defaults and its attributes. Changed between calls, they are read anew; a scheduler's new learning
rate makes nobody read again who reads only ``params``."""

import functools
import types

import pytest
import torch
from guard_holders import HOLDERS
from guard_survey import survey
from torch import nn

import stowage
from stowage._torch.optimizer_steps import only_torchs
from stowage.step.guards.group_keys import ANY, group_keys
from stowage.step.reach.world import World

LR, GROUPS, STATE = "lr", "param_groups", "state"
CALLS = 9
CHANGES_AT = 5


def _group(read, write=lambda o, v: o.param_groups[0].update(lr=1e-3 * v)):
    return lambda o, s: (lambda: read(o), lambda v: write(o, v))


def _rate(group):
    return group["lr"]


def _held_group(o, s):
    group, key = o.param_groups[0], LR
    return lambda: group[key], lambda v: group.update(lr=1e-3 * v)


def _object_of_a_group(o, s):
    o.param_groups[0]["held"] = held = types.SimpleNamespace(k=1.0)
    return lambda: o.param_groups[0]["held"].k, lambda v: setattr(held, "k", v)


def _list_of_a_group(o, s):
    o.param_groups[0]["held"] = [1.0]
    return lambda: o.param_groups[0]["held"][0], lambda v: o.param_groups[0]["held"].__setitem__(0, v)


def _state(read, make=lambda: 1.0, change=lambda o, values, v: values.update(k=v)):
    def kind(o, s):
        values = o.state[o.param_groups[0]["params"][0]]
        values["k"] = make()
        return lambda: read(o, o.param_groups[0]["params"][0]), lambda v: change(o, values, v)

    return kind


def _of_all(o, s):
    o.state["k"] = 1.0
    return lambda: o.state["k"], lambda v: o.state.update(k=v)


def _defaults(o, s):
    return lambda: o.defaults["lr"], lambda v: o.defaults.update(lr=v)


def _scheduler(read, write):
    return lambda o, s: (lambda: read(s), lambda v: write(s, v))


KINDS = {
    "group, constant key": _group(lambda o: o.param_groups[0]["lr"]),
    "group, global key": _group(lambda o: o.param_groups[0][LR]),
    "group, default as key": _group(lambda o, k="lr": o.param_groups[0][k]),
    "group, key made": _group(lambda o: o.param_groups[0]["".join(["l", "r"])]),
    "group, get": _group(lambda o: o.param_groups[0].get("scale", 1.0), lambda o, v: o.param_groups[0].update(scale=v)),
    "group, values": _group(lambda o: sum(v for v in o.param_groups[0].values() if type(v) is float)),
    "group, loop": _group(lambda o: sum([g["lr"] for g in o.param_groups])),
    "group, passed on": _group(lambda o: _rate(*o.param_groups)),
    "groups by name": _group(lambda o: getattr(o, GROUPS)[0][LR]),
    "groups of vars()": _group(lambda o: vars(o)["param_groups"][0]["lr"]),
    "groups of state_dict()": _group(lambda o: o.state_dict()["param_groups"][0][LR]),
    "group, how many keys": _group(
        lambda o: len(o.param_groups[0]), lambda o, v: o.param_groups[0].update({str(v): 1})
    ),
    "group, held": _held_group,
    "group, object": _object_of_a_group,
    "group, list": _list_of_a_group,
    "state": _state(lambda o, p: o.state[p]["k"]),
    "state, object": _state(
        lambda o, p: o.state[p]["k"].a, lambda: types.SimpleNamespace(a=1.0), lambda o, s, v: setattr(s["k"], "a", v)
    ),
    "state, list": _state(lambda o, p: o.state[p]["k"][0], lambda: [1.0], lambda o, s, v: s["k"].__setitem__(0, v)),
    "state by name": _state(lambda o, p: getattr(o, STATE)[p]["k"]),
    "state of vars()": _state(lambda o, p: vars(o)["state"][p]["k"]),
    "state of state_dict()": _state(lambda o, p: o.state_dict()["state"][0]["k"]),
    "state, all": _state(lambda o, p: sum(s.get("k", 0.0) for s in o.state.values() if isinstance(s, dict))),
    "state, of no parameter": _of_all,
    "state, how much": _group(lambda o: 1.0 + len(o.state), lambda o, v: o.state.update({str(v): {}})),
    "defaults": _defaults,
    "attribute": _group(lambda o: getattr(o, "k", 1.0), lambda o, v: setattr(o, "k", v)),
    "scheduler's rates": _scheduler(lambda s: s.base_lrs[0], lambda s, v: s.base_lrs.__setitem__(0, v)),
    "scheduler, vars()": _scheduler(lambda s: vars(s)["gamma"], lambda s, v: setattr(s, "gamma", 1 / v)),
    "scheduler's optimizer": _scheduler(
        lambda s: s.optimizer.param_groups[0][LR], lambda s, v: s.optimizer.param_groups[0].update(lr=v)
    ),
}


def trained(kind, compiled):
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    read, write = kind(optimizer, scheduler)

    def step(x):
        loss = (net(x) * read()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = stowage.compile(step, check="never") if compiled else step
    data = torch.Generator().manual_seed(1)
    losses = []
    for call in range(CALLS):
        if call >= CHANGES_AT:
            write(1.0 + call)
        losses.append(run(torch.randn(4, 8, generator=data)))
    return losses, run


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_what_is_read_of_an_optimizer_is_watched(kind):
    expected, _ = trained(kind, False)
    losses, step = trained(kind, True)
    assert [torch.equal(a, b) for a, b in zip(expected, losses)] == [True] * CALLS
    assert step.stats()["planned_steps"] >= 2, step.refusal


@pytest.mark.alone  # what other tests have left in the process can be reachable too
def test_random_worlds_of_optimizers():
    of_training = ("optimizer", "scheduler", "scaler", "torch's", "parameter")
    kinds = [h for h in HOLDERS if any(word in h.name for word in of_training)]
    survey(0, 120, kinds=[*kinds, *(h for h in HOLDERS if h.name in ("object", "dict", "list"))])


def test_a_new_learning_rate_makes_nobody_read_again_who_reads_only_parameters():
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        for group in optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)

    world = World(step)
    with world.noting():
        step(torch.ones(2, 4))
    world.settle()
    optimizer.param_groups[0]["lr"] = 0.5
    assert not world.guard.changed()
    optimizer.param_groups[0]["params"].pop()
    assert world.guard.changed()


# ---- Keys that code shows


def _clips(o):
    for group in o.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], 1.0)


def _halves(o):
    for group in o.param_groups:
        group["lr"] *= 0.5


def _collects(o):
    return [p for group in o.param_groups for p in group["params"]]


def _sums(o):
    return sum(group["lr"] for group in o.param_groups)


def _first(o):
    groups = o.param_groups
    group = groups[0]
    return group["weight_decay"]


def _last(o):
    return o.param_groups[-1]["lr"]


def _nothing(o):
    return o.state


def _passes_on(o):
    for group in o.param_groups:
        print(group)


def _closes_over(o):
    for group in o.param_groups:
        (lambda: group["lr"])()


def _counts(o):
    return len(o.param_groups)


def _enumerates(o):
    for _, group in enumerate(o.param_groups):
        group["lr"] = 1.0


def _by_variable(o):
    return o.param_groups[0][LR]


def _two_ways(o):
    return o.param_groups[0]["lr"] + getattr(o, "param_groups")[0][LR]  # noqa: B009


def _iterates_within(o):
    return [group["lr"] for group in (lambda q: q.param_groups)(o)]


SHOWN = {
    _clips: {"params"},
    _halves: {"lr"},
    _collects: {"params"},
    _sums: {"lr"},
    _first: {"weight_decay"},
    _last: {"lr"},
    _nothing: set(),
    _passes_on: {ANY},
    _closes_over: {ANY},
    _counts: {ANY},
    _enumerates: {ANY},
    _by_variable: {ANY},
    _two_ways: {ANY},
}


@pytest.mark.parametrize("function", SHOWN, ids=lambda f: f.__name__)
def test_keys_that_code_shows(function):
    assert group_keys(function.__code__) == SHOWN[function]


def test_groups_that_another_function_hands_over():
    inner = next(
        c for c in _iterates_within.__code__.co_consts if isinstance(c, types.CodeType) and GROUPS in c.co_names
    )
    assert group_keys(inner) == {ANY}


def test_zero_grad_reads_parameters_alone():
    zero_grad = torch.optim.Optimizer.zero_grad
    assert group_keys(getattr(zero_grad, "__wrapped__", zero_grad).__code__) == {"params"}


# ---- Tensors deep in its state


class _Projects(torch.optim.Optimizer):
    """As GaLore does: an object in the state holds a basis, which a call now and then makes anew."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-2})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(calls=0, basis=types.SimpleNamespace(q=None), sums=[torch.zeros_like(p)])
                if state["calls"] % 4 == 0:
                    state["basis"].q = torch.linalg.qr(p.grad).Q
                q = state["basis"].q
                state["sums"][0].mul_(0.9).add_(q @ (q.t() @ p.grad))
                p.add_(state["sums"][0], alpha=-group["lr"])
                state["calls"] += 1


def test_tensors_deep_in_the_state_are_found_anew():
    def trained(compiled):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False))
        optimizer = _Projects(net.parameters())

        def step(x):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = stowage.compile(step) if compiled else step
        data = torch.Generator().manual_seed(1)
        losses = [run(torch.randn(4, 8, generator=data)) for _ in range(40)]
        deep = [t for s in optimizer.state.values() for t in (s["basis"].q, *s["sums"])]
        return [*losses, *net.parameters(), *deep], run

    expected, _ = trained(False)
    found, step = trained(True)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert step.stats()["planned_steps"] > 20, step.refusal


OF_TORCH = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)


@pytest.mark.parametrize("name", [name for name in OF_TORCH if name not in ("Adafactor", "LBFGS", "SparseAdam")])
def test_planned_calls_need_no_python_for_pytorchs_optimizers(name):
    """All that they count is in tensors. (One asks for norms that it makes, one calls a closure, one takes sparse gradients.)"""

    def make():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(2)))
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.02)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    (model, optimizer, step), (twin, other, eager) = make(), make()
    planned = stowage.compile(step)
    for i in range(20):
        for each in (optimizer, other):
            each.param_groups[0]["lr"] = 0.02 / (1 + i // 5)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(i))
        assert torch.equal(planned(x), eager(x))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters())), i
    stats = planned.stats()
    assert stats["planned_steps"] >= 12 and stats["checked_steps"] < stats["planned_steps"], (planned.refusal, stats)


def test_a_decorated_step_is_the_program_s(monkeypatch):
    """Also where functools.wraps says that it is PyTorch's."""
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.AdamW):
        optimizer = kind([torch.zeros(1)])
        assert only_torchs(optimizer), kind
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", functools.wraps(step)(lambda self, closure=None: step(self, closure))
    )
    assert not only_torchs(optimizer)
