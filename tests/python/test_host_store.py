"""A host store that is full or that fails: an error before anything is changed, or the step goes on; never lost data."""

import json
import subprocess
import sys

import pytest
import torch
from test_recompute_swap import by_hand, swap_all
from training import OPTIMIZERS, assert_same_state, plain_step, train
from transform import Steps

import stowage
import zoo
from stowage import _runtime
from stowage.replay import Room


def state_of(model, optimizer) -> list[torch.Tensor]:
    tensors = [*model.state_dict().values(), torch.get_rng_state()]
    for state in optimizer.state.values():
        tensors += [v for v in state.values() if isinstance(v, torch.Tensor)]
    return [t.clone() for t in tensors]


def compiled_unet(count=9):
    model, loss_fn, batches = zoo.make("unet", count)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    return model, optimizer, stowage.compile(plain_step(model, optimizer, loss_fn), strict=True), batches


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
        with pytest.raises(stowage.Error, match="host store is full.*limit is 0.0 MiB"):
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
        gap = next(((a, b) for a, b in zip(touches, touches[1:]) if b - a >= 6 and b < first), None)
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
    model, optimizer, step, batches = compiled_unet(4)
    for batch in batches[:4]:
        step(batch)
    reads = sum("swap_in" in s for s in steps_of(step.plan))
    failing(monkeypatch, good_reads=3 * reads - 1)
    model, optimizer, step, batches = compiled_unet()
    for batch in batches[:4]:
        step(batch)
    with pytest.raises(stowage.Error, match="half done"):
        step(batches[4])
