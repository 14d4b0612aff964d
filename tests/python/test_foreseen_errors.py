"""What a kernel will raise because of an index among the arguments is known before the step's Python runs: nothing has to be
copied for the case that this Python has to run a second time. Numbers, errors and what handlers saw are those of eager."""

import random

import pytest
import torch
from torch import nn

import stowage
from stowage.step import compiled

ROWS = 10


class Block:
    """A with block that may end early, as far as anyone knows."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return False


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(ROWS, 8), nn.Linear(8, ROWS)
        self.register_buffer("places", torch.arange(5))
        self.register_buffer("order", torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)))
        self.rate = 0.5


def from_argument(model, x):
    return model.out(model.table(x))


def moved(model, x):
    return model.out(model.table(torch.cat([x[1:], x[:1]]).flip(0).int()))


def as_target(model, x):
    return nn.functional.cross_entropy(model.out(model.table(torch.arange(5))), x)


def by_counted_places(model, x):
    return model.out(model.table(x) + model.table(torch.arange(5)))


def gathered(model, x):
    return model.table.weight.gather(0, x[:, None].expand(-1, 8)) + model.table.weight.index_select(0, x)


def picked(model, x):
    return model.out(model.table.weight[x])


def a_part_of_it(model, x):
    """Another one than was recorded, by a number of Python's."""
    start = int(model.rate * 3)
    return model.out(model.table(x[start : start + 3]))


def dropped(model, x):
    return model.out(nn.functional.dropout(model.table(x), model.rate))


def of_any_numbers(model, x):
    y = model.out(model.table(x))
    return y / (1 + torch.linalg.vector_norm(y) + torch.linalg.norm(y, dim=1, keepdim=True))


def worked_out(model, x):
    return model.out(model.table((x * 3) // 3))


def by_a_buffer(model, x):
    return model.out(model.table(x) + model.table(model.places))


def through_a_buffer(model, x):
    return model.out(model.table(model.order[x]))


def written_before(model, x):
    y = x.clone()
    y[0] = y[0] + 1
    return model.out(model.table(y))


def from_an_offset(model, x):
    """Which Python counts."""
    return model.out(model.table(x) + model.table(torch.arange(int(model.rate * 8), int(model.rate * 8) + 5)))


def in_bags(model, x):
    return nn.functional.embedding_bag(x, model.table.weight, torch.tensor([0, 2]), mode="sum")


FORESEEN = [from_argument, moved, as_target, by_counted_places, gathered, picked, a_part_of_it, dropped, of_any_numbers]
UNFORESEEN = [worked_out, by_a_buffer, through_a_buffer, written_before, in_bags, from_an_offset]


def run(body, planned, seed, budget=None):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    log: list = []

    def train_step(x):
        log.append(len(log))  # so that its Python runs in every call
        try:
            with Block():
                loss = body(model, x).square().mean()
        except (IndexError, RuntimeError) as error:
            log.append(type(error).__name__)
            loss = model.out.bias.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = stowage.compile(train_step, budget) if planned else train_step
    draw, seen = random.Random(seed), []
    generator = torch.Generator().manual_seed(seed)
    for i in range(24):
        x = torch.randint(0, ROWS - 1, (5,), generator=generator)
        if i > 9 and draw.random() < 0.3:
            x[draw.randrange(5)] = draw.choice([ROWS, ROWS + 7, -1])
        model.rate = draw.choice([0.1, 0.5, 0.5, 0.5, 0.9]) if i > 9 else 0.5
        seen.append(step(x))
        seen += [p.detach().clone() for p in model.parameters()] + [list(log), torch.get_rng_state()]
    model.rate = 0.5
    return seen, step


@pytest.mark.parametrize("budget", [None, "64MiB"], ids=["", "within a budget"])
@pytest.mark.parametrize("body", [*FORESEEN, *UNFORESEEN])
def test_as_eager(body, budget):
    for seed in (1, 2):
        (eager, _), (planned, step) = run(body, False, seed), run(body, True, seed, budget)
        assert len(eager) == len(planned)
        for i, (a, b) in enumerate(zip(eager, planned)):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (seed, i, a, b)
        assert step.stats()["planned_steps"] > 5, step.refusal


@pytest.mark.parametrize("budget", [None, "64MiB"], ids=["", "within a budget"])
@pytest.mark.parametrize("body", [*FORESEEN, *UNFORESEEN])
def test_what_is_foreseen_needs_no_copy(body, budget, monkeypatch):
    _, step = run(body, True, 1, budget)
    told = [replay.recording for entry in step._entries.values() for replay in entry.replays]
    assert told and all(r.catches_values for r in told)
    expected = body in UNFORESEEN
    assert any(r.catches_unforeseen for r in told) is expected

    made = []
    kept = compiled.PythonState
    monkeypatch.setattr(compiled, "PythonState", lambda *a, **k: made.append(1) or kept(*a, **k))
    x = torch.arange(5)
    for _ in range(8):
        step(x)
    assert bool(made) is expected


def test_a_probability_that_is_none():
    """A number of Python's, which its kernel refuses: as eager, at that operator."""

    def trains(planned):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        log: list = []

        def train_step(x):
            log.append(len(log))
            mask = torch.ones(5, 8)
            try:
                mask.bernoulli_(model.rate)
                log.append("drawn")
            except RuntimeError as error:
                log.append(str(error))
            loss = (model.table(x) * mask).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = stowage.compile(train_step) if planned else train_step
        seen = []
        for i in range(20):
            model.rate = {11: 1.5, 14: -0.1, 16: float("nan")}.get(i, 0.25 + 0.02 * i)
            seen += [step(torch.arange(5)), list(log), torch.get_rng_state()]
        return seen, step

    (eager, _), (planned, step) = trains(False), trains(True)
    assert any("bernoulli_" in str(told) for told in eager[-2])
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(eager, planned))
    assert step.stats()["planned_steps"] > 5
