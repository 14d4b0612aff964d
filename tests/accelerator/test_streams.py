"""Streams, events and links of the stand-in: what is ordered is right at every speed, what is not goes wrong."""

import random
import time

import pytest
import torch

ELEMENTS = 1 << 18  # of 4 bytes; 105 ms at 0.01 GB/s
BYTES = 4 * ELEMENTS
SLOW = 0.01


def pinned(value=0.0):
    return torch.full((ELEMENTS,), float(value), pin_memory=True)


def milliseconds(function):
    start = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - start)


def test_copies_run_beside_the_caller(loaded):
    host, back = pinned(3), pinned()
    with loaded.settings(link_gbps=SLOW):
        began = time.perf_counter()
        x = torch.empty(ELEMENTS, device="standin")
        x.copy_(host, non_blocking=True)
        assert not torch.accelerator.current_stream().query()
        assert 1000 * (time.perf_counter() - began) < 80
        back.copy_(x, non_blocking=True)
        torch.accelerator.synchronize()
        assert 1000 * (time.perf_counter() - began) > 200
    assert torch.equal(back, host)
    counts = loaded.counters()
    assert counts["async_copies"] == counts["copies_to_device"] + counts["copies_to_host"] == 2
    assert counts["bytes_to_device"] == counts["bytes_to_host"] == BYTES


def test_pageable_memory_and_blocking_copies_wait(loaded):
    with loaded.settings(link_gbps=SLOW):
        for host in (torch.ones(ELEMENTS), pinned(1)):
            assert milliseconds(lambda: host.to("standin")) > 100
        assert milliseconds(lambda: torch.ones(ELEMENTS).to("standin", non_blocking=True)) > 100
        assert milliseconds(lambda: pinned(1).double().to("standin", torch.float32)) > 100  # a change of type
    assert loaded.counters()["async_copies"] == 0


def test_kernels_come_after_the_copies_of_their_stream(loaded):
    host = pinned(2)
    with loaded.settings(link_gbps=SLOW):
        x = host.to("standin", non_blocking=True)
        assert (x * 2).sum().item() == 4 * ELEMENTS


def test_who_reads_too_early_gets_wrong_bits(loaded):
    x = torch.ones(ELEMENTS, device="standin")
    target, source = pinned(), pinned(1)
    with loaded.settings(link_gbps=SLOW):
        target.copy_(x, non_blocking=True)
        assert not (target == 1).all()  # the host did not wait
        torch.accelerator.synchronize()
        assert (target == 1).all()
        side = torch.Stream("standin")
        with side:
            x.copy_(source.fill_(5), non_blocking=True)
        assert not (x == 5).all().item()  # the default stream did not wait
        time.sleep(0.01)  # the first half is on its way
        source.fill_(6)  # nor did the host wait, before it wrote
        side.synchronize()
        assert set(x.tolist()) == {5.0, 6.0}


def test_events_order_streams(loaded):
    side, source = torch.Stream("standin"), pinned(7)
    with loaded.settings(link_gbps=SLOW):
        x = torch.zeros(ELEMENTS, device="standin")
        with side:
            x.copy_(source, non_blocking=True)
            arrived = torch.Event("standin")
            arrived.record()
        assert not arrived.query()
        torch.accelerator.current_stream().wait_event(arrived)
        assert (x == 7).all().item() and arrived.query()
        with side:
            x.copy_(source.fill_(8), non_blocking=True)
        torch.accelerator.current_stream().wait_stream(side)
        assert (x == 8).all().item()


def test_an_event_means_what_it_was_when_it_was_waited_for(loaded):
    first, second = torch.Stream("standin"), torch.Stream("standin")
    source, x = pinned(1), torch.zeros(ELEMENTS, device="standin")
    event = torch.Event("standin")
    assert event.query()  # never recorded
    event.synchronize()
    with loaded.settings(link_gbps=SLOW):
        event.record(second)
        second.wait_event(event)
        with first:
            x.copy_(source, non_blocking=True)
        event.record(first)
        second.synchronize()
        assert not event.query()
        event.synchronize()
        assert first.query()


def test_events_tell_the_time_of_a_copy(loaded):
    source = pinned()
    begin, end = (torch.Event("standin", enable_timing=True) for _ in range(2))
    with loaded.settings(link_gbps=(SLOW, 0)):
        begin.record()
        source.to("standin", non_blocking=True)
        end.record()
        with pytest.raises(RuntimeError, match="must be completed"):
            begin.elapsed_time(end)
        end.synchronize()
        assert 104 <= begin.elapsed_time(end) < 500
    with pytest.raises(ValueError, match="enable_timing"):
        torch.Event("standin").elapsed_time(end)


def test_each_direction_is_a_link_of_its_own(loaded):
    one, two = torch.Stream("standin"), torch.Stream("standin")
    x, y = (torch.zeros(ELEMENTS, device="standin") for _ in range(2))
    a, b = pinned(), pinned()

    def both(first, second):
        with one:
            first()
        with two:
            second()
        torch.accelerator.synchronize()

    up, down = lambda: x.copy_(a, non_blocking=True), lambda: b.copy_(y, non_blocking=True)
    with loaded.settings(link_gbps=0.01):
        opposite = min(milliseconds(lambda: both(up, down)) for _ in range(3))
        same = milliseconds(lambda: both(up, lambda: y.copy_(b, non_blocking=True)))
    assert 104 < opposite < 200 < same


def test_each_thread_has_its_stream_and_the_pool_goes_round():
    default = torch.accelerator.current_stream()
    assert default.stream_id == 0
    ids = {torch.Stream("standin").stream_id for _ in range(100)}
    assert len(ids) == 32 and 0 not in ids
    side = torch.Stream("standin")
    with side:
        assert torch.accelerator.current_stream() == side
    assert torch.accelerator.current_stream() == default


@pytest.mark.parametrize("part", range(3))
def test_swapping_through_a_pinned_arena_is_right_at_every_speed(loaded, part):
    """The pattern of the product: out on one stream, in on another, through ranges of one pinned arena and one device
    arena; a range is written again after the event of the copy that used it."""
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    n, slots = 1 << 12, 3
    arena = torch.empty(slots * n, pin_memory=True)
    out, back = torch.Stream("standin"), torch.Stream("standin")
    compute = torch.accelerator.current_stream()
    for _ in range(30):
        loaded.configure(link_gbps=draw.choice([0.0, 0.02, 0.1, (0.02, 1.0), (12.0, 0.05)]), poison=True)
        free = [None] * slots
        for i in range(8):
            slot = draw.randrange(slots)
            room = arena[slot * n : (slot + 1) * n]
            x = torch.full((n,), float(i), device="standin") + 0.5
            if free[slot] is not None:
                out.wait_event(free[slot])
            out.wait_stream(compute)
            with out:
                room.copy_(x, non_blocking=True)
                gone = torch.Event("standin")
                gone.record()
            compute.wait_event(gone)
            x.zero_()  # the device's range is used again
            back.wait_event(gone)
            back.wait_stream(compute)
            with back:
                x.copy_(room, non_blocking=True)
                free[slot] = torch.Event("standin")
                free[slot].record()
            compute.wait_event(free[slot])
            assert (x == i + 0.5).all().item(), f"seed {seed}"
