"""The script in place of this process: the same number, the same streams, and nobody in between who would have to pass
signals on.

    stowage run train.py ──exec──► python train.py      PYTHONPATH: run/site first; STOWAGE_RUN: what to do
                                     └─ children: the same, as they inherit both

So it holds for each Python below it: torchrun's ranks, accelerate's process, children that multiprocessing spawns."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from stowage.run.arguments import USAGE, Arguments, Help, UsageError, parse

SITE = Path(__file__).parent / "site"


def run(words: list[str]) -> None:
    """Does not return."""
    try:
        arguments = parse(words, dict(os.environ))
        command, is_python = command_of(arguments)
    except Help:
        sys.stdout.write(USAGE)
        sys.exit(0)
    except UsageError as error:
        sys.stderr.write(f"stowage run: {error}\n")
        sys.exit(2)
    try:
        os.execve(command[0], command, environment_of(arguments, is_python))
    except OSError as error:
        sys.stderr.write(f"stowage run: '{command[0]}' cannot be started: {error.strerror}\n")
        sys.exit(2)


def command_of(arguments: Arguments) -> tuple[list[str], bool]:
    """(what to execute, whether that is the Python of one script and no launcher of others)."""
    words = arguments.command
    if arguments.module or is_script(words[0]):
        options = python_options(sys.orig_argv[1:])  # python -X dev -m stowage run ...
        if closed := closed_by(options):
            raise UsageError(f"Python was started with {closed}, which keeps stowage out: leave that option out")
        return [sys.executable, *options, *(["-m"] if arguments.module else []), *words], True
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(f"'{words[0]}' is no file, and no command of that name was found")
    is_python = re.fullmatch(r"python[0-9.]*", os.path.basename(program)) is not None
    closed = closed_by(python_options(words[1:] if is_python else shebang_words(program)[1:]))
    if closed:
        raise UsageError(
            f"'{words[0]}' runs Python with {closed}, which keeps stowage out of it: leave that option out"
        )
    return [program, *words[1:]], is_python


def is_script(word: str) -> bool:
    """A file that Python runs, rather than the system: by its name, or because nobody may execute it."""
    if os.path.isdir(word):
        return os.path.exists(os.path.join(word, "__main__.py"))
    if not os.path.isfile(word):
        return False
    return word.endswith((".py", ".pyw", ".pyz", ".zip")) or not os.access(word, os.X_OK)


def python_options(words: list[str]) -> list[str]:
    """Those of Python itself, with which a command line of it begins."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        letters = word[1:] if re.fullmatch(r"-[A-Za-z]+.*", word) else ""
        if word == "--" or (not letters and not word.startswith("--")):
            break
        before_program = re.match(r"[bBdEhiIOPqsSuvx]*(?=[cm])", letters)
        if before_program is not None:
            return [*options, f"-{before_program[0]}"] if before_program[0] else options
        options.append(word)
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            options += [value for value in [next(rest, None)] if value is not None]
    return options


def closed_by(options: list[str]) -> str:
    """The one among a Python's options that makes it ignore PYTHONPATH, or site."""
    for option in options:
        found = re.match(r"-[bBdiOPqsuvx]*([EIS])", option)
        if found:
            return f"-{found[1]}"
    return ""


def shebang_words(program: str) -> list[str]:
    """Of a script of Python's, the command that the system runs it with."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return []
    if not first.startswith(b"#!") or b"python" not in first:
        return []
    return first[2:].decode(errors="replace").split()


def environment_of(arguments: Arguments, is_python: bool) -> dict[str, str]:
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{SITE}{os.pathsep}{before}" if before else str(SITE)
    environment["STOWAGE_RUN"] = json.dumps(
        {
            "budget_bytes": arguments.budget_bytes,
            "report": arguments.report,
            "pid": os.getpid(),
            "script": is_python,
        }
    )
    return environment


__all__ = ["run"]
