"""What is kept on the host to be put back: bytes of storages on both kinds of memory, through the blocks of large copies."""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import searches
import torch

from stowage import _runtime
from stowage._torch.private import address

HERE = Path(__file__).resolve().parent
PIECE = 8 << 20  # of a staged copy
SIZES = (0, 1, 511, 4096, (2 << 20) - 1, 2 << 20, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 4097, 3 * PIECE - 1)


@pytest.mark.parametrize("link_gbps", [0, 0.5])
def test_all_ranges_come_back_and_nothing_else_changes(loaded, link_gbps):
    draw = random.Random(searches.first_seed())
    with loaded.settings(link_gbps=link_gbps, check_order=True):
        tensors, ranges = [], []
        for size in draw.sample(SIZES, len(SIZES)) * 2:
            t = torch.randint(0, 256, (size,), dtype=torch.uint8)
            t = t.to(draw.choice(["cpu", "standin:0"]))
            start = draw.choice([0, draw.randint(0, size)])
            end = draw.choice([size, draw.randint(start, size)])
            tensors.append(t)
            ranges.append((address(t), start, end))
        before = [t.cpu().clone() for t in tensors]
        live = torch.accelerator.memory_allocated()
        kept = _runtime.KeptContent(ranges)
        assert torch.accelerator.memory_allocated() == live, "the copy takes memory of the device"
        for t in tensors:
            t.bitwise_not_()
        kept.put_back()
        for t, old, (_, start, end) in zip(tensors, before, ranges):
            now, other = t.cpu(), ~old
            assert torch.equal(now[start:end], old[start:end])
            assert torch.equal(now[:start], other[:start]) and torch.equal(now[end:], other[end:])


def test_of_a_storage_that_became_smaller_the_rest_comes_back():
    t = torch.arange(100, dtype=torch.uint8)
    kept = _runtime.KeptContent([(address(t), 10, 90)])
    t.zero_()
    t.resize_(50).untyped_storage().resize_(50)
    kept.put_back()
    assert t.tolist() == [0] * 10 + list(range(10, 50))


def test_what_the_kernels_asked_for_before_leave_is_kept(loaded):
    """The copy comes after them, and the work after put_back() comes after that."""
    with loaded.settings(link_gbps=0.5, check_order=True):
        t = torch.zeros(3 * PIECE // 4, device="standin:0")
        for _ in range(50):
            t += 1
        kept = _runtime.KeptContent([(address(t), 0, t.untyped_storage().nbytes())])
        t.zero_()
        kept.put_back()
        t += 1
        assert torch.equal(t.cpu(), torch.full((3 * PIECE // 4,), 51.0))


def test_the_first_call_within_a_budget_counts_what_was_there_unseen():
    """Such as a library's workspace: 64 MiB that no tensor tells of, older than the front of the allocator."""
    program = """
        import sys
        sys.path.insert(0, {support!r})
        import standin, torch
        standin.load()
        held = torch.empty(64 << 20, dtype=torch.uint8, device="standin").untyped_storage()
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))).to("standin")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        x = torch.ones(256, 64, device="standin")
        step(x)
        torch.accelerator.reset_peak_memory_stats()
        step(x)
        budget = torch.accelerator.max_memory_allocated() - (64 << 20)
        import stowage
        compiled = stowage.compile(step, budget=int(budget * 0.9))
        for _ in range(6):
            compiled(x)
        assert compiled.stats()["planned_steps"], compiled.refusal
    """
    program = textwrap.dedent(program).format(support=str(HERE.parent / "support" / "accelerator"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
