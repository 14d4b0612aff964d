"""Pipelines over 2 and 4 gloo ranks give the numbers of one process (fp64, 1e-9) and hold what the ledger says; on paper
they are planned by the same layers."""

import json
import subprocess
import sys

import pipeline_cases
import pytest
import ranks
import torch
from torch import nn

import stowage
from stowage.sharding.layer_costs import measured, modelled

CASES = [
    f"pipeline_cases.{name}"
    for name, f in vars(pipeline_cases).items()
    if not name.startswith("_") and getattr(f, "__module__", "") == "pipeline_cases" and callable(f)
]
ON_FOUR = [
    f"pipeline_cases.{name}"
    for name in ("one_forward_one_backward", "interleaved", "zero_bubble", "zero_bubble_in_a_v", "a_cut_that_is_given")
]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return ranks.run(2, CASES, str(tmp_path_factory.mktemp("two")))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return ranks.run(4, ON_FOUR, str(tmp_path_factory.mktemp("four")))


@pytest.mark.parametrize("case", CASES)
def test_two_ranks(two, case):
    assert two[case] == [""] * 2, "\n".join(two[case])


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks(four, case):
    assert four[case] == [""] * 4, "\n".join(four[case])


def test_on_paper():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    plan = stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4)
    summary = plan.summary()
    assert summary["outcome"] == "optimal" and len(summary["ranks"]) == 2
    assert summary["stages"][0]["first"] == 0 and summary["stages"][-1]["end"] == len(chain.layers)
    with pytest.raises(stowage.Infeasible) as told:
        stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4, memory_limit=100)
    smallest = told.value.smallest_bytes
    assert smallest == told.value.bound_bytes
    fitting = stowage.shard_plan(chain, batch, mesh=(2,), pipeline=4, memory_limit=smallest)
    assert max(r["peak"] for r in fitting.summary()["ranks"]) <= smallest
    with pytest.raises(TypeError, match=r"needs a stowage.Chain"):
        stowage.shard_plan(lambda x: x, batch, mesh=(2,), pipeline=4)


def test_costs_by_either_way_hold_the_same_bytes():
    chain, batch = pipeline_cases._chain(4), pipeline_cases._batches(1)[0]
    bytes_of = lambda costs: [{k: v for k, v in c.items() if k.endswith("_bytes")} for c in costs]
    assert bytes_of(measured(chain, batch)) == bytes_of(modelled(chain, batch))


def test_what_a_layer_saves():
    """A linear layer with a bias keeps its input, which is not counted, its weight, which is not either, and its output
    leaves: 4 x 5 numbers."""
    chain = stowage.Chain([nn.Linear(3, 5), nn.Linear(5, 2)], nn.functional.mse_loss, torch.optim.SGD)
    first = modelled(chain, (torch.zeros(4, 3), torch.zeros(4, 2)))[0]
    assert first["saved_bytes"] == first["sent_bytes"] == 4 * 5 * 4
    assert first["parameter_bytes"] == first["gradient_bytes"] == (3 * 5 + 5) * 4 and first["optimizer_bytes"] == 0


SCRIPT = """
import torch
import stowage

def make_step(batch_size=8):
    layers = [torch.nn.Linear(16, 16) for _ in range(6)]
    chain = stowage.Chain(layers, torch.nn.functional.mse_loss, lambda ps: torch.optim.AdamW(ps))
    return chain, (torch.randn(batch_size, 16), torch.randn(batch_size, 16))
"""


def test_the_verb(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    asked = [sys.executable, "-m", "stowage", "shard", f"--model-from={script}:make_step", "--mesh=2"]
    run = lambda *more: subprocess.run([*asked, *more], capture_output=True, text=True)
    done = run("--pipeline=4", "--json", "-o", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "optimal"
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "stowage-pipeline-plan"
    told = run("--pipeline=4", "--memory-limit=1KiB")
    assert told.returncode == 4 and "holds" in told.stderr and "Traceback" not in told.stderr
    assert run("--pipeline=3").returncode == 3 and run("--memory-limit=1KiB").returncode == 2
