"""Sharded steps that write where others look, and programs that change a sharded model's state between calls or hold its
parameters by themselves, and steps that read numbers, or whose Python runs in every call: the numbers of one process, on 2 gloo ranks."""

import pytest
import ranks
import shard_between
import shard_ends
import shard_held
import shard_python
import shard_reads
import shard_writes

CASES = ranks.cases_of(shard_writes, shard_between, shard_ends, shard_held, shard_reads, shard_python)


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    return ranks.run_chosen(request, tmp_path_factory, 2, CASES)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])
