"""Random sequences of what users do with compiled steps (api_model.py): the same results, the same errors, the same
state as without."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

SECONDS = float(os.environ.get("STOWAGE_SOAK_SECONDS", "0"))
SEED = int(os.environ.get("STOWAGE_SEED", "0")) or (int(time.time()) if SECONDS else 1)
COUNT, A_CHILD = 14, 20
_TOOL = pathlib.Path(__file__).with_name("api_model.py")


def sequences(first: int, count: int, seconds: float = 1e6) -> str:
    """In a process of its own, so that one that crashes or hangs is told by its seed."""
    done = subprocess.run(
        [sys.executable, str(_TOOL), str(first), str(count), "--seconds", str(seconds)], capture_output=True, text=True
    )
    assert done.returncode == 0, (
        f"status {done.returncode}, first seed {first}\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout


def test_random_sequences():
    told = sequences(SEED, COUNT).splitlines()[-1]
    print(f"seed {SEED}: {told}")
    calls, planned = int(told.split()[0]), int(told.split()[2])
    assert planned > calls // 5 > 20, told


@pytest.mark.skipif(not SECONDS, reason="longer searches run by ./dev soak")
def test_many_random_sequences():
    seed, end = SEED, time.monotonic() + SECONDS
    while time.monotonic() < end:
        print(f"seeds {seed} to {seed + A_CHILD - 1}: {sequences(seed, A_CHILD).splitlines()[-1]}", flush=True)
        seed += A_CHILD
