"""Another CMake project finds the installed package, and plans with it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_without_torch import GRAPH, version

import stowage

CONSUMER = Path(__file__).parent / "consumer"
BESIDE_PYTHON = str(Path(sys.executable).parent)
CMAKE = shutil.which("cmake", path=BESIDE_PYTHON) or "cmake"
NINJA = shutil.which("ninja", path=BESIDE_PYTHON) or "ninja"  # a bare machine has no make, CMake's own choice


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """What `cmake --install` of the build tree that this package is in leaves, moved afterwards: paths must not be
    absolute."""
    build = next(p for p in Path(stowage._core.__file__).parents if (p / "CMakeCache.txt").exists())
    installed = tmp_path_factory.mktemp("install")
    done = run(CMAKE, "--install", build, "--component", "devel", "--prefix", installed / "first")
    assert done.returncode == 0, done.stderr
    return (installed / "first").rename(installed / "moved")


def configure(prefix, folder, wanted):
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}")
    return run(CMAKE, "-S", CONSUMER, "-B", folder, *generator, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DWANTED={wanted}")


def test_a_project_that_plans(prefix, tmp_path):
    done = configure(prefix, tmp_path, version())
    assert done.returncode == 0, done.stderr
    done = run(CMAKE, "--build", tmp_path)
    assert done.returncode == 0, done.stdout
    graph = tmp_path / "tiny.graph.json"
    graph.write_text(GRAPH)
    assert run(tmp_path / "consumer", graph).stdout == "valid 192 192\n"


def test_another_version_is_not_taken(prefix, tmp_path):
    done = configure(prefix, tmp_path, "99.0")
    assert done.returncode != 0 and "99.0" in done.stderr
