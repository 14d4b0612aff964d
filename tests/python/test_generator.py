"""Steps whose Python moves the random generator: seeds it, sets it back, saves and restores it. Eager's numbers, and
eager's generator after every call.

A program is a list of acts that its step does in order:

    draw        a dropout over what has been made so far          read       the loss so far, as a number
    seed K      torch.manual_seed(K)                              count      torch.manual_seed(how many steps there were)
    save I      keep the state as I                               back I     set it to what was kept, in this step or before the first
    fork        a draw whose state is given up afterwards
"""

from __future__ import annotations

import random

import pytest
import searches
import torch
import torch.utils.checkpoint
from generator_programs import CALLS, ActingProgram, assert_alike, random_acts_and_others
from torch import nn

import stowage

FIRST = searches.first_seed(clock=True)


class Program(ActingProgram):
    """``acts``: (what, number)."""

    def __init__(self, acts, others=None, device="cpu"):
        torch.manual_seed(0)
        super().__init__(acts, others, nn.Linear(16, 16).to(device))
        self.kept = {i: _state_of_seed(100 + i) for i in range(3)}

    def step(self, x):
        out = self.model(x)
        kept = dict(self.kept)
        for what, number in self.acts_now():
            if what == "draw":
                out = nn.functional.dropout(out, 0.3)
            elif what == "read":
                self.read(out)
            elif what == "seed":
                torch.manual_seed(number)
            elif what == "count":
                torch.manual_seed(1000 + self.count)
            elif what == "save":
                kept[number] = torch.get_rng_state()
            elif what == "back":
                torch.set_rng_state(kept[number])
            else:
                with torch.random.fork_rng():
                    torch.manual_seed(number)
                    out = out * torch.rand_like(out)
        return self.update(out)


def _state_of_seed(seed):
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    state = torch.get_rng_state()
    torch.set_rng_state(before)
    return state


def _device_state(device):
    return torch.zeros(0) if device is None else torch.get_device_module(device).get_rng_state()


def trained(acts, others=None, device="cpu", watched=None, **options):
    """``watched``: an accelerator whose generator must be where eager leaves it, too."""
    program = Program(acts, others, device)
    step = stowage.compile(program.step, **options) if options else program.step
    torch.manual_seed(3)
    data = torch.Generator().manual_seed(1)
    history = []
    for call in range(CALLS):
        program.call = call
        loss = step(torch.randn(8, 16, generator=data).to(device))
        history.append(
            [
                loss.clone(),
                torch.get_rng_state(),
                _device_state(watched),
                *(p.detach().clone() for p in program.model.parameters()),
            ]
        )
    return history, program.seen, step


def as_eager(acts, others=None, **options):
    where = {name: options.pop(name) for name in ("device", "watched") if name in options}
    expected = trained(acts, others, **where)
    got = trained(acts, others, **where, **(options or {"check": "auto"}))
    assert_alike(expected, got, f"{acts}, {others}")
    return got[2]


@pytest.mark.parametrize("acts", [
    [("seed", 42), ("draw", 0)],
    [("draw", 0), ("seed", 42), ("draw", 0), ("draw", 0)],
    [("draw", 0), ("seed", 42)],
    [("fork", 42), ("draw", 0)],
    [("fork", 42), ("fork", 42), ("draw", 0), ("fork", 7)],
    [("back", 1), ("draw", 0), ("draw", 0), ("back", 1), ("draw", 0)],
    [("save", 0), ("draw", 0), ("save", 1), ("draw", 0), ("back", 1), ("draw", 0), ("back", 0)],
    [("seed", 5), ("draw", 0), ("read", 0), ("seed", 5), ("draw", 0), ("read", 0), ("draw", 0)],
    [("draw", 0), ("save", 0), ("read", 0), ("draw", 0), ("back", 0), ("draw", 0), ("read", 0)],
    [("save", 0), ("draw", 0), ("save", 1), ("back", 0), ("draw", 0), ("back", 1), ("draw", 0), ("back", 0), ("draw", 0), ("back", 1)],
])  # fmt: skip
@pytest.mark.parametrize("check", ["auto", "always"])
def test_moved_generators_are_planned(acts, check):
    step = as_eager(acts, check=check)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 4
    assert step.stats()["misses"] == 0


def test_checkpoints_whose_draws_draw_nothing():
    """Attention without dropout is an operator that may draw: the generator stays where it is, however often it is set
    back."""

    def trained(compiled):
        torch.manual_seed(0)
        blocks = nn.ModuleList(nn.Linear(16, 48) for _ in range(3))
        optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-2)
        p = [0.0]

        def attend(block, h):
            q, k, v = block(h).unsqueeze(1).chunk(3, -1)
            return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p[0]).squeeze(1)

        def step(x):
            for block in blocks:
                x = torch.utils.checkpoint.checkpoint(attend, block, x, use_reentrant=False)
            optimizer.zero_grad()
            x.square().mean().backward()
            optimizer.step()
            return x.detach()

        run = stowage.compile(step, check="always") if compiled else step
        data = torch.Generator().manual_seed(1)
        history = []
        for call in range(CALLS + 4):
            p[0] = 0.2 if call in (9, 13) else 0.0
            history.append((run(torch.randn(4, 8, 16, generator=data)).clone(), torch.get_rng_state()))
        return history, run

    (expected, _), (got, step) = trained(False), trained(True)
    assert all(torch.equal(x, y) for a, b in zip(expected, got) for x, y in zip(a, b))
    assert step.stats()["planned_steps"] > 4, step.refusal


def test_a_seed_of_each_step():
    """It is a number of Python's: taken anew in each call."""
    step = as_eager([("draw", 0), ("count", 0), ("draw", 0)])
    assert step.stats()["planned_steps"] > 4


@pytest.mark.parametrize("first", ["seed", "count", "save"])
@pytest.mark.parametrize("last", ["seed", "count", "back"])
def test_a_number_is_read_between_two_states_and_nothing_draws(first, last):
    """Each call leaves the generator where Python has set it last, in rehearsals too."""
    step = as_eager([(first, 0), ("read", 1), (last, 1)], check="always")
    assert step.stats()["planned_steps"] > 4


@pytest.mark.parametrize("other", [
    [("seed", 42), ("draw", 0), ("draw", 0)],
    [("draw", 0), ("seed", 43), ("draw", 0)],
    [("draw", 0), ("draw", 0)],
    [("draw", 0), ("draw", 0), ("seed", 42)],
    [("draw", 0), ("seed", 42), ("draw", 0), ("seed", 42)],
    [("save", 0), ("draw", 0), ("back", 0), ("draw", 0)],
    [("draw", 0), ("seed", 42), ("save", 0), ("draw", 0), ("back", 0)],
    [("draw", 0)],
    [("seed", 42), ("draw", 0)],
])  # fmt: skip
def test_a_call_that_moves_it_otherwise(other):
    as_eager([("draw", 0), ("seed", 42), ("draw", 0)], {7: other}, check="always")
    as_eager([("draw", 0), ("draw", 0)], {7: other}, check="always")
    as_eager([("draw", 0), ("seed", 1), ("seed", 2)], {7: other}, check="always")
    as_eager([("save", 0), ("seed", 42), ("draw", 0), ("back", 0), ("draw", 0)], {7: other}, check="always")


def test_within_a_budget():
    step = as_eager([("draw", 0), ("seed", 42), ("draw", 0), ("fork", 3), ("draw", 0)], check="auto", budget="28KiB")
    assert step.stats()["planned_steps"] > 4


def test_an_exception_after_a_seed():
    """The generator is where eager would have left it: the draws before the exception have happened."""

    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        stop = [False]

        def step(x):
            out = nn.functional.dropout(model(x), 0.3)
            torch.manual_seed(42)
            out = nn.functional.dropout(out, 0.3)
            if stop[0]:
                raise KeyError("stop")
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()

        run = stowage.compile(step, check="always") if compiled else step
        torch.manual_seed(3)
        states = []
        for call in range(CALLS):
            stop[0] = call == 8
            try:
                run(torch.ones(8, 16))
            except KeyError:
                pass
            states.append(torch.get_rng_state())
        return states

    assert all(torch.equal(a, b) for a, b in zip(trained(False), trained(True)))


def test_an_interrupt_after_a_seed_of_a_step_that_draws_nothing():
    """The call is taken back, its seed too."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    calls = []

    def step(x):
        torch.manual_seed(42)
        torch.manual_seed(len(calls))
        if len(calls) == 5:
            raise KeyboardInterrupt
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    compiled = stowage.compile(step, check="always")
    for _ in range(8):
        torch.manual_seed(100)
        before = torch.get_rng_state()
        try:
            compiled(torch.ones(2, 4))
        except KeyboardInterrupt:
            assert torch.equal(torch.get_rng_state(), before)
        else:
            assert torch.initial_seed() == len(calls)
        calls.append(1)
    assert compiled.stats()["planned_steps"] > 1


def test_states_that_draws_would_lead_to():
    """Each step sets one that lies ahead of where the generator is: it is not another thread that has drawn."""
    ahead = []
    torch.manual_seed(0)
    for _ in range(CALLS):
        ahead.append(torch.get_rng_state())
        torch.rand(1000)

    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        losses = []

        def step(x):
            torch.set_rng_state(ahead[len(losses)])
            loss = nn.functional.dropout(model(x), 0.3).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = stowage.compile(step, check="always") if compiled else step
        torch.manual_seed(0)
        for _ in range(CALLS):
            losses.append(run(torch.ones(8, 16)).item())
        return losses

    assert trained(False) == trained(True)


def random_acts(r):
    kinds = ["draw"] * 4 + ["read", "seed", "count", "save", "back", "fork"]
    return [(r.choice(kinds), r.randrange(3)) for _ in range(r.randrange(1, 9))]


def random_program(seed):
    r = random.Random(seed)
    return random_acts_and_others(r, random_acts)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    as_eager(*random_program(seed), check="always")


def test_many_random_programs():
    for seed in searches.seeds(FIRST, max(searches.SECONDS, 3.0)):
        as_eager(*random_program(seed), check="always")
