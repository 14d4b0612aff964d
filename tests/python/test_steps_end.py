"""A step that nobody holds any more lets go of its model, its plans and its arena at once, without a collection of garbage."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import gc

import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime

CALLS = 9


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer0, self.layer1, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.scale, self.calls = 1.0, 0

    def forward(self, x):
        return self.out(self.layer1(torch.tanh(self.layer0(x)))) * self.scale


class _Named(_Net):
    def forward(self, x):
        for i in range(2):
            x = torch.tanh(getattr(self, f"layer{i}")(x))
        return self.out(x)


class _Counting(_Net):
    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class _Nested(_Net):
    def forward(self, x):
        return super().forward(torch.nested.nested_tensor(list(x.unsqueeze(1))).to_padded_tensor(0.0))


class _Failing(_Net):
    def forward(self, x):
        if self.calls == 4:
            raise ValueError("no")
        return super().forward(x)


class _Interrupted(_Net):
    def forward(self, x):
        if self.calls == 4:
            raise KeyboardInterrupt
        return super().forward(x)


class _Reading(_Net):
    """Its number decides; planned calls run Python in another way."""

    def forward(self, x):
        y = super().forward(x)
        return y * 2 if y.sum().item() > 0 else y


class _Looking(_Net):
    """A kernel raises where an index is too large."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)

    def forward(self, x):
        return super().forward(x + self.table((x[:, 0] * 0 + (20 if x[0, 0] > 1e3 else 3)).long()))


class _LookingUnseen(_Looking):
    def forward(self, x):
        return _Net.forward(self, x + self.table(x[:, 0].abs().long()))


class _Copying(_Net):
    def forward(self, x):
        return super().forward(x) * copy.deepcopy(self.scale)


KINDS = {
    "plain": {},
    "budget": {"budget": "64MiB"},
    "no checks": {"check": "never"},
    "names worked out": {"make": _Named},
    "names worked out, budget": {"make": _Named, "budget": "64MiB"},
    "counts": {"make": _Counting},
    "refused": {"make": _Nested},
    "raises": {"make": _Failing},
    "copies": {"make": _Copying},
    "changed": {"change": True},
    "two lengths": {"rows": (4, 6)},
    "no plan": {"calls": 1},
    "called never": {"calls": 0},
    "errors of torch": {"wrong_shape": True},
    "interrupted": {"make": _Interrupted},
    "interrupted, budget": {"make": _Interrupted, "budget": "64MiB"},
    "asks for numbers": {"make": _Reading},
    "kernels raise": {"make": _Looking, "huge": True},
    "kernels raise, unseen": {"make": _LookingUnseen, "huge": True},
    "kernels raise, budget": {"make": _LookingUnseen, "huge": True, "budget": "64MiB"},
    "no room": {"budget": 6000},
    "no room for the plan": {"budget": 21_900},
    "verified": {"ends": lambda step: stowage.verify(step, [torch.randn(4, 8) for _ in range(2)])},
    "reported": {"report": "step.html"},
}


def _run(
    make=_Net,
    change=False,
    rows=(4,),
    calls=CALLS,
    wrong_shape=False,
    huge=False,
    ends=lambda step: None,
    report=None,
    **options,
):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def body(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    step = stowage.compile(body, **options)
    for i in range(calls):
        if change:
            model.scale = 1.0 + (i > 3)
        if make in (_Failing, _Interrupted):
            model.calls = i
        batch = torch.randn(rows[i % len(rows)], 7 if wrong_shape and i == 5 else 8)
        if huge and i == 6:
            batch = batch.abs() + 5e3
        try:
            step(batch)
        except (ValueError, RuntimeError, IndexError, KeyboardInterrupt, MemoryError, stowage.Error):
            assert batch.shape[1] == 7 or batch[0, 0] > 1e3 or make in (_Failing, _Interrupted) or "budget" in options
    ends(step)
    if report is not None:
        step.report(report)
    return step.stats()["planned_steps"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = _run(**KINDS[kind])  # what the first of its kind in a process leaves is the process's
    assert (planned > 0) == (kind not in ("refused", "no plan", "called never", "no room", "no room for the plan"))
    gc.collect()
    before = _runtime.live_bytes()
    gc.disable()
    try:
        _run(**KINDS[kind])
        assert _runtime.live_bytes() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("room", [64 << 20, 60_000, 9_000])
@pytest.mark.parametrize("make", [_Net, _Failing, _Interrupted, _LookingUnseen])
def test_nothing_of_a_block_is_left(make, room):
    def run():
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        with stowage.budget(_runtime.live_bytes() + room - 20_000 * (room < 1 << 20)):
            for i in range(CALLS):
                if make in (_Failing, _Interrupted):
                    model.calls = i
                loss = model(torch.randn(16, 8).abs() + 5e3 * (i == 6)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def once():
        with contextlib.suppress(ValueError, RuntimeError, IndexError, KeyboardInterrupt, MemoryError):
            run()

    once()
    gc.collect()
    before = _runtime.live_bytes()
    gc.disable()
    try:
        once()
        assert _runtime.live_bytes() == before
    finally:
        gc.enable()


def _module_class(held):
    class Net(_Net):
        def forward(self, x):
            return super().forward(x) + held.sum() * 0

    return Net, torch.optim.Adam, None


def _optimizer_class(held):
    class Own(torch.optim.SGD):
        scale = held

        def step(self, closure=None):
            return super().step(closure)

    return _Net, Own, None


def _object_class(held):
    class Settings:
        weight = held

        def __init__(self):
            self.scale = 2.0

    return _Net, torch.optim.Adam, Settings()


def _dataclass(held):
    @dataclasses.dataclass
    class Settings:
        scale: float = 2.0

        def weight(self):
            return held

    return _Net, torch.optim.Adam, Settings()


def _mapping(held):
    class Settings(dict):
        weight = held

        @property
        def scale(self):
            return self["scale"]

    return _Net, torch.optim.Adam, Settings(scale=2.0)


def _enumeration(held):
    class Settings(enum.Enum):
        A = 2.0

        @property
        def scale(self):
            return self.value

        def weight(self):
            return held

    return _Net, torch.optim.Adam, Settings.A


def _named_tuple(held):
    class Settings(collections.namedtuple("Settings", "scale")):
        weight = held

    return _Net, torch.optim.Adam, Settings(2.0)


def _autograd_function(held):
    class Twice(torch.autograd.Function):
        weight = held

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class Net(_Net):
        def forward(self, x):
            return Twice.apply(super().forward(x))

    return Net, torch.optim.Adam, None


def _scheduler_function(held):
    return _Net, torch.optim.Adam, lambda call: 1.0 if held.numel() else call


@pytest.mark.parametrize("budget", [None, "64MiB"])
@pytest.mark.parametrize(
    "made",
    [_module_class, _optimizer_class, _object_class, _dataclass, _mapping, _enumeration, _named_tuple, _autograd_function, _scheduler_function],
)  # fmt: skip
def test_what_a_program_makes_for_one_training_goes_with_it(made, budget):
    """Classes and functions that hold tensors. A class is always part of a cycle."""

    def run():
        torch.manual_seed(0)
        net, optimizer_of, settings = made(torch.ones(1000))
        model = net()
        optimizer = optimizer_of(model.parameters(), 1e-2)
        factor = settings if made is _scheduler_function else lambda call: 1.0
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

        def body(x, settings):
            loss = model(x).square().mean() * getattr(settings, "scale", 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.detach()

        step = stowage.compile(body, budget=budget)
        for _ in range(CALLS):
            step(torch.randn(4, 8), settings)
        return step.stats()["planned_steps"]

    assert run() > 0
    gc.collect()
    before = _runtime.live_bytes()
    objects = len(gc.get_objects())
    for _ in range(3):
        run()
    gc.collect()
    assert _runtime.live_bytes() == before
    assert len(gc.get_objects()) - objects < 12
