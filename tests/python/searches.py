"""Random searches: how long they go on, and from which seed.

./dev test     a few seeds of each search
./dev soak     STOWAGE_SOAK_SECONDS gives each search its time; the tests marked ``longer`` run, too
STOWAGE_SEED   begins at this seed, to see a failure again; what was tried is printed
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

SECONDS = float(os.environ.get("STOWAGE_SOAK_SECONDS", "0"))
longer = pytest.mark.skipif(not SECONDS, reason="longer searches run by ./dev soak")


def first_seed(*, clock: bool = bool(SECONDS)) -> int:
    """STOWAGE_SEED; else one of the clock, or 1: the same in every run."""
    return int(os.environ.get("STOWAGE_SEED", "0")) or (int(time.time()) * 1000 if clock else 1)


def seeds(first: int, seconds: float = SECONDS, *, at_least: int = 1, by: int = 1) -> Iterator[int]:
    """``first``, ``first + by``, …, until the time is up and there were ``at_least`` of them; prints how many ran through
    at its end, or where it is left."""
    end, seed = time.monotonic() + seconds, first
    try:
        while seed < first + at_least * by or time.monotonic() < end:
            yield seed
            seed += by
    finally:
        print(f"{seed - first} seeds from {first} on ran through", flush=True)
