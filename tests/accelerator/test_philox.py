"""The generator of the stand-in: a seed and an offset, which every op that draws moves."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def seed_and_offset():
    return torch.standin.get_rng_state().view(torch.int64).tolist()


def draws():
    x = torch.rand(5, device="standin")
    return [
        x,
        torch.randn(5, device="standin"),
        F.dropout(x + 1, 0.5),
        torch.randperm(9, device="standin"),
        x.bernoulli(),
    ]


def test_the_same_seed_gives_the_same_numbers():
    for seed in (3, 2**63 - 1):
        torch.manual_seed(seed)
        first = draws()
        torch.manual_seed(seed)
        assert all(torch.equal(a, b) for a, b in zip(first, draws()))
        assert not any(torch.equal(a, b) for a, b in zip(first, draws()))


def test_each_op_that_draws_moves_the_offset(loaded):
    torch.manual_seed(7)
    assert torch.standin.get_rng_state().numel() == 16
    assert seed_and_offset() == [7, 0]
    x = torch.rand(100, device="standin")
    assert seed_and_offset() == [7, 4]
    x + 1
    assert seed_and_offset() == [7, 4]
    F.dropout(x, 0.1)
    assert seed_and_offset() == [7, 8]
    assert loaded.counters()["draws"] == 2


def test_the_state_goes_back():
    torch.manual_seed(1)
    torch.rand(3, device="standin")
    state = torch.standin.get_rng_state()
    first = draws()
    torch.standin.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(first, draws()))
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        torch.standin.set_rng_state(torch.get_rng_state())


def test_the_host_has_numbers_of_its_own():
    torch.manual_seed(1)
    host = torch.get_rng_state()
    draws()
    assert torch.equal(torch.get_rng_state(), host)
    state = torch.standin.get_rng_state()
    torch.rand(3)
    assert torch.equal(torch.standin.get_rng_state(), state)


def test_generators_of_ones_own():
    before = seed_and_offset()
    a, b = (torch.Generator("standin").manual_seed(5) for _ in range(2))
    x = torch.rand(4, device="standin", generator=a)
    assert torch.equal(x, torch.rand(4, device="standin", generator=b))
    assert torch.equal(a.get_state(), b.get_state()) and seed_and_offset() == before
    assert torch.equal(
        torch.rand(4, device="standin", generator=a), torch.rand(4, device="standin", generator=b.clone_state())
    )
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, device="standin", generator=torch.Generator())


def test_fork_rng_keeps_the_state():
    torch.manual_seed(2)
    with torch.random.fork_rng(devices=[0], device_type="standin"):
        draws()
    assert seed_and_offset() == [2, 0]


@pytest.mark.parametrize("cpu_numbers", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_draw_the_same_masks_again(loaded, cpu_numbers, reentrant):
    loaded.configure(cpu_numbers=cpu_numbers)
    torch.manual_seed(0)
    model = loaded.move(nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8), nn.Dropout(0.1)))
    x = torch.randn(4, 8, device="standin", requires_grad=True)
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(5)
        model.zero_grad()
        y = checkpoint(model, x, use_reentrant=reentrant, preserve_rng_state=True) if checkpointed else model(x)
        y.square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()] + [torch.standin.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_with_cpu_numbers_it_draws_as_the_cpu_does(loaded):
    loaded.configure(cpu_numbers=True)
    torch.manual_seed(4)
    x = torch.rand(5)
    wanted = [x, torch.randn(5), F.dropout(x + 1, 0.5), torch.randperm(9), x.bernoulli()]
    torch.manual_seed(4)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(wanted, draws()))
    assert torch.equal(torch.standin.get_rng_state(), torch.standin.get_rng_state())
