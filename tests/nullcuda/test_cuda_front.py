"""The front of CUDA's allocator (runtime/memory/cuda_front.cpp): whatever is asked of the allocator has the answer that it
has without the front."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stowage
from stowage._torch import runtime_build

MIB = 1 << 20
OF_THE_SOURCES = Path(__file__).resolve().parents[2]

ASKED = """
import json, sys, torch
if sys.argv[1] == "front":
    import stowage
    model = torch.nn.Linear(4, 4).cuda()
    step = stowage.compile(lambda x: model(x).sum().detach())
    for _ in range(4):
        step(torch.ones(2, 4, device="cuda"))
    assert step.stats()["planned_steps"] > 0, step.refusal
    del model, step
else:
    torch.nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda"))
import gc
gc.collect(), torch.cuda.empty_cache(), torch.cuda.reset_peak_memory_stats(), torch.cuda.reset_accumulated_memory_stats()
began = torch.cuda.memory_stats()
side = torch.cuda.Stream()
kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 511, 512, 513, 1 << 20, (1 << 20) + 1, 30 << 20)]
kept[3].record_stream(side)
addresses = [t.data_ptr() % 512 for t in kept]
del kept[2:5]
graph, x = torch.cuda.CUDAGraph(), torch.ones(64, 64, device="cuda")
with torch.cuda.graph(graph):
    y = torch.relu(x + 1).sum()
graph.replay()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
blocks = sorted((b["size"], b["state"]) for s in torch.cuda.memory_snapshot(pool.id) for b in s["blocks"])
del inside
ended = torch.cuda.memory_stats()
names = ["allocation.all.allocated", "allocation.all.freed", "allocated_bytes.all.allocated", "requested_bytes.all.allocated",
         "segment.all.allocated", "allocated_bytes.all.peak", "requested_bytes.all.current", "allocated_bytes.all.current"]
print(json.dumps([addresses, blocks, {n: ended[n] - (began[n] if n.endswith("current") or n.endswith("peak") else 0) for n in names}]))
"""


def test_statistics_pools_and_captures_are_as_without_it():
    said = [
        subprocess.run([sys.executable, "-c", ASKED, which], capture_output=True, text=True) for which in ("", "front")
    ]
    assert all(s.returncode == 0 for s in said), said[-1].stderr
    plain, front = (json.loads(s.stdout) for s in said)
    assert plain == front


@pytest.fixture
def front():
    """In place, and nothing of the test's left after it."""
    step = stowage.compile(lambda x: x * 2)
    for _ in range(4):
        step(torch.ones(4, device="cuda"))
    assert step.stats()["planned_steps"] > 0, step.refusal


def test_blocks_come_and_go_through_it(front):
    gc.collect()
    before = torch.cuda.memory_allocated()
    tensors = [torch.empty(n, device="cuda") for n in range(1, 2000, 37)]
    storage = tensors[5].untyped_storage()
    storage.resize_(MIB)
    assert torch.cuda.memory_allocated() > before
    del tensors, storage
    assert torch.cuda.memory_allocated() == before


def test_memory_that_the_allocator_is_asked_for_by_address(front):
    address = torch.cuda.caching_allocator_alloc(MIB)
    before = torch.cuda.memory_allocated()
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before - MIB


def test_a_limit_on_the_process_holds(front):
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * MIB) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_build_on_first_use_finds_cuda_in_the_wheels(tmp_path, monkeypatch):
    """With no toolkit installed; and the front compiles with just what it is told."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    place = Path(torch.__file__).parent
    cuda = runtime_build._cuda(place)
    assert "-DSTOWAGE_CUDA" in cuda.flags and "-lc10_cuda" in cuda.libraries
    include = [f"-I{OF_THE_SOURCES}", f"-I{OF_THE_SOURCES / 'include'}", "-isystem", str(place / "include")]
    flags = [flag for flag in runtime_build._FLAGS if flag != "-w"]
    source = OF_THE_SOURCES / "runtime" / "memory" / "cuda_front.cpp"
    command = [*os.environ.get("CXX", "c++").split(), *flags, "-Wall", "-Wextra", "-Werror", *include, *cuda.flags]
    done = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
