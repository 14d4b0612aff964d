"""PyTorch's functions and methods that a program has put its own in the place of, which call PyTorch's: patched from the
start, or between two calls. A mode that listens is told the new owner of the name, from within the old one."""

import copy
import functools
import pickle
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage._torch import replaced

CALLS = 12
_LABELS = torch.zeros(4, dtype=torch.long)
USES = {  # written in Python, in C, or both
    "relu": (F, lambda m, x: m(x).relu() + F.relu(m(x))),
    "linear": (F, lambda m, x: m(x)),
    "layer_norm": (F, lambda m, x: F.layer_norm(m(x), (8,))),
    "scaled_dot_product_attention": (F, lambda m, x: F.scaled_dot_product_attention(*(m(x)[None, None],) * 3)),
    "max_pool1d": (F, lambda m, x: F.max_pool1d(m(x)[None], 2)),
    "dropout": (F, lambda m, x: F.dropout(m(x), 0.0)),
    "cross_entropy": (F, lambda m, x: F.cross_entropy(m(x), _LABELS)),
    "l1_loss": (F, lambda m, x: F.l1_loss(m(x), x)),
    "embedding_bag": (F, lambda m, x: F.embedding_bag(_LABELS[None], m(x))),
    "unflatten": (torch.Tensor, lambda m, x: m(x).unflatten(1, (2, 4)).sum(1)),
    "norm": (torch, lambda m, x: m(x) * torch.norm(m(x))),
    "einsum": (torch, lambda m, x: torch.einsum("ij,ij->i", m(x), x)),
    "cdist": (torch, lambda m, x: torch.cdist(m(x), x)),
    "sin": (torch, lambda m, x: torch.sin(m(x))),
    "tanh": (torch.Tensor, lambda m, x: m(x).tanh()),
    "__mul__": (torch.Tensor, lambda m, x: m(x) * x),
    "__rsub__": (torch.Tensor, lambda m, x: 1 - m(x)),
    "sum": (torch.Tensor, lambda m, x: m(x) * m(x).sum()),
}


def those_that_tell_modes():
    """PyTorch's functions in Python that are told by their names."""
    for owner in (F, torch.functional, torch.Tensor):
        for name, value in vars(owner).items():
            own = isinstance(value, types.FunctionType) and value.__code__.co_name == name and replaced.is_torchs(value)
            if own and "handle_torch_function" in value.__code__.co_names:
                yield value


def test_which_function_runs_is_found_by_its_code():
    """With its defaults: some of PyTorch's do not hand over all of their arguments."""
    found = list(those_that_tell_modes())
    assert len(found) > 60
    for function in found:
        assert replaced._function_of(function.__code__) is function, function


class Doubled:
    def __init__(self, original):
        self._original = original

    def __call__(self, *args, **kwargs):
        return torch.mul(self._original(*args, **kwargs), 2)


def doubled(original):
    def call(*args, **kwargs):
        return torch.mul(original(*args, **kwargs), 2)

    return call


HOW = {
    "function": doubled,
    "like the original": lambda original: functools.wraps(original)(doubled(original)),
    "partial": lambda original: functools.partial(doubled(original)),
    "object": Doubled,
}


def trained(name, how, since, compile_it):
    owner, use = USES[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(x):
        loss = use(model, x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    called = stowage.compile(step, check="always" if since else "auto") if compile_it else step
    own, original = name in vars(owner), getattr(owner, name)
    generator, results = torch.Generator().manual_seed(1), []
    try:
        for call in range(CALLS):
            if call == since:
                setattr(owner, name, HOW[how](original))
            results.append(called(torch.randn(4, 8, generator=generator)))
    finally:
        setattr(owner, name, original) if own else delattr(owner, name)
    return results, called


@pytest.mark.parametrize("since", [0, 8])
@pytest.mark.parametrize("how", list(HOW))
@pytest.mark.parametrize("name", list(USES))
def test_as_in_eager(name, how, since):
    if USES[name][0] is torch.Tensor and how in ("partial", "object"):
        pytest.skip("no method: it would not be given the tensor")
    expected, _ = trained(name, how, since, False)
    got, step = trained(name, how, since, True)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert step.stats()["planned_steps"] > 0, step.refusal


# ---- Methods that the program has replaced, within budgets, which replace some for a while as well: each runs as often as in eager

READS = {
    "tolist": lambda t: t.tolist(),
    "item": lambda t: t.item(),
    "numpy": lambda t: float(t.numpy()),
    "__array__": lambda t: float(t.__array__()),
    "__repr__": repr,
    "__format__": lambda t: f"{t:.3f}",
    "__deepcopy__": lambda t: copy.deepcopy(t).item(),
    "__reduce_ex__": lambda t: pickle.loads(pickle.dumps(t)).item(),
    "data_ptr": lambda t: t.data_ptr() > 0,
    "untyped_storage": lambda t: t.untyped_storage().nbytes(),
    "detach": lambda t: t.detach().item(),
    "clone": lambda t: t.clone().item(),
    "tanh": lambda t: t.tanh().item(),
    "__bool__": bool,
}


def replacing(original, calls):
    def mine(*args, **kwargs):
        calls.append(len(args))
        return original(*args, **kwargs)

    return mine


REPLACING = {
    "function": replacing,
    "like the original": lambda original, calls: functools.wraps(original)(replacing(original, calls)),
}


def read(name, how, since, until, options):
    """The step's results, what it read, and how often the program's own method ran; set and unset in this order of calls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    log, calls, results = [], [], []

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.append(READS[name](loss.detach()))
        return loss.detach()

    called = step if options is None else stowage.compile(step, **options)
    own, original = name in vars(torch.Tensor), getattr(torch.Tensor, name)

    def unset():
        setattr(torch.Tensor, name, original) if own else delattr(torch.Tensor, name)

    generator = torch.Generator().manual_seed(1)
    try:
        for call in range(CALLS):
            if call == since:
                setattr(torch.Tensor, name, REPLACING[how](original, calls))
            if call == until:
                unset()
            results.append(called(torch.randn(64, 16, generator=generator)))
    finally:
        if until > CALLS:
            unset()
    return results, log, len(calls)


@pytest.mark.parametrize(
    "options", [{}, {"check": "never"}, {"budget": 1 << 20}, {"budget": 1 << 20, "check": "never"}], ids=str
)
@pytest.mark.parametrize("since, until", [(0, 99), (7, 99), (0, 7)])
@pytest.mark.parametrize("how", REPLACING)
@pytest.mark.parametrize("name", READS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_methods_that_read(name, how, since, until, options):
    before = {k: v for k, v in vars(torch.Tensor).items() if k != "__slotnames__"}  # that copyreg adds
    expected, expected_log, expected_calls = read(name, how, since, until, None)
    results, log, calls = read(name, how, since, until, options)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert log == expected_log
    assert calls == expected_calls
    assert {k: v for k, v in vars(torch.Tensor).items() if k != "__slotnames__"} == before


@pytest.mark.parametrize("budget", [None, 2 << 20])
@pytest.mark.parametrize("name", ["relu", "tanh", "backward"])
def test_calls_that_skip_python_see_it(name, budget):
    """A budget, which replaces methods while it records, hides no later replacement from the guards."""

    def trained(options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 8))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step(x):
            loss = model[2](model[1](model[0](x).relu()).tanh()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, calls, results = step if options is None else stowage.compile(step, **options), [], []
        own, original = name in vars(torch.Tensor), getattr(torch.Tensor, name)
        generator = torch.Generator().manual_seed(1)
        try:
            for call in range(CALLS):
                if call == 8:
                    setattr(torch.Tensor, name, replacing(original, calls))
                results.append(run(torch.randn(512, 64, generator=generator)))
        finally:
            setattr(torch.Tensor, name, original) if own else delattr(torch.Tensor, name)
        return torch.stack(results).tolist(), len(calls)

    assert trained({"check": "never", "budget": budget}) == trained(None)


@pytest.mark.parametrize("name", ["tolist", "tanh"])
def test_what_the_program_sets_within_a_block_stays(name):
    plain, calls = getattr(torch.Tensor, name), []
    with stowage.budget("100MiB", progress=False):
        setattr(torch.Tensor, name, replacing(plain, calls))
    try:
        getattr(torch.ones(2), name)()
        with stowage.budget("100MiB", progress=False):
            getattr(torch.ones(2), name)()
        assert len(calls) == 2
    finally:
        delattr(torch.Tensor, name)
    assert getattr(torch.Tensor, name) is plain
