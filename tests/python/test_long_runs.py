"""A short form of bench/step/long_runs.py: losses as eager to the bit, memory and open files constant."""

import json
import subprocess
import sys

import pytest
import searches

# All of them in ./dev soak.
KINDS = ["planned, checked", "in a budget's block"]
if searches.SECONDS:
    KINDS += ["planned", "compiled with a budget"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_grows(kind, tmp_path):
    out = tmp_path / "out.json"
    in_block = kind == "in a budget's block"
    steps = 2400 if in_block else 800  # its timeline and history of accesses fill first
    command = [
        sys.executable,
        "-m",
        "bench.step.long_runs",
        "--steps",
        str(steps),
        "--warm-up",
        "0.6" if in_block else "0.1",
        "--width",
        "16",
        "--worlds",
        "transformer",
        "--kinds",
        kind,
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    case = json.loads(out.read_text())["results"]["cases"][0]
    assert case["same_losses"] == steps and case["grown_files"] == 0
    assert case["planned"] >= (0 if in_block else 780)
