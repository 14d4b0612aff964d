"""A driver without a GPU, under the CUDA build of PyTorch (nullcuda.cpp): builds it for the torch of an environment, and
runs a command above it.

    python nullcuda.py PYTHON ARGUMENTS...      as `PYTHON ARGUMENTS...` would run where there is a GPU that computes nothing

The libraries of torch ask CUDA's for some hundred functions. Those that need an answer are in nullcuda.cpp. The others
are written here, from the libraries' own lists: they return 0, and one that creates something returns a handle, too.

Imports no torch, so that any Python can run it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_BUILDS = _HERE.parents[2] / "build" / "nullcuda"
_ASKING = ["torch_cuda", "torch_cpu", "torch_python", "c10_cuda", "torch_nvshmem", "torch_cuda_linalg", "caffe2_nvrtc"]
_CUDAS = re.compile(r"^(__cuda|cuda|cublas|cudnn|cusolver|cusparse|cu[A-Z])\w*$")
_PRODUCTS = re.compile(r"^cublas(LtMatmul|\w*(Gemm|gemm|Gemv|gemv|Dot|dot)\w*)$")
_MAKES = re.compile(r"^(?!cudnnBackend)(cublas|cudnn|cusolver|cusparse)\w*Create\w*$")  # cudnnBackend's say what, first
COUNTERS = (
    "launches",
    "products",
    "copies",
    "waits",
    "nodes",  # of the latest capture
    "graph_launches",
    "device_bytes",
    "pinned_bytes",
)


def packages_of(python: str) -> Path:
    """Where an environment keeps its packages."""
    said = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(said.stdout.strip())


def build(python: str) -> Path:
    """The library for the torch of this Python's environment. Takes ten seconds, the first time."""
    packages = packages_of(python)
    torch = packages / "torch"
    libraries = [p for name in _ASKING if (p := torch / "lib" / f"lib{name}.so").exists()]
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        raise SystemExit(f"nullcuda: '{torch}' is no PyTorch with CUDA")
    includes = [*sorted(packages.glob("nvidia/cu*/include")), packages / "triton/backends/nvidia/include"]
    digest = hashlib.sha256(repr([(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in libraries]).encode())
    for source in (_HERE / "nullcuda.cpp", Path(__file__)):
        digest.update(source.read_bytes())
    library = _BUILDS / digest.hexdigest()[:16] / "libcuda.so.1"
    if library.exists():
        return library
    work = library.parent.with_name(f"{library.parent.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden"]
        flags += [part for folder in includes for part in ("-isystem", str(folder))]
        answered = work / "nullcuda.o"
        _run(["c++", *flags, "-Wall", "-Wextra", "-c", str(_HERE / "nullcuda.cpp"), "-o", str(answered)])
        names = set().union(*(_names(p, "--dynamic", "--undefined-only") for p in libraries))
        names -= _names(answered, "--defined-only")
        rest = work / "rest.cpp"
        rest.write_text("".join(map(_unanswered, sorted(n for n in names if _CUDAS.match(n)))))
        made = work / library.name
        command = ["c++", *flags, "-shared", f"-Wl,-soname,{library.name}", str(answered), str(rest), "-o", str(made)]
        _run(command)
        try:
            work.rename(library.parent)
        except OSError:  # another process was first
            if not library.exists():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return library


def _unanswered(name: str) -> str:
    does = "nullcuda_product(); " if _PRODUCTS.match(name) else ""
    arguments = ""
    if _MAKES.match(name):
        does, arguments = "nullcuda_make(made); ", "void** made"
    declared = 'extern "C" void nullcuda_product();\nextern "C" void nullcuda_make(void**);\n' if does else ""
    return (
        f'{declared}extern "C" __attribute__((visibility("default"))) long {name}({arguments}) {{ {does}return 0; }}\n'
    )


def _names(library: Path, *which: str) -> set[str]:
    said = subprocess.run(["nm", *which, "--format=posix", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[0].split("@")[0] for line in said.stdout.splitlines() if line}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"nullcuda: the compiler said: {done.stderr[-2000:]}")


def environment(python: str) -> dict[str, str]:
    """That of this process, changed so that `python` sees a GPU."""
    return dict(os.environ, LD_PRELOAD=str(build(python)))


def counters() -> dict[str, int]:
    """Of the driver in this process; an error where there is none."""
    count = ctypes.CDLL(None).nullcuda_count
    count.restype = ctypes.c_long
    return {name: count(i) for i, name in enumerate(COUNTERS)}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("which command? nullcuda.py PYTHON ARGUMENTS...")
    os.execve(sys.argv[1], sys.argv[1:], environment(sys.argv[1]))
