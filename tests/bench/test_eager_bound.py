"""The bound on any policy's step, on a step small enough to see it: 150 bytes at most are there when the update begins,
and it reads 300."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from bench.eager.eager_bound import StepBound


def graph(second: str) -> dict:
    buffers = [{"bytes": 100, "resident": True}, {"bytes": 100, "resident": True}, {"bytes": 100}, {"bytes": 100}]
    ops = [
        {"target": "aten::relu", "reads": [0], "creates": [2], "cost_ns": 10},
        {"target": second, "reads": [2], "creates": [3], "cost_ns": 10},
        {"target": "aten::_fused_adamw_", "reads": [3], "writes": [0, 1], "cost_ns": 10},
    ]
    return {"buffers": buffers, "ops": ops}


@pytest.mark.parametrize("second, limit_bytes, gbps, lost_ns", [
    # All at once: what comes in meanwhile, less the update's own time
    ("aten::threshold_backward", 150, 1, 300 - 150 - 10),
    ("aten::threshold_backward", 150, 10, 15 - 10),
    ("aten::threshold_backward", 300, 1, 0),
    ("aten::relu", 150, 1, 200 - 150 - 10),  # of forward: it may be made again
])  # fmt: skip
def test_bound(second, limit_bytes, gbps, lost_ns):
    assert StepBound(graph(second)).lost_s(limit_bytes, gbps) * 1e9 == pytest.approx(lost_ns)
