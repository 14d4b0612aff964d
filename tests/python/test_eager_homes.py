"""What has left a budget waits in a file, where there is one, and may stay there when the block ends."""

import functools
import os

import pytest
import torch
from torch import nn

import stowage
from stowage import _runtime
from stowage._torch.private import address
from stowage.eviction.budget import HostRoom
from stowage.step.eager_calls import EagerCalls

MIB = 1 << 20


def homes():
    """Bytes of this process that are mapped from files of homes."""
    total = 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "stowage-homes" in line:
                start, end = line.split()[0].split("-")
                total += int(end, 16) - int(start, 16)
    return total


def train(limit=None):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1), nn.Tanh()) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 256)
    most = 0
    with stowage.budget(limit) if limit else torch.enable_grad():
        for _ in range(4):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            most = max(most, homes())
    state = [v for s in optimizer.state.values() for v in s.values()]
    return [*(p.detach() for p in model.parameters()), *state], most


def limit_bytes(above):
    return _runtime.live_bytes() + above


def test_a_file_as_the_host(tmp_path, monkeypatch):
    before = homes()
    expected, _ = train()
    expected = [t.clone() for t in expected]
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    found, most = train(limit_bytes(3 * MIB))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert most > before + MIB
    assert homes() == before and os.listdir(tmp_path) == []


def test_a_file_that_is_full(tmp_path, monkeypatch):
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    monkeypatch.setenv("STOWAGE_HOST_LIMIT", "1MiB")
    with pytest.raises(stowage.OutOfMemory):
        train(limit_bytes(3 * MIB))


def test_a_directory_that_is_not_there(tmp_path, monkeypatch):
    """Then nothing can wait on the host, and the limit says so."""
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path / "none"))
    with pytest.raises(stowage.OutOfMemory):
        train(limit_bytes(3 * MIB))


@pytest.mark.parametrize("dropped", [False, True])
def test_what_may_stay_is_mapped_and_whole(tmp_path, dropped):
    before = homes()
    a = torch.randn(512, 512)
    expected = [a.clone(), torch.tanh(a), torch.tanh(a) * 2]
    block = stowage.budget(limit_bytes(2 * MIB), device="cpu", _room=HostRoom(_runtime.Host(str(tmp_path)), soft=True))
    with block:
        b = torch.tanh(a)
        c = b * 2
        block._runtime.evict(address(c), dropped)
        block._runtime.evict(address(b), dropped)
        block._runtime.evict(address(a), False)  # nothing has made it
        others = torch.ones(2 * MIB // 4)
        stay = [a, b, c]
        block._may_stay = lambda: stay
    assert [_runtime.at_home(address(t)) for t in (a, b, c, others)] == [True, True, True, False]
    assert all(torch.equal(x, y) for x, y in zip((a, b, c), expected))
    a.add_(1)  # they are ordinary tensors
    assert torch.equal(a, expected[0] + 1)
    del a, b, c
    stay.clear()
    assert homes() == before


def test_nothing_stays_where_all_fits(tmp_path):
    a = torch.randn(512, 512)
    block = stowage.budget(limit_bytes(4 * MIB), device="cpu", _room=HostRoom(_runtime.Host(str(tmp_path)), soft=True))
    with block:
        block._runtime.evict(address(a.mul_(2)), False)
        block._may_stay = lambda: [a]
    assert not _runtime.at_home(address(a))


def test_a_soft_limit_is_passed_by_what_is_larger(tmp_path):
    with stowage.budget(MIB, device="cpu", _room=HostRoom(None, soft=True)):
        assert torch.ones(MIB).sum() == MIB  # 4 MiB
        assert _runtime.peak_bytes() > 4 * MIB


def test_first_calls_keep_a_budget_below_the_residents(tmp_path, monkeypatch):
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    budget_bytes = 4 * MIB
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 256)
    owned = sum(p.nbytes for p in model.parameters())

    @functools.partial(stowage.compile, budget=budget_bytes, residents="leave")
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    others = _runtime.live_bytes() - owned
    while not step.stats()["planned_steps"]:
        _runtime.reset_peak()
        step(x)
        assert not step.refusal
        assert _runtime.peak_bytes() - others <= budget_bytes + MIB // 8
        assert _runtime.live_bytes() - others <= budget_bytes + MIB // 8
    assert 3 * owned > budget_bytes and isinstance(step._eager_calls, EagerCalls)


def test_the_batch_does_not_move(tmp_path, monkeypatch):
    """It may be a slice of a data set, or the program's for later."""
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    model = nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 512)

    @functools.partial(stowage.compile, budget="2MiB", residents="leave")
    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step(x)
        assert _runtime.at_home(address(model.weight)) and not _runtime.at_home(address(x))


def test_a_child_in_a_block_sees_what_was_there(tmp_path, monkeypatch):
    """What had left when it was made comes back in it, while its parent goes on and uses the places of the file anew."""
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    made = torch.Generator().manual_seed(5)
    tensors = [torch.randn(256, 256, generator=made) for _ in range(16)]
    expected = [t.clone() for t in tensors]
    ready, go = os.pipe()
    with stowage.budget(_runtime.live_bytes() - 2 * MIB, release="swap") as block:
        for t in tensors:
            block._runtime.evict(address(t), False)
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(ready, 1)
            same = all(torch.equal(t, e) for t, e in zip(tensors, expected))
            os._exit(0 if same else 1)
        os.close(ready)
        for _ in range(4):
            for t in tensors:
                t.mul_(2)
            for t in tensors:
                block._runtime.evict(address(t), False)
        os.close(go)
        assert os.waitpid(child, 0)[1] == 0
    assert all(torch.equal(t, 16 * e) for t, e in zip(tensors, expected))
