"""Programs that hold parameters by themselves: in lists, dicts, closures, optimizers of their own, beside the model or in no model."""

from __future__ import annotations

import collections
import copy
import cProfile
import dataclasses
import functools
import operator
import sys
import weakref

import pytest
import torch
from shard_pair import mlp_batches, step_of, zero_plan
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

import stowage


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.Linear(9, 5)).double()


def _clips_a_list():
    model = _model()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(params, 0.1)
        optimizer.step()
        return loss.detach(), norm.detach()

    return train_step, params, None


def _scale_in_no_module():
    model, scale = _model(), nn.Parameter(torch.tensor(2.6, dtype=torch.float64))
    optimizer = torch.optim.Adam([*model.parameters(), scale], lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) * scale.exp() - y).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scale.clamp_(max=2.62)
        return loss.detach()

    return train_step, [scale], None


def _plain_tensors():
    torch.manual_seed(0)
    weight, bias = (
        torch.randn(5, 7, dtype=torch.float64, requires_grad=True),
        torch.zeros(5, dtype=torch.float64, requires_grad=True),
    )
    optimizer = torch.optim.SGD([weight, bias], lr=0.1, momentum=0.9)

    def train_step(x, y):
        loss = (x @ weight.T + bias - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach(), bias.detach().sum()

    return train_step, [weight, bias], None


def _penalized():
    model = _model()
    decayed = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x, y):
        optimizer.zero_grad()
        penalty = sum(p.square().sum() for p in decayed.values())
        loss = (model(x) - y).square().mean() + 0.01 * penalty
        loss.backward()
        for p in decayed.values():
            p.grad.mul_(0.5)
            p.grad += 0.1 * p.detach()
        optimizer.step()
        return loss.detach()

    return train_step, list(decayed.values()), None


def _gradients_asked_for():
    model = _model()
    params = tuple(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)

    def train_step(x, y):
        loss = (model(x) - y).square().mean()
        for p, g in zip(params, torch.autograd.grad(loss, params)):
            p.grad = g
        optimizer.step()
        return loss.detach()

    return train_step, list(params), None


def _optimizer_of_its_own():
    model = _model()

    class Plain:
        def __init__(self, params):
            self.params = list(params)

        @torch.no_grad()
        def step(self):
            for p in self.params:
                p -= 0.1 * p.grad
                p.grad = None

    optimizer = Plain(model.parameters())

    def train_step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step, optimizer.params, None


def _gradients_dropped_between_calls():
    model = _model()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)

    def train_step(x, y):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def between(call):
        for p in params:
            p.grad = None
        if call == 4:
            with torch.no_grad():
                params[0].mul_(0.9)
                params[1].fill_(0.2)

    return train_step, params, between


def _average_of_a_list():
    model = _model()
    params = list(model.parameters())
    average = [p.detach().clone() for p in params]
    optimizer = torch.optim.AdamW(params, lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average, params):
                a.lerp_(p, 0.1)
        return loss.detach(), average[0].sum(), average[3].sum()

    return train_step, params, None


def _functional():
    model, optimizer_of = _model(), torch.optim.Adam
    params = dict(model.named_parameters())
    optimizer = optimizer_of(params.values(), lr=0.01)
    loss_of = lambda x, y: (torch.func.functional_call(model, params, (x,)) - y).square().mean()
    return step_of(loss_of, optimizer), list(params.values()), None


def _attributes_of_parameters():
    model = _model()
    params = list(model.parameters())
    for i, p in enumerate(params):
        p.scale, p.decays = 0.5 + i, p.dim() > 1
    optimizer = torch.optim.SGD(params, lr=0.1)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        for p in model.parameters():
            if getattr(p, "decays", False):
                p.grad.mul_(p.scale)
        optimizer.step()
        return loss.detach() * params[0].scale

    def between(call):
        if call in (3, 7):
            params[0].scale = 0.1 * call
        if call == 6:
            del params[2].decays

    return train_step, params, between


WAYS = {f.__name__.strip("_").replace("_", " "): f for f in (
    _clips_a_list, _scale_in_no_module, _plain_tensors, _penalized, _gradients_asked_for, _optimizer_of_its_own,
    _gradients_dropped_between_calls, _average_of_a_list, _functional, _attributes_of_parameters)}  # fmt: skip


def _whole(p) -> torch.Tensor:
    return p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach()


def what_is_held_stands_for_the_parameter(rank, size):
    batches, wrong = mlp_batches(9), []
    for name, make in WAYS.items():
        for plan in (zero_plan, None):
            try:
                (alone, theirs, _), (step, mine, _) = (runs := [make(), make()])
                step = stowage.shard(step, (size,), plan=plan)
                for call, batch in enumerate(batches):
                    results = []
                    for run, (_, _, between) in zip((alone, step), runs):
                        if between is not None:
                            between(call)
                        result = run(*batch)
                        results.append(result if isinstance(result, tuple) else (result,))
                    for a, b in zip(*results, strict=True):
                        assert (a - b).abs().max().item() < 1e-9, f"call {call}: {a} and {b}"
                for a, b in zip(theirs, mine, strict=True):
                    assert a.shape == b.shape and (a - _whole(b)).abs().max().item() < 1e-9
                assert between is not None or step.stats()["planned_steps"] >= 2, step.refusal or step.stats()
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    assert not wrong, "\n".join(wrong)


def what_is_held_can_be_used_as_before(rank, size):
    """Between calls, too: read, copied, printed, given to functions."""
    train_step, (scale,), _ = _scale_in_no_module()
    step = stowage.shard(train_step, (size,), plan=zero_plan)
    step(*mlp_batches()[0])
    assert isinstance(scale, nn.Parameter) and scale.shape == () and scale.requires_grad
    assert abs(scale.item() - 2.6) < 0.02 and f"{scale.item():.6f}" in f"{scale.full_tensor().item():.6f}"
    assert copy.deepcopy(scale).full_tensor().item() == scale.item() and "DTensor" in repr(scale)
    with torch.no_grad():
        scale.fill_(1.5)
    assert (scale * 2).full_tensor().item() == 3.0
    assert scale.placements[0].is_replicate()


def _asks(size, body, hold):
    """A step of ``body``(model, held, loss); ``held``: what ``hold``(model) gives before anything is cut."""
    model = _model()
    optimizer, held = torch.optim.SGD(model.parameters(), lr=0.1), hold(model)
    loss_of = lambda x, y: body(model, held, (model(x) - y).square().mean())
    return model, step_of(loss_of, optimizer)


def _counted(ps):
    """A cache that knows them."""
    order = []

    @functools.lru_cache(None)
    def place(p):
        order.append(1)
        return len(order)

    for p in ps:
        place(p)
    return place


class _Missing(dict):
    def __missing__(self, key):
        return 1.0


@dataclasses.dataclass(frozen=True)
class _Frozen:
    p: nn.Parameter


class _Wrapped:
    def __init__(self, p):
        self.p = p

    def __eq__(self, other):
        return operator.is_(self.p, other.p)

    def __hash__(self):
        return hash(self.p)


def _looked_up(held, p):
    try:
        return held[p]
    except KeyError:
        return 1.0


# What is made of the parameters before they are cut, and how a step asks that for one of the model's: a factor.
_IDENTITIES = {
    "id": (lambda ps: {id(p) for p in ps}, lambda held, p: 0.1 if id(p) in held else 1.0),
    "id, handed on": (lambda ps: {id(p) for p in ps}, lambda held, p: 0.1 if next(map(id, [p])) in held else 1.0),
    "hash": (lambda ps: {hash(p) for p in ps}, lambda held, p: 0.1 if hash(p) in held else 1.0),
    "set": (set, lambda held, p: 0.1 if p in held else 1.0),
    "frozenset": (frozenset, lambda held, p: 0.1 if p in held else 1.0),
    "weak set": (lambda ps: (weakref.WeakSet(ps), ps), lambda held, p: 0.1 if p in held[0] else 1.0),
    "dict": (lambda ps: dict.fromkeys(ps, 0.1), lambda held, p: held.get(p, 1.0)),
    "ordered": (lambda ps: collections.OrderedDict.fromkeys(ps, 0.1), lambda held, p: held.get(p, 1.0)),
    "counter": (collections.Counter, lambda held, p: 0.1 + held[p]),
    "default": (lambda ps: collections.defaultdict(lambda: 1.0, dict.fromkeys(ps, 0.1)), lambda held, p: held[p]),
    "missing": (lambda ps: _Missing(dict.fromkeys(ps, 0.1)), lambda held, p: held[p]),
    "caught": (lambda ps: dict.fromkeys(ps, 0.1), _looked_up),
    "bound get": (lambda ps: dict.fromkeys(ps, 0.1).get, lambda held, p: held(p, 1.0)),
    "bound contains": (lambda ps: dict.fromkeys(ps, 0.1).__contains__, lambda held, p: 0.1 if held(p) else 1.0),
    "tuples": (lambda ps: {("k", p): 0.1 for p in ps}, lambda held, p: held.get(("k", p), 1.0)),
    "weak keys": (lambda ps: (weakref.WeakKeyDictionary(dict.fromkeys(ps, 0.1)), ps), lambda held, p: held[0].get(p, 1.0)),
    "weak ids": (lambda ps: (WeakIdKeyDictionary(dict.fromkeys(ps, 0.1)), ps), lambda held, p: held[0].get(p, 1.0)),
    "wrapped": (lambda ps: {_Wrapped(p) for p in ps}, lambda held, p: 0.1 if _Wrapped(p) in held else 1.0),
    "frozen": (lambda ps: {_Frozen(p): 0.1 for p in ps}, lambda held, p: held.get(_Frozen(p), 1.0)),
    "cache": (_counted, lambda held, p: 1.0 / held(p)),
    "is": (list, lambda held, p: 0.1 if any(p is q for q in held) else 1.0),
    "operator": (list, lambda held, p: 0.1 if any(map(operator.is_, held, [p] * 9)) else 1.0),
    "partial": (lambda ps: functools.partial(operator.is_, ps[0]), lambda held, p: 0.1 if held(p) else 1.0),
    "address": (list, lambda held, p: 0.1 if p.data_ptr() == held[0].data_ptr() else 1.0),
}  # fmt: skip


def who_parameters_are_cannot_be_asked(rank, size):
    """They are other objects once they are cut: decided by that, the step would go another way, silently."""
    wrong = []
    for name, (hold, asks) in _IDENTITIES.items():
        body = lambda model, held, loss, asks=asks: (
            loss + sum(asks(held, p) * p.square().sum() for p in model.parameters())
        )
        _, step = _asks(size, body, lambda m, hold=hold: hold(list(m[0].parameters())))
        try:
            stowage.shard(step, (size,), plan=zero_plan)(*mlp_batches()[0])
            wrong.append(name)
        except stowage.Unsupported as reason:
            if "once they are cut" not in str(reason) and "lies in memory" not in str(reason):
                wrong.append(f"{name}: {reason}")
    assert not wrong, "\n".join(wrong)

    def by_state(model, held, loss):
        return loss * (2 if any("momentum_buffer" in held[0].state[p] for p in held[1]) else 1)

    def raises(model, held, loss):
        assert all(p in held for p in model.parameters())
        return loss

    for body, hold, words in (
        (raises, lambda m: set(m.parameters()), r"shard_held.py:\d+: the step looks for a parameter in a set or dict"),
        (by_state, lambda m: [torch.optim.SGD(m.parameters()), list(m.parameters())], r"the step looks into a state"),
    ):
        with pytest.raises(stowage.Unsupported, match=words):
            stowage.shard(_asks(size, body, hold)[1], (size,), plan=zero_plan)(*mlp_batches()[0])


def a_profiler_may_run_around_the_first_call(rank, size):
    """It goes on, and hears of the step."""
    model = _model()
    step = stowage.shard(_steps_of(model), (size,), plan=zero_plan)
    profile = cProfile.Profile()
    for batch in mlp_batches(3):
        profile.enable()
        loss = step(*batch)
        assert sys.getprofile() is profile
        profile.disable()
        assert torch.isfinite(loss)
    assert any("shard_pair.py" in getattr(entry.code, "co_filename", "") for entry in profile.getstats())


def code_that_was_typed_in_is_looked_at(rank, size):
    names = {"torch": torch}
    source = "def body(model, held, loss):\n    return loss + sum(p.square().sum() for p in model.parameters() if id(p) in held)"
    for file in ("<stdin>", "<string>", "<ipython-input-3-0a>"):
        exec(compile(source, file, "exec"), names)
        step = _asks(size, names["body"], lambda m: {id(p) for p in m.parameters()})[1]
        with pytest.raises(stowage.Unsupported, match=rf"{file}:\d: the step asks for the id"):
            stowage.shard(step, (size,), plan=zero_plan)(*mlp_batches()[0])


def who_parameters_are_may_be_asked_of_what_is_held(rank, size):
    """And of what the step itself has made; sets and dicts of them may be gone through."""

    def by_name(model, held, loss):
        scale = held.get("scale")
        return loss if scale is None else loss * scale + held[next(iter(model.parameters())).dim()][0].sum()

    def of_held(model, held, loss):
        decayed, ps = held
        return loss + sum((0.1 if p in decayed else 0.01) * p.square().sum() for p in ps)

    def gone_through(model, held, loss):
        return loss + sum(p.square().sum() for p, name in held.items() if "weight" in name)

    def made_in_it(model, held, loss):
        seen, total = set(), loss
        for p in (*model.parameters(), *model[0].parameters()):
            if p not in seen:
                seen.add(p)
                total = total + p.square().sum()
        return total

    for body, hold in (
        (by_name, lambda m: {"scale": 2.0, 2: [m[0].weight]}),
        (of_held, lambda m: (set(m[0].parameters()), list(m.parameters()))),
        (gone_through, lambda m: {p: name for name, p in m.named_parameters()}),
        (made_in_it, lambda m: None),
    ):
        (theirs, alone), (mine, step) = _asks(size, body, hold), _asks(size, body, hold)
        step = stowage.shard(step, (size,), plan=zero_plan)
        for batch in mlp_batches(6):
            assert abs(alone(*batch) - step(*batch)).item() < 1e-9, body.__name__
        for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
            assert (a - b.full_tensor()).abs().max().item() < 1e-9, body.__name__


def _steps_of(model):
    return step_of(lambda x, y: (model(x) - y).square().mean(), torch.optim.SGD(model.parameters(), lr=0.1))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


def functions_that_ask_nobody_are_given_the_model_s_own(rank, size):
    def make(held):
        torch.manual_seed(0)
        model = nn.Linear(7, 5).double()
        weight, optimizer = model.weight, torch.optim.SGD(model.parameters(), lr=0.1)
        used = lambda: weight if held else model.get_parameter("weight")
        return step_of(lambda x, y: (_Product.apply(x, used()) - y).square().mean(), optimizer)

    batches = mlp_batches(6)
    with pytest.raises(stowage.Unsupported, match="an autograd.Function.* is given a parameter that the program holds"):
        stowage.shard(make(True), (size,), plan=zero_plan)(*batches[0])
    alone, step = make(False), stowage.shard(make(False), (size,), plan=zero_plan)
    for batch in batches:
        assert abs(alone(*batch) - step(*batch)).item() < 1e-12


def a_part_of_what_is_held_is_written_in_the_step_alone(rank, size):
    results = []
    for sharded in (False, True):
        model = _model()
        weight, optimizer = model[0].weight, torch.optim.SGD(model.parameters(), lr=0.1)

        def loss_of(x, y, model=model, weight=weight):
            with torch.no_grad():
                weight[1, 2:4] = 0.3
            return (model(x) - y).square().mean()

        step = step_of(loss_of, optimizer)
        step = stowage.shard(step, (size,), plan=zero_plan) if sharded else step
        results.append([step(*batch) for batch in mlp_batches(8)])
    for a, b in zip(*results, strict=True):
        assert abs(a - b).item() < 1e-9
    with torch.no_grad(), pytest.raises(stowage.Unsupported, match="writes to a copy"):
        weight[0, 0] = 3.0


def data_of_what_is_held_is_not_set(rank, size):
    train_step, params, _ = _clips_a_list()
    step = stowage.shard(train_step, (size,), plan=zero_plan)
    step(*mlp_batches()[0])
    with pytest.raises(stowage.Unsupported, match="write p.copy_"):
        params[0].data = torch.zeros(9, 7, dtype=torch.float64)
    step(*mlp_batches()[1])
    model = _model()
    step = stowage.shard(_steps_of(model), (size,), plan=zero_plan)
    for batch in mlp_batches(6):
        step(*batch)
    model[2].bias.data = model[2].bias.data * 0.9  # which PyTorch drops
    with pytest.raises(stowage.Unsupported, match=r"set the .data of 'model.2.bias'"):
        step(*mlp_batches()[1])
