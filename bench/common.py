"""What the benchmarks share: workers in processes of their own, medians, tables, result files.

A worker is this interpreter running the benchmark's own file with ``--worker``; parent and worker exchange one JSON
object a line. While one works the others wait on their pipes, so that rivals can take turns on an otherwise idle
machine:

    parent   ──{"do": "steps", "count": 3}──►  worker A   (B and C are blocked)
             ◄──{"seconds": [...], ...}──────
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
_TCMALLOC = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4")
_LIBRARY_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


# ---- Workers: the parent's side


class Worker:
    """A process that answers requests. ``tcmalloc``: it runs on tcmalloc, which keeps all pages that it ever got.
    ``package``: the folder that stowage is imported from, where it is another one than the parent's."""

    def __init__(
        self,
        config: dict,
        threads: int,
        tcmalloc: bool = False,
        script: str = sys.argv[0],
        package: str | None = None,
    ):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), TRANSFORMERS_VERBOSITY="error")
        paths = [package, str(ROOT), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if tcmalloc:
            environment |= {
                "LD_PRELOAD": tcmalloc_path(),
                "TCMALLOC_RELEASE_RATE": "0",
                "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": str(1 << 40),
            }
        command = [sys.executable, script, "--worker", json.dumps(config | {"threads": threads})]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, what: str, **arguments: Any) -> Any:
        """Blocks until the worker has done it. Raises when the worker dies."""
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a worker ended with status {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def tcmalloc_path() -> str:
    for folder in _LIBRARY_FOLDERS:
        for name in _TCMALLOC:
            if os.path.exists(os.path.join(folder, name)):
                return os.path.join(folder, name)
    raise SystemExit("tcmalloc is not installed (Debian: libgoogle-perftools4)")


# ---- Workers: their own side


def is_worker() -> bool:
    return len(sys.argv) == 3 and sys.argv[1] == "--worker"


def serve(make_handlers: Callable[[dict], dict[str, Callable]]) -> None:
    """Answers requests until the parent closes the pipe. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    config = json.loads(sys.argv[2])
    import torch

    torch.set_num_threads(config["threads"])
    handlers = make_handlers(config)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(handlers[request.pop("do")](**request)) + "\n")
        answers.flush()


def timed_steps(step: Callable, batch: Any, count: int) -> dict:
    """Wall time and loss, exact as text, of each of ``count`` steps."""
    seconds, losses = [], []
    for _ in range(count):
        start = time.perf_counter()
        loss = step(batch)
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item().hex())
    return {"seconds": seconds, "losses": losses}


# ---- Commands


def measured_run(command: list[str]) -> tuple[str, dict]:
    """A command's output, and what it took in all; ends the benchmark when the command fails."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command[:3])}: ended with status {os.waitstatus_to_exitcode(status)}")
    return text, {
        "wall_s": time.perf_counter() - start,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "resident_set_bytes": usage.ru_maxrss * 1024,
    }


# ---- Turns


def take_turns(workers: dict[str, Worker], rounds: int, count: int) -> dict[str, dict[str, list]]:
    """Rounds in which each worker makes ``count`` timed steps, after one that only warms the caches others have used; a
    round begins with another worker each time. Returns per worker its counted ``seconds`` and all ``losses``."""
    taken: dict[str, dict[str, list]] = {name: {"seconds": [], "losses": []} for name in workers}
    names = list(workers)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            answer = workers[name].ask("steps", count=count + 1)
            taken[name]["losses"] += answer["losses"]
            taken[name]["seconds"] += answer["seconds"][1:]
    return taken


# ---- Figures


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def spread(values: list[float]) -> float:
    """Distance of the quartiles, relative to the median."""
    if len(values) < 2:
        return float("nan")
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / median(values)


def mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f}"


def threads_text(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def markdown(header: list[str], rows: list[list[Any]], left: int = 1) -> str:
    """A table whose source is as legible as its rendering: the first ``left`` columns start at the left, the others end
    at the right."""
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 1) + ("-" if i < left else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


# ---- What a result needs beside its figures


def environment() -> dict:
    """Processor, versions and the commit, so that a figure can be understood later."""
    from importlib.metadata import version

    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "transparent_huge_pages": _selected("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "commit": _commit(),
    }


def _cpu() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _selected(path: str) -> str:
    """The word in brackets of a kernel setting such as "always [madvise] never"."""
    try:
        return pathlib.Path(path).read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        return "unknown"


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    if not shutil.which("git"):
        return "unknown"

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "runtime", "include", "python")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if changed else "")


# ---- Output


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def publish(name: str, results: dict, table: str, path: str | None = None) -> None:
    """Prints the table and writes the results to bench/results/NAME.json, or to ``path`` ("-": nowhere)."""
    print(table)
    if path == "-":
        return
    target = pathlib.Path(path) if path else RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"benchmark": name, **results, "environment": environment()}, indent=1)
    target.write_text(text.replace(f"{ROOT}/", "") + "\n")
    say(f"wrote {os.path.relpath(target)}")


def parser(description: str, name: str) -> argparse.ArgumentParser:
    os.environ["STOWAGE_PLAN_CACHE"] = "off"  # what is timed is planning, not reading what was planned before
    made = argparse.ArgumentParser(description=description.split("\n")[0], prog=f"./dev bench {name}")
    made.add_argument("-o", "--output", help=f'results as JSON (default bench/results/{name}.json; "-": none)')
    return made
