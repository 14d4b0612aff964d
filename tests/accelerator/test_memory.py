"""Memory of the stand-in: nobody else may touch it, it has a hard limit, blocks are free when their streams say so."""

import ctypes
import faulthandler
import os
import signal

import pytest
import torch

MIB = 1 << 20


def child_dies_of(function):
    """The signal that ends a forked child that calls function, or its exit status."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        faulthandler.enable()  # it may have another file
        try:
            function()
        except RuntimeError:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


# ---- Touches


def test_the_host_dies_when_it_touches_device_memory(loaded):
    x = torch.arange(1000.0, device="standin")
    assert child_dies_of(lambda: ctypes.c_float.from_address(x.data_ptr()).value) == signal.SIGSEGV
    assert child_dies_of(lambda: ctypes.memset(x.data_ptr() + 3996, 0, 4)) == signal.SIGSEGV
    assert loaded.counters()["host_touches"] == 2
    assert torch.equal(x.cpu(), torch.arange(1000.0))  # through the device's own copies


def test_a_forked_child_has_no_device():
    x = torch.ones(4, device="standin")
    assert child_dies_of(lambda: x + 1) == 3
    assert child_dies_of(lambda: torch.empty(5, device="standin")) == 3
    assert child_dies_of(lambda: os._exit(0 if torch.standin._is_in_bad_fork() else 1)) == 0
    assert x.tolist() == [1] * 4


# ---- The limit


def test_the_limit_is_hard_and_exact(loaded):
    base = torch.accelerator.memory_allocated()
    with loaded.settings(limit_bytes=base + 4 * MIB):
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="standin")
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 1048577 bytes.*1048576 bytes are free"):
            torch.empty(MIB + 1, dtype=torch.uint8, device="standin")
        y = torch.empty(MIB, dtype=torch.uint8, device="standin")
        assert torch.accelerator.get_memory_info() == (0, base + 4 * MIB)
        with pytest.raises(torch.OutOfMemoryError):
            x + x
        del y
        assert torch.accelerator.get_memory_info()[0] == MIB
    assert torch.accelerator.memory_stats()["num_ooms"] >= 2


def test_scratch_of_kernels_counts():
    x = torch.randn(MIB // 4, device="standin")
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    values, indices = x.sort()
    assert torch.accelerator.memory_allocated() - before == 3 * MIB  # float32 and int64
    del values, indices
    x.to(torch.float64).sort(stable=True)
    assert torch.accelerator.max_memory_allocated() - before > 6 * MIB
    assert torch.accelerator.memory_allocated() == before


def test_statistics_are_those_of_torch_accelerator():
    base = torch.accelerator.memory_allocated()
    asked = torch.accelerator.memory_stats()["requested_bytes.all.current"]
    torch.accelerator.reset_peak_memory_stats()
    x = torch.empty(1000, dtype=torch.uint8, device="standin")
    assert x.data_ptr() % 512 == 0
    assert torch.accelerator.memory_allocated() == torch.accelerator.memory_reserved() == base + 1024
    assert torch.accelerator.memory_stats()["requested_bytes.all.current"] == asked + 1000
    del x
    assert torch.accelerator.memory_allocated() == base
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.max_memory_reserved() == base + 1024
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == base
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0
    torch.accelerator.empty_cache()


def test_freed_bytes_are_poisoned(loaded):
    with loaded.settings(poison=True):
        x = torch.zeros(512, dtype=torch.uint8, device="standin")
        address = x.data_ptr()
        del x
        y = torch.empty(512, dtype=torch.uint8, device="standin")
        assert y.data_ptr() == address and (y == 0xDD).all().item()


# ---- Frees in the order of streams


def slow_copy(x, gbps=0.01):
    """To pinned memory, under way when this returns."""
    target = torch.zeros(x.shape, dtype=x.dtype, pin_memory=True)
    target.copy_(x, non_blocking=True)
    return target


def test_a_block_is_free_when_the_copies_of_its_stream_are_done(loaded):
    base = torch.accelerator.memory_allocated()
    with loaded.settings(poison=True, link_gbps=0.01):
        torch.accelerator.synchronize()
        x = torch.ones(MIB // 4, device="standin")
        target = slow_copy(x)
        del x
        assert torch.accelerator.memory_allocated() == base
        assert torch.accelerator.memory_reserved() == base + MIB  # still read
        torch.accelerator.synchronize()
        assert torch.accelerator.memory_reserved() == base
        assert (target == 1).all()


def test_another_stream_needs_record_stream(loaded):
    side = torch.Stream("standin")
    for recorded in (False, True):
        with loaded.settings(poison=True, link_gbps=0.01):
            x = torch.ones(MIB // 4, device="standin")
            with side:
                target = slow_copy(x)
            if recorded:
                x.record_stream(side)
            del x
            side.synchronize()
            assert (target == 1).all() == recorded


def test_an_allocation_waits_for_blocks_that_become_free(loaded):
    base = torch.accelerator.memory_allocated()
    with loaded.settings(limit_bytes=base + MIB, link_gbps=0.01):
        x = torch.ones(MIB // 4, device="standin")
        target = slow_copy(x)
        del x
        torch.empty(MIB, dtype=torch.uint8, device="standin")
        assert (target == 1).all()


# ---- Pinned memory, workspaces


def test_pinned_memory_is_known_counted_and_kept_while_copies_use_it(loaded):
    assert not torch.empty(10).is_pinned()
    before = loaded.counters()["pinned_bytes"]
    host = torch.ones(5 * MIB // 4, pin_memory=True)
    assert host.is_pinned() and host[100:].is_pinned()
    assert loaded.counters()["pinned_bytes"] - before == 8 * MIB  # a power of two
    with loaded.settings(poison=True, link_gbps=0.05):
        x = host.to("standin", non_blocking=True)
        del host
        assert loaded.counters()["pinned_bytes"] - before == 8 * MIB
        assert (x == 1).all().item()
    torch.accelerator.synchronize()
    assert loaded.counters()["pinned_bytes"] == before


def test_the_first_product_on_a_stream_takes_a_workspace(loaded):
    x = torch.ones(2, 2, device="standin")
    base = torch.accelerator.memory_allocated()
    with loaded.settings(workspace_bytes=MIB):
        for _ in range(2):
            x @ x
        assert torch.accelerator.memory_allocated() == base + MIB
        with torch.Stream("standin"):
            x @ x
        assert torch.accelerator.memory_allocated() == base + 2 * MIB
    x @ x
    assert torch.accelerator.memory_allocated() == base
