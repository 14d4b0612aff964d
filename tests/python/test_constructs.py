"""Ways of writing a step that users have; each is planned, or refused, and gives the bits of eager."""

import copy
import gc
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage.step.reach import python_of_kernels


def same(make, count=7, planned=True):
    """``make()`` returns (step, state) where state() lists all tensors that the step leaves behind."""
    runs = []
    for compiled in (False, True):
        torch.manual_seed(0)
        step, state = make()
        if compiled:
            step = stowage.compile(step, strict=True)
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(3)
        results = [step(torch.randn(4, 3, 8, 8, generator=generator)) for _ in range(count)]
        runs.append((results, [t.detach().clone() for t in state()], torch.get_rng_state()))
    (r1, s1, g1), (r2, s2, g2) = runs
    assert all(torch.equal(a, b) for a, b in zip(r1, r2, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(s1, s2, strict=True))
    assert torch.equal(g1, g2)
    if planned:
        assert step.refusal == "", step.refusal
        assert step.stats()["planned_steps"] >= count - 4 and step.stats()["misses"] == 0, step.stats()
    return step


def simple(model, loss_of, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda: [*model.parameters(), *model.buffers()]


def net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(512, 10),
    )


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        s = weight.sigmoid()
        return grad * s, (grad * x).sum() * s * (1 - s)


class _WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.gate = net(), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return _Scaled.apply(self.body(x), self.gate)


def test_own_autograd_function():
    same(lambda: simple(_WithFunction(), lambda m, x: m(x).square().mean()))


@torch.library.custom_op("stowage_test::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float) -> torch.Tensor:
    return limit * torch.tanh(x / limit)


@soft_clip.register_fake
def _(x, limit):
    return torch.empty_like(x)


def _soft_clip_setup(ctx, inputs, output):
    ctx.save_for_backward(output)
    ctx.limit = inputs[1]


def _soft_clip_backward(ctx, grad):
    (out,) = ctx.saved_tensors
    return grad * (1 - (out / ctx.limit) ** 2), None


soft_clip.register_autograd(_soft_clip_backward, setup_context=_soft_clip_setup)


def test_custom_operator_written_in_python():
    same(lambda: simple(net(), lambda m, x: soft_clip(m(x), 2.0).square().mean()))


MADE = {"calls": 0}
OWN_RANDOM = random.Random(1)
# What the Python of an operator changes, so that it must run as often as in eager
CHANGING = {
    "counts": lambda x: x * _counted(),
    "draws": lambda x: x + torch.randn(x.shape[-1]),
    "draws from Python": lambda x: x * random.random(),
    "draws from its own": lambda x: x * OWN_RANDOM.random(),
    "counts and draws": lambda x: x * _counted() + torch.randn(x.shape[-1]),
}


def _counted() -> int:
    MADE["calls"] += 1
    return MADE["calls"]


@torch.library.custom_op("stowage_test::changing", mutates_args=())
def changing(x: torch.Tensor, name: str) -> torch.Tensor:
    return CHANGING[name](x)


changing.register_fake(lambda x, name: torch.empty_like(x))
changing.register_autograd(lambda ctx, grad: (grad, None))


class _Counter:
    """Kernels that are a method, an object that can be called, and a function over variables of another one."""

    def __init__(self):
        self.calls = 0

    def count(self, x: torch.Tensor, name: str) -> torch.Tensor:
        self.calls += 1
        return x * self.calls

    __call__ = count

    def begin(self):
        self.calls = 0


def _counting_function():
    calls = 0

    def count(x: torch.Tensor, name: str) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * calls

    def begin():
        nonlocal calls
        calls = 0

    return count, begin


LIBRARY = torch.library.Library("stowage_test", "FRAGMENT")
METHOD, OBJECT = _Counter(), _Counter()
FUNCTION, begin_function = _counting_function()
# By other ways than custom_op
IN_LIBRARY = {
    "impl": changing._init_fn,
    "impl of a method": METHOD.count,
    "impl of an object": OBJECT,
    "impl of a closure": FUNCTION,
    "library.impl": changing._init_fn,
    "register_kernel": changing._init_fn,
}


def _in_library(way: str):
    name = way.replace(" ", "_").replace(".", "_")
    LIBRARY.define(f"{name}(Tensor x, str name) -> Tensor")
    full = f"stowage_test::{name}"
    if way == "library.impl":
        torch.library.impl(full, "cpu", lib=LIBRARY)(IN_LIBRARY[way])
    elif way == "register_kernel":
        torch.library.register_kernel(full, "cpu", IN_LIBRARY[way], lib=LIBRARY)
    else:
        LIBRARY.impl(name, IN_LIBRARY[way], "CPU")
    torch.library.register_autograd(full, lambda ctx, grad: (grad, None), lib=LIBRARY)
    return getattr(torch.ops.stowage_test, name).default


OPERATORS = {way: _in_library(way) for way in IN_LIBRARY}


def _steps_of(op, name: str, compiled: bool) -> list:
    torch.manual_seed(1)
    random.seed(1)
    OWN_RANDOM.seed(1)
    MADE["calls"] = 0
    METHOD.begin()
    OBJECT.begin()
    begin_function()
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train_step(x):
        loss = op(model(x), name).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stowage.compile(train_step) if compiled else train_step
    seen = [(float(step(torch.ones(2, 4))), random.random(), float(torch.rand(1)), MADE["calls"]) for _ in range(8)]
    if compiled:
        assert step.stats()["planned_steps"] >= 3, step.refusal
    return seen


@pytest.mark.parametrize("name", list(CHANGING))
def test_operators_whose_python_changes_something(name):
    """A rehearsal runs them twice: what the first has changed is put back."""
    assert _steps_of(changing, name, compiled=False) == _steps_of(changing, name, compiled=True)


@pytest.mark.parametrize(
    "way, name", [(way, name) for way in OPERATORS for name in CHANGING if " " not in way or name == "counts"]
)
def test_kernels_in_python_of_a_library_that_change_something(way, name):
    assert _steps_of(OPERATORS[way], name, compiled=False) == _steps_of(OPERATORS[way], name, compiled=True)


@pytest.mark.parametrize("way", [way for way in OPERATORS if " " in way])
def test_kernels_in_python_that_the_collector_has_frozen(way):
    """gc.freeze() hides from gc.get_referrers() whose function it is."""
    gc.freeze()
    try:
        assert _steps_of(OPERATORS[way], "counts", compiled=False) == _steps_of(OPERATORS[way], "counts", compiled=True)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("options", [{"check": "always"}, {"budget": "1GiB"}], ids=["free", "limited"])
@pytest.mark.parametrize("leaves_at", [0, 3, 5, 6])
@pytest.mark.parametrize("name", ["counts", "draws", "draws from Python"])
def test_numbers_that_kernels_in_python_have_made(name, leaves_at, options):
    """Kernels run for a number that the step reads, and again where that is taken back: in a rehearsal, and in a call
    that does otherwise than was recorded."""

    def trained(options) -> list:
        torch.manual_seed(1)
        random.seed(1)
        MADE["calls"] = 0
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        read = []

        def train_step(x):
            loss = changing(model(x), name).square().mean()
            read.append(loss.item())
            if len(read) == leaves_at:
                loss = loss.exp()
            (loss * 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step = train_step if options is None else stowage.compile(train_step, **options)
        seen = [(float(step(torch.ones(2, 4))), random.random(), float(torch.rand(1))) for _ in range(12)]
        if options is not None and not leaves_at:
            assert step.stats()["planned_steps"] >= 4, step.refusal
        return [seen, read, MADE["calls"]]

    assert trained(None) == trained(options)


def test_functions_that_share_their_code_are_all_found():
    def made() -> Callable[[], None]:
        seen: list[int] = []

        def kernel() -> None:
            seen.append(1)

        return kernel

    kernels = [made(), made()]
    found = python_of_kernels._functions_of(kernels[0].__code__, kernels[0])
    assert len(found) == 2 and all(any(f is k for f in found) for k in kernels)
    assert python_of_kernels._functions_of(same.__code__, same) == [same]


class _Phase(complex):
    """Its real and imag are members of C's, made anew when they are read, and nobody may set them."""


def test_members_of_c_are_not_put_back():
    phase = _Phase(0.5, 2.0)
    same(lambda: simple(net(), lambda m, x: soft_clip(m(x) * phase.real, phase.imag).square().mean()))


def test_channels_last():
    same(
        lambda: simple(
            net().to(memory_format=torch.channels_last),
            lambda m, x: m(x.to(memory_format=torch.channels_last)).square().mean(),
        )
    )


def test_moving_average_of_weights():
    def make():
        model = net()
        average = copy.deepcopy(model)
        step, state = simple(model, lambda m, x: m(x).square().mean())

        def with_average(x):
            loss = step(x)
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters()):
                    a.lerp_(p, 0.1)
            return loss

        return with_average, lambda: [*state(), *average.parameters()]

    same(make)


def test_two_models_and_two_optimizers():
    """As in a GAN: each optimizer's step sees only its own gradients."""

    def make():
        generator, critic = net(), nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
        first = torch.optim.Adam(generator.parameters(), lr=1e-3)
        second = torch.optim.Adam(critic.parameters(), lr=1e-3)

        def step(x):
            second.zero_grad()
            made = generator(x)
            loss_critic = F.softplus(critic(made.detach())).mean() + F.softplus(-critic(torch.randn(4, 10))).mean()
            loss_critic.backward()
            second.step()
            first.zero_grad()
            loss = F.softplus(-critic(made)).mean()
            loss.backward()
            first.step()
            return torch.stack([loss.detach(), loss_critic.detach()])

        return step, lambda: [*generator.parameters(), *critic.parameters(), *generator.buffers()]

    same(make)


def test_tensors_made_from_numbers():
    def loss_of(m, x):
        y = m(x)
        target = torch.tensor([1.0, -1.0] * 5)
        total = torch.tensor(0.0)
        total = total + (y - target).square().mean()
        weights = torch.ones(10)
        weights[2] = 3.0
        total += (y * weights).mean() * torch.tensor(0.5)
        return total + torch.arange(10).float().mul(y).mean()

    same(lambda: simple(net(), loss_of))


def test_constant_that_is_written():
    def loss_of(m, x):
        count = torch.tensor([0.0, 0.0])
        count[0] += m(x).square().mean()
        count[1] += m(x).abs().mean()
        return count.sum()

    same(lambda: simple(net(), loss_of))


def test_views_and_in_place_ops():
    def loss_of(m, x):
        x = x.clone()
        x[:, 0].mul_(0.5)
        x.transpose_(2, 3)
        y = m(x).unsqueeze(0).expand(3, -1, -1).reshape(3, -1).t()
        a, b = y[:10].clone(), y.split([10, 30])[1]
        return (a.exp_().sum() + torch.cat([b, b.flip(0)]).relu_().sum()) / 100

    same(lambda: simple(net(), loss_of))


def test_multi_head_attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)

        def forward(self, x):
            return self.layer(x.flatten(2))

    same(lambda: simple(Attention(), lambda m, x: m(x).square().mean()))


def test_double_precision_and_sgd_without_state():
    def make():
        model = net().double()
        return simple(model, lambda m, x: m(x.double()).square().mean(), torch.optim.SGD(model.parameters(), lr=0.01))

    same(make)


@pytest.mark.parametrize("name", ["Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "Rprop"])
def test_other_optimizers(name):
    def make():
        model = net()
        return simple(model, lambda m, x: m(x).square().mean(), getattr(torch.optim, name)(model.parameters(), lr=1e-3))

    same(make, count=9, planned=False)


def test_learning_rate_as_a_tensor():
    def make():
        model = net()
        return simple(
            model,
            lambda m, x: m(x).square().mean(),
            torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3), foreach=False),
        )

    same(make)


def test_weight_normalisation():
    def make():
        model = nn.Sequential(
            nn.Flatten(),
            nn.utils.parametrizations.weight_norm(nn.Linear(192, 10)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(10, 10)),
        )
        return simple(model, lambda m, x: m(x).square().mean())

    same(make, planned=False)


def test_frozen_layers():
    def make():
        model = net()
        for p in model[0].parameters():
            p.requires_grad_(False)
        return simple(
            model,
            lambda m, x: m(x).square().mean(),
            torch.optim.Adam([p for p in model.parameters() if p.requires_grad]),
        )

    same(make)


def test_step_without_an_optimizer():
    """Gradients are the result; they stay after every step as eager leaves them."""
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = net()

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        run = stowage.compile(step, strict=True) if compiled else step
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(3)
        grads = []
        for i in range(9):
            run(torch.randn(4, 3, 8, 8, generator=generator))
            grads.append([p.grad.clone() for p in model.parameters()])
            if i % 3 == 2:
                model.zero_grad()
        results.append(grads)
    for a, b in zip(*results, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_checkpoint_that_stops_at_a_random_op():
    """Recomputation ends, by an exception, inside the last op that it needs: here a dropout."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(192, 64), nn.Linear(64, 64)

        def forward(self, x):
            return F.dropout(self.b(F.dropout(self.a(x).relu(), 0.3)), 0.3)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Block(), nn.Linear(64, 10)

        def forward(self, x):
            x = torch.utils.checkpoint.checkpoint(self.first, x.flatten(1), use_reentrant=False)
            return F.dropout(self.second(x), 0.2)

    same(lambda: simple(Net(), lambda m, x: m(x).square().mean()))


def test_indexing_with_integers():
    """Their number is known without the data, unlike that of a mask."""
    same(lambda: simple(net(), lambda m, x: m(x)[torch.tensor([0, 2, 2])].square().mean()))
