"""The command `stowage`: runs the program that was built with the package, in place of this process. Verbs that need
Python run here."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from stowage.planning import highs_library


def verb_in_python(arguments: list[str]) -> Callable[[list[str]], int | None] | None:
    """What runs these arguments in this process; None: the program does."""
    if arguments[:1] == ["run"]:
        from stowage.run.launch import run

        return run
    if arguments[:1] == ["shard"]:
        from stowage.verbs import shard

        return shard.run
    if arguments[:1] == ["why"]:
        from stowage.verbs import why

        return why.run
    if arguments[:1] == ["fit"] and any(a.split("=")[0] == "--model-from" for a in arguments):
        from stowage.verbs import fit

        return fit.run
    return None


def main() -> None:
    if (verb := verb_in_python(sys.argv[1:])) is not None:
        sys.exit(verb(sys.argv[2:]))
    program = Path(__file__).parent / "bin" / "stowage"
    if not program.exists():
        sys.exit(f"stowage: the command line was not built with this package: '{program}' is missing")
    if library := highs_library():  # the solver of this environment, whose place the program cannot know
        os.environ["STOWAGE_HIGHS"] = library
    os.execv(program, ["stowage", *sys.argv[1:]])


if __name__ == "__main__":
    main()
