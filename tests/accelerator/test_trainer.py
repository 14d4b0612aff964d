"""transformers' Trainer on a device: planned updates give the bits of the unplanned ones."""

import pytest
import searches
from trainers import CASES, same, train


@pytest.fixture(autouse=True)
def trains_on_the_device(loaded, monkeypatch):
    """transformers asks accelerate for the device, which asks the environment, once in a process."""
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", loaded.NAME)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()


# transformers asks CUDA for bf16. All others in ./dev soak.
NAMES = [name for name in CASES if name != "bf16"] if searches.SECONDS else ["accumulation"]


@pytest.mark.parametrize("name", NAMES)
def test_bits_of_the_unplanned_trainer(loaded, tmp_path, name):
    eager, eager_logs, _ = train(tmp_path, False, use_cpu=False, **CASES[name])
    planned, planned_logs, plan = train(tmp_path, True, use_cpu=False, **CASES[name])
    assert {p.device.type for p in planned.parameters()} == {loaded.NAME}
    assert plan.step.refusal == ""
    assert plan.step.stats()["planned_steps"] >= 3
    assert plan.step.stats()["misses"] == 0
    assert planned_logs[:-1] == eager_logs[:-1] and len(eager_logs) == 9  # the last holds times
    assert same(eager, planned)


def test_within_a_budget(loaded, tmp_path):
    free, _, plan = train(tmp_path, True, use_cpu=False)
    stats = plan.step.stats()
    limit = stats["resident_bytes"] + int(0.9 * stats["arena_bytes"])
    tight, _, squeezed = train(tmp_path, True, budget=limit, use_cpu=False)
    stats = squeezed.step.stats()
    assert stats["resident_bytes"] + stats["arena_bytes"] <= limit
    assert stats["recomputed_ops"] + stats["swapped_bytes"] > 0
    assert same(free, tight)


def test_evaluation_and_an_epoch_that_ends_within_an_accumulation(tmp_path):
    how = {"gradient_accumulation_steps": 3, "samples": 14, "eval_strategy": "steps", "eval_steps": 3}
    eager, eager_logs, _ = train(tmp_path, False, use_cpu=False, **how)
    planned, planned_logs, plan = train(tmp_path, True, use_cpu=False, **how)
    assert planned_logs[:-1] == eager_logs[:-1]
    assert same(eager, planned)
    assert plan.step.stats()["planned_steps"] >= 1
