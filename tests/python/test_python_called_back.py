"""Python of the user's that PyTorch itself calls while a planned call's Python runs over shells: in functions that take
functions, in sequences and indices, in subclasses, in optimizers. What it reads past the dispatcher is what eager would
read there; a step that reads so is planned, or refused with a reason."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import stowage

CALLS = 12


class Held:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.log = []

    @property
    def mean(self):  # which the step has updated
        return self.model[1].running_mean


READS = {
    "tolist": lambda t: t.tolist()[0],
    "numpy": lambda t: float(t.detach().numpy()[0]),
    "text": lambda t: repr(t.detach()),
    "item": lambda t: t[0].item(),
    "tensor": lambda t: torch.tensor([t.detach()[0], 1.0]).tolist()[0],
}


def distance(held, read):
    def far(a, b):
        held.log.append(read(held.mean))
        return (a - b).square().sum(1)

    return lambda a: F.triplet_margin_with_distance_loss(a, a.roll(1, 0), a.roll(2, 0), distance_function=far)


def sequence(held, read):
    class Numbers:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            if i > 1:
                raise IndexError
            held.log.append(read(held.mean))
            return float(i)

    return lambda a: (a[:, :2] * torch.tensor(Numbers())).sum()


def index(held, read):
    class First:
        def __index__(self):
            held.log.append(read(held.mean))
            return 0

    return lambda a: a[:, First()].square().sum()


class Index:
    def __init__(self, held, read):
        self._of = held, read

    def __index__(self):
        held, read = self._of
        held.log.append(read(held.mean))
        return 0


def within_a_slice(held, read):
    return lambda a: a[:, Index(held, read) :].square().sum()


def set_at(held, read):
    def loss(a):
        b = a.clone()
        b[:, Index(held, read) : 2] = 0.0
        return b.square().sum()

    return loss


def hook_of_pytorchs_module(held, read):
    far = nn.PairwiseDistance()
    far.register_forward_hook(lambda *_: held.log.append(read(held.mean)))
    return lambda a: F.triplet_margin_with_distance_loss(a, a.roll(1, 0), a.roll(2, 0), distance_function=far)


def forward_of_pytorchs_module(held, read):
    far = nn.PairwiseDistance()
    plain = far.forward

    def forward(a, b):
        held.log.append(read(held.mean))
        return plain(a, b)

    far.forward = forward
    return lambda a: F.triplet_margin_with_distance_loss(a, a.roll(1, 0), a.roll(2, 0), distance_function=far)


def duck(held, read):
    class Duck:
        def __init__(self, tensor):
            self.tensor = tensor

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            held.log.append(read(held.mean))
            return func(*(a.tensor if isinstance(a, Duck) else a for a in args), **(kwargs or {}))

    return lambda a: torch.sum(Duck(a.square()))


def packed(held, read):
    def pack(t):
        held.log.append(read(held.mean))
        return t

    def loss(a):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return a.tanh().square().sum()

    return loss


def unpacked(held, read):
    def unpack(t):
        held.log.append(read(held.mean))
        return t

    def loss(a):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            return a.tanh().square().sum()

    return loss


class Dispatched(TorchDispatchMode):
    def __init__(self, reads):
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._reads()
        return func(*args, **(kwargs or {}))


def in_a_mode(held, read):
    def loss(a):
        with Dispatched(lambda: held.log.append(read(held.mean))):
            return a.tanh().square().sum()

    return loss


WAYS = {
    each.__name__: each
    for each in (
        *(distance, sequence, index, duck, within_a_slice, set_at),
        *(hook_of_pytorchs_module, forward_of_pytorchs_module, packed, unpacked, in_a_mode),
    )
}


def trained(way, read, options, before_call=lambda call: None):
    """Losses, what was read, and what it is at the end. ``options``: of stowage.compile, or none."""
    held = Held()
    loss_of = WAYS[way](held, READS[read])

    def step(x):
        held.optimizer.zero_grad()
        loss = loss_of(held.model(x))
        loss.backward()
        held.optimizer.step()
        return loss.detach()

    run, losses = step if options is None else stowage.compile(step, **options), []
    for call in range(CALLS):
        before_call(call)
        losses.append(run(torch.randn(4, 3, generator=torch.Generator().manual_seed(call))).item())
    return losses, held.log, held.mean.tolist()


@pytest.mark.parametrize("budget", [None, 4096])
@pytest.mark.parametrize("check", ["always", "never"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_it_reads(way, read, check, budget):
    before = dict(vars(torch.Tensor))
    assert trained(way, read, {"check": check, "budget": budget}) == trained(way, read, None)
    assert dict(vars(torch.Tensor)) == before


@pytest.mark.parametrize("since", [0, 8])
@pytest.mark.parametrize("name", ["tolist", "numpy"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_it_reads_by_a_method_of_the_programs(name, since, monkeypatch):
    """A stand-in would hide it."""

    def replaced(options):
        calls, original = [], getattr(torch.Tensor, name)

        def mine(self):
            calls.append(1)
            return original(self)

        with monkeypatch.context() as patch:
            seen = trained(
                "distance",
                name,
                options,
                lambda call: patch.setattr(torch.Tensor, name, mine) if call == since else None,
            )
        return seen, len(calls)

    assert replaced({}) == replaced(None)


def test_functions_that_read_nothing_are_planned():
    held = Held()

    def step(x):
        held.optimizer.zero_grad()
        a = held.model(x)
        loss = F.triplet_margin_with_distance_loss(
            a, a.roll(1, 0), a.roll(2, 0), distance_function=lambda p, q: 1 - F.cosine_similarity(p, q)
        )
        loss.backward()
        held.optimizer.step()
        return loss.detach()

    compiled = stowage.compile(step, check="always")
    before = dict(torch.Tensor.__dict__)
    for _ in range(CALLS):
        compiled(torch.randn(4, 3))
    assert compiled.stats()["planned_steps"] >= 8
    assert dict(torch.Tensor.__dict__) == before


REPLACED = {
    "step of the class": (torch.optim.SGD, "step"),
    "function of the module": (sys.modules["torch.optim.sgd"], "sgd"),
    "method of the class": (torch.optim.SGD, "_init_group"),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("what", REPLACED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_an_optimizer_of_pytorch_calls(what, read, monkeypatch):
    """Replaced by what looks at a parameter after its update."""
    owner, name = REPLACED[what]
    plain = getattr(owner, name)
    watched = []

    def looks(*args, **kwargs):
        result = plain(*args, **kwargs)
        watched[0](result)
        return result

    monkeypatch.setattr(owner, name, looks)

    def trained(compiled):
        held = Held()
        watched[:] = [lambda _: held.log.append(READS[read](held.model[0].bias))]

        def step(x):
            held.optimizer.zero_grad()
            loss = held.model(x).square().mean()
            loss.backward()
            held.optimizer.step()
            return loss.detach()

        run = stowage.compile(step, check="always") if compiled else step
        losses = [run(torch.full((4, 3), 0.1 * call)).item() for call in range(CALLS)]
        return losses, held.log

    assert trained(True) == trained(False)


@pytest.mark.parametrize("read", READS)
def test_a_parameter_of_a_subclass(read):
    log = []

    class Watched(nn.Parameter):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                result = func(*args, **(kwargs or {}))
                if getattr(func, "__name__", "") == "add_":
                    log.append(READS[read](args[0]))
            return result

    def trained(compiled):
        log.clear()
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        model.bias = Watched(model.bias.detach().clone())
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = stowage.compile(step, check="always") if compiled else step
        losses = [run(torch.full((4, 3), 0.1 * call)).item() for call in range(CALLS)]
        return losses, list(log)

    assert trained(True) == trained(False)
