"""Steps that come by their model in ways that no walk over objects knows, and set what it holds."""

import contextlib
import threading
import types
import weakref

import pytest
import torch
from mean_square import mean_square_step
from torch import nn

import stowage

CALLS = 12
KEPT: list = []  # what only weak references name
LIBRARY = types.ModuleType("stowage_test_unseen_holders")


class _OfClass:
    model = None


def _class_attribute(model):
    _OfClass.model = model
    return lambda: _OfClass.model


def _thread_local(model):
    held = threading.local()
    held.model = model
    return lambda: held.model


def _weak_values(model):
    held = weakref.WeakValueDictionary({"model": model})
    KEPT.append(model)
    return lambda: held["model"]


def _proxy(model):
    KEPT.append(model)
    held = weakref.proxy(model)
    return lambda: held


def _by_context_manager(model):
    @contextlib.contextmanager
    def given():
        yield model

    def get():
        with given() as found:
            return found

    return get


def _module(model):
    LIBRARY.model = model
    return lambda: vars(LIBRARY)["mod" + "el"]


HOLDERS = {
    "class attribute": _class_attribute,
    "threading.local": _thread_local,
    "WeakValueDictionary": _weak_values,
    "weakref.proxy": _proxy,
    "no_grad() around a function": lambda model: torch.no_grad()(lambda: model),
    "torch.compiler.disable": lambda model: torch.compiler.disable(lambda: model),
    "a context manager": _by_context_manager,
    "a module's variable by a made name": _module,
    "eval": lambda model: eval("lambda: found", {"found": model}),
}


def _sets_data(model, x, call):
    value = model.weight * 1
    model.weight.data = value + x.mean()
    return value.sum()


def _sets_data_sometimes(model, x, call):
    value = model.weight * 1 + x.mean()
    if call % 5 == 3:
        model.weight.data = value
    return value.sum()


def _swaps_data(model, x, call):
    model.weight.data, model.spare.data = model.spare.data, model.weight.data
    return (model(x) + model.spare.sum()).sum()


def _sets_a_buffer(model, x, call):
    model.mean = model.mean * 0.9 + x.mean()
    return model.mean.sum() + model(x).sum()


def _counts(model, x, call):
    model.calls += 1
    return model(x).sum() * model.calls


BODIES = [_sets_data, _sets_data_sometimes, _swaps_data, _sets_a_buffer, _counts]


def train(holder: str, body, compiled: bool) -> list:
    torch.manual_seed(5)
    model = nn.Linear(4, 3, bias=False)
    model.spare = nn.Parameter(torch.randn(3, 4))
    model.register_buffer("mean", torch.zeros(()))
    model.calls = 0
    get, count = HOLDERS[holder](model), [0]

    def step(x):
        count[0] += 1
        return body(get(), x, count[0]).detach()

    call = stowage.compile(step) if compiled else step
    seen = []
    for _ in range(CALLS):
        loss = call(torch.randn(2, 4))
        seen.append([float(loss), model.calls, *(t.tolist() for t in (*model.parameters(), *model.buffers()))])
    return seen


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("holder", list(HOLDERS))
def test_state_is_eagers(holder, body):
    assert train(holder, body, compiled=True) == train(holder, body, compiled=False)


class _Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.norm(self.linear(x))


@pytest.mark.parametrize(
    "made", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(5, 6))], ids=["script", "trace"]
)
def test_buffers_of_torch_jit(made):
    """Whose containers are no dicts."""

    def losses(wrap):
        torch.manual_seed(0)
        model = made(_Scripted())
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        call = wrap(mean_square_step(model, optimizer))
        seen = [float(call(torch.randn(5, 6))) for _ in range(10)]
        return call, [seen, *(b.tolist() for b in model.buffers())]

    _, wanted = losses(lambda step: step)
    step, got = losses(stowage.compile)
    assert got == wanted
    assert step.stats()["planned_steps"] >= 5
