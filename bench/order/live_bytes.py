"""Draws the bytes live over the demo's training step, in the recorded order and as planned.

Both curves are of the same graph: the first of a plan that keeps the order of eager, the second of the plan that runs.

    ./dev bench live_bytes
    ./dev bench live_bytes --clip norm
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import tempfile

import torch

import stowage
from stowage import demo

ROWS, COLUMNS = 10, 64


def curve(graph: stowage.Graph, plan: stowage.Plan) -> list[int]:
    """Bytes of all placements, scratch apart, at each step of the plan."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder) / name for name in ("g.graph.json", "p.plan.json")]
        graph.save(str(paths[0]))
        plan.save(str(paths[1]))
        graph_file, plan_file = (json.loads(path.read_text()) for path in paths)
    changes = [0] * (len(plan_file["steps"]) + 1)
    for placement in plan_file["placements"]:
        size = graph_file["buffers"][placement["buffer"]]["bytes"]
        changes[placement["from"]] += size
        changes[placement["to"]] -= size
    return list(itertools.accumulate(changes))[:-1]


def picture(values: list[int], top: int) -> str:
    """Largest value in each of COLUMNS stretches of time, as bars; an axis in MiB on the left."""
    bins = [
        max(values[i * len(values) // COLUMNS : max((i + 1) * len(values) // COLUMNS, i * len(values) // COLUMNS + 1)])
        for i in range(COLUMNS)
    ]
    lines = []
    for row in range(ROWS, 0, -1):
        bars = "".join("#" if value > (row - 0.5) * top / ROWS else " " for value in bins)
        lines.append(f"{row * top / ROWS / 2**20:4.0f} |{bars}".rstrip())
    return "\n".join([*lines, "   0 +" + "-" * COLUMNS])


# The demo's training in a small batch: gradients make the peak
OF_THE_PICTURE = ["--batch", "2", "--sequence", "64", "--layers", "4", "--width", "768"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev bench live_bytes")
    parser.add_argument(
        "--clip",
        choices=("norm", "value", "none"),
        default="value",
        help="gradient clipping of the demo (default value)",
    )
    options = demo.parse([*OF_THE_PICTURE, "--clip", parser.parse_args().clip])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = demo.make_step(demo.make_model(options), options.clip)
    graph = stowage.capture(step, next(demo.batches(demo.corpus(), options)), name="demo")
    recorded, planned = stowage.plan(graph, keep_order=True), stowage.plan(graph)
    top = recorded.summary()["peak_bytes"]
    for title, plan in (("order of eager", recorded), ("planned", planned)):
        print(
            f"MiB live, {title}: peak {plan.summary()['peak_bytes'] / 2**20:.1f}\n{picture(curve(graph, plan), top)}\n"
        )


if __name__ == "__main__":
    main()
