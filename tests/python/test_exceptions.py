"""An error in the middle of a planned step leaves model, optimizer and generator usable."""

import gc

import pytest
import torch
import zoo
from training import FORMS, OPTIMIZERS, plain_step

import stowage
from stowage import _runtime


def _trained(compiled, batches, bad, catch, form="loop"):
    model, loss_fn, _ = zoo.make("gpt2")
    optimizer = OPTIMIZERS["adamw"](model.parameters(), **FORMS[form])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 1 / (1 + e))
    plain = plain_step(model, optimizer, loss_fn)

    def train_step(batch):
        loss = plain(batch)
        schedule.step()
        return loss

    step = stowage.compile(train_step, strict=True) if compiled else train_step
    torch.manual_seed(2)
    results = []
    for i, batch in enumerate(batches):
        if i == bad:
            with pytest.raises(catch):
                step(torch.full_like(batch, 10_000))
        results.append(step(batch))
    return model, optimizer, schedule, results, torch.get_rng_state(), step


@pytest.mark.parametrize("form", list(FORMS))
def test_bad_token_in_a_planned_step(form):
    """As after the same error in eager: no update has begun when the forward pass fails."""
    _, _, batches = zoo.make("gpt2", 8)
    eager = _trained(False, batches, 5, IndexError, form)
    planned = _trained(True, batches, 5, IndexError, form)
    assert planned[5].stats()["planned_steps"] >= 4
    assert all(torch.equal(a, b) for a, b in zip(eager[3], planned[3], strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(eager[0].state_dict().values(), planned[0].state_dict().values(), strict=True)
    )
    assert eager[2].state_dict()["last_epoch"] == planned[2].state_dict()["last_epoch"]
    assert torch.equal(eager[4], planned[4])


def test_error_while_recording():
    _, _, batches = zoo.make("gpt2", 8)
    for bad in (0, 1, 2):
        eager = _trained(False, batches, bad, IndexError)
        planned = _trained(True, batches, bad, IndexError)
        assert all(torch.equal(a, b) for a, b in zip(eager[3], planned[3], strict=True))


def test_eager_step_after_a_failed_planned_one():
    model, loss_fn, batches = zoo.make("gpt2", 8)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    plain = plain_step(model, optimizer, loss_fn)
    step = stowage.compile(plain, strict=True)
    for batch in batches[:5]:
        step(batch)
    with pytest.raises(IndexError):
        step(torch.full_like(batches[0], 10_000))
    assert all(p.grad is None or p.grad.untyped_storage().nbytes() > 0 for p in model.parameters())
    assert torch.isfinite(plain(batches[6]))
    assert torch.isfinite(step(batches[7]))


def test_optimizer_that_raises():
    model, loss_fn, batches = zoo.make("gpt2", 8)

    class Moody(torch.optim.SGD):
        raises = False

        def step(self, closure=None):
            if Moody.raises:
                raise RuntimeError("not today")
            return super().step(closure)

    optimizer = Moody(model.parameters(), lr=0.1)
    step = stowage.compile(plain_step(model, optimizer, loss_fn), strict=True)
    for batch in batches[:5]:
        step(batch)
    Moody.raises = True
    with pytest.raises(RuntimeError, match="not today"):
        step(batches[5])
    Moody.raises = False
    assert torch.isfinite(step(batches[6]))
    assert step.stats()["planned_steps"] >= 2


@torch.library.custom_op("exceptions::add_one", mutates_args=("tensors",))
def add_one(tensors: list[torch.Tensor]) -> None:
    for t in tensors:
        t.add_(1)


@add_one.register_fake
def _(tensors):
    return None


@pytest.fixture
def collected_after():
    """An error's traceback holds the test's variables until then."""
    yield
    gc.collect()


def test_what_is_too_large_to_be_kept_leaves_all_of_a_list_as_it_is(collected_after):
    """A list that one operator writes to: a call whose kernel raises is taken back whole, or not at all."""
    large = torch.empty(_runtime.available_bytes() // 3, dtype=torch.uint8)[:8].zero_()  # memory that nobody touches
    small, table = torch.zeros(8), torch.zeros(4, 4)

    def step(x):
        add_one([large, small])
        return table[x].sum()

    recorded = stowage.compile(step)
    recorded(torch.arange(4))
    with pytest.raises(IndexError):
        recorded(torch.arange(4) + 1)
    assert large.tolist() == small.tolist() == [2] * 8


RAISES = {
    "a factor": (lambda a: torch.linalg.cholesky(a), torch.full((4, 4), float("nan"))),
    "eigenvalues": (lambda a: torch.linalg.eigvalsh(a), torch.full((4, 4), float("nan"))),
    "an inverse": (lambda a: torch.linalg.inv(a), torch.zeros(4, 4)),
    "a solution": (lambda a: torch.linalg.solve(a, torch.ones(4)), torch.zeros(4, 4)),
    "an index": (lambda a: torch.arange(9.0)[a.long()], torch.full((4, 4), 99.0)),
    "a token": (lambda a: torch.nn.functional.embedding(a.long(), torch.ones(9, 2)), torch.full((4, 4), 99.0)),
    "probabilities": (lambda a: torch.multinomial(a, 1).float(), torch.full((4, 4), -1.0)),
    "a class": (
        lambda a: torch.nn.functional.nll_loss(torch.ones(4, 3), a[0].long()),
        torch.full((4, 4), 99.0),
    ),
}


@pytest.mark.parametrize("check", ["auto", "never"])
@pytest.mark.parametrize("name", RAISES)
def test_an_error_is_of_eagers_class(name, check):
    """In a call that is recorded, one that is compared, and planned ones; a step that catches it by its class goes on as
    eager."""
    op, bad = RAISES[name]

    def make(catches):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 4)

        def step(x, a):
            try:
                y = op(a).sum()
            except catches:
                y = torch.ones(())
            return (net(x).sum() * y).detach()

        return step

    good = torch.eye(4)
    kind = _raised(make(ZeroDivisionError), bad)
    planned = stowage.compile(make(ZeroDivisionError), check=check)
    for _ in range(12):
        assert _raised(planned, bad) == kind
        planned(torch.ones(2, 4), good)
    assert planned.stats()["planned_steps"] > 3
    eager, catching = make(kind[0]), stowage.compile(make(kind[0]), check=check)
    for i in range(16):
        a = bad if i % 5 == 4 else good
        assert torch.equal(eager(torch.ones(2, 4), a), catching(torch.ones(2, 4), a))


def _raised(step, bad):
    try:
        step(torch.ones(2, 4), bad)
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    raise AssertionError("the step has not raised")
