"""The planner needs no torch: not to be imported, not to plan. What needs it says so, and comes when it does."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

GRAPH = """
{"format": "stowage-graph", "version": 1, "name": "tiny", "align": 64,
 "buffers": [{"name": "a", "bytes": 64, "kind": "activation"}, {"name": "b", "bytes": 128, "kind": "activation"}],
 "ops": [{"name": "f", "target": "t", "creates": [0]}, {"name": "g", "target": "t", "reads": [0], "creates": [1]}]}
"""
NO_TORCH = "import sys; sys.modules['torch'] = None\n"


def run(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_planning_and_checking():
    code = f"""
    import stowage
    graph = stowage.Graph.parse({GRAPH!r})
    plan = stowage.plan(graph)
    print(stowage.check(graph, plan), stowage.__version__)
    """
    assert run(NO_TORCH + textwrap.dedent(code)).split() == ["192", version()]


def version() -> str:
    return (Path(__file__).parents[2] / "VERSION").read_text().strip()


@pytest.mark.parametrize("name", ["compile", "capture", "max_batch", "CompiledStep"])
def test_what_needs_torch_says_so(name):
    code = f"""
    import stowage
    try:
        stowage.{name}
    except ImportError as error:
        print(error)
    """
    assert run(NO_TORCH + textwrap.dedent(code)).strip() == f"stowage.{name} needs PyTorch: pip install torch"


def test_torch_comes_with_the_first_name_that_needs_it():
    code = """
    import sys
    import stowage
    assert "torch" not in sys.modules and "compile" in dir(stowage)
    stowage.compile
    assert "torch" in sys.modules
    """
    run(code)


@pytest.mark.parametrize("first, second", [("stowage", "torch"), ("torch", "stowage")])
def test_the_allocator_counts_from_when_both_are_there(first, second):
    code = f"""
    import {first}
    import {second}
    t = torch.empty(1000)
    from stowage import _runtime
    assert _runtime.live_bytes() >= 4000
    assert type(torch.__spec__.loader).__module__ != "stowage._torch.arrival" and torch.__loader__ is torch.__spec__.loader
    """
    run(code)


def test_no_public_name_is_that_of_a_module():
    """Importing such a module would put it in place of what the name means."""
    import importlib.util

    import stowage

    names = [name for name in stowage.__all__ if not name.startswith("_")]
    assert sorted(names) == names and len(names) > 10
    assert [name for name in names if importlib.util.find_spec(f"stowage.{name}")] == []
    for name in names:
        assert getattr(stowage, name).__name__ == name
