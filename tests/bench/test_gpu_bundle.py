"""What goes to a machine with a GPU and no network is all that is needed there, and bench/gpu.py runs from it.

The whole way, building included, takes minutes: STOWAGE_SOAK_SECONDS. Else the parts run with what is built already."""

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import stowage

ROOT = Path(__file__).resolve().parents[2]
SOAK = float(os.environ.get("STOWAGE_SOAK_SECONDS", "0")) > 0
sys.path.insert(0, str(ROOT / "bench"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    import gpu_bundle

    folder = tmp_path_factory.mktemp("bundle")
    try:
        archive = gpu_bundle.bundle(folder)
    except gpu_bundle.CannotGather as error:
        pytest.skip(str(error))
    assert archive.stat().st_size <= gpu_bundle.MOST_BYTES
    assert [p.name for p in folder.iterdir()] == ["stowage-gpu.tar.gz"]
    place = tmp_path_factory.mktemp("there")
    with tarfile.open(archive) as file:
        file.extractall(place, filter="data")
    return place / "stowage-gpu"


def run(unpacked, out, *options, **environment):
    """With the interpreter and a plain path alone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("STOWAGE", "PYTHON", "CMAKE"))}
    env |= {"PATH": "/usr/bin:/bin", "STANDIN_BUILD": str(ROOT / "build" / "standin")} | environment
    command = [sys.executable, str(unpacked / "bench" / "gpu.py"), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=out)


def results(out):
    return json.loads((out / "gpu.json").read_text())["parts"]


STANDIN = ("--device", "standin", "--small", "--package", str(Path(stowage.__file__).parents[1]))


def test_every_source_that_is_included_or_built_is_there(unpacked):
    for source in [*unpacked.rglob("src/**/*.cpp"), *unpacked.rglob("runtime/**/*.cpp"), *unpacked.rglob("cli/*.cpp")]:
        for named in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE):
            folders = [source.parent, unpacked, unpacked / "include", unpacked / "src", unpacked / "cli"]
            assert any((folder / named).exists() for folder in folders), f"{source}: {named}"
    text = "".join(p.read_text() for p in [unpacked / "CMakeLists.txt", *unpacked.glob("cmake/*.cmake")])
    for named in re.findall(r"(?:add_subdirectory|include)\(([\w]+/[\w/]+(?:\.cmake)?)\)", text):
        assert (unpacked / named).exists() or named in ("bench/rivals", "tests"), named  # with STOWAGE_TESTS alone
    for path in ("brought/cmake/bin/cmake", "brought/ninja"):
        assert subprocess.run([unpacked / path, "--version"], capture_output=True).returncode == 0
    assert [p.name for p in unpacked.rglob("*.so")] == ["libz.so"] and not list(unpacked.rglob("__pycache__"))


def test_the_build_finds_what_the_bundle_brings(unpacked, tmp_path, monkeypatch):
    """And not what this machine has: others lack it."""
    spec = importlib.util.spec_from_file_location("gpu_of_the_bundle", unpacked / "bench" / "gpu.py")
    gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu)
    configure, _ = gpu.commands(tmp_path)
    environment = gpu.environment(None) | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(configure, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    cache = (tmp_path / "CMakeCache.txt").read_text()
    for name in (
        "CLI11_DIR",
        "OPENSSL_CRYPTO_LIBRARY",
        "OPENSSL_INCLUDE_DIR",
        "ZLIB_LIBRARY_RELEASE",
        "ZLIB_INCLUDE_DIR",
    ):
        assert f"{unpacked}/brought/" in re.search(rf"^{name}:\w+=(.*)$", cache, re.MULTILINE).group(1), name
    linked = (tmp_path / "build.ninja").read_text()
    assert f"{unpacked}/brought/site/nanobind" in linked and f"{unpacked}/brought/lib/libcrypto.a" in linked


def test_parts_run_are_kept_and_are_not_run_again(unpacked, tmp_path):
    only = ("--only", "4 link", "--only", "2 records twice/resnet50")
    done = run(unpacked, tmp_path, *STANDIN, *only)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "gpu.log").read_text()
    assert set(results(tmp_path)) == {"4 link", "2 records twice/resnet50"}
    assert results(tmp_path)["2 records twice/resnet50"]["good"] is True
    assert "4 link" in done.stdout and "GB/s" in done.stdout
    seconds = {name: found["seconds"] for name, found in results(tmp_path).items()}
    again = run(unpacked, tmp_path, *STANDIN, *only)
    assert again.returncode == 0 and "4 link" not in again.stderr
    assert {name: found["seconds"] for name, found in results(tmp_path).items()} == seconds


@contextlib.contextmanager
def graphs_part(unpacked, code):
    """Part 8 of the bundle is this expression of its config."""
    parts = unpacked / "bench" / "gpu_parts.py"
    text = parts.read_text()
    changed = f'import os, signal, time\nPARTS["graphs"] = lambda config: {code}\n\nif __name__'
    parts.write_text(text.replace("if __name__", changed))
    try:
        yield
    finally:
        parts.write_text(text)


def test_a_part_that_dies_costs_itself_alone(unpacked, tmp_path):
    with graphs_part(unpacked, "os.kill(os.getpid(), signal.SIGKILL)"):
        done = run(unpacked, tmp_path, *STANDIN, "--only", "8 graphs/bert_large", "--only", "4 link")
    assert done.returncode == 1, done.stdout + done.stderr
    assert results(tmp_path)["8 graphs/bert_large"]["died"] == "signal SIGKILL"
    assert "in_gbps" in results(tmp_path)["4 link"]
    assert "died of: signal SIGKILL" in done.stdout


def test_what_is_cut_off_is_left_for_the_next_time(unpacked, tmp_path):
    with graphs_part(unpacked, "time.sleep(600)"):
        done = run(unpacked, tmp_path, *STANDIN, "--only", "8 graphs/bert_large", "--seconds", "8")
    assert results(tmp_path) == {} and "1 parts are left" in done.stdout


def test_results_of_another_device_are_not_mixed(unpacked, tmp_path):
    (tmp_path / "gpu.json").write_text(json.dumps({"device": "cuda", "small": False, "parts": {}}))
    done = run(unpacked, tmp_path, *STANDIN)
    assert done.returncode == 2 and "another device or size" in done.stderr


@pytest.mark.skipif(not SOAK, reason="builds everything: minutes")
def test_from_an_empty_folder_to_the_table(unpacked, tmp_path):
    done = run(
        unpacked,
        tmp_path,
        "--device",
        "standin",
        "--small",
        CMAKE_CXX_COMPILER_LAUNCHER=os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", ""),
    )
    found = results(tmp_path)
    assert not [name for name, part in found.items() if "died" in part], done.stdout
    assert done.returncode == 0 and all(part.get("good", True) for part in found.values()), done.stdout
    assert {name.split()[0] for name in found} == {str(n) for n in range(1, 12)}
