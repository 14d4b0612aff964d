"""A type checker sees through the package: its stubs are found, and say what the functions take and return."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stowage

PROGRAM = """\
import stowage

graph = stowage.Graph.load("step.graph.json")
reveal_type(graph.resident_bytes)
plan = stowage.plan(graph, "2GiB")
reveal_type(plan)
reveal_type(stowage.check(graph, plan))
stowage.plan(graph, 1.5)
graph.missing
"""
SEEN = {
    4: 'Revealed type is "int"',
    6: 'Revealed type is "stowage.planning.Plan"',
    7: 'Revealed type is "int"',
    8: 'incompatible type "float"',
    9: '"Graph" has no attribute "missing"',
}


def test_a_user_s_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # Types of others are of no matter here, and reading them takes a minute
    of_others = "[mypy-torch.*,numpy.*,transformers.*,rich.*]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n"
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{of_others}")
    environment = dict(os.environ, MYPYPATH=str(Path(stowage.__file__).parents[1]))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path),
        str(program),
    ]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=tmp_path).stdout
    lines = [line for line in out.splitlines() if ".py:" in line]
    seen = {int(line.split(":")[1]): line for line in lines}
    assert set(seen) == set(SEEN), out
    for line, what in SEEN.items():
        assert what in seen[line], out


def test_the_runtime_s_stub_is_as_generated():
    """Wheels are built without torch and bring the one that is kept among the sources."""
    made, kept = (
        Path(stowage._core.__file__).with_name("_runtime.pyi"),
        Path(__file__).parents[2] / "python" / "stowage" / "_runtime.pyi",
    )
    assert kept.read_text() == made.read_text(), f"copy {made} to {kept}"


@pytest.mark.parametrize("name", ["_core", "_runtime"])
def test_the_stub_names_all_that_the_library_has(name):
    module = __import__(f"stowage.{name}", fromlist=[name])
    tree = ast.parse((Path(stowage.__file__).parent / f"{name}.pyi").read_text())
    in_stub = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    in_stub |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert in_stub == {n for n in dir(module) if not n.startswith("_")}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = {m.name for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")}
            assert members <= set(dir(getattr(module, node.name)))
