"""Where there is an accelerator, the random generator has two parts, and what Python does may move one of them alone: on
PyTorch 2.11 fork_rng() sets the accelerator's back only where that is CUDA's, set_rng_state() never does, manual_seed()
seeds both. Steps of either device, with both generators as eager leaves them after every call."""

import pytest
import searches
import test_generator as programs
import torch

from stowage import _runtime
from stowage._torch.private import address

FIRST = searches.first_seed(clock=True)
PLANNED = [
    [("draw", 0)],
    [("seed", 42), ("draw", 0)],
    [("fork", 42), ("fork", 42), ("draw", 0), ("fork", 7)],
    [("save", 0), ("seed", 42), ("draw", 0), ("back", 0), ("draw", 0)],
    [("draw", 0), ("save", 0), ("seed", 42), ("draw", 0), ("seed", 7), ("back", 0), ("draw", 0)],
    [("save", 0), ("seed", 42), ("back", 0), ("draw", 0)],
    [("save", 0), ("draw", 0), ("seed", 42), ("read", 0), ("back", 0)],
    [("back", 1), ("draw", 0), ("draw", 0), ("back", 1), ("draw", 0)],
]


@pytest.fixture(params=["cpu", "standin"])
def where(request, loaded):
    _runtime.take_up(address(torch.empty(1, device="standin")))
    return {"device": request.param, "watched": "standin"}


@pytest.mark.parametrize("acts", PLANNED)
@pytest.mark.parametrize("check", ["auto", "always"])
def test_moved_generators_are_planned(where, acts, check):
    step = programs.as_eager(acts, check=check, **where)
    assert not step.refusal, step.refusal
    assert step.stats()["planned_steps"] > 4
    assert step.stats()["misses"] == 0


@pytest.mark.parametrize("other", PLANNED)
def test_a_call_that_moves_them_otherwise(where, other):
    programs.as_eager(
        [("save", 0), ("seed", 42), ("draw", 0), ("back", 0), ("draw", 0)], {7: other}, check="always", **where
    )


def test_random_programs(where):
    for seed in searches.seeds(FIRST, max(searches.SECONDS, 3.0)):
        programs.as_eager(*programs.random_program(seed), check="always", **where)
