"""Tests import benchmarks and benchmarks import what tests train: in one process the first module of a name would hide
the second."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_no_module_of_the_tests_has_the_name_of_a_benchmark():
    benchmarks = {path.name for path in (ROOT / "bench").rglob("*.py")} - {"__init__.py"}
    assert benchmarks
    assert not benchmarks & {path.name for path in (ROOT / "tests").rglob("*.py")}
