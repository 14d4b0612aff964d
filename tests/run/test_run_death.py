"""A script that dies of memory is told why: the cause first, at its own line, and a change that fits."""

from __future__ import annotations

import linecache
import re

import pytest
from launched import SCRIPTS, by_us, run, told

from stowage.run.death import asked_bytes, moment_of

CASES = {  # the cause, and a piece of the line that is named
    "outputs_kept": ("of steps that are over are still held", "out = net("),
    "hidden_state_grows": ("of steps that are over are still held", "torch.tanh(cell(hidden))"),
    "batch_too_large": ("of activations, which backward needs", ""),
    "state_too_large": ("of parameters, gradients and optimizer state", ""),
    "logits": ("the loss: .* of logits", ""),
    "attention": ("one request of 549.3 MiB at ", "(x @ x.T)"),
    "wide_dtype": ("one request of 512.0 MiB at ", "data.double()"),
}


@pytest.mark.parametrize("case", CASES)
def test_why_it_died(case):
    done = run(by_us(["dies.py", case], "--watch"))
    assert done.returncode == 1 and "you tried to allocate" in done.stderr, done.stderr
    said = told(done)
    first = re.search(r"Why\n  1\. (.*)\n", said)
    assert first, said
    cause, source = CASES[case]
    assert re.search(cause, first[1]), said
    if source:
        number = re.search(r"dies\.py:(\d+)", first[1])
        assert number and source in linecache.getline(str(SCRIPTS / "dies.py"), int(number[1])), said
    changes = re.findall(r"^  (?!\d\.)(\S.*); (fits|not enough alone); (?:the same|other) numbers$", said, re.MULTILINE)
    assert changes and (changes[0][1] == "fits" or all(fits != "fits" for _, fits in changes)), said


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
