"""What ``stowage run`` is told: its own options up to the script's name, everything after that is the script's."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from stowage.errors import Error
from stowage.sizes import parse_bytes

USAGE = """\
Usage: stowage run [OPTIONS] SCRIPT.py [ARGS...]
       stowage run [OPTIONS] -m MODULE [ARGS...]
       stowage run [OPTIONS] COMMAND [ARGS...]        torchrun, accelerate launch, python, ...

Runs the script as Python would, and keeps its tensors within a limit, or watches who holds them.

Options:
  --budget BYTES   the most that live tensors of a process may take: 4096, 512MiB, 4GiB, 4GB.
                   Without it: what the environment variable STOWAGE_BUDGET says
  --watch          no limit: only tell at the end what held the peak. So it is where no limit is given
  --report FILE    also write what is told at the end: FILE.html, a page, or FILE.json
  --               the options of stowage end here
  -h, --help       this text

A script gives its own exit code. Wrong options: 2.
"""


class UsageError(Error):
    """A wrong option; the message is one line."""


class Help(Exception):
    """Asked for."""


@dataclass
class Arguments:
    """``budget_bytes``: None where the script is only watched. ``module``: the first of ``command`` is one's name."""

    budget_bytes: int | None = None
    report: str = ""
    module: bool = False
    command: list[str] = field(default_factory=list)


_VALUED = ("--budget", "--report")
_NAMES = (*_VALUED, "--watch", "--help")


def parse(words: Sequence[str], environment: dict[str, str]) -> Arguments:
    """Raises UsageError, or Help."""
    arguments, rest = Arguments(), list(words)
    budget: str | None = None
    watch = False
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option, equals, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            raise Help
        if option == "--":
            break
        if option == "-m":
            arguments.module = True
            break
        if option in _VALUED:
            if not equals:
                if not rest:
                    raise UsageError(f"{option} needs a value: {_example(option)}")
                value = rest.pop(0)
            if option == "--budget":
                budget = value
            else:
                arguments.report = _checked_report(value)
        elif option == "--watch" and not equals:
            watch = True
        else:
            raise UsageError(f"unknown option '{option}'{_meant(option)}; options of the script come after its name")
    if budget is not None and watch:
        raise UsageError("--watch is without a limit: give it or --budget, not both")
    if budget is not None:
        arguments.budget_bytes = _limit(budget, "--budget")
    elif not watch and environment.get("STOWAGE_BUDGET"):
        arguments.budget_bytes = _limit(environment["STOWAGE_BUDGET"], "STOWAGE_BUDGET")
    if not rest:
        raise UsageError("name a module after -m" if arguments.module else "name a script: stowage run train.py")
    arguments.command = rest
    return arguments


def _example(option: str) -> str:
    return "--budget 6GiB" if option == "--budget" else "--report memory.html"


def _meant(option: str) -> str:
    close = difflib.get_close_matches(option, _NAMES, 1, 0.75)
    return f" (did you mean {close[0]}?)" if close else ""


def _limit(text: str, source: str) -> int:
    try:
        limit = parse_bytes(text)
    except Error as error:
        raise UsageError(f"{source}: {error}") from None
    if not limit:
        raise UsageError(f"{source}: a limit of at least one byte is needed, not '{text}'")
    return limit


def _checked_report(path: str) -> str:
    """As a whole path, as the script may go elsewhere."""
    if not path.endswith((".html", ".json")):
        raise UsageError(f"--report: '{path}' must end in .html or .json")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"--report: there is no folder '{folder}'")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--report: nothing can be written to '{folder}'")
    return os.path.abspath(path)


__all__ = ["USAGE", "Arguments", "Help", "UsageError", "parse"]
