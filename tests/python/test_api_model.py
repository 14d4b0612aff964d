"""Random sequences of what users do with compiled steps (api_model.py): the same results, the same errors, the same
state as without."""

import pathlib
import subprocess
import sys

import searches

SEED = searches.first_seed()
COUNT, A_CHILD = 6, 20
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


@searches.longer
def test_many_random_sequences():
    for seed in searches.seeds(SEED, by=A_CHILD):
        print(f"seeds {seed} to {seed + A_CHILD - 1}: {sequences(seed, A_CHILD).splitlines()[-1]}", flush=True)
