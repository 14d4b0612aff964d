"""The driver without a GPU does what these tests need of it, and lets nothing pass that a GPU would not."""

import ctypes
import faulthandler
import os
import signal

import nullcuda
import pytest
import torch

MIB = 1 << 20


def test_kernels_are_counted_and_values_are_zeros():
    before = nullcuda.counters()
    x = torch.full((4, 4), 3.0, device="cuda")
    assert (x @ x).cpu().tolist() == [[0.0] * 4] * 4
    after = nullcuda.counters()
    assert after["launches"] > before["launches"] and after["products"] == before["products"] + 1


def test_the_host_dies_when_it_touches_device_memory():
    address = torch.ones(4, device="cuda").data_ptr()
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        os._exit(int(ctypes.c_float.from_address(address).value))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


def test_memory_ends():
    free, total = torch.cuda.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total + 1, dtype=torch.uint8, device="cuda")
    before = nullcuda.counters()["device_bytes"]
    x = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
    assert 0 <= nullcuda.counters()["device_bytes"] - before - x.numel() < 2 * MIB
    del x
    torch.cuda.empty_cache()
    assert nullcuda.counters()["device_bytes"] == before


def test_pinned_memory_is_known():
    x = torch.arange(MIB, dtype=torch.uint8, pin_memory=True)
    assert x.is_pinned() and not torch.empty(4).is_pinned()
    x.copy_(torch.ones(MIB, dtype=torch.uint8, device="cuda"), non_blocking=True)
    assert x.sum() == 0


# ---- Rules of capture


def test_a_graph_is_captured_and_launched():
    x, graph = torch.ones(4, 4, device="cuda"), torch.cuda.CUDAGraph()
    x @ x
    with torch.cuda.graph(graph):
        y = (x @ x) + 1
    assert nullcuda.counters()["nodes"] >= 2 and y.shape == (4, 4)
    before = nullcuda.counters()["graph_launches"]
    graph.replay()
    assert nullcuda.counters()["graph_launches"] == before + 1


@pytest.mark.parametrize("asks", ["item", "synchronize", "query", "outside event"])
def test_what_may_not_be_captured_ends_the_capture(asks):
    x = torch.ones(4, device="cuda")
    outside = torch.cuda.Event()
    outside.record()
    with pytest.raises(RuntimeError, match="captur"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            y = x + 1
            if asks == "item":
                y.sum().item()
            elif asks == "synchronize":
                torch.cuda.current_stream().synchronize()
            elif asks == "query":
                event = torch.cuda.Event()
                event.record()
                event.query()
            else:
                torch.cuda.current_stream().wait_event(outside)
    torch.cuda.synchronize()


def test_a_stream_joins_by_an_event():
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            x.mul_(2)
        torch.cuda.current_stream().wait_stream(side)
    assert not torch.cuda.is_current_stream_capturing()
