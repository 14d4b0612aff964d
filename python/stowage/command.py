"""The command `stowage`: `run` is Python's; all else runs the program that was built with the package, in place of this
process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stowage.planning import highs_library
from stowage.run.launch import run


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    program = Path(__file__).parent / "bin" / "stowage"
    if not program.exists():
        sys.exit(f"stowage: the command line was not built with this package: '{program}' is missing")
    if library := highs_library():  # the solver of this environment, whose place the program cannot know
        os.environ["STOWAGE_HIGHS"] = library
    os.execv(program, ["stowage", *sys.argv[1:]])


if __name__ == "__main__":
    main()
