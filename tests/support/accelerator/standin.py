"""The stand-in accelerator of the tests: device "standin", which behaves as a GPU does and computes the CPU's bits.

    import standin
    standin.load()                                   # builds it, the first time for these sources and this torch
    x = torch.ones(3, device="standin")
    with standin.settings(limit_bytes=1 << 20, link_gbps=0.5, poison=True):
        ...
    standin.counters()["bytes_to_host"]

What it is made of: hooks.cpp. The library lies in build/standin/<torch>-<digest>/; building takes half a minute.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import torch

NAME = "standin"
_HERE = Path(__file__).resolve().parent
_BUILDS = Path(os.environ.get("STANDIN_BUILD", _HERE.parents[2] / "build" / "standin"))
# Those of the runtime (stowage/_torch/runtime_build.py), but for -O1: nothing hot is in here.
_FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-D_GLIBCXX_USE_CXX11_ABI=1", "-w"]


class CannotBuild(Exception):
    """Why there is no stand-in here."""


# ---- Building and loading


def build(folder: Path = _HERE, name: str = "libstandin.so") -> Path:
    """The library compiled from the sources in a folder for the torch of this process; the stand-in, if none is named."""
    sources = sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])
    digest = hashlib.sha256(repr([torch.version.git_version, _FLAGS]).encode())
    for path in sources:
        digest.update(path.read_bytes())
    library = _BUILDS / f"{torch.__version__}-{digest.hexdigest()[:16]}" / name
    if library.exists():
        return library
    compiler = os.environ.get("CXX", "c++").split()
    if shutil.which(compiler[0]) is None:
        raise CannotBuild(f"no C++ compiler: '{compiler[0]}' was not found")
    _BUILDS.mkdir(parents=True, exist_ok=True)
    with open(_BUILDS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():  # another process may have built it meanwhile
            _compile(compiler, [path for path in sources if path.suffix == ".cpp"], library)
    return library


def _compile(compiler: list[str], sources: list[Path], library: Path) -> None:
    """As one unit: what takes time is reading the headers of torch."""
    work = library.parent.with_name(library.parent.name + ".building")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    unit = work / "unit.cpp"
    unit.write_text("".join(f'#include "{path}"\n' for path in sources))
    place = Path(torch.__file__).parent
    include = [f"-I{_HERE}", "-isystem", f"{place}/include", "-isystem", f"{place}/include/torch/csrc/api/include"]
    link = ["-shared", f"-L{place}/lib", "-lc10", "-ltorch_cpu"]  # by name: both are loaded before
    command = [*compiler, *_FLAGS, *include, str(unit), *link, "-o", str(work / library.name)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
        raise CannotBuild(f"the compiler said: {first}")
    work.rename(library.parent)


_library: ctypes.CDLL | None = None
_default_generator: torch.Generator | None = None


def load() -> None:
    """Makes the device "standin" in this process. A second call does nothing."""
    global _library, _default_generator
    if _library is not None:
        return
    path = str(build())
    torch.ops.load_library(path)
    _library = ctypes.CDLL(path)
    _library.standin_set_limit.argtypes = _library.standin_set_workspace.argtypes = [ctypes.c_int64]
    _library.standin_set_link.argtypes = [ctypes.c_double, ctypes.c_double]
    _library.standin_counter.restype = ctypes.c_char_p
    _library.standin_count.restype = ctypes.c_int64
    _library.standin_forked.argtypes = []  # no address
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())
    torch.utils.generate_methods_for_privateuse1_backend()
    _default_generator = torch.ops.standin.default_generator()


# ---- What PyTorch asks of torch.standin


class _OneDevice:
    def __init__(self, device=None):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def manual_seed(seed: int) -> None:
    _default_generator.manual_seed(seed)


def get_rng_state(device=NAME) -> torch.Tensor:
    return _default_generator.get_state()


def set_rng_state(state: torch.Tensor, device=NAME) -> None:
    _default_generator.set_state(state)


def _device_module() -> types.ModuleType:
    module = types.ModuleType(f"torch.{NAME}")
    module._initialized = True
    module._lazy_init = lambda: None
    module._is_in_bad_fork = lambda: bool(_library.standin_forked())
    module.is_available = module.is_initialized = lambda: True
    module.device = module._DeviceGuard = _OneDevice
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.synchronize = lambda device=None: torch.accelerator.synchronize()
    module.manual_seed = module.manual_seed_all = manual_seed
    module.get_rng_state, module.set_rng_state = get_rng_state, set_rng_state
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.is_bf16_supported = lambda: True
    return module


# ---- What tests set and read

_DEFAULTS = {
    "limit_bytes": 2 << 30,
    "link_gbps": 0.0,  # or a pair: to the device, to the host; 0: as fast as it goes
    "poison": False,
    "strict": True,
    "cpu_numbers": False,
    "wrong_graphs": False,
    "captures_take": False,
    "workspace_bytes": 0,
    "check_order": False,
}
_now = dict(_DEFAULTS)


def configure(**changes) -> None:
    """Sets what is named: limit_bytes, link_gbps, poison, strict, cpu_numbers, wrong_graphs, captures_take, workspace_bytes,
    check_order (settings.h)."""
    unknown = changes.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    _now.update(changes)
    link = _now["link_gbps"]
    to_device, to_host = link if isinstance(link, tuple) else (link, link)
    _library.standin_set_limit(_now["limit_bytes"])
    _library.standin_set_link(to_device, to_host)
    _library.standin_set_poison(_now["poison"])
    _library.standin_set_strict(_now["strict"])
    _library.standin_set_cpu_numbers(_now["cpu_numbers"])
    _library.standin_set_captures_take(_now["captures_take"])
    _library.standin_set_wrong_graphs(_now["wrong_graphs"])
    _library.standin_set_workspace(_now["workspace_bytes"])
    _library.standin_set_check_order(_now["check_order"])


@contextlib.contextmanager
def settings(**changes) -> Iterator[None]:
    """configure(), undone at the end."""
    before = dict(_now)
    configure(**changes)
    try:
        yield
    finally:
        configure(**before)


@contextlib.contextmanager
def not_noted(op: str) -> Iterator[None]:
    """Captures refuse kernels of this operator; "": of all."""
    _library.standin_set_not_noted(op.encode())
    try:
        yield
    finally:
        _library.standin_set_not_noted(b"nothing")


def reset() -> None:
    """Settings as they were at first, counters at 0."""
    configure(**_DEFAULTS)
    _library.standin_reset_counters()


def counters() -> dict[str, int]:
    """kernels, graph_launches, graph_kernels, copies_to_device, bytes_to_device, copies_to_host, bytes_to_host, async_copies, draws, refusals,
    host_touches (of forked children, too), races, pinned_bytes."""
    counts = {}
    while name := _library.standin_counter(len(counts)):
        counts[name.decode()] = _library.standin_count(len(counts))
    return counts


def first_race() -> str:
    """The first race since check_order was switched on (order.h), or nothing."""
    text = ctypes.create_string_buffer(500)
    length = _library.standin_first_race(text, len(text))
    return text.raw[:length].decode()


def move(module: torch.nn.Module) -> torch.nn.Module:
    """module.to("standin"), and its parameters stay the same objects, as on CUDA: tied ones stay tied, optimizers go on
    with them. Without the switch PyTorch makes new ones on PrivateUse1."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(NAME)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
