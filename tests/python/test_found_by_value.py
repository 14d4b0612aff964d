"""Tensors that a step draws from a list of its own: in each call others, now one of them twice, now two parts of one
storage. Planned with the bits of eager, also where some of them are parameters, arguments, or written to."""

import itertools
import random
import warnings

import pytest
import searches
import torch
from torch import nn

import stowage

SEED = searches.first_seed()
WIDTH = 4
CALLS = 26


def written(memory, rng):
    target = memory[rng.randrange(len(memory))]
    if all(target.stride()):
        target.detach().mul_(0.5)


# ---- What lies in the list


def own(rng):
    return [torch.randn(WIDTH) for _ in range(rng.randint(4, 7))]


def rows(rng):
    return list(torch.randn(rng.randint(4, 7), WIDTH).unbind())


def columns(rng):
    return list(torch.randn(WIDTH, rng.randint(4, 6)).unbind(1))


def windows(rng):
    """They overlap."""
    return list(torch.randn(WIDTH + rng.randint(3, 5)).unfold(0, WIDTH, 1).unbind())


def expanded(rng):
    return [torch.randn(1).expand(WIDTH) for _ in range(4)]


def imaginary(rng):
    return list(torch.randn(4, WIDTH, dtype=torch.cfloat).conj().imag.unbind())


def rows_of_a_large_one(rng):
    return list(torch.randn(90_000, WIDTH)[: rng.randint(4, 6)].unbind())


MADE = [own, rows, columns, windows, expanded, imaginary, rows_of_a_large_one]


# ---- How the step draws


def sample(rng, memory, count):
    return rng.sample(memory, count)


def choices(rng, memory, count):
    return rng.choices(memory, k=count)


def neighbours(rng, memory, count):
    first = rng.randrange(len(memory))
    return [memory[(first + i) % len(memory)] for i in range(count)]


DRAWN = [sample, choices, neighbours]


# ---- What it does with them: a number


def stacked(w, drawn):
    return (torch.stack(drawn) @ w).square().mean()


def joined(w, drawn):
    return (torch.cat([t[1:] for t in drawn]) * w[0, 0]).sin().sum()


def products(w, drawn):
    """Autograd saves what is drawn."""
    return sum((a * w[0] * b).sum() for a, b in itertools.pairwise(drawn))


def viewed(w, drawn):
    return (drawn[0].view(2, 2).t().reshape(-1) * w[1]).sum() + drawn[1].unsqueeze(0).expand(3, WIDTH).mm(w).mean()


def as_sizes(w, drawn):
    return torch.addcmul(w[0], drawn[0], drawn[0], value=0.5).sum() + torch.dot(drawn[0].contiguous(), w[1])


USED = [stacked, joined, products, viewed, as_sizes]


# ---- What becomes of the list


def stays(memory, x, w, rng):
    pass


def takes_an_argument(memory, x, w, rng):
    memory[rng.randrange(len(memory))] = x[0]


def takes_the_parameter(memory, x, w, rng):
    memory[rng.randrange(len(memory))] = w.detach()[rng.randrange(WIDTH)]


def keeps_what_it_makes(memory, x, w, rng):
    made = (x[:2].detach() * 0.5 + w.detach()[:2]).unbind()
    memory[:] = [*made, *memory[: max(4, len(memory) - 2)]]


def writes_into_one(memory, x, w, rng):
    written(memory, rng)


def takes_what_python_makes(memory, x, w, rng):
    memory[rng.randrange(len(memory))] = torch.tensor([rng.random() for _ in range(WIDTH)])


KEPT = [stays, takes_an_argument, takes_the_parameter, keeps_what_it_makes, writes_into_one, takes_what_python_makes]


def trained(seed, compiled, made, drawn, used, kept, options):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    memory = [t for kind in made for t in kind(rng)]
    rng.shuffle(memory)
    w = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
    optimizer = torch.optim.Adam([w], lr=0.01)
    count = rng.randint(2, 4)
    first = kept in (writes_into_one, takes_what_python_makes) and rng.random() < 0.5

    def step(x):
        optimizer.zero_grad()
        if first:
            with torch.no_grad():
                kept(memory, x, w, rng)
        loss = (x @ w).square().mean()
        for use in used:
            loss = loss + 0.1 * use(w, drawn(rng, memory, count))
        loss.backward()
        optimizer.step()
        if not first:
            with torch.no_grad():
                kept(memory, x, w, rng)
        return loss.detach()

    called = stowage.compile(step, **options) if compiled else step
    generator = torch.Generator().manual_seed(seed)
    seen = []
    for call in range(CALLS):
        seen.append([called(torch.randn(3, WIDTH, generator=generator)).clone(), w.detach().clone()])
        seen[-1] += [t.detach().clone() for t in memory]
        with torch.no_grad():
            if call % 3 == 1:
                written(memory, rng)
    return seen, called.stats()["planned_steps"] if compiled else 0, called.refusal if compiled else ""


def check(seed, made, drawn, used, kept, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, _, _ = trained(seed, False, made, drawn, used, kept, options)
        got, planned, refusal = trained(seed, True, made, drawn, used, kept, options)
    named = f"seed {seed}: {[f.__name__ for f in (*made, drawn, *used, kept)]} {options}"
    for call, (a, b) in enumerate(zip(expected, got, strict=True)):
        assert len(a) == len(b) and all(map(torch.equal, a, b)), f"{named}, call {call}"
    return planned, f"{named}: {refusal}"


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("make", MADE)
def test_what_is_only_read_is_planned(make, draw):
    planned, named = check(SEED, [make], draw, [stacked, joined], stays, {})
    assert planned >= 10, named


def test_what_python_makes_in_the_step_may_be_drawn_in_the_same_call():
    for seed in range(SEED, SEED + 6):
        planned, named = check(seed, [own], choices, [stacked, joined], takes_what_python_makes, {})
        assert planned >= 10, named


def test_random_programs():
    rng = random.Random(SEED)
    for seed in range(SEED, SEED + 10):
        check_drawn(seed, rng)


@searches.longer
def test_many_random_programs():
    rng = random.Random(SEED)
    for seed in searches.seeds(SEED):
        check_drawn(seed, rng)


def check_drawn(seed, rng):
    options = rng.choice([{}, {}, {"check": "always"}, {"check": "never"}, {"budget": "64MiB"}])
    check(
        seed,
        rng.sample(MADE, rng.randint(1, 3)),
        rng.choice(DRAWN),
        rng.sample(USED, rng.randint(1, 3)),
        rng.choice([stays, *KEPT]),
        options,
    )
