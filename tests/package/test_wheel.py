"""`pip install .` where nothing is but torch, numpy, rich, highspy: a newcomer's training script gets a plan and a
report in minutes.

The wheel is built in isolation, where no torch is seen, and installed without its dependencies into a new virtual
environment that sees those four packages and what they need. Building takes minutes, so `./dev test` and `./dev wheel`
do that, and name it in STOWAGE_WHEEL."""

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

import pytest

import stowage

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "newcomer.py"
USERS_PACKAGES = ["torch", "numpy", "rich", "highspy"]
EVERYWHERE = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libz.so.1",
    "ld-linux-x86-64.so.2",
}
MOST_SECONDS = 300


def run(*command, **options) -> subprocess.CompletedProcess:
    environment = {
        k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"} and not k.startswith("STOWAGE_")
    }
    environment.update(options.pop("env", {}))
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=1200, env=environment, **options
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="module")
def wheel():
    if "STOWAGE_WHEEL" not in os.environ:
        pytest.skip("needs a wheel: ./dev test and ./dev wheel build one and run this")
    return Path(os.environ["STOWAGE_WHEEL"]).resolve()


def with_needs(names):
    """Distributions and, over and over, what they need."""
    seen, left = set(), list(names)
    while left:
        name = left.pop()
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            continue  # for another platform, or an extra
        if name.lower() not in seen:
            seen.add(name.lower())
            left += [re.match(r"[\w.-]+", need).group() for need in needs if "extra ==" not in need]
    return seen


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A virtual environment with the wheel, and links to the four packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python3*/site-packages"))
    for name in with_needs(USERS_PACKAGES):
        for top in {
            (Path(f.locate()), f.parts[0]) for f in files(name) or [] if f.parts[0] not in {"..", "__pycache__"}
        }:
            source = Path(str(top[0])[: str(top[0]).index("site-packages") + len("site-packages")]) / top[1]
            if not (site / top[1]).exists():
                (site / top[1]).symlink_to(source)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-deps", wheel)
    return folder


def test_the_wheel_needs_no_library_that_machines_lack(environment):
    package = next(environment.glob("lib/python3*/site-packages/stowage"))
    for path in [*package.glob("*.so"), *package.glob("lib/*.so"), package / "bin" / "stowage"]:
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", path).stdout)
        assert needed and set(needed) - {"libstowage_core.so"} <= EVERYWHERE, path
    assert not list(package.glob("_runtime*.so"))


def test_the_stubs_are_there(environment):
    package = next(environment.glob("lib/python3*/site-packages/stowage"))
    for name in ("_core.pyi", "_runtime.pyi", "py.typed"):
        assert (package / name).exists(), name


def test_the_command_line(environment):
    said = run(environment / "bin" / "stowage", "--version").stdout
    assert said == f"stowage {(ROOT / 'VERSION').read_text().strip()}\n"
    assert run(environment / "bin" / "python", "-m", "stowage", "--version").stdout == said


def test_no_compiler_is_one_line(environment, tmp_path):
    code = "import stowage\ntry: stowage.compile\nexcept stowage.Error as e: print(e)"
    said = run(
        environment / "bin" / "python", "-c", code, env={"CXX": "no-such-compiler", "STOWAGE_CACHE": str(tmp_path)}
    ).stdout
    assert said.count("\n") == 1 and "CXX names 'no-such-compiler'" in said and "install g++" in said
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: it is broken' >&2\nexit 1\n")
    broken.chmod(0o755)
    said = run(
        environment / "bin" / "python", "-c", code, env={"CXX": str(broken), "STOWAGE_CACHE": str(tmp_path)}
    ).stdout
    assert said.count("\n") == 1 and "x.cpp:1: error: it is broken" in said
    assert not list((tmp_path / "runtime").glob("*/_runtime.so"))


def test_importing_compiles_nothing(environment, tmp_path):
    code = "import torch, stowage; print(stowage.plan.__name__, torch.ones(2).sum().item())"
    bare = {"CXX": "no-such-compiler", "STOWAGE_CACHE": str(tmp_path)}
    assert run(environment / "bin" / "python", "-c", code, env=bare).stdout == "plan 2.0\n"
    assert not (tmp_path / "runtime").exists()


def test_a_newcomer(environment, tmp_path):
    """Two processes start at once where nothing was built yet: one builds, both train, with the same result as without
    Stowage."""
    cache = {"STOWAGE_CACHE": os.environ.get("STOWAGE_TEST_CACHE", str(tmp_path / "cache")), "OMP_NUM_THREADS": "1"}
    python = str(environment / "bin" / "python")
    start = time.monotonic()
    with subprocess.Popen(
        [python, "-c", "import torch, stowage; stowage.compile"], env={"PATH": os.environ["PATH"], **cache}
    ) as other:
        first = run(python, SCRIPT, tmp_path / "x.html", env=cache).stdout.splitlines()
        assert other.wait() == 0
    took = time.monotonic() - start
    assert took < MOST_SECONDS, f"{took:.0f} s"
    assert "<html" in (tmp_path / "x.html").read_text()[:2000].lower()
    stats = eval(first[1])
    assert stats["planned_steps"] > 5 and stats["misses"] == 0
    assert len(list(Path(cache["STOWAGE_CACHE"]).glob("runtime/*/_runtime.so"))) == 1

    second = run(python, SCRIPT, tmp_path / "y.html", env=cache).stdout.splitlines()
    assert second[0] == first[0]
    assert eval(second[1])["plan_from_cache"]

    # A wheel that brings this build needs no compiler, and leaves no build behind.
    where = "from stowage._torch import runtime_build; print(runtime_build._prebuilt())"
    brought = Path(run(python, "-c", where, env=cache).stdout.strip())
    brought.parent.mkdir(parents=True)
    (built,) = Path(cache["STOWAGE_CACHE"]).glob("runtime/*/_runtime.so")
    shutil.copy(built, brought)
    bare = {**cache, "CXX": "no-such-compiler", "STOWAGE_CACHE": str(tmp_path / "bare")}
    try:
        third = run(python, SCRIPT, tmp_path / "z.html", env=bare).stdout.splitlines()
        # One that does not load is passed over.
        brought.write_bytes(built.read_bytes()[:100])
        assert run(python, SCRIPT, tmp_path / "z.html", env=cache).stdout.splitlines()[0] == first[0]
    finally:
        shutil.rmtree(brought.parents[1])
    assert third[0] == first[0]
    assert not (tmp_path / "bare" / "runtime").exists()

    lines = SCRIPT.read_text().splitlines()
    assert 0 < sum(line.endswith("# +") for line in lines) <= 5 and len(lines) <= 35
    plain = tmp_path / "plain.py"
    plain.write_text("\n".join(line for line in lines if not line.endswith("# +")))
    assert run(python, plain, env=cache).stdout.splitlines() == [first[0]]


def test_the_version_is_in_one_file():
    assert stowage.__version__ == (ROOT / "VERSION").read_text().strip()
