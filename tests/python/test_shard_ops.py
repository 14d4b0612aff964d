"""Sharded steps over ops of each kind: where a plan leaves them to DTensor, and where it does not. On 2 gloo ranks."""

import pytest
import ranks
import shard_ops

CASES = ranks.cases_of(shard_ops)


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 2, CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])
