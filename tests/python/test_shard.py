"""Sharded steps on 2 and 4 gloo ranks give the numbers of one process, hold the bytes of the ledger, and stop
together."""

import time

import pytest
import ranks
import shard_cases
import shard_faults

CASES = ranks.cases_of(shard_cases, shard_faults)
ON_FOUR = [
    "shard_cases.mlp_cut_unevenly_with_clipping_and_schedule",
    "shard_cases.mlp_with_the_optimizer_apart",
    "shard_faults.ranks_with_other_batches",
    "shard_cases.gpt2_of_least_redundancy",
    "shard_cases.gpt2_with_its_vocabulary_in_parts",
    "shard_cases.conv_net_of_least_redundancy",
    "shard_cases.conv_net_with_statistics_of_parts",
]


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 2, CASES)


@pytest.fixture(scope="module")
def four(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 4, ON_FOUR)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks(four, case):
    assert four[case] == [""] * 4, "\n".join(four[case])


@pytest.mark.parametrize("case", ["_a_rank_dies", "_a_rank_dies_while_another_plans", "_a_rank_dies_in_its_first_step"])
def test_a_rank_that_dies_stops_the_others(case, tmp_path):
    start, case = time.monotonic(), f"shard_faults.{case}"
    said = ranks.run(2, [case], str(tmp_path), timeout=30)[case]
    assert said == ["", "rank 1 did not finish"], said[0]
    assert time.monotonic() - start < 60
