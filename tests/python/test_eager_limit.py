"""The limit of stowage.budget is hard: met at every moment, or a clear error that leaves model and optimizer usable and
as they were."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import random
import sys

import budgeted
import pytest
import searches
import torch
from budgeted import Gpt, adamw, content

import stowage
from stowage import _runtime


def smallest_limit(make_model, low: float, high: float, tries: int = 6) -> tuple[int, int]:
    """(a limit that is met, one that is not), close to each other."""
    _, peak = budgeted.train(make_model, steps=2)
    fits, fails = budgeted.share(peak, high), budgeted.share(peak, low)
    for _ in range(tries):
        middle = (fits + fails) // 2
        try:
            budgeted.train(make_model, stowage.budget(middle), steps=2)
            fits = middle
        except stowage.OutOfMemory:
            fails = middle
    return fits, fails


def test_the_smallest_limit_keeps_every_bit():
    fits, fails = smallest_limit(Gpt, 0.0, 0.4)
    assert fails < fits
    expected, peak = budgeted.train(Gpt)
    for release in ("both", "swap"):
        budget = stowage.budget(int(fits * 1.02), release=release, debug=True)
        got, _ = budgeted.train(Gpt, budget)
        budgeted.assert_same(expected, got)
        assert budget.stats()["peak_bytes"] <= fits * 1.02 < budgeted.share(peak, 0.4)


def test_tensors_that_the_collector_has_frozen_leave_too():
    """After gc.freeze() gc.get_objects() does not name them."""
    held = [torch.randn(1 << 18) for _ in range(8)]
    sums = [t.sum() for t in held]
    gc.freeze()
    try:
        with stowage.budget("5MiB") as budget:
            made = [torch.ones(1 << 18) for _ in range(3)]
            assert [t.sum() for t in held] == sums
        assert budget.stats()["peak_bytes"] <= 5 << 20 and len(made) == 3
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("release", ["both", "recompute", "swap"])
def test_leaving_keeps_the_limit_where_all_that_lives_fits(release):
    """Chains of dropped tensors, some of which share their beginnings, are made again within it."""
    for seed in searches.seeds(searches.first_seed(), at_least=6):
        draw = random.Random(seed)
        depths = [draw.randint(2, 25) for _ in range(draw.randint(1, 3))]
        given = torch.ones(1 << 16)

        def work(depths=depths, given=given):
            y, ends = given, []
            for i in range(max(depths)):
                y = torch.tanh(y * 1.1)
                ends += [y] * (i + 1 in depths)
            torch.zeros(1 << 18).add_(1)  # for a moment: those make room
            return ends

        wanted = [t.clone() for t in work()]
        before = _runtime.live_bytes()
        limit = before + (9 << 17)
        with stowage.budget(limit, release=release) as b:
            got = work()
            _runtime.reset_peak()
        assert _runtime.peak_bytes() <= limit, seed
        assert b.stats()["evictions"] > 0
        assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True)), seed


def test_leaving_takes_no_more_than_it_must_where_not_all_fits():
    """Six tensors of 1 MiB each at the end of a chain come back though the limit was 4: one chain after the other."""
    before = _runtime.live_bytes()
    with stowage.budget(before + (4 << 20), release="recompute") as b:
        ends = []
        for i in range(6):
            y = torch.full((1 << 18,), 1.0 + i)
            for _ in range(12):
                y = torch.tanh(y * 1.1)
            ends.append(y)
        del y
        _runtime.reset_peak()
    assert b.stats()["evictions"] > 0
    assert _runtime.live_bytes() - before >= 6 << 20
    assert _runtime.peak_bytes() - before <= 9 << 20
    for i, end in enumerate(ends):
        y = torch.full((1 << 18,), 1.0 + i)
        for _ in range(12):
            y = torch.tanh(y * 1.1)
        assert torch.equal(y, end)


def here(back: int = 0) -> str:
    """The line that calls this, or one so many before it, as messages name it."""
    frame = sys._getframe(1)
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno - back}"


@pytest.mark.alone
def test_a_limit_that_cannot_be_met_says_who_holds_it_and_what_is_needed():
    with pytest.raises(stowage.OutOfMemory) as caught:
        with stowage.budget("600KiB"):
            kept = torch.zeros(100, 1024)
            array = kept.numpy()
            leaves = torch.ones(32, 1024)
            used = torch.ones(32, 1024)
            used.exp()
    assert str(caught.value) == (
        "a limit of 600.0 KiB is short by 56.0 KiB: aten::exp asks for 128.0 KiB, and what is in memory must stay: "
        f"400.0 KiB from {here(7)} (its address is known outside), 128.0 KiB from {here(4)} (in use). "
        "At least 671744 bytes are needed here"
    )
    assert isinstance(caught.value, stowage.Error) and isinstance(caught.value, torch.OutOfMemoryError)
    assert array.sum() == 0 and leaves.sum() == leaves.numel()


@pytest.mark.alone
def test_the_words_of_a_limit_that_cannot_be_met():
    weight = torch.randn(256, 256)
    with pytest.raises(stowage.OutOfMemory) as caught:
        with stowage.budget("600KiB"):
            weight @ weight.t() @ weight.exp()
    assert str(caught.value) == (
        "a limit of 600.0 KiB is short by 168.0 KiB: aten::mm asks for 256.0 KiB, and what is in memory must stay: "
        f"512.0 KiB from {here(3)} (in use). At least 786432 bytes are needed here"
    )


@pytest.mark.alone
def test_backward_names_the_line_whose_gradient_it_works_out():
    weight = torch.randn(512, 512, requires_grad=True)
    live = _runtime.live_bytes()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        with stowage.budget(live + (2 << 20)):
            product = weight @ weight  # 1 MiB
            product.sum().backward()
    assert f" in the backward pass of {here(2)} asks for 1.0 MiB, " in str(caught.value)


@pytest.mark.alone
def test_the_program_may_catch_it_and_go_on():
    weight = torch.randn(128, 128)
    with stowage.budget("1MiB") as b:
        with pytest.raises(torch.OutOfMemoryError, match="stowage: a limit of 1.0 MiB is short by"):
            torch.zeros(1 << 20)
        total = sum((weight * i).sum() for i in range(40))
    assert torch.equal(total, sum((weight * i).sum() for i in range(40)))
    assert b.stats()["out_of_memory"] == 1
    assert b.stats()["peak_bytes"] <= 1 << 20


@pytest.mark.alone
def test_what_is_live_already_makes_room_at_the_door():
    tensors = [torch.full((1 << 16,), float(i)) for i in range(8)]
    with stowage.budget("1MiB") as b:
        assert _runtime.live_bytes() <= 1 << 20
        assert b.stats()["evictions"] >= 4
        assert [int(t[0]) for t in tensors] == list(range(8))
        assert b.stats()["peak_bytes"] <= 1 << 20
    assert all(bool((t == i).all()) for i, t in enumerate(tensors))


def test_allocations_inside_an_op_count():
    image, kernel = torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3)
    waiting = [torch.randn(1 << 15) for _ in range(8)]
    expected = torch.nn.functional.conv2d(image, kernel, padding=1)
    live = _runtime.live_bytes()
    with stowage.budget(live + 1000) as b:  # nothing more fits unless something leaves
        got = torch.nn.functional.conv2d(image, kernel, padding=1)
        assert torch.equal(got, expected)
    assert b.stats()["peak_bytes"] <= live + 1000
    assert b.stats()["evictions"] > 0
    assert len(waiting) == 8


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
def test_an_optimizer_step_that_does_not_fit_is_taken_back(form):
    """The big parameter's update cannot fit; those before it have run by then."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in (5000, 4000, 300, 90_000)]
    optimizer = adamw(
        parameters, **{"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[form]
    )
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer.step()
    state = [*parameters, *(v for s in optimizer.state.values() for v in s.values())]
    before = [content(t) for t in state]
    versions = 4 * sum(p.nbytes for p in parameters)
    with pytest.raises(stowage.OutOfMemory, match="short by"):
        with stowage.budget(int(versions * 0.6)):
            optimizer.step()
    assert [content(t) for t in state] == before
    optimizer.step()
    assert [content(t) for t in state] != before


def test_arguments_are_checked():
    for limit in (0, -1, "0GiB"):
        with pytest.raises((ValueError, stowage.Error)):
            stowage.budget(limit)
    with pytest.raises(ValueError, match="unknown policy 'best': one of default, "):
        stowage.budget("1GiB", policy="best")
    with pytest.raises(ValueError, match="unknown release 'drop': one of both, recompute, swap"):
        stowage.budget("1GiB", release="drop")
    with pytest.raises(ValueError, match="link_gbps must be above 0: -1"):
        stowage.budget("1GiB", link_gbps=-1)
    b = stowage.budget("1GiB")
    with b:
        pass
    with pytest.raises(stowage.Error, match="entered once"):
        b.__enter__()


def test_stats_and_timeline():
    b = stowage.budget(budgeted.share(budgeted.train(Gpt, steps=2)[1], 0.5))
    budgeted.train(Gpt, b, steps=2)
    stats = b.stats()
    assert {
        "limit_bytes",
        "peak_bytes",
        "evictions",
        "recomputed_ops",
        "recompute_ns",
        "swapped_bytes",
        "stall_ns",
    } <= stats.keys()
    assert stats["policy"]["name"] == "default"
    events = b.timeline()
    assert 0 < len(events) <= 65_536
    assert all(event.keys() == {"t_ns", "event", "bytes", "op"} for event in events)
    assert all(a["t_ns"] <= b["t_ns"] for a, b in itertools.pairwise(events))
    live = [event["bytes"] for event in events if event["event"] == "live"]
    assert 0 < max(live) <= stats["limit_bytes"]
    kinds = collections.Counter(event["event"] for event in events)
    assert (kinds["drop"], kinds["swap_out"]) == (stats["dropped"], stats["swapped_out"])


def test_progress_is_told_after_optimizer_steps_and_not_shown_where_nobody_looks(capfd):
    lines = []
    limit = budgeted.share(budgeted.train(Gpt, steps=2)[1], 0.5)
    budgeted.train(Gpt, stowage.budget(limit, progress=lambda what, fraction: lines.append(what)), steps=3)
    assert len(lines) == 3
    assert all(
        line.startswith("budget, ") and " MiB, " in line and line.endswith("% of the time for that") for line in lines
    )
    budgeted.train(Gpt, stowage.budget(limit), steps=2)
    assert capfd.readouterr() == ("", "")


def test_steps_of_stowage_compile_run_eagerly_inside():
    compiled = []

    def planned_elsewhere(model, optimizer, batch):
        if not compiled:
            compiled.append(stowage.compile(lambda x: budgeted.plain_step(model, optimizer, x)))
        return compiled[0](batch)

    expected, peak = budgeted.train(Gpt)
    got, _ = budgeted.train(Gpt, stowage.budget(budgeted.share(peak, 0.6)), step=planned_elsewhere)
    budgeted.assert_same(expected, got)
    assert compiled[0].stats()["planned_steps"] == 0
    with stowage.budget("1GiB"), pytest.raises(stowage.Unsupported, match="inside a stowage.budget block"):
        stowage.capture(lambda x: x * 2, torch.ones(4))


def test_compiled_steps_that_do_not_run_make_way():
    """Their arenas are nobody's meanwhile; the plans go on afterwards."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def body(x):
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step, x = stowage.compile(body), torch.randn(500, 64)
    for _ in range(6):
        step(x)
    stats = step.stats()
    idle = _runtime.live_bytes()
    limit = idle - stats["arena_bytes"] + (5 << 19)
    assert stats["planned_steps"] > 0 and stats["arena_bytes"] > 5 << 18
    with stowage.budget(limit) as b, torch.no_grad():
        for _ in range(2):
            model(torch.randn(500, 64)).sum()
    assert b.stats()["peak_bytes"] <= limit
    step(x)
    assert step.stats()["planned_steps"] > stats["planned_steps"] and _runtime.live_bytes() == idle


def test_a_limit_far_away_sleeps_and_wakes_in_time():
    """Steps that stay far below the limit are not watched; one that then grows past it is, and every bit is right."""

    class Growing(Gpt):
        @staticmethod
        def batches(count):
            small, large = Gpt.batches(5, batch=2, length=10), Gpt.batches(count, batch=24)
            return [*small, *large]

    expected, peak = budgeted.train(Growing)
    budget = stowage.budget(budgeted.share(peak, 0.7), debug=True)
    got, _ = budgeted.train(Growing, budget)
    budgeted.assert_same(expected, got)
    small_ops = budget.stats()["ops"]
    assert budget.stats()["evictions"] > 0
    assert budget.stats()["peak_bytes"] <= budget.stats()["limit_bytes"]
    budgeted.assert_nothing_left(budget)

    far = stowage.budget("8GiB")
    budgeted.train(Growing, far)
    assert far.stats()["ops"] < small_ops / 2  # seen
    budgeted.assert_nothing_left(far)
