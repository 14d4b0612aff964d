"""Memory, disk and processes that fail, and models that change between calls: each ends in the right result, or in one
clear error with everything as before, and the next call goes on with the bits of eager."""

import copy
import faulthandler
import gc
import io
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings

import pytest
import searches
import torch
from test_recompute_swap import by_hand
from torch import nn
from torn import WORLDS, Loop, Torn, Twins, classes
from transform import transformed

import stowage
from stowage import _runtime
from stowage.step.replay.room import Room

SOAK = searches.SECONDS
SEED = searches.first_seed(clock=False)


def raised_or_right(twins: Twins, says: bool = True) -> BaseException | None:
    """One call, that may raise; what it raised."""
    try:
        result = twins.call()
    except Torn:
        raise
    except BaseException as error:
        twins.stopped(error, says)
        return error
    twins.agree(result)
    return None


# ---- Memory


_NO_ADDRESS_SPACE = """
import resource, sys, warnings
sys.path.insert(0, "tests/python")
import torch
torch.set_num_threads(1)
from torn import WORLDS, Twins
failed = 0
for call in range(1, 13):
    twins = Twins(WORLDS["mlp"], check="always" if call > 6 else "never")
    for _ in range((call - 1) % 6 + 1):
        twins.step()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    twins.compiled._room.arena.release()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used, limits[1]))
    error = result = None
    try:
        result = twins.call()
    except BaseException as raised:
        error = raised
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    # Only now, as what it is compared with needs memory, too.
    twins.agree(result) if error is None else twins.stopped(error, says=False)
    failed += error is not None and "cannot be had" in str(error)
    for _ in range(2):
        twins.step()
print("failed", failed)
"""


def test_no_address_space_for_the_arena():
    done = subprocess.run([sys.executable, "-c", _NO_ADDRESS_SPACE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 6, done.stdout


@pytest.mark.parametrize("what", ["good_writes", "good_reads"])
@pytest.mark.parametrize("name", ["mlp", "conv", "recurrent"])
def test_the_host_store_fails_at_every_access(name, what, monkeypatch):
    """Writes that fail wait in memory; a read that fails takes the step back, the rehearsal's as well."""
    by_hand(monkeypatch, lambda g, p: transformed(g, p, 5, 2, 6))
    raised = 0
    for k in range(0, 40, 1 if SOAK else 7):
        monkeypatch.setattr(
            Room, "of_environment", lambda arena, gbps: Room(arena, _runtime.Host(**{what: k}), gbps, "memory")
        )
        twins = Twins(WORLDS[name], check="never")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(7):
                error = raised_or_right(twins)
                assert error is None or "cannot be read back" in str(error)
                raised += error is not None
    assert (raised > 0) == (what == "good_reads")


@pytest.mark.parametrize("name", ["mlp", "recurrent"])
def test_a_disk_that_fills_at_every_call(name, monkeypatch, tmp_path):
    by_hand(monkeypatch, lambda g, p: transformed(g, p, 5, 2, 6))
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for call in range(7):
        twins = Twins(WORLDS[name], check="never")
        for i in range(8):
            try:
                if i == call:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    error = raised_or_right(twins, says=False)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert error is None or "host store" in str(error), error


# ---- Copy threads


@pytest.fixture
def no_wait_without_end():
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    _runtime.end_copy_thread(-1)
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("gbps", [0.0, 0.5])
@pytest.mark.parametrize("no_more", [False, True], ids=["another", "none"])
def test_a_copy_thread_that_ends_in_mid_step(gbps, no_more, monkeypatch, no_wait_without_end):
    """In whichever part of whichever copy: what it was copying is copied again, what waits is copied by another one or
    by the caller."""
    by_hand(monkeypatch, lambda g, p: transformed(g, p, 5, 2, 6))
    monkeypatch.setattr(
        Room, "of_environment", lambda arena, link: Room(arena, _runtime.Host(gbps=gbps), link, "memory")
    )
    ended = 0
    for name in ("mlp", "dropout", "embedding"):
        twins = Twins(lambda: WORLDS[name](1024), check="never")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(40 if SOAK else 8):
                _runtime.end_copy_thread(k)
                twins.step()
                left = _runtime.end_copy_thread(-1, no_more)
                ended += left == -1
        assert twins.compiled.refusal == ""
        _runtime.end_copy_thread(-1)
    assert ended >= 6


@pytest.mark.alone
@pytest.mark.parametrize("no_more", [False, True], ids=["another", "none"])
def test_a_copy_thread_that_ends_under_a_budget(no_more, no_wait_without_end):
    gc.collect()  # what dies within the block makes room in it
    rng = random.Random(SEED)
    ended = 0
    with stowage.budget(
        _runtime.live_bytes() + (2 << 20), release="swap", link_gbps=4.0, debug=True, progress=False
    ) as b:
        kept = [torch.full((1 << 15,), float(i)) for i in range(48)]
        for k in range(2000 if SOAK else 100):
            i, j = rng.sample(range(len(kept)), 2)
            assert bool((kept[i] + kept[j] == i + j).all())
            if k % 4 == 0:
                ended += _runtime.end_copy_thread(rng.randrange(3), no_more and k % 8 == 0) == -1
        _runtime.end_copy_thread(-1)
        assert b.stats()["swapped_in_bytes"] > 0
    assert ended > 10
    assert all(bool((t == i).all()) for i, t in enumerate(kept))


# ---- Processes


_WRITES = """
import sys
sys.path.insert(0, "tests/python")
import torch
torch.set_num_threads(1)
from torn import WORLDS, Twins
twins = Twins(WORLDS["transformer"], budget=1 << 30)
print("ready", flush=True)
while True:
    twins.settle()
    twins.compiled.report(sys.argv[1])
    twins = Twins(WORLDS["transformer"], budget=1 << 30)
"""


def test_kill_while_cache_and_report_are_written(tmp_path, monkeypatch):
    """Whatever the moment: what is there can be read, or is not there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STOWAGE_PLAN_CACHE", "64MiB")
    rng = random.Random(SEED)
    page = tmp_path / "step.html"
    for _ in range(25 if SOAK else 1):
        child = subprocess.Popen([sys.executable, "-c", _WRITES, str(page)], stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.05, 0.6))
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not page.exists() or page.read_text().rstrip().endswith("</html>")
        monkeypatch.setattr("stowage.cache.costs._FILES", {})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Twins(WORLDS["transformer"], budget=1 << 30).settle()


@pytest.mark.alone  # once a process has had a thread for autograd, PyTorch refuses backward in its children
def test_fork_in_mid_step():
    """The child finishes its step and goes on; so does the parent: both to the bits of eager. In calls of every
    kind."""
    children = []

    def forking() -> Loop:
        loop = WORLDS["dropout"]()
        plain = loop.step
        loop.forks_at = -1
        loop.calls = 0

        def step(x, y):
            loss = plain(x, y)
            if loop.forks_at == 0:
                loop.forks_at = -1
                children.append(os.fork())
            return loss

        loop.step = step
        return loop

    for call in range(6):
        twins = Twins(forking, check="always")
        children.clear()
        for i in range(8):
            if i == call:
                twins.planned.forks_at = 0
            try:
                twins.step()
            except BaseException:
                if children and children[-1] == 0:
                    traceback.print_exc()
                    os._exit(1)
                raise
        if children and children[-1] == 0:
            os._exit(0)
        assert len(children) == 1
        assert os.waitpid(children[0], 0)[1] == 0


# ---- Between the calls


def test_copies_between_steps():
    """Of model, optimizer and scheduler, by every way there is; and they train on by themselves as the original
    does."""
    twins = Twins(WORLDS["transformer"])
    twins.settle()
    loop = twins.planned
    for way in (copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v)), saved):
        model, state = way(loop.model), way(loop.optimizer.state_dict())
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), loop.model.state_dict().values(), strict=True)
        )
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
        optimizer.load_state_dict(state)
        twin = Loop(model, optimizer)
        x, y = twins.batch
        before = torch.get_rng_state()
        torch.manual_seed(1)
        classes(model, x, y).backward()
        optimizer.step()
        torch.set_rng_state(before)
        assert not torch.equal(next(model.parameters()), next(loop.model.parameters())) and twin.state()
        twins.step()
    with pytest.raises(TypeError, match="compile the function"):
        pickle.dumps(twins.compiled)
    with pytest.raises(TypeError, match="compile the function"):
        copy.deepcopy(twins.compiled)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("check", ["never", "always"])
def test_another_dtype_between_calls(check):
    twins = Twins(WORLDS["mlp"], check=check)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        twins.settle()
        for loop in (twins.eager, twins.planned):
            loop.model.to(dtype)
            for values in loop.optimizer.state.values():
                values["momentum_buffer"] = values["momentum_buffer"].to(dtype)
        kept = twins.next_batch

        def next_batch(kept=kept, dtype=dtype):
            kept()
            twins.batch = twins.batch[0].to(dtype), twins.batch[1]

        twins.next_batch = next_batch
        next_batch()
        for _ in range(6):
            twins.step()
    assert twins.compiled.refusal == "" and twins.compiled.stats()["planned_steps"] >= 6


@pytest.mark.parametrize("check", ["never", "always"])
def test_a_second_optimizer(check):
    def two() -> Loop:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5)).train()
        first = torch.optim.Adam(model[0].parameters(), 0.01, foreach=False)
        loop = Loop(model, first)
        loop.optimizers = [first]

        def step(x, y):
            loss = classes(model, x, y)
            loss.backward()
            for optimizer in loop.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        loop.step = step
        return loop

    twins = Twins(two, check=check)
    twins.settle()
    for loop in (twins.eager, twins.planned):
        loop.optimizers.append(torch.optim.AdamW(loop.model[2].parameters(), 0.02, fused=True))
    planned = twins.compiled.stats()["planned_steps"]
    for _ in range(8):
        twins.step()
        seconds = [list(loop.optimizers[1].state.values()) for loop in (twins.eager, twins.planned)]
        assert all(torch.equal(a[k], b[k]) for a, b in zip(*seconds, strict=True) for k in a)
    assert twins.compiled.refusal == "" and twins.compiled.stats()["planned_steps"] > planned
