"""What the verbs share that load a script of the user's: arguments that are wrong and errors, in one line each."""

from __future__ import annotations

import argparse
import sys

USAGE = 2


def fail(code: int, message: str) -> int:
    """Says it, and returns the exit code."""
    print(f"stowage: {message}", file=sys.stderr)
    return code


def told(error: BaseException) -> str:
    """ "train.py:12: ValueError: ...", of an error of the script's own."""
    from stowage.step.fit.made_step import user_line

    where = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else user_line(error)
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{where}: {type(error).__name__}: {text}"


def size(text: str) -> int:
    """Of an argument: a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not '{text}'")
    return int(text)


class Parser(argparse.ArgumentParser):
    """Of ``stowage VERB --model-from FILE.py:FUNCTION``."""

    def __init__(self, verb: str, description: str):
        self.verb = verb
        super().__init__(
            prog=f"stowage {verb}",
            allow_abbrev=False,
            description=description,
            epilog="def make_step(batch_size=8): ...; return train_step, (batch,)      builds all that the step needs",
        )
        self.add_argument("--model-from", required=True, metavar="FILE.py:FUNCTION", help="the make_step function")

    def error(self, message: str):  # one line, as the other verbs do
        sys.exit(fail(USAGE, f"{self.verb}: {message}; see stowage {self.verb} --help"))


__all__ = ["USAGE", "Parser", "fail", "size", "told"]
