"""Training in threads in which PyTorch has not set the number of threads yet: matrix products use MKL's own number
there until a kernel is split, and sum in another order. Nothing of ours changes when that is."""

import itertools
import random
import warnings

import pytest
import searches
import torch
from at_once import in_threads
from torch import nn

import stowage
from stowage import _runtime

WIDE = 1 << 17  # a kernel of so many elements is split


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_a_thread(work):
    """What it returns, or raises."""
    found = []
    in_threads([lambda: found.append(work())])
    return found[0]


def training(seed, wrap, wide, optimizer, new_threads=False):
    """Products whose sums depend on MKL's number of threads; ``wide``: one kernel in the step that ATen splits."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    widths = [96, *draw.choices([12, 24, 36, 48, 96, 128, 256], k=3), 96]
    model = nn.Sequential(*(nn.Linear(a, b, bias=draw.random() < 0.5) for a, b in itertools.pairwise(widths)))
    updates = optimizer(model.parameters())

    def step(x):
        loss = model(x).square().mean()
        if wide:
            loss = loss + torch.linspace(0, 1, WIDE).sum() * 0
        loss.backward()
        updates.step()
        updates.zero_grad()
        return loss.detach()

    step = wrap(step)
    batches = [torch.randn(6, 96) for _ in range(7)]
    if new_threads:
        losses = [in_a_thread(lambda x=x: step(x)) for x in batches]
    else:
        losses = [step(x) for x in batches]
    return [*losses, *(p.detach().clone() for p in model.parameters())], step


def depends_on_threads():
    """Whether a new thread begins with other numbers than this one has. On a machine of one core, none does."""
    return not in_a_thread(_runtime.kernel_threads)[2]


OPTIMIZERS = [lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.Adam(p, 0.01, foreach=False)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "adam"])
@pytest.mark.parametrize("check", ["auto", "always"])
def test_a_thread_of_its_own(wide, optimizer, check):
    differ = 0
    for seed in searches.seeds(searches.first_seed(), at_least=4):
        expected, _ = in_a_thread(lambda: training(seed, lambda f: f, wide, optimizer))
        differ += not all(map(torch.equal, expected, training(seed, lambda f: f, wide, optimizer)[0]))
        found, step = in_a_thread(lambda: training(seed, lambda f: stowage.compile(f, check=check), wide, optimizer))
        assert all(map(torch.equal, expected, found)), seed
        assert step.stats()["planned_steps"] > 0, step.refusal
    if not differ and depends_on_threads():
        pytest.skip("the matrix products of this processor sum alike in any thread")


@pytest.mark.parametrize("wide", [False, True])
def test_a_new_thread_for_each_call(wide):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        expected, _ = training(1, lambda f: f, wide, OPTIMIZERS[1], new_threads=True)
        found, step = training(1, stowage.compile, wide, OPTIMIZERS[1], new_threads=True)
    assert all(map(torch.equal, expected, found))
    if depends_on_threads():
        assert step.stats()["planned_steps"] == 0
        assert "each call comes from a new thread" in str(told[-1].message)


def test_where_the_number_is_set_new_threads_are_planned():
    def told(f):
        planned = stowage.compile(f)

        def call(x):
            torch.set_num_threads(1)
            return planned(x)

        call.stats = planned.stats
        return call

    _, step = training(1, told, False, OPTIMIZERS[1], new_threads=True)
    assert step.stats()["planned_steps"] > 0


def test_asking_sets_nothing():
    def asked():
        before = _runtime.kernel_threads()
        _runtime.eager_kernels_come_first()
        return before, _runtime.kernel_threads()

    before, after = in_a_thread(asked)
    assert before == after
    assert _runtime.kernel_threads()[1] == torch.get_num_threads() == 1


def test_ops_are_made_again_in_such_a_thread():
    """A megabyte of results within a third of it, where nothing may be copied out; under the numbers that they had."""

    def work():
        generator = torch.Generator().manual_seed(0)
        given = [
            (torch.randn(6, 96, generator=generator), torch.randn(96, 1365, generator=generator)) for _ in range(4)
        ]
        expected = [a @ b for a, b in given * 8]
        with stowage.budget(
            _runtime.live_bytes() + (320 << 10), policy="random", release="recompute", progress=False
        ) as b:
            made = [a @ b for a, b in given * 8]
            torch.ones(WIDE // 4, dtype=torch.uint8).sum()  # a kernel that is split, in mid-block
            same = all(map(torch.equal, expected, made))
        return same, b.stats()["recomputed_ops"]

    same, again = in_a_thread(work)
    assert same and again > 10
