"""Sharded steps on 2 and 4 gloo ranks give the numbers of one process, hold the bytes of the ledger, and stop together."""

import pytest

import ranks
import shard_cases

CASES = [name for name, f in vars(shard_cases).items()
         if callable(f) and getattr(f, "__code__", None) and f.__code__.co_varnames[:2] == ("rank", "size")]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return ranks.run(2, "shard_cases", CASES, str(tmp_path_factory.mktemp("two")))


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])
