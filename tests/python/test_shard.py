"""Sharded steps on 2 and 4 gloo ranks give the numbers of one process, hold the bytes of the ledger, and stop together."""

import time

import pytest

import ranks
import shard_cases

CASES = [name for name, f in vars(shard_cases).items()
         if not name.startswith("_") and getattr(f, "__code__", None) and f.__code__.co_varnames[:2] == ("rank", "size")]
ON_FOUR = ["mlp_cut_unevenly_with_clipping_and_schedule", "mlp_with_the_optimizer_apart", "ranks_with_other_batches", "gpt2_of_least_redundancy",
           "conv_net_of_least_redundancy"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return ranks.run(2, "shard_cases", CASES, str(tmp_path_factory.mktemp("two")))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return ranks.run(4, "shard_cases", ON_FOUR, str(tmp_path_factory.mktemp("four")))


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks(four, case):
    assert four[case] == [""] * 4, "\n".join(four[case])


@pytest.mark.parametrize("case", ["_a_rank_dies", "_a_rank_dies_while_another_plans", "_a_rank_dies_in_its_first_step"])
def test_a_rank_that_dies_stops_the_others(case, tmp_path):
    start = time.monotonic()
    said = ranks.run(2, "shard_cases", [case], str(tmp_path), timeout=30)[case]
    assert said == ["", "rank 1 did not finish"], said[0]
    assert time.monotonic() - start < 60
