"""A script that dies of memory is told why: the cause first, at its own line, and a change that fits."""

from __future__ import annotations

import re

import pytest
from deaths import CASES, ask, lives
from launched import by_us, run, told

from stowage.run.death import asked_bytes, moment_of

SHORT = (
    "outputs_kept", "gradients_of_each_step", "checkpoint_kept", "predictions_without_no_grad", "batch_too_large",
    "logits", "loss_that_broadcasts", "state_too_large",
)  # fmt: skip


def check(name):
    verdict = ask(name)
    assert verdict.right_cause and verdict.right_line, verdict.said
    changes = re.findall(
        r"^  (?!\d\.)(\S.*); (fits|not enough alone); (?:the same|other) numbers$", verdict.said, re.MULTILINE
    )
    assert changes and (verdict.fits or all(fits != "fits" for _, fits in changes)), verdict.said
    return verdict


@pytest.mark.parametrize("name", SHORT)
def test_why_it_died(name):
    check(name)


@pytest.mark.parametrize("name", CASES)
def test_what_comes_first_is_enough(name):
    assert check(name).right_change
    assert lives(name)


def test_of_a_limit_that_is_too_small_the_one_that_is_enough_comes_first():
    done = run(by_us(["own_optimizer.py"], "--budget=3MiB"))
    said = told(done)
    assert "What to change\n  a larger limit: " in said, said
    needed = re.search(r"stowage run --budget (\d+)MiB own_optimizer.py", said)
    assert needed and 3 < int(needed[1]) <= 16


def test_other_errors_are_none_of_memory():
    done = run(by_us(["ends.py", "raise"], "--watch"))
    assert "ValueError" in done.stderr and "What to change" not in done.stderr


@pytest.mark.parametrize(
    "error, asked",
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1677721664 bytes. Error code 12 (Cannot allocate memory)"), 1677721664),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:80] . DefaultCPUAllocator: not enough memory: you tried to allocate 800 bytes."), 800),
        (MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"), int(7.45 * 2**30)),
        (MemoryError(), 0),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (KeyError("tried"), None),
    ],
)  # fmt: skip
def test_what_was_asked_for(error, asked):
    found = asked_bytes(error)
    assert found == asked or (asked and found and abs(found - asked) <= 1)


def test_what_a_device_has_left_counts():
    import torch

    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.50 GiB is free."
    assert asked_bytes(torch.OutOfMemoryError(text)) == 2 << 30
    held = {"file": "train.py", "line": 3, "phase": "forward", "bytes": 1 << 30, "between_bytes": 0, "grown": 0}
    peak = held | {"held": [held], "bytes": 3 << 30, "update": 1}
    moment = moment_of(peak, 2 << 30, 3 << 29, [], False)
    assert moment.live_bytes == 3 << 30 and moment.request_bytes - moment.device_free_bytes == 1 << 29
