"""Ops on lists of tensors under an eager budget: what a small tensor held is there for the recipe that reads it, also once
it was written to; else a large one beside it could not be made again."""

import list_programs
import pytest
import searches
import torch

import stowage
from stowage import _runtime


@pytest.mark.parametrize("release", ["recompute", "swap", "both"])
def test_random_programs(release):
    let_go = ran = 0
    for seed in searches.seeds(searches.first_seed(), at_least=30):
        wanted = list_programs.values(seed)
        for share in (1.2e6, 0.8e6, 0.5e6):
            try:
                with stowage.budget(_runtime.live_bytes() + int(share), release=release, debug=True) as b:
                    got = list_programs.values(seed)
            except stowage.OutOfMemory:
                break
            ran += 1
            let_go += b.stats()["evictions"]
            assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True)), (seed, share)
    assert ran > 30 and let_go > 50, (ran, let_go)  # else this proves nothing


def test_a_small_one_that_was_written_to():
    with torch.no_grad(), stowage.budget(_runtime.live_bytes() + (1 << 20), release="recompute") as b:
        large, small = torch.ones(100_000), torch.ones(10)
        torch._foreach_mul_([large, small], 2.0)
        torch.ones(200_000).sum()
        assert b.stats()["dropped"] == 1
        assert large.sum().item() == 200_000 and small.sum().item() == 20
