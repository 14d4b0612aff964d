"""Every example runs, is short, and its steps are planned."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "accelerate_loop": ("accelerate",),
    "lightning_trainer": ("lightning",),
}
RANKS = {"torchrun_data_parallel": 2, "torchrun_shard": 2}


def names():
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", names())
def test_example(name, tmp_path):
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[name])] if name in RANKS else []
    )
    environment = dict(
        os.environ, OMP_NUM_THREADS="1", TRANSFORMERS_VERBOSITY="error", PYTHONWARNINGS="error:stowage:UserWarning"
    )
    command = [sys.executable, *launcher, str(EXAMPLES / f"{name}.py")]
    for _ in range(8):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment)
        # Without Stowage, too: a thread of gloo's that lets go of a collective's tensors waits for the GIL of an interpreter
        # that ends, and its process aborts after all work is done. The same loop in plain PyTorch, beside two busy
        # processes: 11 of 42 runs; with a barrier before the group's end 2 of 27.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    if name == "eager_budget":
        peak, limit, evictions = re.search(
            r"peak ([\d.]+) MiB within ([\d.]+) MiB; (\d+) evictions", done.stdout
        ).groups()
        assert float(peak) <= float(limit) and int(evictions) > 0
        return
    planned = re.search(r"planned steps: (\d+)", done.stdout)
    assert planned and int(planned[1]) >= 10, done.stdout
    assert "runs eagerly" not in done.stderr


@pytest.mark.parametrize("name", names())
def test_example_is_short_and_marked(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 60
    assert text.startswith('"""')
