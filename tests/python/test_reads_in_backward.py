"""Python of the program's own that runs in the backward pass (an autograd.Function, hooks, recomputed blocks) and reads
what tensors hold: NumPy arrays, lists, numbers. Planned with the bits of eager, whoever starts the pass."""

import itertools
import random
import warnings

import numpy as np
import pytest
import searches
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import stowage

SEED = searches.first_seed()
CALLS = 14
MODEL = 6

# ---- How it reads


def by_numpy(t):
    return torch.from_numpy(np.tanh(t.detach().numpy()) * 0.5)


def by_array(t):
    return torch.as_tensor(np.sort(np.asarray(t.detach()), axis=-1))


def without_detach(t):
    """PyTorch allows it where gradients are off."""
    with torch.no_grad():
        return torch.from_numpy(np.abs(t.numpy()))


def by_list(t):
    return torch.tensor([[abs(v) for v in row] for row in t.tolist()])


def by_number(t):
    return t.detach() * float(t.detach().abs().max())


def by_iteration(t):
    return torch.stack([row * (1.0 if row.sum() > 0 else 0.5) for row in t.detach()])


READS = [by_numpy, by_array, without_detach, by_list, by_number, by_iteration]

# ---- Where it does


def in_function(read):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return read(x) + x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 0.5 + read(grad) * 0.1 + read(x) * 0.01

    return Reads.apply


def in_saved_tensors(read):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, grad):
            return grad + sum(read(t) for t in ctx.saved_tensors)

    return Reads.apply


def in_hook(read):
    def layer(x):
        y = x * 2
        y.register_hook(lambda grad: grad + 0.1 * read(grad))
        return y

    return layer


def in_recomputed_block(read):
    return lambda x: checkpoint(lambda y: torch.sigmoid(y) + read(y), x, use_reentrant=False)


def in_reentrant_block(read):
    return lambda x: checkpoint(lambda y: torch.sigmoid(y) + read(y), x, use_reentrant=True)


PLACES = [in_function, in_saved_tensors, in_hook, in_recomputed_block, in_reentrant_block]

# ---- Who starts the pass


def of_tensor(loss, parameters):
    loss.backward()


def of_function(loss, parameters):
    torch.autograd.backward([loss], [torch.tensor(0.5)])


def of_grad(loss, parameters):
    for p, grad in zip(parameters, torch.autograd.grad(loss, parameters)):
        p.grad = grad


def twice(loss, parameters):
    loss.backward(retain_graph=True)
    loss.backward()


STARTS = [of_tensor, of_function, of_grad, twice]


class Training:
    def __init__(self, read, place, start):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(MODEL, MODEL), nn.Tanh(), nn.Linear(MODEL, MODEL))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.layer, self.start = place(read), start

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model[2](self.layer(self.model[1](self.model[0](x)))).square().mean()
        self.start(loss, list(self.model.parameters()))
        self.optimizer.step()
        return loss.detach()

    def run(self, step):
        torch.manual_seed(1)
        return [step(torch.randn(3, MODEL)).clone() for _ in range(CALLS)], [
            p.detach() for p in self.model.parameters()
        ]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("read", READS)
def test_reads_in_the_backward_pass(read, place):
    rng = random.Random(f"{SEED} {read.__name__} {place.__name__}")
    starts = [s for s in STARTS if place is not in_reentrant_block or s is not of_grad]  # which PyTorch refuses
    starts = [s for s in starts if place not in (in_recomputed_block, in_reentrant_block) or s is not twice]
    start = rng.choice(starts)
    options = rng.choice([{}, {"check": "always"}, {"budget": "1MiB"}])
    print(f"seed {SEED}: {start.__name__} {options}")
    eager, planned = Training(read, place, start), Training(read, place, start)
    expected = eager.run(eager.step)
    step = stowage.compile(planned.step, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = planned.run(step)
    for a, b in zip(itertools.chain(*expected), itertools.chain(*got), strict=True):
        assert torch.equal(a, b)
    assert step.stats()["planned_steps"] > 0, step.refusal


def test_the_functions_of_pytorch_are_as_before():
    before = torch.autograd._engine_run_backward, torch.overrides.has_torch_function
    training = Training(by_numpy, in_function, of_tensor)
    training.run(stowage.compile(training.step))
    assert before == (torch.autograd._engine_run_backward, torch.overrides.has_torch_function)
