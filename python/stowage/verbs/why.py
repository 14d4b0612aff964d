"""stowage why SNAPSHOT.pickle: what held the bytes when memory ran out, and what to change.

Exit codes as of all verbs: 0 done, 2 usage, 3 the file is no snapshot."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from stowage.errors import Error

DONE, BAD_INPUT = 0, 3


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stowage why",
        description="What held the bytes when a GPU ran out of memory, and what to change.",
        epilog="A snapshot is written by torch.cuda.memory._record_memory_history(), the training, and "
        "torch.cuda.memory._dump_snapshot('snapshot.pickle') where the error is caught.",
    )
    parser.add_argument("snapshot", metavar="SNAPSHOT.pickle")
    parser.add_argument("--json", action="store_true", help="the same as one object")
    return parser


def run(arguments: list[str]) -> int:
    given = options().parse_args(arguments)
    from stowage.doctor.causes import diagnose
    from stowage.doctor.snapshot import read
    from stowage.doctor.text import as_text

    try:
        diagnosis = diagnose(read(given.snapshot))
    except Error as error:
        print(f"stowage: {error}", file=sys.stderr)
        return BAD_INPUT
    if given.json:
        told = dataclasses.asdict(diagnosis)
        moment = told.pop("moment")
        kept = ("request_bytes", "request_line", "device_free_bytes", "reserved_bytes")
        print(json.dumps({**{key: moment[key] for key in kept}, "live_bytes": diagnosis.moment.live_bytes, **told}))
    else:
        print(as_text(diagnosis), end="")
    return DONE


__all__ = ["options", "run"]
