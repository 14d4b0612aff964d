"""Many cases in one set of processes: each rank runs every case, in the same order, and says how it went."""

from __future__ import annotations

import datetime
import fcntl
import importlib
import json
import os
import socket
import time
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _work(rank: int, size: int, port: int, cases: list[str], folder: str, timeout: float) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=timeout))
    for case in cases:
        module, _, function = case.rpartition(".")
        try:
            getattr(importlib.import_module(module), function)(rank, size)
            said = ""
        except BaseException:  # told to the test
            said = traceback.format_exc()
        with open(os.path.join(folder, f"{case}.{rank}"), "w", encoding="utf-8") as file:
            file.write(said)
    dist.destroy_process_group()


def cases_of(*modules) -> list[str]:
    """The public functions that these modules define, as "module.function"."""
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, f in vars(module).items()
        if not name.startswith("_") and getattr(f, "__module__", "") == module.__name__ and callable(f)
    ]


def run_chosen(request, tmp_path_factory, size: int, cases: list[str]) -> dict[str, list[str]]:
    """run(), of a fixture: those cases whose tests were chosen, once for all processes that pytest has."""
    chosen = {
        item.callspec.params["case"] for item in request.session.items if request.fixturename in item.fixturenames
    }
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    place = folder / f"{request.module.__name__}-{size}"
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            place.mkdir()
            said = run(size, [case for case in cases if case in chosen], str(place))
            (place / "said.json").write_text(json.dumps(said))
        return json.loads((place / "said.json").read_text())


def run(size: int, cases: list[str], folder: str, timeout: float = 60) -> dict[str, list[str]]:
    """Cases are "module.function". By case: what each rank had to say, "" where all was well. A rank that did not come
    so far says so."""
    context = mp.start_processes(
        _work, (size, _free_port(), cases, folder, timeout), nprocs=size, join=False, start_method="spawn"
    )
    deadline = time.monotonic() + 4 * timeout + 10 * len(cases)
    for process in context.processes:
        process.join(max(deadline - time.monotonic(), 1))
        if process.is_alive():
            process.kill()
            process.join()
    said: dict[str, list[str]] = {}
    for case in cases:
        said[case] = []
        for rank in range(size):
            path = os.path.join(folder, f"{case}.{rank}")
            said[case].append(
                open(path, encoding="utf-8").read() if os.path.exists(path) else f"rank {rank} did not finish"
            )
    return said
