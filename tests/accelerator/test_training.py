"""Training programs give the CPU's bits on the stand-in, whatever its links, limits and poison."""

import os
import random

import pytest
import torch
from programs import Program

RUNS = int(os.environ.get("STOWAGE_STANDIN_RUNS", "32"))


def bits(tensor):
    return tensor.flatten().view(torch.uint8)


def assert_same(program, loaded):
    cpu = list(program.run("cpu"))
    device = list(program.run("standin", loaded.move))
    for step, (a, b) in enumerate(zip(cpu, device)):
        assert len(a) == len(b)
        differ = [i for i, (x, y) in enumerate(zip(a, b)) if not torch.equal(bits(x), bits(y))]
        assert not differ, f"step {step}: tensors {differ} of {len(a)} differ; {program}"


@pytest.mark.parametrize("part", range(4))
def test_random_programs_give_the_bits_of_the_cpu(loaded, part):
    first = int(os.environ.get("STOWAGE_SEED", random.SystemRandom().randrange(1 << 30))) + part * RUNS
    print("STOWAGE_SEED", first)
    loaded.configure(cpu_numbers=True)
    for seed in range(first, first + RUNS // 4):
        slow = (0.5, 0.25) if seed % 8 == 0 else 0.0
        loaded.configure(poison=seed % 2 == 0, link_gbps=slow, check_order=seed % 4 == 1)
        assert_same(Program(seed), loaded)
    assert loaded.counters()["races"] == 0, loaded.first_race()


def test_nothing_is_left_on_the_device(loaded):
    before = torch.accelerator.memory_allocated()
    for seed in range(10):
        list(Program(seed).run("standin", loaded.move))
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.memory_reserved() == before


def test_a_step_runs_within_its_own_peak_and_not_within_less(loaded):
    program = Program(3)
    list(program.run("standin", loaded.move))
    torch.accelerator.reset_peak_memory_stats()
    list(program.run("standin", loaded.move))
    peak = torch.accelerator.max_memory_allocated()
    with loaded.settings(limit_bytes=peak):
        list(program.run("standin", loaded.move))
    with loaded.settings(limit_bytes=peak - 512), pytest.raises(torch.OutOfMemoryError):
        list(program.run("standin", loaded.move))
    list(program.run("standin", loaded.move))
