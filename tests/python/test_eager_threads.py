"""stowage.budget and threads: one budget in a process; threads that it sees compute right, others get an error, never
other bytes."""

from __future__ import annotations

import os
import threading

import budgeted
import pytest
import torch
from budgeted import Gpt
from torch.utils.data import DataLoader, Dataset

import stowage
from stowage._torch.private import address


def in_thread(work):
    """Its result, or its exception."""
    out = []

    def run():
        try:
            out.append(work())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    return out[0]


def test_a_second_budget_is_refused():
    def enter():
        with stowage.budget("1GiB"):
            return "entered"

    with stowage.budget("1GiB"):
        for refused in (in_thread(enter), pytest.raises(stowage.Error, enter).value):
            assert isinstance(refused, stowage.Error)
            assert "another stowage.budget is active" in str(refused)
    assert in_thread(enter) == "entered"


def test_a_thread_that_is_not_attached_gets_an_error_that_says_how():
    with stowage.budget("64MiB") as b:
        tensor = torch.arange(4096.0)
        b._runtime.evict(address(tensor), True)
        error = in_thread(lambda: tensor + 1)
        assert isinstance(error, RuntimeError)
        assert "with budget.attach():" in str(error)

        def attached():
            with b.attach():
                return tensor + 1

        assert torch.equal(in_thread(attached), torch.arange(4096.0) + 1)
    assert torch.equal(in_thread(lambda: tensor + 1), torch.arange(4096.0) + 1)


def test_threads_at_work_together():
    """Each trains a model of its own under the one limit; both are as without."""
    torch.manual_seed(0)
    data = [torch.randn(64, 64) for _ in range(4)]

    def work(seed, attach):
        weight = torch.nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)))
        with attach():
            for _ in range(6):
                for x in data:
                    h = x
                    for _ in range(6):
                        h = torch.tanh(h @ weight)
                    h.sum().backward()
                with torch.no_grad():
                    weight -= 0.01 * weight.grad
                weight.grad = None
            return weight

    import contextlib

    expected = [work(seed, contextlib.nullcontext).detach().numpy().tobytes() for seed in range(3)]
    limit = stowage._runtime.live_bytes() + 220_000
    with stowage.budget(limit, debug=True) as b:
        got: dict[int, torch.Tensor] = {}
        threads = [threading.Thread(target=lambda s=seed: got.__setitem__(s, work(s, b.attach))) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    assert b.stats()["evictions"] > 0
    assert [got[seed].detach().numpy().tobytes() for seed in range(3)] == expected
    assert b.stats()["peak_bytes"] <= limit
    budgeted.assert_nothing_left(b)


class Tokens(Dataset):
    def __init__(self):
        self.tokens = torch.randint(0, 97, (16, 25), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return self.tokens[i] + 0


def test_workers_of_a_data_loader():
    def through_loader(budget=None):
        class Loaded(Gpt):
            @staticmethod
            def batches(count):
                return DataLoader(Tokens(), batch_size=4, num_workers=2, multiprocessing_context="fork")

        return budgeted.train(Loaded, budget)

    expected, peak = through_loader()
    budget = stowage.budget(budgeted.share(peak, 0.6), debug=True)
    got, _ = through_loader(budget)
    assert budget.stats()["evictions"] > 0
    budgeted.assert_same(expected, got)


@pytest.mark.alone
def test_a_forked_child_is_on_its_own():
    with stowage.budget("1MiB") as b:
        kept = [torch.full((1 << 15,), float(i)) for i in range(12)]
        assert b.stats()["evictions"] > 0
        child = os.fork()
        if child == 0:
            try:
                fine = bool((torch.ones(1 << 20) == 1).all())  # more than the limit
                os._exit(0 if fine else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert all(bool((t == i).all()) for i, t in enumerate(kept))
