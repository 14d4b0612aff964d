"""All that bench/gpu.py needs on a machine with a GPU and no network, in one archive (`./dev gpu-bundle`):

    stowage-gpu.tar.gz
      stowage-gpu/COMMIT, bench/, src/, include/, cli/, runtime/, python/, cmake/, tests/support/, ...     this checkout as it is
      stowage-gpu/brought/                  what a machine may lack, as it lies here
        site/NAME/      Python packages: nanobind, and rich with what it imports
        include/, lib/  OpenSSL (static) and zlib; headers of CLI11, with share/cmake/CLI11
        simdjson/       its two files of source
        cmake/, ninja   programs

There it is unpacked, and bench/gpu.py started; what it needs beside are a C++ compiler, Python 3.10 or newer with its
headers, torch and transformers. Programs and libraries are for the kind of processor that they were gathered on.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 60 << 20
_OURS = (
    *("VERSION", "LICENSE", "CMakeLists.txt", "CMakePresets.json", "pyproject.toml", "cmake", "src", "include", "cli"),
    *("runtime", "python", "bench", "tests/support"),
)
_LEFT_OUT = ("bench/results/", "bench/strangers/", "bench/rivals/")
_PACKAGES = {"nanobind": "nanobind", "rich": "rich", "markdown_it": "rich", "mdurl": "rich", "pygments": "rich"}
# To name in the bundle: as it is called here. zlib's static library is not for shared ones, and libz.so.1 is everywhere.
_LIBRARIES = {
    "libcrypto.a": ("libcrypto.a", "libssl-dev"),
    "libz.so": ("libz.so.1", "zlib1g"),
    "libz.so.1": ("libz.so.1", "zlib1g"),
}
_HEADERS = {"openssl": "libssl-dev", "zlib.h": "zlib1g-dev", "zconf.h": "zlib1g-dev", "CLI": "libcli11-dev"}


class CannotGather(Exception):
    """What is missing here, and how to get it."""


def gather(folder: Path) -> None:
    """Writes everything below a folder that does not exist yet."""
    folder.mkdir(parents=True)
    for name in _git("ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *_OURS).split("\0"):
        if (
            name and not name.startswith(_LEFT_OUT) and (ROOT / name).is_file()
        ):  # not what was deleted, and is still known
            _copy(ROOT / name, folder / name)
    (folder / "COMMIT").write_text(_git("describe", "--always", "--dirty", "--abbrev=12").strip() + "\n")
    brought = folder / "brought"
    for package, needed_by in _PACKAGES.items():
        _copy(_package(package), brought / "site" / needed_by / package)
    for header, debian in _HEADERS.items():
        for place in _places("include", header, debian):
            _copy(place, brought / "include" / header)
    for library, (here, debian) in _LIBRARIES.items():
        _copy(_places("lib", here, debian)[0], brought / "lib" / library)
    _copy(_places("share/cmake", "CLI11", "libcli11-dev")[0], brought / "share" / "cmake" / "CLI11")
    for name in ("simdjson.h", "simdjson.cpp"):
        _copy(_package("simdjson") / name, brought / "simdjson" / name)
    cmake = _package("cmake") / "data"
    _copy(cmake / "bin" / "cmake", brought / "cmake" / "bin" / "cmake")
    for modules in (cmake / "share").glob("cmake-*/*"):
        if modules.name in ("Modules", "Templates"):
            _copy(modules, brought / "cmake" / modules.relative_to(cmake))
    ninja = Path(sysconfig.get_path("scripts")) / "ninja"
    if not ninja.exists():
        raise CannotGather("there is no ninja beside this Python: run ./dev setup")
    _copy(ninja, brought / "ninja")


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise CannotGather(f"the Python package '{name}' is not installed: run ./dev setup")
    return Path(found.origin).parent


def _places(kind: str, name: str, debian: str) -> list[Path]:
    """Where the system has it: a folder may be in several places, which are put together."""
    system = f"{platform.machine()}-linux-gnu"
    folders = [Path("/usr/local") / kind, Path("/usr") / kind, Path("/usr") / kind / system]
    found = [folder / name for folder in folders if (folder / name).exists()]
    if not found:
        raise CannotGather(f"'{name}' was not found in {', '.join(map(str, folders))}: install {debian}")
    return found


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"), dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)  # with its time, so that a newer bundle builds what has changed


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or "git is not installed"
        raise CannotGather(f"what belongs to the tree is asked of git: {said.strip()}") from None


def bundle(folder: Path) -> Path:
    """The archive in this folder. Nothing is left where it cannot be gathered, or is too large."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "stowage-gpu.tar.gz"
    with tempfile.TemporaryDirectory(dir=folder) as work:
        gather(Path(work) / "stowage-gpu")
        with tarfile.open(Path(work) / archive.name, "w:gz", compresslevel=6) as file:
            file.add(Path(work) / "stowage-gpu", "stowage-gpu")
        size = (Path(work) / archive.name).stat().st_size
        if size > MOST_BYTES:
            raise CannotGather(
                f"the archive has {size / 2**20:.1f} MiB, more than {MOST_BYTES >> 20}: leave something out"
            )
        (Path(work) / archive.name).replace(archive)
    return archive


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("into which folder? gpu_bundle.py FOLDER")
    try:
        archive = bundle(Path(sys.argv[1]))
    except CannotGather as error:
        raise SystemExit(f"gpu_bundle: {error}") from None
    print(f"{archive}: {archive.stat().st_size / 2**20:.1f} MiB")
    print(f"There: tar xzf {archive.name} && python3 stowage-gpu/bench/gpu.py --out FOLDER")


if __name__ == "__main__":
    main()
