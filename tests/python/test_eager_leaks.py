"""After the block every tensor is back and nothing of the runtime is alive; an exception or Ctrl-C in it changes
nothing about that."""

from __future__ import annotations

import gc
import os
import signal

import budgeted
import pytest
import torch
from budgeted import Gpt, adamw, content

import stowage
from stowage import _runtime
from stowage._torch.private import address


def half_way(end):
    """A step that ends by end() between forward and backward."""

    def step(model, optimizer, batch):
        loss = model.loss(batch)
        end()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def interrupt():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        torch.ones(64).sum()


def fail():
    raise ZeroDivisionError


@pytest.mark.parametrize(("end", "error"), [(fail, ZeroDivisionError), (interrupt, KeyboardInterrupt)])
def test_the_way_out_by_an_exception(end, error):
    torch.manual_seed(0)
    model = Gpt()
    before = {name: content(p) for name, p in model.named_parameters()}
    _, peak = budgeted.train(Gpt, steps=1)
    keep = []

    def forward(tokens):
        keep.append(model(tokens))
        return keep[-1]

    expected = content(torch.nn.functional.softmax(model.eval()(Gpt.batches(1)[0]), -1))
    budget = stowage.budget(budgeted.share(peak, 0.5), debug=True)
    with pytest.raises(error), budget:
        result = torch.nn.functional.softmax(forward(Gpt.batches(1)[0]), -1)
        budget._runtime.evict(address(result), True)
        budget._runtime.evict(address(keep[0]), True)
        end()
    assert budget.stats()["evictions"] > 0
    budgeted.assert_nothing_left(budget)
    assert content(result) == expected
    assert {name: content(p) for name, p in model.named_parameters()} == before
    keep[0].sum().backward()  # what it saved for backward is back as well
    assert all(p.grad is not None for p in model.head.parameters())


def test_nothing_of_many_blocks_stays():
    torch.manual_seed(0)
    model = Gpt().train()
    optimizer = adamw(model.parameters())
    batches = Gpt.batches(3)
    _, peak = budgeted.train(Gpt, steps=1)

    def block():
        with stowage.budget(budgeted.share(peak, 0.6)) as b:
            for batch in batches:
                budgeted.plain_step(model, optimizer, batch)
            optimizer.zero_grad()
        budgeted.assert_nothing_left(b)

    block()
    gc.collect()
    live = _runtime.live_bytes()
    for _ in range(3):
        block()
    gc.collect()
    assert _runtime.live_bytes() == live


def test_values_and_recipes_do_not_pile_up_from_step_to_step():
    torch.manual_seed(0)
    model = Gpt().train()
    optimizer = adamw(model.parameters())
    _, peak = budgeted.train(Gpt, steps=2)
    average = torch.zeros(64, 64)
    counts = []
    with stowage.budget(budgeted.share(peak, 0.5)) as b:
        for batch in Gpt.batches(12):
            budgeted.plain_step(model, optimizer, batch)
            average = 0.9 * average + 0.1  # a chain without end
            optimizer.zero_grad()
            counts.append((b.alive()["values"], b.alive()["recipes"], b.alive()["host_bytes"]))
    late = counts[8:]
    assert max(c[0] for c in late) <= 1.1 * max(c[0] for c in counts[3:6]) + 40, counts
    assert max(c[1] for c in late) <= 1.1 * max(c[1] for c in counts[3:6]) + 40, counts


def test_a_budget_that_never_ends_properly():
    """Left to the garbage collector, it brings all back too."""
    tensor = torch.arange(4096.0)
    b = stowage.budget("64MiB")
    b.__enter__()
    b._runtime.evict(address(tensor), False)
    b.__exit__(None, None, None)
    del b
    gc.collect()
    assert not _runtime.budget_active()
    assert torch.equal(tensor, torch.arange(4096.0))


def test_methods_of_tensor_are_as_before():
    names = ("numpy", "data_ptr", "tolist", "__deepcopy__", "__dlpack__", "untyped_storage", "__reduce_ex__")
    before = {name: getattr(torch.Tensor, name) for name in names}
    own = {name: name in torch.Tensor.__dict__ for name in names}
    with stowage.budget("64MiB"):
        assert torch.Tensor.numpy is not before["numpy"]
    assert {name: getattr(torch.Tensor, name) for name in names} == before
    assert {name: name in torch.Tensor.__dict__ for name in names} == own
