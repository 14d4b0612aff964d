"""A step that changes PyTorch's settings around some of its ops, and back: planned calls, in which Python does not run,
and ops that are made again run each op under its own."""

import contextlib
import itertools
import random

import pytest
import searches
import torch
import torch.nn.functional as F
from torch import nn

import stowage
from stowage import _runtime
from stowage.step.signature.signature import settings


@contextlib.contextmanager
def set_to(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def precision(value):
    return set_to(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value)


SETTINGS = {
    "no oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "medium": lambda: precision("medium"),
    "bf16 in oneDNN": lambda: torch.backends.mkldnn.flags(enabled=True, fp32_precision="bf16"),
    "two threads": lambda: set_to(torch.get_num_threads, torch.set_num_threads, 2),
    "deterministic": lambda: set_to(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "fp64": lambda: set_to(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "denormals": lambda: set_to(_runtime.flushes_denormals, torch.set_flush_denormal, True),
}


class Net(nn.Module):
    """One context, or none, around each layer; ``draw`` says which."""

    def __init__(self, draw, names):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)])
        widths = [8 * 36, 50, 96, 48]
        self.linear = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.around = [draw.choice([*names, None, None]) for _ in range(6)]
        self.around[draw.randrange(6)] = draw.choice(names)

    def within(self, i):
        return contextlib.nullcontext() if self.around[i] is None else SETTINGS[self.around[i]]()

    def forward(self, x):
        for i, layer in enumerate([*self.conv, *self.linear]):
            if i == 2:
                x = x.flatten(1)
            with self.within(i):
                x = torch.tanh(layer(x))
                x = x * (torch.arange(1, 3).sum() / torch.arange(1, 4).sum()).to(x.dtype) * 1e-18 * 1e18
        return x


def training(seed, wrap, names, calls=9, budget=0):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Net(draw, names)
    optimizer = draw.choice(
        [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p, 0.01, foreach=False)]
    )(model.parameters())
    backward_within = draw.choice([*names, None, None])

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        with contextlib.nullcontext() if backward_within is None else SETTINGS[backward_within]():
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step, found, made = wrap(step), [], []
    for i in range(calls):
        made_by = torch.Generator().manual_seed(i)
        x, y = torch.randn(6, 3, 6, 6, generator=made_by), torch.randint(0, 48, (6,), generator=made_by)
        if not budget:
            found.append(step(x, y))
            continue
        with stowage.budget(
            _runtime.live_bytes() + budget, policy="random", release="recompute", progress=False
        ) as block:
            found.append(step(x, y))
        made.append(block.stats()["recomputed_ops"])
    return [*found, *(p.detach().clone() for p in model.parameters())], step, sum(made)


def state():
    return settings()


@pytest.fixture(autouse=True)
def as_before():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")  # as it is put back: not as it is where nobody has set it
    before = state()
    yield
    assert state() == before
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("check", ["auto", "never", "always"])
def test_each(name, check):
    for seed in range(2):
        expected, _, _ = training(seed, lambda f: f, [name])
        found, step, _ = training(seed, lambda f: stowage.compile(f, check=check), [name])
        assert all(map(torch.equal, expected, found)), seed
        assert step.stats()["planned_steps"] > 2, step.refusal


def test_they_matter():
    """Else the tests above prove nothing: some seed gives other bits without the contexts. Processors without
    instructions for bfloat16 do not round to it."""
    for name in ("no oneDNN", *(["medium"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else [])):
        plain = [training(seed, lambda f: f, [None])[0] for seed in range(3)]
        assert not all(
            all(map(torch.equal, a, training(seed, lambda f: f, [name])[0])) for seed, a in enumerate(plain)
        ), name


def compare(seed):
    names = random.Random(seed).sample(sorted(SETTINGS), 3)
    expected, _, _ = training(seed, lambda f: f, names)
    limit = stowage.compile
    found, step, _ = training(seed, limit, names)
    assert all(map(torch.equal, expected, found)), f"seed {seed}"
    stats = step.stats()
    assert stats["planned_steps"] > 0, step.refusal
    budget = stats["resident_bytes"] + int(stats["arena_bytes"] * random.Random(seed).choice([0.6, 0.8]))
    with contextlib.suppress(stowage.Infeasible, stowage.OutOfMemory):
        found, step, _ = training(seed, lambda f: stowage.compile(f, budget=budget, link_gbps=0), names)
        assert all(map(torch.equal, expected, found)), f"seed {seed}, within {budget}"
    for kib in range(40, 400, 20):
        with contextlib.suppress(stowage.OutOfMemory):
            found, _, made = training(seed, lambda f: f, names, budget=kib << 10)
            assert all(map(torch.equal, expected, found)), f"seed {seed}, in a block of {kib} KiB"
            return made
    return 0


def test_random_programs():
    made = [compare(seed) for seed in searches.seeds(searches.first_seed(), at_least=2)]
    assert sum(made) > 0, "nothing was made again"


@searches.longer
def test_many_random_programs():
    for seed in searches.seeds(searches.first_seed()):
        compare(seed)


def test_python_that_changes_its_mind():
    """What decides the setting is Python's: another one is another step, not the recorded one under the wrong setting."""

    class Mind:
        precise = True

    def run(wrap):
        torch.manual_seed(0)
        model, mind = nn.Linear(96, 50), Mind()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            with precision("highest" if mind.precise else "medium"):
                loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step, found = wrap(step), []
        for i in range(16):
            mind.precise = i % 8 < 5
            found.append(step(torch.randn(6, 96, generator=torch.Generator().manual_seed(i))))
        return found, step

    expected, _ = run(lambda f: f)
    found, step = run(stowage.compile)
    assert all(map(torch.equal, expected, found))
    assert step.stats()["planned_steps"] > 0


def test_a_setting_that_stays_after_the_step():
    def run(wrap):
        torch.manual_seed(0)
        model = nn.Linear(96, 50)

        def step(x):
            model.zero_grad()
            loss = model(x).square().sum()
            torch.set_float32_matmul_precision("medium")
            loss.backward()
            return loss.detach(), model.weight.grad.clone()

        step, found = wrap(step), []
        for i in range(8):
            torch.set_float32_matmul_precision("highest")
            found += step(torch.randn(6, 96, generator=torch.Generator().manual_seed(i)))
            assert torch.get_float32_matmul_precision() == "medium"
        torch.set_float32_matmul_precision("highest")
        return found

    assert all(map(torch.equal, run(lambda f: f), run(stowage.compile)))
