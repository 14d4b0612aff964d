"""The runtime: the compiled half of Stowage that talks to libtorch, whose C++ interface changes with every version of
torch. Released wheels bring builds for PyTorch's own wheels (prebuild()); the name says for which:

    stowage/prebuilt/2.13.0-5e0c…-cpython-311-x86_64-linux-gnu-cuda13/_runtime.so      torch's version and commit, Python, CUDA

Any wheel also brings the sources. Each other torch gets a build of its own on first use, in the cache directory:

    runtime/2.13.0-1f0a…/_runtime.so     the key: sources, core library, flags, Python, torch
    runtime/2.13.0-1f0a….lock            one process builds, the others wait and then find it
    runtime/2.13.0-1f0a….log             what the compiler said, where it failed

A torch with CUDA also gets the front of CUDA's allocator (runtime/memory/cuda_front.cpp), from the headers and the
library of CUDA's runtime that torch's own wheels bring, or an installed toolkit.

All sources are compiled as a few units, in parallel: what takes time is reading the headers of torch, once for each
unit (about 25 s of one core in all). The library is linked to libstowage_core.so, libc10.so and libtorch_cpu.so by name
only: all are in the process before it is loaded, so it serves every environment that has the same ones.

Code is loaded from here, so the directories must be the user's own and closed to others, and so must the library: else
there is an error, and nothing is loaded. It is loaded through the descriptor of the directory that was looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from stowage._torch import collector
from stowage.cache.directory import Folder, NoEntry, Refused, cache_directory, opened
from stowage.errors import Error, warn

_PACKAGE = Path(__file__).parents[1]
_SOURCES = _PACKAGE / "sources"
_LIBRARIES = _PACKAGE / "lib"
_CORE = _LIBRARIES / "libstowage_core.so"
_PREBUILT = _PACKAGE / "prebuilt"
_OLDEST_TORCH = (2, 11)  # the oldest that was tried; what differs: runtime/torch/torch_versions.h
_FLAGS = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1", "-w"]
_LIBRARY = "_runtime.so"
_MOST_UNITS = 4  # each takes about 1 GB while it compiles
_KEPT = 8  # builds, the newest


def load(name: str) -> ModuleType:
    """The compiled module for the torch of this process, which is imported; built before, where there is none yet."""
    if not _SOURCES.is_dir():
        raise ImportError("this build of stowage has no runtime: it was configured without torch")
    if (prebuilt := _prebuilt()).is_file():
        with contextlib.suppress(ImportError):  # a torch that says it is of this commit, but was built otherwise
            return _loaded(name, str(prebuilt))
    top, runtime, build = _built()
    with opened(top, runtime, build) as folder:
        library = folder.path / _LIBRARY
        try:
            os.close(folder.open(_LIBRARY, os.O_RDONLY))
        except NoEntry as error:
            raise Refused(
                f"'{library}' is not loaded: {error}; remove '{folder.path}', so that it is built again"
            ) from None
        folder.used_now(_LIBRARY)
        # A descriptor of its own, which stays: the loader remembers a library by the name that it was opened with.
        path = (
            f"/proc/self/fd/{os.dup(folder.descriptor)}/{_LIBRARY}" if os.path.isdir("/proc/self/fd") else str(library)
        )
        module = _loaded(name, path)
    module.__file__ = str(library)
    assert module.__spec__ is not None
    module.__spec__.origin = str(library)
    return module


def needs_building() -> bool:
    """Would load() compile?"""
    if not _SOURCES.is_dir():
        return False
    with contextlib.suppress(Error, OSError):  # which load() will tell
        return not _prebuilt().is_file() and not _is_there(_place())
    return False


def prebuild(top: Path) -> Path:
    """Builds for the torch of this process into the folder that a wheel brings; returns the library."""
    import torch

    library = top / _prebuilt().relative_to(_PREBUILT)
    library.parent.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(library.parent, ignore_errors=True)
    assert torch.__file__ is not None
    _build(_compiler(), Path(torch.__file__).parent, library.parent, torch.__version__)
    return library


def _loaded(name: str, path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _prebuilt() -> Path:
    """Where a wheel would bring the build for the torch of this process. PyTorch's wheels of one commit differ by CUDA."""
    import torch

    cuda = f"-cuda{torch.version.cuda.split('.')[0]}" if torch.version.cuda else ""
    release = torch.__version__.split("+")[0]
    soabi = sysconfig.get_config_var("SOABI")
    return _PREBUILT / f"{release}-{str(torch.version.git_version)[:12]}-{soabi}{cuda}" / _LIBRARY


def _place() -> tuple[Path, str, str]:
    """The cache directory, and the names below it that lead to the build for the torch of this process."""
    import torch

    version = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if version < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        raise Error(f"torch {torch.__version__} is too old: stowage needs {oldest} or newer")
    return cache_directory(), "runtime", f"{torch.__version__}-{_key(torch)}"


def _is_there(place: tuple[Path, str, str]) -> bool:
    with contextlib.suppress(FileNotFoundError), opened(*place) as folder:
        os.stat(_LIBRARY, dir_fd=folder.descriptor, follow_symlinks=False)
        return True
    return False


def _built() -> tuple[Path, str, str]:
    """As _place(), once the build is there."""
    import torch

    place = _place()
    build = place[2]
    try:
        if _is_there(place):
            return place
        compiler = _compiler()
        with opened(*place[:2], make=True) as folder, _locked(folder, f"{build}.lock"):
            if any(issubclass(type(thing), torch.Tensor) for thing in collector.get_objects()):
                warn(
                    "the runtime is built only now, so tensors that were made before do not count in a stowage.budget of "
                    "this process; from the next process on they do"
                )
            if not (folder.path / build / _LIBRARY).exists():  # another process may have built it meanwhile
                _build(compiler, Path(torch.__file__).parent, folder.path / build, torch.__version__)
                _forget_oldest(folder.path)
    except NoEntry as error:
        raise Refused(f"'{folder.path / build}.lock' is not used as a lock: {error}; remove it") from None
    except OSError as error:
        raise Error(
            f"the runtime for torch {torch.__version__} cannot be kept in '{place[0] / 'runtime'}': {error.strerror}; "
            "name another directory in STOWAGE_CACHE"
        ) from None
    return place


def _key(torch: ModuleType) -> str:
    """Digest of everything that the compiled library depends on."""
    assert torch.__file__ is not None
    digest = hashlib.sha256()
    libtorch = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    built_for = [
        torch.version.git_version,
        libtorch.stat().st_size,
        sysconfig.get_config_var("SOABI"),
        platform.machine(),
        _FLAGS,
        dataclasses.astuple(_cuda(Path(torch.__file__).parent)),
    ]
    digest.update(repr(built_for).encode())
    for path in sorted([*_SOURCES.rglob("*.*"), *_LIBRARIES.iterdir()]):
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class _Cuda:
    """What the compiler is told of CUDA: nothing, where there is none."""

    flags: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


def _cuda(torch: Path) -> _Cuda:
    """Of the torch in this folder. The wheel of CUDA's runtime lacks some headers that it includes; Triton's has them."""
    packages, toolkit = torch.parent, Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    wheels = [*sorted(packages.glob("nvidia/cu*")), packages / "nvidia" / "cuda_runtime"]
    includes = [*(w / "include" for w in wheels), toolkit / "include", packages / "triton/backends/nvidia/include"]
    includes = [folder for folder in includes if folder.is_dir()]
    runtimes = [path for w in wheels for path in sorted(w.glob("lib/libcudart.so.*"))]
    runtimes += sorted(toolkit.glob("lib64/libcudart.so.*"))
    headers = all(
        any((folder / name).exists() for folder in includes) for name in ("cuda_runtime_api.h", "crt/host_config.h")
    )
    if not (headers and runtimes and (torch / "lib" / "libc10_cuda.so").exists()):
        return _Cuda()
    flags = ["-DSTOWAGE_CUDA", *(part for folder in includes for part in ("-isystem", str(folder)))]
    return _Cuda(tuple(flags), ("-lc10_cuda", str(runtimes[0])))


def _compiler() -> list[str]:
    """The command of a C++ compiler; Error where there is none, or no headers of Python."""
    named = os.environ.get("CXX", "").split()
    for command in [named] if named else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            break
    else:
        which = f"CXX names '{named[0]}', which was not found" if named else "no C++ compiler was found"
        raise Error(
            f"stowage builds its runtime for the installed torch once, but {which}: install g++, or name one in CXX"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        package = f"python{sysconfig.get_python_version()}-dev"
        raise Error(
            f"stowage builds its runtime for the installed torch once, but Python.h was not found: install {package}"
        )
    return command


@contextlib.contextmanager
def _locked(folder: Folder, name: str) -> Iterator[None]:
    """Nothing is written to the file that is the lock, and what was there stays."""
    with os.fdopen(folder.open(name, os.O_RDWR | os.O_CREAT), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(compiler: list[str], torch: Path, folder: Path, version: str) -> None:
    """Compiles and links into a folder beside, which then takes its name. The lock is held."""
    work = folder.with_name(folder.name + ".building")
    shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
    work.mkdir(mode=0o700)
    try:
        include = [
            f"-I{_SOURCES / 'include'}",
            f"-I{_SOURCES}",
            "-isystem",
            str(torch / "include"),
            "-isystem",
            str(torch / "include" / "torch" / "csrc" / "api" / "include"),
            "-isystem",
            sysconfig.get_path("include"),
        ]
        cuda = _cuda(torch)
        commands, objects = [], []
        for i, sources in enumerate(_units()):
            unit = work / f"unit{i}.cpp"
            unit.write_text("".join(f'#include "{path}"\n' for path in sources))
            objects.append(str(unit.with_suffix(".o")))
            commands.append([*compiler, *_FLAGS, *include, *cuda.flags, "-c", str(unit), "-o", objects[-1]])
        link = [
            *compiler,
            "-shared",
            "-Wl,--gc-sections,-s",
            *objects,
            *map(str, sorted(_LIBRARIES.glob("libnanobind*.a"))),
            str(_CORE),
            f"-L{torch / 'lib'}",
            "-lc10",
            "-ltorch_cpu",
            *cuda.libraries,
            "-o",
            str(work / _LIBRARY),
        ]
        log = folder.with_name(folder.name + ".log")
        with _progress(version):
            _run(commands, log, version)
            _run([link], log, version)
        log.unlink()
        os.chmod(work / _LIBRARY, 0o700)  # whatever the user's mask is
        for path in [*map(Path, objects), *work.glob("unit*.cpp")]:
            os.unlink(path)
        os.rename(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _units() -> list[list[Path]]:
    """The sources in groups of about equal size, as many as cores may compile at once."""
    groups: list[list[Path]] = [[] for _ in range(min(_MOST_UNITS, len(os.sched_getaffinity(0))))]
    sizes = [0] * len(groups)
    for path in sorted(_SOURCES.rglob("*.cpp"), key=lambda p: (-p.stat().st_size, p)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(path)
        sizes[smallest] += path.stat().st_size
    return [sorted(group) for group in groups if group]


def _run(commands: list[list[str]], log: Path, version: str) -> None:
    """Runs them at once. Error with the first line that says "error" when one fails."""
    with open(log, "w+", opener=_no_link) as said:
        processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said) for command in commands
        ]
        try:
            failed = any(process.wait() != 0 for process in processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not failed:
            return
        said.seek(0)
        lines = said.read().splitlines() or ["the compiler said nothing"]
    first = next((line for line in lines if "error" in line), lines[-1]).strip()
    raise Error(f"the runtime could not be built for torch {version}: {first} (all of it in {log})")


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextlib.contextmanager
def _progress(version: str) -> Iterator[None]:
    """One line while it takes, in a terminal or a notebook; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn(f"stowage: building its runtime for torch {version}, once")
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield
        return
    with Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True) as progress:
        progress.add_task("build", total=None)
        yield


def _forget_oldest(folder: Path) -> None:
    """Builds for what is no longer installed must not fill the disk; one that is needed after all is built again."""
    builds = sorted(folder.glob(f"*/{_LIBRARY}"), key=lambda path: path.stat().st_mtime)
    for path in builds[:-_KEPT]:
        shutil.rmtree(path.parent, ignore_errors=True)
