"""A host store that is full or that fails: an error before anything is changed, or the step goes on; never lost
data."""

import itertools
import json
import os
import resource
import subprocess
import sys
import time

import pytest
import torch
import zoo
from test_recompute_swap import by_hand, swap_all
from training import OPTIMIZERS, assert_same_state, plain_step, train
from transform import Steps

import stowage
from stowage import _runtime
from stowage.step.replay.room import Room


def state_of(model, optimizer) -> list[torch.Tensor]:
    tensors = [*model.state_dict().values(), torch.get_rng_state()]
    for state in optimizer.state.values():
        tensors += [v for v in state.values() if isinstance(v, torch.Tensor)]
    return [t.clone() for t in tensors]


def clipped_step(model, optimizer, loss_fn):
    """Its gradients are the step's own, and wait for each other."""

    def train_step(batch):
        loss = loss_fn(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


def compiled_unet(count=9, make_step=plain_step):
    model, loss_fn, batches = zoo.make("unet", count)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    return model, optimizer, stowage.compile(make_step(model, optimizer, loss_fn), strict=True), batches


@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_store_that_is_too_small(store, monkeypatch, tmp_path):
    by_hand(monkeypatch, swap_all)
    monkeypatch.setenv("STOWAGE_HOST_LIMIT", "4KiB")
    if store == "file":
        monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    model, optimizer, step, batches = compiled_unet()
    step(batches[0])
    step(batches[1])
    before = state_of(model, optimizer)
    for _ in range(2):
        with pytest.raises(stowage.Error, match="host store is full.*limit is 4.0 KiB"):
            step(batches[2])
        assert all(torch.equal(a, b) for a, b in zip(before, state_of(model, optimizer), strict=True))


def test_a_directory_that_is_not_there(monkeypatch, tmp_path):
    by_hand(monkeypatch, swap_all)
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path / "nowhere"))
    model, optimizer, step, batches = compiled_unet()
    step(batches[0])
    step(batches[1])
    before = state_of(model, optimizer)
    with pytest.raises(stowage.Error, match="cannot make a file in .*nowhere"):
        step(batches[2])
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(model, optimizer), strict=True))


def test_a_file_system_that_is_full(tmp_path):
    """The process may not write files beyond 1 MiB: reserving fails as on a full disk, at once."""
    code = f"""
import resource
from stowage import _runtime, Error
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
host = _runtime.Host({str(tmp_path)!r})
host.reserve(1 << 20)
try:
    host.reserve(2 << 20)
except Error as error:
    print(error, host.bytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot have 2.0 MiB in" in done.stdout and done.stdout.endswith(" 0\n")


def test_more_memory_than_there_is():
    host = _runtime.Host()
    with pytest.raises(stowage.Error, match="host store is full|cannot have"):
        host.reserve(1 << 46)
    assert host.bytes == 0


def failing(monkeypatch, **good):
    monkeypatch.setattr(Room, "of_environment", lambda arena, gbps: Room(arena, _runtime.Host(**good), gbps, "memory"))


def test_writes_that_fail_wait_in_memory(monkeypatch):
    """The store breaks in the middle of the second planned step: all steps go on, with the bits of eager."""
    plans = by_hand(monkeypatch, swap_all)
    eager = train("unet")
    train("unet", compiled=True, count=3)
    per_step = sum("swap_out" in s for s in steps_of(plans[-1]))
    failing(monkeypatch, good_writes=2 * per_step + per_step // 2)
    with pytest.warns(UserWarning, match="could not be written to the host store"):
        planned = train("unet", compiled=True)
    assert_same_state(eager, planned)
    assert planned.step.stats()["planned_steps"] == 3


def steps_of(plan):
    return json.loads(plan._plan.to_json())["steps"]


def swap_in_forward(graph, plan):
    """Activations wait on the host and come back before the first update."""
    steps = Steps.of(graph, plan)
    state = {b for b, what in enumerate(steps.buffers) if what["kind"] in ("parameter", "optimizer_state")}
    first = next(i for i, s in enumerate(steps.steps) if state & set(steps.ops[s[1]].get("writes", [])))
    for buffer, what in enumerate(steps.buffers):
        touches = steps.touches(buffer)
        if what.get("resident") or what["bytes"] < 1024:
            continue
        gap = next(((a, b) for a, b in itertools.pairwise(touches) if b - a >= 6 and b < first), None)
        if gap is not None:
            steps.swap(buffer, *gap)
            return steps.plan()
    raise AssertionError("no buffer waits before the first update")


def test_reads_that_fail_leave_the_state_as_it_was(monkeypatch):
    """Running statistics, step counters, schedules and generator included; and the step can be called again."""
    by_hand(monkeypatch, swap_in_forward)
    failing(monkeypatch, good_reads=3)  # one in the rehearsal, two planned steps
    model, optimizer, step, batches = compiled_unet()
    for batch in batches[:5]:
        step(batch)
    assert step.stats()["planned_steps"] == 2
    before = state_of(model, optimizer)
    for _ in range(2):
        with pytest.raises(stowage.Error, match="cannot be read back.*as before the step"):
            step(batches[5])
        assert all(torch.equal(a, b) for a, b in zip(before, state_of(model, optimizer), strict=True))


def test_reads_that_fail_after_an_update_say_so(monkeypatch):
    by_hand(monkeypatch, swap_all)
    _, _, step, batches = compiled_unet(4, clipped_step)
    for batch in batches[:4]:
        step(batch)
    reads = sum("swap_in" in s for s in steps_of(step.plan))
    failing(monkeypatch, good_reads=3 * reads - 1)
    _model, _optimizer, step, batches = compiled_unet(make_step=clipped_step)
    for batch in batches[:4]:
        step(batch)
    with pytest.raises(stowage.Error, match="half done"):
        step(batches[4])


def test_a_disk_that_fills_in_mid_step(monkeypatch, tmp_path):
    """From the second planned step on no file may grow or be written beyond some bytes: what cannot go out waits in
    memory."""
    by_hand(monkeypatch, swap_all)
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    eager = train("unet", count=6)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fills_up(i, model, optimizer):
        if i == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    try:
        with pytest.warns(UserWarning, match="could not be written to the host store"):
            planned = train("unet", compiled=True, count=6, between=fills_up)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert planned.step.stats()["planned_steps"] == 3
    assert_same_state(eager, planned)


@pytest.mark.alone
@pytest.mark.parametrize("store", ["", "file"])
def test_a_forked_child_has_lanes_and_a_file_of_its_own(store, tmp_path):
    host = _runtime.Host(str(tmp_path) if store else "")
    assert host.measure_gbps() > 0  # both copy threads run
    host.reserve(1 << 20)
    child = os.fork()
    if child == 0:
        try:
            host.reserve(1 << 20)
            os._exit(0 if host.measure_gbps() > 0 and (host.reserve(1 << 20) or host.bytes == 1 << 20) else 1)
        finally:
            os._exit(2)
    for _ in range(6000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert status == 0
    assert host.measure_gbps() > 0


@pytest.mark.alone
def test_a_child_does_not_write_over_what_waits_for_its_parent(monkeypatch, tmp_path):
    """Both go on with planned steps that swap to a file, each to the numbers of eager."""
    by_hand(monkeypatch, swap_all)
    monkeypatch.setenv("STOWAGE_HOST_STORE", str(tmp_path))
    eager = train("unet", count=9)
    _model, _optimizer, step, batches = compiled_unet()
    torch.manual_seed(11)
    results = [step(batch).tolist() for batch in batches[:4]]
    child = os.fork()
    got = results + [step(batch).tolist() for batch in batches[4:]]
    same = got == [r.tolist() for r in eager.results]
    if child == 0:
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same


# ---- What the machine has


def files(root, contents):
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(root) + "/"


MEMINFO = {"proc/meminfo": "MemTotal:       32000 kB\nMemFree:        1000 kB\nMemAvailable:   20000 kB\n"}
KIB = 1024


@pytest.mark.parametrize(("contents", "kib"), [
    ({}, None),
    (MEMINFO, 20000),
    # version 2: page cache that is clean can be had, what is dirty or being written cannot
    ({**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{10000 * KIB}\n", "sys/fs/cgroup/memory.current": f"{9000 * KIB}\n",
      "sys/fs/cgroup/memory.stat": f"anon {4000 * KIB}\nfile {5000 * KIB}\ninactive_file {3000 * KIB}\nactive_file {2000 * KIB}\n"
                                   f"file_dirty {500 * KIB}\nfile_writeback {100 * KIB}\n"}, 1000 + 5000 - 600),
    ({**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n"}, 20000),
    # the tightest on the way to the root
    ({**MEMINFO, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{700 * KIB}", "sys/fs/cgroup/a/memory.current": f"{100 * KIB}",
      "sys/fs/cgroup/a/b/memory.max": f"{5000 * KIB}", "sys/fs/cgroup/a/b/memory.current": f"{90 * KIB}"}, 600),
    # version 1
    ({**MEMINFO, "proc/self/cgroup": "12:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8000 * KIB}",
      "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{7000 * KIB}",
      "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2000 * KIB}\ntotal_active_file {1000 * KIB}\ndirty {50 * KIB}\n"
                                          f"total_dirty {200 * KIB}\ntotal_writeback 0\n"}, 1000 + 3000 - 200),
    # more used than allowed, and nonsense
    ({**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1024", "sys/fs/cgroup/memory.current": "4096"}, 0),
    ({**MEMINFO, "proc/self/cgroup": "nonsense\n::\n0\n", "sys/fs/cgroup/memory.max": "x", "sys/fs/cgroup/memory.current": ""}, 20000),
])  # fmt: skip
def test_page_cache_is_memory_that_can_be_had(contents, kib, tmp_path):
    assert _runtime.available_bytes(files(tmp_path, contents)) == (2**63 - 1 if kib is None else kib * KIB)


def test_this_machine_has_memory():
    assert 1 << 20 < _runtime.available_bytes() < 1 << 50


def test_more_arenas_than_there_can_be():
    """An error that says so, and arenas that were there, or come later, are as before."""
    arenas = [_runtime.Arena() for _ in range(1026)]
    live = _runtime.live_bytes()
    made = 0
    with pytest.raises(stowage.Error, match="there can be no more"):
        for arena in arenas:
            arena.reserve(64)
            made += 1
    refused = arenas[made]
    assert refused.bytes == 0 and _runtime.live_bytes() == live + 64 * made
    refused.fill(1)
    refused.release()
    arenas[0].release()
    refused.reserve(64)
    assert refused.bytes == 64
    del arenas, arena, refused
    assert _runtime.live_bytes() == live


# ---- Plans for a host that lacks the memory


def with_a_fast_link(budget):
    model, loss_fn, batches = zoo.make("gpt2", 7)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = stowage.compile(plain_step(model, optimizer, loss_fn), budget=budget, link_gbps=1e6)
    return [step(batch).tolist() for batch in batches], step


def test_a_plan_without_copies_where_the_host_has_no_room(monkeypatch):
    """Copies cost nothing over that link, so the plan would copy. Where they cannot wait anywhere, it recomputes."""
    eager, whole = with_a_fast_link(None)
    budget = whole.stats()["resident_bytes"] + whole.stats()["arena_bytes"] * 7 // 10
    copied, copies = with_a_fast_link(budget)
    assert copies.stats()["swapped_bytes"] > 0 and copies.stats()["host_refusal"] == ""
    monkeypatch.setenv("STOWAGE_HOST_LIMIT", "4KiB")
    again, recomputes = with_a_fast_link(budget)
    stats = recomputes.stats()
    assert stats["planned_steps"] > 0 and stats["swapped_bytes"] == 0 and stats["recomputed_ops"] > 0
    assert stats["measured_peak_bytes"] == stats["planned_peak_bytes"] and stats["misses"] == 0
    assert "host store is full" in stats["host_refusal"] and "the limit is 4.0 KiB" in stats["host_refusal"]
    assert again == copied == eager
    assert "No copies to the host" in recomputes.explain()
