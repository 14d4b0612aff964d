"""The check of order finds each wait that is left out of a swap, at full speed and with right bits, and nothing else."""

import time

import pytest
import torch
from programs import Program

N = 1 << 10


class Swap:
    """One tensor goes to pinned memory on a stream and comes back on another, its range being used meanwhile."""

    def __init__(self):
        self.compute = torch.accelerator.current_stream()
        self.out, self.back = torch.Stream("standin"), torch.Stream("standin")
        self.room = torch.empty(N, pin_memory=True)
        self.x = torch.empty(N, device="standin")

    def __call__(self, left_out=None):
        def waits(name, stream, for_stream):
            if name != left_out:
                event = torch.Event("standin")
                event.record(for_stream)
                stream.wait_event(event)

        self.x.fill_(3)
        waits("out waits for the kernel", self.out, self.compute)
        with self.out:
            self.room.copy_(self.x, non_blocking=True)
        waits("kernel waits for out", self.compute, self.out)
        self.x.zero_()
        waits("in waits for out", self.back, self.out)
        waits("in waits for kernel", self.back, self.compute)
        with self.back:
            self.x.copy_(self.room, non_blocking=True)
        waits("kernel waits for in", self.compute, self.back)
        return self.x + 1


def test_what_is_ordered_is_no_race(loaded):
    swap = Swap()
    with loaded.settings(check_order=True):
        for _ in range(5):
            assert (swap() == 4).all().item()
            swap.out.wait_stream(swap.back)  # the room is written again
    assert loaded.counters()["races"] == 0, loaded.first_race()


@pytest.mark.parametrize("left_out", ["out waits for the kernel", "kernel waits for out", "kernel waits for in"])
def test_a_wait_that_is_left_out_is_a_race(loaded, left_out):
    swap = Swap()
    with loaded.settings(check_order=True):
        swap(left_out)
        assert loaded.counters()["races"] > 0
        assert "and does not wait for it" in loaded.first_race()


def test_a_wait_that_follows_from_others_may_be_left_out(loaded):
    """in waits for kernel, which waited for out; but not the other way round."""
    swap = Swap()
    with loaded.settings(check_order=True):
        swap("in waits for out")
    assert loaded.counters()["races"] == 0, loaded.first_race()
    with loaded.settings(check_order=True):
        swap("in waits for kernel")
    assert "aten::zero_" in loaded.first_race() or "aten::fill_" in loaded.first_race()


def test_a_range_of_pinned_memory_is_written_again_too_early(loaded):
    swap = Swap()
    with loaded.settings(check_order=True):
        swap()
        swap()  # out does not wait for the copy that read the room: only by way of the kernels
        assert loaded.counters()["races"] == 0
        swap.back.wait_stream(swap.compute)
        with swap.back:
            swap.x.copy_(swap.room, non_blocking=True)
        with swap.out:
            swap.room.copy_(torch.ones(N, device="standin"), non_blocking=True)
        assert f"overwrites what is read by a copy on stream {swap.back.stream_id}" in loaded.first_race()


def test_the_hosts_waits_order_too(loaded):
    swap = Swap()
    for wait in (swap.out.synchronize, torch.accelerator.synchronize):
        with loaded.settings(check_order=True):
            with swap.out:
                swap.room.copy_(swap.x, non_blocking=True)
            wait()
            swap.x.zero_()
        assert loaded.counters()["races"] == 0, loaded.first_race()


def test_a_free_without_record_stream_is_a_race_of_who_gets_the_bytes(loaded):
    for recorded in (True, False):
        swap = Swap()
        with loaded.settings(check_order=True):
            swap.out.wait_stream(swap.compute)
            with swap.out:
                swap.room.copy_(swap.x, non_blocking=True)
            if recorded:
                swap.x.record_stream(swap.out)
            address = swap.x.data_ptr()
            del swap.x
            time.sleep(0.05)  # the copy has run, but nobody who uses the bytes next waits for it
            y = torch.empty(N, device="standin")
            y.fill_(1)
            assert y.data_ptr() == address
        assert (loaded.counters()["races"] == 0) == recorded


def test_parts_of_a_block_are_ranges_of_their_own(loaded):
    arena, side = torch.zeros(4 * N, device="standin"), torch.Stream("standin")
    room = torch.empty(N, pin_memory=True)
    with loaded.settings(check_order=True):
        with side:
            arena[N : 2 * N].copy_(room, non_blocking=True)
        arena[:N].fill_(1)
        arena[2 * N :].fill_(1)
        assert loaded.counters()["races"] == 0, loaded.first_race()
        arena[: N + 1].fill_(1)
        assert loaded.counters()["races"] == 1
        assert loaded.first_race().startswith("aten::fill_ on stream 0 overwrites the result of a copy on stream")


def test_training_on_one_stream_has_no_races(loaded):
    with loaded.settings(check_order=True):
        for seed in range(40):
            list(Program(seed).run("standin", loaded.move))
    assert loaded.counters()["races"] == 0, loaded.first_race()
