"""Threads under one limit: tensors that die in one while another lets them go, fetches, notes and writes of many at
once, and Python objects of storages; right numbers, no crash, no wait without end. Longer by STOWAGE_SOAK_SECONDS
(./dev soak)."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time

import budgeted
import pytest
import searches
import torch
from at_once import in_threads

import stowage
from stowage import _runtime
from stowage._torch.private import address

SOAK = max(1, int(searches.SECONDS) // 60)
PATIENCE_S = 120 * SOAK


HOW = [
    {"policy": "random", "release": "both"},
    {"policy": "random", "release": "swap", "link_gbps": 1.0},
    {"policy": "random", "release": "recompute"},
    {"policy": "default", "release": "both", "link_gbps": 4.0},
    {"policy": "random", "release": "both", "link_gbps": 0.05},
]


@pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how.values())))
def test_tensors_that_die_while_others_let_them_go(how):
    """Each thread makes, reads, overwrites and drops tensors of its own and of a common pool, at a limit that half of
    them fit in."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    limit = _runtime.live_bytes() + (1 << 20)
    with stowage.budget(limit, debug=True, seed=seed, progress=False, **how) as b:
        pool: list = [(torch.full((1 << 13,), 0.0), 0.0)] * 64

        def work(own_seed):
            rng = random.Random(own_seed)
            with b.attach():
                end = time.monotonic() + 3 * SOAK
                while time.monotonic() < end:
                    i = rng.randrange(len(pool))
                    kind = rng.randrange(8)
                    tensor, value = pool[i]
                    if kind == 0:
                        value = float(rng.randrange(1000))
                        tensor = torch.full((rng.choice([600, 1 << 13, 1 << 14]),), value)
                        pool[i] = tensor, value  # the one before dies here, or in another thread
                    elif kind == 1:
                        pool[i] = tensor * 2 + 1, value * 2 + 1
                    elif kind == 2:
                        pool[i] = torch.relu_(tensor - 1), max(value - 1, 0.0)
                    elif kind == 3:
                        # Past the budget: a Python object, which may outlive the tensor
                        storage = torch._C.TensorBase.untyped_storage(tensor)
                        assert storage.nbytes() == tensor.nbytes
                    elif kind == 4:
                        gc.collect(0)
                    elif kind == 5:
                        assert tensor.tolist()[-1] == value
                    else:
                        assert bool((tensor == value).all()), (i, value)
                    if value > 1e6:
                        pool[i] = torch.zeros(1 << 13), 0.0
                    del tensor

        def look():
            end = time.monotonic() + 3 * SOAK
            while time.monotonic() < end:
                assert b.stats()["peak_bytes"] <= limit
                b.timeline(), b.alive()
                time.sleep(0.001)

        in_threads([*(lambda s=s: work(seed + s) for s in range(4)), look], PATIENCE_S)
        assert b.stats()["evictions"] > 0
        pool.clear()
    assert b.stats()["peak_bytes"] <= limit
    budgeted.assert_nothing_left(b)


def trained(seed, b=None, meet=lambda: None):
    """A small net of its own: what it ends as. ``meet`` is called once all of its state is there."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.nn.Parameter(torch.randn(64, 64, generator=generator) / 8) for _ in range(6)]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    with b.attach() if b is not None else torch.enable_grad():
        for step in range(6 * SOAK):
            h = torch.randn(96, 64, generator=generator)
            for weight in weights:
                h = torch.nn.functional.gelu(h @ weight) + h
            h.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                meet()
    return [weight.detach().numpy().tobytes() for weight in weights]


@pytest.mark.parametrize("how", HOW[:2] + HOW[3:4], ids=lambda how: "-".join(map(str, how.values())))
def test_trainings_in_threads_are_as_alone(how):
    expected = [trained(seed) for seed in range(4)]
    limit = _runtime.live_bytes() + (1 << 20)  # less than four states, of 288 KiB each
    got = {}
    all_there = threading.Barrier(4)
    with stowage.budget(limit, debug=True, progress=False, **how) as b:
        in_threads(
            [lambda s=s: got.__setitem__(s, trained(s, b, lambda: all_there.wait(PATIENCE_S / 2))) for s in range(4)],
            PATIENCE_S,
        )
    assert [got[seed] for seed in range(4)] == expected
    assert b.stats()["evictions"] > 0 and b.stats()["peak_bytes"] <= limit
    budgeted.assert_nothing_left(b)


@pytest.mark.alone
def test_one_fetch_for_two_threads():
    """Both need the same tensors that are away, again and again, at a limit that only just holds them."""
    live = _runtime.live_bytes()
    with stowage.budget(live + (1 << 20), release="swap", link_gbps=0.5, debug=True, progress=False) as b:
        shared = [torch.full((1 << 14,), float(i)) for i in range(24)]

        def work(own_seed):
            rng = random.Random(own_seed)
            with b.attach():
                for _ in range(150 * SOAK):
                    i, j = rng.sample(range(len(shared)), 2)
                    assert bool((shared[i] + shared[j] == i + j).all())

        in_threads([lambda s=s: work(s) for s in range(4)], PATIENCE_S)
        assert b.stats()["swapped_in_bytes"] > 0
    assert all(bool((t == i).all()) for i, t in enumerate(shared))


@pytest.mark.parametrize("how", HOW[:2], ids=lambda how: "-".join(map(str, how.values())))
def test_threads_write_rows_of_one_tensor(how):
    """Each row has one thread that writes and reads it, which eager allows; the tensors are written to all the time,
    and do not all fit."""
    limit = _runtime.live_bytes() + (1 << 20)
    with stowage.budget(limit, debug=True, progress=False, **how) as b:
        shared = [torch.zeros(4, 1 << 12) for _ in range(24)]
        written = [[0.0] * len(shared) for _ in range(4)]

        def work(row):
            rng = random.Random(row)
            with b.attach():
                for _ in range(400 * SOAK):
                    i = rng.randrange(len(shared))
                    shared[i][row].add_(1.0)
                    written[row][i] += 1.0
                    i = rng.randrange(len(shared))
                    assert bool((shared[i][row] * 2 == 2 * written[row][i]).all()), (i, row)

        in_threads([lambda row=row: work(row) for row in range(4)], PATIENCE_S)
        assert b.stats()["evictions"] > 0
    assert all(bool((tensor[row] == written[row][i]).all()) for i, tensor in enumerate(shared) for row in range(4))
    budgeted.assert_nothing_left(b)


class _Slow:
    """An operator that writes and one that reads, each of which waits in its kernel until it is told to go on."""

    def __init__(self):
        self.began = {name: threading.Event() for name in ("write", "read")}
        self.goes_on = {name: threading.Event() for name in ("write", "read")}

    def wait(self, name):
        self.began[name].set()
        assert self.goes_on[name].wait(PATIENCE_S)


_slow = _Slow()


@torch.library.custom_op("stowage_tests::slow_write", mutates_args=("x",))
def _slow_write(x: torch.Tensor) -> None:
    x.add_(1.0)
    _slow.wait("write")


@torch.library.custom_op("stowage_tests::slow_read", mutates_args=())
def _slow_read(x: torch.Tensor) -> torch.Tensor:
    _slow.wait("read")
    return x * 2


def test_what_is_met_while_another_thread_writes_stays_for_its_reader():
    """write of S:   begins ─────────────────► ends: S holds something else than the reader has met
    read of S:              begins: S is met ───────────────────► reads S, which nobody may let go of meanwhile"""
    gc.collect()
    limit = _runtime.live_bytes() + (1 << 20)
    with stowage.budget(limit, debug=True, progress=False) as b:
        shared = torch.zeros(1 << 14)
        found = []

        def attached(work):
            with b.attach():
                work()

        def write():
            _slow_write(shared)

        def read():
            found.append(_slow_read(shared))

        def between():
            assert _slow.began["write"].wait(PATIENCE_S)
            reader = threading.Thread(target=attached, args=(read,))
            reader.start()
            assert _slow.began["read"].wait(PATIENCE_S)
            _slow.goes_on["write"].set()
            writer.join()
            with contextlib.suppress(torch.OutOfMemoryError):  # as S is in use, beside which it does not fit
                torch.ones(245 << 10)
            _slow.goes_on["read"].set()
            reader.join()

        writer = threading.Thread(target=attached, args=(write,))
        writer.start()
        attached(between)
        assert bool((found.pop() == 2.0).all())
    budgeted.assert_nothing_left(b)


@pytest.mark.parametrize("drop", [True, False])
def test_what_only_a_python_object_has(drop):
    """The tensor dies while its storage is away, and a Python object of the storage stays: what was made from it can be
    made again, and the storage has its bytes when the block ends."""
    with stowage.budget(_runtime.live_bytes() + (1 << 20), debug=True, progress=False) as b:
        first = torch.full((1 << 14,), 3.0) * 2
        second = first + 1
        assert b._runtime.evict(address(second), True) == "dropped"
        assert b._runtime.evict(address(first), drop) == ("dropped" if drop else "swapped")
        storage = torch._C.TensorBase.untyped_storage(first)  # past the budget
        del first
        assert bool((second == 7).all())
    assert bool((torch.empty(0).set_(storage) == 6).all())
    budgeted.assert_nothing_left(b)


@pytest.mark.alone
@pytest.mark.parametrize("kept", [True, False], ids=["storage kept", "storage dies"])
def test_what_dies_while_a_recipe_waits_for_its_copy(kept):
    """A slow link brings back what a recomputation reads, and another thread lets go of it before the copy has
    ended."""
    for wait_s in [0.0, 0.005, 0.01, 0.02]:
        with stowage.budget(_runtime.live_bytes() + (1 << 20), link_gbps=0.002, debug=True, progress=False) as b:
            first = [torch.full((1 << 14,), 3.0) * 2]  # 33 ms on the link
            second = first[0] + 1
            assert b._runtime.evict(address(second), True) == "dropped"
            assert b._runtime.evict(address(first[0]), False) == "swapped"
            storage = torch._C.TensorBase.untyped_storage(first[0]) if kept else None
            begun = threading.Event()

            def read(second=second, b=b, begun=begun):
                with b.attach():
                    begun.set()
                    assert bool((second == 7).all())

            def let_go(first=first, begun=begun, wait_s=wait_s):
                begun.wait()
                time.sleep(wait_s)
                first.clear()

            in_threads([read, let_go], PATIENCE_S)
            del second, read
        assert storage is None or bool((torch.empty(0).set_(storage) == 6).all())
        budgeted.assert_nothing_left(b)


def test_trainings_that_begin_and_end_while_others_run():
    """Threads come and go, and so do blocks."""
    expected = {seed: trained(seed) for seed in range(3)}
    for _ in range(4 * SOAK):
        with stowage.budget(_runtime.live_bytes() + (2 << 20), progress=False) as b:
            got = {}
            in_threads(
                [lambda s=s: (time.sleep(0.01 * s), got.__setitem__(s, trained(s, b))) for s in range(3)], PATIENCE_S
            )
            assert got == expected
        budgeted.assert_nothing_left(b)
