"""Other libraries' allocators, below PyTorch and beside it: the bits of eager, or one error that says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
TCMALLOC = next((p for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")
                 if os.path.exists(p := f"{d}/libtcmalloc.so.4")), None)  # fmt: skip
JEMALLOC = next((p for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")
                 if os.path.exists(p := f"{d}/libjemalloc.so.2")), None)  # fmt: skip
SANITIZED = pytest.mark.skipif("STOWAGE_SANITIZER" in os.environ, reason="the sanitizer is the allocator")

# Compiled training and training under a budget, each compared with eager bit for bit.
TRAIN = """
import sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
import budgeted
from torn import WORLDS, Twins

def train():
    import stowage
    for name in ("mlp", "transformer"):
        twins = Twins(WORLDS[name], check="never")
        twins.settle()
        for _ in range(2):
            twins.step()
        assert twins.compiled.stats()["misses"] == 0, twins.compiled.stats()
    assert budgeted.assert_same_under(budgeted.Gpt, 0.5)["evictions"] > 0
"""

# What each does that needs Stowage's allocator, and the error that it gets.
REFUSED = """
def refused(why):
    import stowage
    from stowage import Error
    model = torch.nn.Linear(4, 4)
    calls = [lambda: stowage.compile(lambda x: model(x).sum().backward())(torch.ones(2, 4)), lambda: stowage.budget("1GiB").__enter__(),
             lambda: stowage.capture(lambda x: model(x).sum().backward(), torch.ones(2, 4))]
    for call in calls:
        try:
            call()
        except Error as error:
            assert "does not ask stowage for its tensors" in str(error) and why in str(error) and "\\n" not in str(error), error
        else:
            raise AssertionError(call)
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))
"""


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """The library with the other allocator, as an expression that loads it."""
    library = tmp_path_factory.mktemp("other") / "libother.so"
    torch_folder = Path(torch.__file__).parent
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-shared",
            "-w",
            str(HERE / "other_allocator.cpp"),
            "-isystem",
            str(torch_folder / "include"),
            f"-L{torch_folder / 'lib'}",
            "-lc10",
            "-o",
            str(library),
        ],
        check=True,
    )
    return f"import torch, ctypes; other = ctypes.CDLL({str(library)!r})\n"


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("priority", [0, 7])
def test_put_in_place_before(other, priority):
    """Whatever its priority, it goes on serving, below Stowage's."""
    code = other + f"other.put_in_place({priority}, 1)\n" + TRAIN.format(here=str(HERE))
    run(code + "before = other.served()\ntrain()\nassert other.served() > before + 100\n")


def test_one_that_nothing_can_lie_over(other):
    why = "so that nothing can be put before it"
    run(other + "other.put_in_place(7, 0)\n" + TRAIN.format(here=str(HERE)) + REFUSED + f"refused({why!r})\n")


def test_put_in_place_after_with_no_priority(other):
    """PyTorch keeps the one with the higher priority, which is Stowage's."""
    run(
        TRAIN.format(here=str(HERE))
        + other
        + "train()\nother.put_in_place(0, 1)\ntrain()\nassert other.served() == 0\n"
    )


@pytest.mark.parametrize("bare", [0, 1])
def test_put_in_place_after(other, bare):
    """In the middle of a training: an error before anything of the step has happened; what was allocated before dies as
    it should."""
    run(
        TRAIN.format(here=str(HERE))
        + REFUSED
        + other
        + f"""
import stowage
twins = Twins(WORLDS["mlp"], check="never")
twins.settle()
other.put_in_place(7, {bare})
twins.ready()
try:
    twins.compiled(*twins.batch)
except stowage.Error as error:
    assert "since stowage was imported: import stowage after it" in str(error), error
    assert all(torch.equal(a, b) for a, b in zip(twins.before.values(), twins.planned.state().values()) if isinstance(a, torch.Tensor))
else:
    raise AssertionError("it ran")
del twins
refused("since stowage was imported")
"""
    )


@SANITIZED
@pytest.mark.parametrize("library", [
    pytest.param(TCMALLOC, marks=pytest.mark.skipif(TCMALLOC is None, reason="libtcmalloc is not there"), id="tcmalloc"),
    pytest.param(JEMALLOC, marks=pytest.mark.skipif(JEMALLOC is None, reason="libjemalloc is not there"), id="jemalloc"),
])  # fmt: skip
def test_malloc_of_another_library(library):
    said = run(
        TRAIN.format(here=str(HERE)) + f"train()\nprint({library!r} in open('/proc/self/maps').read())\n",
        LD_PRELOAD=library,
    )
    assert said.endswith("True\n")
