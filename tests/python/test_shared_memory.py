"""Memory that the step reaches in more than one way: arrays of NumPy's under tensors, storages over the same bytes,
gradients that share memory."""

import ctypes

import numpy as np
import pytest
import torch
from torch import nn

import stowage
from stowage.errors import UnsupportedWarning


def trained(make, compiled, calls=9, check="auto"):
    """Results of all calls; make() -> (step, arguments(i), state)."""
    torch.manual_seed(0)
    step, arguments, state = make()
    run = stowage.compile(step, check=check) if compiled else step
    seen = []
    for i in range(calls):
        seen.append(run(*arguments(i)))
        seen += [t.detach().clone() for t in state()]
    return seen, run


def agrees(make, planned, check="auto"):
    expected, _ = trained(make, False)
    got, step = trained(make, True, check=check)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert (step.stats()["planned_steps"] > 0) == planned, step.refusal
    return step


def net():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def rows(i, seed=1):
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(seed + i))


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def reads_what_kernels_write(view):
    def make():
        model, optimizer = net()
        counter = torch.zeros(4)
        array = view(counter)

        def step(x):
            counter.add_(1)
            return update((model(x) * float(array[1])).square().mean(), optimizer)

        return step, lambda i: (rows(i),), model.parameters

    return make


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.numpy(),
        lambda t: t.numpy()[::-1],
        lambda t: memoryview(t.numpy()),
        lambda t: (ctypes.c_float * 4).from_address(t.data_ptr()),
    ],
    ids=["array", "turned", "memoryview", "ctypes"],
)
def test_an_array_over_a_tensor_that_the_step_writes(view):
    step = agrees(reads_what_kernels_write(view), planned=False)
    assert "also reaches as the array 'array'" in step.refusal


def test_a_parameter_that_is_read_as_an_array():
    def make():
        model, optimizer = net()
        bias = model[2].bias.detach().numpy()

        def step(x):
            return update(model(x).square().mean(), optimizer) * float(bias[0])

        return step, lambda i: (rows(i),), model.parameters

    with pytest.warns(UnsupportedWarning, match="also reaches as the array 'bias'"):
        agrees(make, planned=False)


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("since", [0, 6])
def test_a_batch_buffer_that_is_filled_twice_in_a_step(since):
    def make():
        model, optimizer = net()
        array = np.zeros((6, 8), dtype=np.float32)
        batch = torch.from_numpy(array)
        calls = [-1]

        def step():
            calls[0] += 1
            i = calls[0]
            losses = []
            for k in range(2):
                if i >= since:
                    array[:] = rows(2 * i + k).numpy()
                loss = model(batch).square().mean()
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            return torch.stack(losses)

        return step, lambda i: (), model.parameters

    expected, _ = trained(make, False)
    got, _ = trained(make, True)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_an_array_that_nobody_writes_is_planned():
    def make():
        model, optimizer = net()
        array = np.full(4, 1.5, dtype=np.float32)
        scale = torch.from_numpy(array)

        def step(x):
            return update((model(x) * scale * float(array[1])).square().mean(), optimizer)

        def arguments(i):
            if i == 6:
                array[:] = 2.0
            return (rows(i),)

        return step, arguments, model.parameters

    agrees(make, planned=True)
    agrees(make, planned=True, check="never")


def test_two_storages_over_the_same_bytes():
    def make():
        model, optimizer = net()
        array = np.zeros(4, dtype=np.float32)
        one, other = torch.from_numpy(array), torch.from_numpy(array)

        def step(x):
            y = model(x)
            loss = (y + other).square().mean()
            one.copy_(y.detach().mean(0))
            return update(loss, optimizer) + other.sum()

        return step, lambda i: (rows(i),), model.parameters

    with pytest.warns(UnsupportedWarning, match="lie over the same memory, each by itself"):
        agrees(make, planned=False)


def test_an_argument_over_the_memory_of_another():
    """In later calls only."""

    def make():
        model, optimizer = net()

        def step(x, y):
            loss = update(model(x).square().mean(), optimizer)
            x.mul_(0.5)
            y.add_(1)
            return loss + x.sum() + y.sum()

        def arguments(i):
            array = rows(i).numpy()
            return torch.from_numpy(array), torch.from_numpy(array if i > 5 else array.copy())

        return step, arguments, model.parameters

    agrees(make, planned=True)
    agrees(make, planned=True, check="never")


def test_gradients_that_share_memory():
    """Given in later calls only; the plan updates a parameter as soon as its gradient is there."""

    def make():
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return loss.detach()

        def arguments(i):
            if i == 6:
                shared = torch.zeros(8, 8)
                for layer in model:
                    layer.weight.grad = shared
            return (rows(i),)

        return step, arguments, model.parameters

    for check in ("never", "auto"):
        agrees(make, planned=True, check=check)


def lifted(use, of=lambda array: torch.from_numpy(array), reached=False):
    """A step with an array that it reaches, or makes; ``use(rows, array, model)`` gives the loss."""

    def make():
        model, optimizer = net()
        kept = rows(0).numpy().copy()
        numbers = np.random.default_rng(1)

        def step(i):
            array = kept if reached else numbers.standard_normal((6, 8)).astype(np.float32)
            return update(use(of(array), array, model), optimizer)

        return step, lambda i: (i,), lambda: [*model.parameters(), torch.from_numpy(kept.copy())]

    return make


def python_writes_between(rows, array, model):
    loss = model(rows).square().mean()
    array *= 0.5
    return loss + rows.sum()


def python_writes_in_a_loop(rows, array, model):
    loss = 0
    for k in range(3):
        array += k
        loss = loss + model(rows.clone()).square().mean()
    return loss


def python_writes_before_backward(rows, array, model):
    loss = model(rows).square().mean()
    array *= 0.5
    return loss


def kernels_write(rows, array, model):
    rows.mul_(0.5)
    return model(rows).square().mean() * float(array[0, 0])


def python_writes_between_lists(rows, array, model):
    loss = model(torch.cat([rows, rows])).square().mean()
    array *= 0.5
    return loss + torch.stack([rows, rows]).sum()


LIFTED = [
    python_writes_between,
    python_writes_between_lists,
    python_writes_in_a_loop,
    python_writes_before_backward,
    kernels_write,
]


@pytest.mark.filterwarnings("ignore:stowage")
@pytest.mark.parametrize("reached", [False, True], ids=["made in the step", "reached"])
@pytest.mark.parametrize("use", LIFTED)
def test_a_tensor_that_the_step_makes_over_an_array(use, reached):
    step = agrees(lifted(use, reached=reached), planned=False)
    assert "copy it first: torch.tensor(array)" in step.refusal
    assert "test_shared_memory.py" in step.refusal


@pytest.mark.parametrize("check", ["never", "auto"])
@pytest.mark.parametrize("use", LIFTED)
def test_a_copy_of_an_array(use, check):
    agrees(lifted(use, of=torch.tensor), planned=True, check=check)


@pytest.mark.parametrize("check", ["never", "auto"])
def test_an_array_that_is_written_after_its_last_use(check):
    def use(rows, array, model):
        loss = model(rows * 2.0).square().mean()
        array[:] = 0.0
        return loss

    agrees(lifted(use), planned=True, check=check)
