"""Arguments that are no tensors or numbers: models, optimizers, settings, batches of one's own; and methods."""

import argparse
import dataclasses
import types

import numpy as np
import pytest
import torch
from torch import nn

import stowage


def net(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.AdamW(model.parameters(), 0.1)


def rows(i):
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(i))


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def agrees(make, planned=3, calls=14, **options):
    def run(wrap):
        loop, models = make(wrap)
        seen = []
        for i in range(calls):
            seen.append(loop(i))
            seen += [p.detach().clone() for m in models for p in m.parameters()]
        return seen

    steps = []

    def compiled(fn):
        steps.append(stowage.compile(fn, **options))
        return steps[0]

    expected, got = run(lambda fn: fn), run(compiled)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert steps[0].stats()["planned_steps"] >= planned, steps[0].refusal
    return steps[0]


CHECKS = pytest.mark.parametrize("check", ["never", "auto"])


@CHECKS
def test_model_and_optimizer(check):
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda m, o, x: update(m(x).square().mean(), o))

        def loop(i):
            if i == 8:
                model[1] = nn.Tanh()
            return step(model, optimizer, rows(i))

        return loop, [model]

    agrees(make, check=check)


@CHECKS
def test_two_models_take_turns(check):
    def make(wrap):
        pairs = [net(0), net(1)]
        step = wrap(lambda m, x, o, loss: update(loss(m(x)), o))

        def square(y):
            return y.square().mean()

        def loop(i):
            model, optimizer = pairs[i // 2 % 2]
            return step(model, rows(i), loss=square, o=optimizer)

        return loop, [m for m, _ in pairs]

    agrees(make, 4, check=check)


def test_plans_of_many_models_are_let_go():
    step = stowage.compile(lambda m, o, x: update(m(x).square().mean(), o))
    for seed in range(8):
        model, optimizer = net(seed)
        for i in range(4):
            step(model, optimizer, rows(i))
    assert step.stats()["planned_steps"] == 16 - 8 + 0 or step.stats()["planned_steps"] >= 8
    assert sum(bool(entry.replays) for entry in step._entries.values()) <= 4


@CHECKS
def test_a_method(check):
    def make(wrap):
        class Trainer:
            def __init__(self):
                self.model, self.optimizer = net()
                self.scale = 1.0

            @wrap
            def train_step(self, x):
                return update(self.model(x).square().mean() * self.scale, self.optimizer)

        trainer = Trainer()

        def loop(i):
            if i == 8:
                trainer.scale = 3.0
            return trainer.train_step(rows(i))

        return loop, [trainer.model]

    agrees(make, check=check)


@CHECKS
@pytest.mark.parametrize("kind", [types.SimpleNamespace, argparse.Namespace])
def test_settings(kind, check):
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda settings, x: update(model(x).square().mean() * settings.scale, optimizer))
        settings = kind(scale=1.0, name="a", layers=[1, 2])

        def loop(i):
            if i == 8:
                settings.scale = 3.0
            return step(settings if i < 10 else kind(scale=0.5, name="a", layers=[1, 2]), rows(i))

        return loop, [model]

    agrees(make, check=check)


class Batch:
    factor = 1.0

    def __init__(self, x, w):
        self.x, self.w = x, w

    def weighted(self, y):
        return y * self.w * self.factor


@CHECKS
def test_a_batch_of_ones_own(check):
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda b: update(b.weighted(model(b.x)).square().mean(), optimizer))
        Batch.factor = 1.0

        def loop(i):
            if i == 8:
                Batch.factor = 2.0
            return step(Batch(rows(i), torch.full((4,), float(i))))

        return loop, [model]

    agrees(make, check=check)


@dataclasses.dataclass
class Given:
    x: torch.Tensor

    def scaled(self, y):
        return y * self.scale

    scale = 1.0


@CHECKS
def test_the_class_of_a_dataclass(check):
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda b: update(b.scaled(model(b.x)).square().mean(), optimizer))
        Given.scale = 1.0

        def loop(i):
            if i == 8:
                Given.scale = 2.0
            return step(Given(rows(i)))

        return loop, [model]

    agrees(make, check=check)


class Named(dict):
    pass


@CHECKS
@pytest.mark.parametrize("value", [lambda s: {"scale": s}, lambda s: [s], lambda s: {s}, torch.tensor, lambda s: np.full(1, s)],
                         ids=["dict", "list", "set", "tensor", "array"])  # fmt: skip
@pytest.mark.parametrize("holder", ["tensor", "dict"])
def test_what_hangs_on_an_argument(holder, value, check):
    def make(wrap):
        model, optimizer = net()

        def train_step(batch):
            x = batch if holder == "tensor" else batch["x"]
            info = (
                batch.info["scale"]
                if isinstance(batch.info, dict)
                else next(iter(batch.info.reshape(1) if isinstance(batch.info, torch.Tensor) else batch.info))
            )
            return update((model(x) * float(info)).square().mean(), optimizer)

        step = wrap(train_step)

        def loop(i):
            x = rows(i)
            batch = x if holder == "tensor" else Named(x=x)
            batch.info = value(1.0 if i < 8 else 3.0)
            return step(batch)

        return loop, [model]

    agrees(make, planned=0, check=check)


@CHECKS
def test_one_object_twice_or_two(check):
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda a, b: update((model(a) * (2.0 if a is b else 1.0) + model(b)).square().mean(), optimizer))

        def loop(i):
            x = rows(i)
            return step(x, x if i < 8 else x.view(6, 8))

        return loop, [model]

    agrees(make, check=check)


@CHECKS
def test_numbers_of_numpy(check):
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda x, s, i: update(model(x).square().mean() * float(s) + int(i), optimizer))
        return (lambda i: step(rows(i), np.float32(1 + i // 8), np.int64(i))), [model]

    agrees(make, check=check)


@pytest.mark.filterwarnings("ignore:stowage")
def test_a_parameter():
    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda p, x: update((model(x) + p.sum()).square().mean(), optimizer))
        return (lambda i: step(model[0].weight, rows(i))), [model]

    agrees(make)


def test_verify_capture_and_will_it_fit():
    model, optimizer = net()

    def step(batch):
        return update(batch.weighted(model(batch.x)).square().mean(), optimizer)

    before = [p.detach().clone() for p in model.parameters()]
    found = stowage.verify(step, [Batch(rows(i), torch.ones(4)) for i in range(8)])
    assert found, found
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))

    def whole(model, optimizer, x):
        return update(model(x).square().mean(), optimizer)

    graph = stowage.capture(whole, model, optimizer, rows(0))
    assert graph.resident_bytes > sum(4 * p.numel() for p in model.parameters())

    def make_step(batch_size=4):
        model, optimizer = net()
        return whole, (model, optimizer, torch.zeros(batch_size, 8))

    assert "fits" in str(stowage.will_it_fit(make_step, "1GiB"))


def test_a_batch_of_a_librarys_class(tmp_path, monkeypatch):
    """Which keeps its tensors in private attributes."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "batches_of_a_library.py").write_text(
        "class Data:\n    def __init__(self, x):\n        self._store = {'x': x}\n\n    @property\n    def x(self):\n        return self._store['x']\n"
    )
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr("stowage.step.signature.describer.is_library_class", lambda cls: True)
    from batches_of_a_library import Data

    def make(wrap):
        model, optimizer = net()
        step = wrap(lambda data: update(model(data.x).square().mean(), optimizer))
        return (lambda i: step(Data(rows(i)))), [model]

    agrees(make, check="never")
