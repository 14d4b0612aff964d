"""Batches that are slices or views of larger tensors: one signature wherever they begin, the bits of eager, and no
confusion of arguments that lie in one storage."""

import contextlib
import json
import warnings

import pytest
import torch
from torch import nn

import stowage

ROWS, WIDTH = 4, 6


def make(write=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y):
        optimizer.zero_grad()
        if write:
            x.mul_(0.5)
        out = model(x)
        loss = nn.functional.cross_entropy(out, y) if y.dtype == torch.int64 else nn.functional.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        return loss.detach(), x.view(-1)[1:], y

    return model, optimizer, step


def check(batches, count=9, write=False, eager_steps=4):
    """``batches(i)``: arguments of step i, made of data that both runs get a copy of. Returns the compiled step."""
    left = []
    for compiled in (False, True):
        model, optimizer, step = make(write)
        step = stowage.compile(step, strict=True) if compiled else step
        generator = torch.Generator().manual_seed(1)
        data = torch.randn(200, WIDTH, generator=generator)
        torch.manual_seed(2)
        results = []
        for i in range(count):
            args = batches(data, i)
            loss, view, y = step(*args)
            assert view.data_ptr() == args[0].data_ptr() + 4 and torch.equal(view, args[0].view(-1)[1:])
            assert y.data_ptr() == args[1].data_ptr()
            results.append(loss)
        state = [p.clone() for p in model.parameters()] + [v for s in optimizer.state.values() for v in s.values()]
        left.append([*results, *state, data, torch.get_rng_state()])
    for k, (a, b) in enumerate(zip(*left, strict=True)):
        assert torch.equal(a, b), k
    assert step.refusal == "" and step.stats()["misses"] == 0
    assert step.stats()["eager_steps"] == eager_steps and step.stats()["planned_steps"] == count - eager_steps
    return step


def test_rows_of_one_tensor():
    step = check(lambda data, i: (data[i * ROWS : (i + 1) * ROWS], torch.arange(ROWS)))
    inputs = [b for b in json.loads(step.graph.to_json())["buffers"] if b["kind"] == "input"]
    assert sorted(b["bytes"] for b in inputs) == [4 * 8, 4 * ROWS * WIDTH]  # of the slice, not of the tensor


def test_slices_and_tensors_of_their_own_take_turns():
    def batches(data, i):
        x = data[i * ROWS : (i + 1) * ROWS]
        return (x if i % 2 else x.clone()), torch.arange(ROWS)

    check(batches)


def test_iteration_over_one_tensor():
    check(lambda data, i: (data.view(-1, ROWS, WIDTH)[i], torch.arange(ROWS)))


def test_sliced_labels():
    labels = torch.arange(100) % WIDTH
    check(lambda data, i: (data[i * 3 : i * 3 + ROWS], labels[i + 1 : i + 1 + ROWS]))


def test_strided_slices():
    labels = (torch.arange(300) % WIDTH)[::3]
    wide = torch.randn(40, 7 + WIDTH, generator=torch.Generator().manual_seed(3))
    results = []
    for compiled in (False, True):
        model, optimizer, _ = make()

        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        fn = stowage.compile(step, strict=True) if compiled else step
        torch.manual_seed(4)
        results.append(
            [fn(wide[i : i + 2 * ROWS : 2, 1 + i % 4 : 1 + i % 4 + WIDTH], labels[i : i + ROWS]) for i in range(9)]
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert fn.stats()["planned_steps"] == 6 and fn.refusal == ""


def test_two_disjoint_slices_of_one_storage_at_changing_distance():
    check(lambda data, i: (data[i * ROWS : (i + 1) * ROWS], data[100 + 3 * i : 100 + 3 * i + ROWS]))
    check(lambda data, i: (data[100 + 3 * i : 100 + 3 * i + ROWS], data[i * ROWS : (i + 1) * ROWS]))


def test_overlapping_slices():
    """Inputs and targets shifted by one row, the second of them beginning first."""
    check(lambda data, i: (data[i + 1 : i + 1 + ROWS], data[i : i + ROWS]))


def test_columns_of_one_tensor():
    """Interleaved: their bytes lie between each other, and writing one leaves the other alone."""
    wide = torch.randn(100, 2 * WIDTH, generator=torch.Generator().manual_seed(5))
    results = []
    for compiled in (False, True):
        model, optimizer, _ = make()
        data = wide.clone()

        def step(x, y):
            optimizer.zero_grad()
            x.mul_(0.5)
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        fn = stowage.compile(step, strict=True) if compiled else step
        torch.manual_seed(6)
        results.append([fn(data[i : i + ROWS, :WIDTH], data[i : i + ROWS, WIDTH:]) for i in range(9)] + [data])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert fn.stats()["planned_steps"] == 6 and fn.refusal == ""


def test_slices_that_the_step_writes():
    """Also in the rehearsal, which puts back only what it has written."""
    check(lambda data, i: (data[2 * i : 2 * i + ROWS], torch.arange(ROWS)), write=True)
    check(lambda data, i: (data[2 * i : 2 * i + ROWS], data[2 * i + 1 : 2 * i + 1 + ROWS]), write=True)


def test_another_distance_is_another_signature():
    """Written x and read y overlap by three rows, by one, or not at all: each is a program of its own."""
    gaps = [1] * 4 + [3] * 4 + [ROWS] * 4 + [1, 3, ROWS]
    check(lambda data, i: (data[5 * i : 5 * i + ROWS], data[5 * i + gaps[i] : 5 * i + gaps[i] + ROWS]),
          count=len(gaps), write=True, eager_steps=4 + 2 + 2)  # fmt: skip


def test_same_tensor_twice():
    check(lambda data, i: (data[i : i + ROWS],) * 2)


def test_views_of_another_dtype_need_their_alignment():
    """Eager refuses int32 views of bytes at odd places; so must a planned step, in the same words."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    data = torch.arange(200, dtype=torch.uint8)

    def step(x):
        optimizer.zero_grad()
        loss = (weight * x.view(torch.int32)).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    fn = stowage.compile(step, strict=True)
    for i in range(6):
        fn(data[8 * i : 8 * i + 8])
    assert fn.stats()["planned_steps"] == 3
    before = weight.detach().clone()
    with pytest.raises(RuntimeError, match="storage_offset"):
        fn(data[3:11])
    assert torch.equal(weight, before)
    fn(data[4:12])
    assert fn.stats()["planned_steps"] == 4


@pytest.mark.parametrize(
    "reach", [lambda x: x._base[:ROWS], lambda x: x.as_strided((300,), (1,), 0)[:24].view(ROWS, WIDTH)]
)
def test_views_beyond_the_slice_are_refused(reach):
    results = []
    for compiled in (False, True):
        model, optimizer, _ = make()
        data = torch.randn(100, WIDTH, generator=torch.Generator().manual_seed(7))

        def step(x):
            optimizer.zero_grad()
            loss = model(reach(x)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fn = stowage.compile(step) if compiled else step
        torch.manual_seed(8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append([fn(data[i + 1 : i + 1 + ROWS]) for i in range(6)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert "beyond that argument" in fn.refusal


def test_offsets_from_the_beginning_of_the_storage_hold_only_there():
    """x.as_strided(..., 6) of data[1:5] is row 1 of data, whatever x: the recording serves no other place."""
    results = []
    for compiled in (False, True):
        model, optimizer, _ = make()
        data = torch.randn(100, WIDTH, generator=torch.Generator().manual_seed(9))

        def step(x):
            optimizer.zero_grad()
            loss = model(x.as_strided((1, WIDTH), (WIDTH, 1), 2 * WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        fn = stowage.compile(step) if compiled else step
        torch.manual_seed(10)
        results.append([fn(data[i : i + ROWS]) for i in (0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 0)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert fn.refusal == "" and fn.stats()["planned_steps"] == 2 + 2 + 1


@pytest.mark.parametrize("read", [False, True])
def test_an_argument_that_becomes_a_buffer_of_the_model(read):
    """Noticed where the step reads the buffer; else it is an argument like any other."""

    def trained(compiled):
        model, _optimizer, plain = make()
        model.register_buffer("rows", torch.randn(ROWS, WIDTH))

        def reading(x, index):
            with torch.no_grad():
                x = x + model.rows
            return plain(x, index)

        step = reading if read else plain
        fn = stowage.compile(step) if compiled else step
        data = torch.randn(100, WIDTH)
        for i in range(6):
            fn(data[i : i + ROWS], torch.arange(ROWS))
        return model, fn

    torch.manual_seed(0)
    eager_model, eager = trained(False)
    torch.manual_seed(0)
    model, fn = trained(True)
    assert fn.stats()["planned_steps"] >= 2
    torch.manual_seed(1)
    expected = eager(eager_model.rows, torch.arange(ROWS))
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="shares its memory with") if read else contextlib.nullcontext():
        got = fn(model.rows, torch.arange(ROWS))
    assert all(map(torch.equal, got, expected))
    assert all(map(torch.equal, model.parameters(), eager_model.parameters()))
    assert fn.stats()["planned_steps"] == 3


def test_a_warning_when_every_call_is_new():
    model, optimizer, _ = make()
    data = torch.randn(100, WIDTH)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    fn = stowage.compile(step)
    with pytest.warns(UserWarning, match=rf"a tensor's shape is \(9, {WIDTH}\), then \(10, {WIDTH}\)"):
        for i in range(12):
            fn(data[: i + 1])
    recorded = fn.graph
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(12, 40):
            fn(data[: i + 1])
        assert fn.graph is recorded  # what is never seen again is not recorded
        for _ in range(3):
            fn(data)
        assert fn.stats()["planned_steps"] == 0
        fn(data)
    assert fn.stats()["planned_steps"] == 1


def test_the_warning_names_shapes():
    _model, _optimizer, step = make()
    data = torch.randn(100, WIDTH)
    fn = stowage.compile(step)
    with pytest.warns(UserWarning, match=r"a tensor's shape is \(9, 6\), then \(10, 6\)"):
        for n in range(1, 14):
            fn(data[:n], torch.arange(n) % WIDTH)
