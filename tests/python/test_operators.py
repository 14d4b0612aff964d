"""A sample of the operator database of PyTorch, in small steps: planned or refused, and in a budget that makes things
leave, with the bits of eager. bench/strangers/operators.py runs all of it; STOWAGE_TEST_SEED names another draw."""

import json
import os
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench" / "strangers" / "operators.py"


def test_operators_drawn_at_random(tmp_path):
    seed = int(os.environ.get("STOWAGE_TEST_SEED", 7))
    print("seed", seed)
    results = tmp_path / "operators.json"
    done = subprocess.run(
        [sys.executable, BENCH, "--some", "12", "--samples", "1", "--inplace", "--seed", str(seed), "-o", results],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr[-3000:]}\n{done.stdout[-3000:]}"
    counts = json.loads(results.read_text())["counts"]
    assert sum(counts.get(bad, 0) for bad in ("wrong", "crash", "hang")) == 0
    assert counts["planned"] >= 20, counts  # of about fifty
