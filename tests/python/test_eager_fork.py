"""fork() inside a stowage.budget: the child has every tensor, no limit, and waits for no thread that is not there."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import time

import budgeted
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import stowage
from stowage._torch.private import address

PATIENCE_S = 60


def in_child(work) -> None:
    """Runs it in a forked child, which must end by itself, and well."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the child hangs: not ended after {PATIENCE_S} s")


def let_go(b, tensors, drop):
    for tensor in tensors:
        b._runtime.evict(address(tensor), drop)
    return [b._runtime.describe(address(tensor)) for tensor in tensors]


@pytest.mark.parametrize("link_gbps", [None, 0.5])
def test_a_child_finds_every_tensor(link_gbps):
    with stowage.budget("64MiB", link_gbps=link_gbps, debug=True) as b:
        given = [torch.full((1 << 15,), float(i)) for i in range(6)]
        copied = [torch.arange(1 << 15).float() + i for i in range(6)]
        made = [torch.tanh(t) * 2 for t in given]
        expected = [t.tolist() for t in [*given, *copied, *made]]
        assert set(let_go(b, copied, False)) == {"swapped"} and set(let_go(b, made, True)) == {"dropped"}

        def look():
            for tensor, content in zip([*given, *copied, *made], expected):
                assert torch.equal(tensor + 0, torch.tensor(content))
            assert torch.ones(100 << 18).sum() == 100 << 18  # more than the limit

        in_child(look)
        assert set(let_go(b, copied, False)) == {"swapped"}
        look_here = [*given, *copied, *made]
        assert [t.tolist() for t in look_here] == expected


def past_the_dispatcher(b, copied, made):
    assert copied[0].numpy()[1] == 1 and made[0].tolist()[0] == 0
    copied[1].share_memory_()
    assert float(copied[1][5]) == 5


def written_in_place(b, copied, made):
    """What was dropped is made from what was there before."""
    copied[0].add_(1000)
    assert float(copied[0][3]) == 1003
    assert torch.equal(made[0], torch.arange(1 << 15).float() * 2)


def by_autograd(b, copied, made):
    weight = torch.nn.Parameter(torch.ones(1 << 15))
    (weight * copied[2]).sum().backward()
    assert torch.equal(weight.grad, torch.arange(1 << 15).float())


def left(b, copied, made):
    b.__exit__(None, None, None)
    assert all(torch.equal(t, torch.arange(1 << 15).float()) for t in copied)
    budgeted.assert_nothing_left(b)


def left_by_an_exit(b, copied, made):
    """As where a child unwinds its parent's stack."""
    with contextlib.suppress(SystemExit):
        with contextlib.ExitStack() as stack:
            stack.push(b)
            sys.exit()
    assert all(torch.equal(t, torch.arange(1 << 15).float()) for t in copied)


def within_another(b, copied, made):
    """The child may have a limit of its own."""
    with stowage.budget(stowage._runtime.live_bytes() + (1 << 20), debug=True) as own:
        mine = [torch.full((1 << 15,), float(i)) for i in range(20)]
        assert own.stats()["evictions"] > 0
        assert all(bool((t == i).all()) for i, t in enumerate(mine))
    assert all(torch.equal(t, torch.arange(1 << 15).float()) for t in copied)
    assert all(torch.equal(t, torch.arange(1 << 15).float() * 2) for t in made)


def grandchildren(b, copied, made):
    in_child(lambda: written_in_place(b, copied, made))
    assert float(copied[0][3]) == 3


def collected(b, copied, made):
    copied.clear()
    made.clear()
    import gc

    gc.collect()
    assert float(torch.ones(1 << 15).sum()) == 1 << 15


def in_threads(b, copied, made):
    def work():
        with b.attach():
            assert torch.equal(copied[3] + made[3], torch.arange(1 << 15).float() * 3)

    seen = []
    thread = threading.Thread(target=lambda: (work(), seen.append(True)))
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == [True]


@pytest.mark.parametrize("link_gbps", [None, 2.0])
@pytest.mark.parametrize("what", [past_the_dispatcher, written_in_place, by_autograd, left, left_by_an_exit, within_another, grandchildren, collected,
                                  in_threads])  # fmt: skip
def test_what_a_child_does_with_them(what, link_gbps):
    with stowage.budget("64MiB", link_gbps=link_gbps, debug=True) as b:
        copied = [torch.arange(1 << 15).float() for _ in range(4)]
        made = [t * 2 for t in copied]
        let_go(b, made, True)
        let_go(b, copied, False)
        in_child(lambda: what(b, copied, made))
        assert all(torch.equal(t, torch.arange(1 << 15).float()) for t in copied)
        assert all(torch.equal(t, torch.arange(1 << 15).float() * 2) for t in made)


def test_forks_while_other_threads_compute():
    """Whatever lock a thread holds at that moment, the child goes on."""
    limit = stowage._runtime.live_bytes() + (1 << 20)
    stop = threading.Event()
    wrong = []
    with stowage.budget(limit, link_gbps=1.0, debug=True) as b:
        mine = [torch.full((1 << 14,), float(i)) for i in range(20)]

        def work(seed):
            with b.attach():
                rng = random.Random(seed)
                own = [torch.full((1 << 14,), float(i)) for i in range(10)]
                while not stop.is_set():
                    i = rng.randrange(10)
                    if not bool((torch.relu(own[i] * 2) == 2 * i).all()):
                        wrong.append((seed, i))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:

            def look():
                assert all(bool((t == i).all()) for i, t in enumerate(mine))

            for _ in range(30):
                in_child(look)
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert b.stats()["evictions"] > 0 and not wrong


def loader_run(limit, context):
    """Three epochs whose workers are forked inside the block, over a data set that does not fit beside the rest."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 3, 16, 16), torch.randint(0, 10, (96,)))
    loader = DataLoader(data, 16, shuffle=True, num_workers=2, multiprocessing_context=context, timeout=PATIENCE_S)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 196, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    _ = stowage._runtime.reset_peak()
    with stowage.budget(limit, debug=True, progress=False) if limit else contextlib.nullcontext() as b:
        for _ in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
    return [float(loss) for loss in losses], b, stowage._runtime.peak_bytes()


def test_workers_started_inside_a_tight_block():
    expected, _, peak = loader_run(None, "fork")
    got, b, _ = loader_run(budgeted.share(peak, 0.6), "fork")
    assert got == expected
    assert b.stats()["evictions"] > 0
    assert multiprocessing.active_children() == []
