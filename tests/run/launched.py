"""Scripts run as a user runs them: by Python alone, and by stowage run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
OURS = "stowage run:"


def environment(**more: str) -> dict[str, str]:
    quiet = {
        "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name not in ("STOWAGE_BUDGET", "STOWAGE_RUN")}
    return {**kept, **quiet, **more}


def start(words: list, *, cwd: Path = SCRIPTS, **more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [str(word) for word in words],
        cwd=cwd, env=environment(**more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen, stdin: bytes = b"") -> subprocess.CompletedProcess:
    out, err = process.communicate(stdin, timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


def run(words: list, stdin: bytes = b"", **how) -> subprocess.CompletedProcess:
    return finish(start(words, **how), stdin)


def plainly(script: list) -> list:
    """The command without us. The first of ``script``: a file, -m, or a command in front."""
    first = str(script[0])
    return [sys.executable, *script] if first == "-m" or first.endswith(".py") else [beside(first), *script[1:]]


def by_us(script: list, *options: str) -> list:
    first = str(script[0])
    words = script if first == "-m" or first.endswith(".py") else [beside(first), *script[1:]]
    return [sys.executable, "-m", "stowage", "run", *options, *words]


def beside(command: str) -> str:
    """Of the environment that the tests run in."""
    return str(Path(sys.executable).parent / command)


def told(done: subprocess.CompletedProcess) -> str:
    """What we have said on stderr."""
    at = done.stderr.find(OURS)
    return done.stderr[at:] if at >= 0 else ""


def read(report: Path) -> dict:
    return json.loads(report.read_text())
