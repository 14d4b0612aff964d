"""Puts the tables of bench/results/*.json into the pages of docs/benchmarks, between ``<!-- NAME -->`` and
``<!-- /NAME -->``, wherever these stand.

./dev bench tables
"""

from __future__ import annotations

import json
import pathlib
import re

from bench import common, constants, fuzz
from bench.budget import (
    batch,
    budget_planning,
    budget_report,
    larger_than_memory,
    least_total,
    oracle,
    residents,
    total_frontier,
)
from bench.eager import doctor, eager_bits, eager_report, limit_holds, run_scripts
from bench.inductor import compiled_steps, inductor
from bench.layout import layout
from bench.order import order_tables, planning_time, scale, scaling
from bench.shard import shard_budget, shard_replay, shard_tables, strategy
from bench.step import (
    checking,
    executed,
    kept_gradients,
    long_runs,
    loss_head,
    peak,
    repeatability,
    small_steps,
    step_time,
    tiles,
    will_it_fit,
)
from bench.strangers import architectures, strangers_tables

TABLES = {
    "architectures": architectures.table,
    "batch": batch.table,
    "budget": budget_report.table,
    "budget_planning": budget_planning.table,
    "checking": checking.table,
    "compiled_steps": compiled_steps.table,
    "constants": constants.table,
    "doctor": doctor.table,
    "eager": eager_report.table,
    "eager_bits": eager_bits.table,
    "executed": executed.table,
    "fuzz": fuzz.table,
    "inductor": inductor.table,
    "kept_gradients": kept_gradients.table,
    "larger_than_memory": larger_than_memory.table,
    "layout": layout.table,
    "least_total": least_total.table,
    "limit_holds": limit_holds.table,
    "long_runs": long_runs.table,
    "loss_head": loss_head.table,
    "tiles": tiles.table,
    "oracle": oracle.table,
    "order": order_tables.table,
    "peak": peak.table,
    "planning_time": planning_time.table,
    "small_steps": small_steps.table,
    "step_time": step_time.table,
    "scale": scale.table,
    "scaling": scaling.table,
    "repeatability": repeatability.table,
    "residents": residents.table,
    "run_scripts": run_scripts.table,
    "shard": shard_tables.table,
    "shard_budget": shard_budget.table,
    "shard_replay": shard_replay.table,
    "strangers": strangers_tables.cases,
    "operators": strangers_tables.operators,
    "strategy": strategy.table,
    "total_frontier": total_frontier.table,
    "will_it_fit": will_it_fit.table,
}
DOCS = common.ROOT / "docs"


def pages() -> list[pathlib.Path]:
    """The first page of the benchmarks, then those with the tables."""
    return [DOCS / "benchmarks.md", *sorted((DOCS / "benchmarks").glob("*.md"))]


def footer(environment: dict) -> str:
    e = environment
    return (
        f'{e["cpu"]}, {e["cores"]} cores, transparent huge pages "{e["transparent_huge_pages"]}"; Python {e["python"]}, '
        f"PyTorch {e['torch']}, transformers {e['transformers']}; commit {e['commit']}."
    )


def main() -> None:
    texts = {path: path.read_text() for path in pages()}
    for name, table in TABLES.items():
        path = common.RESULTS / f"{name}.json"
        if not path.exists():
            common.say(f"no {path.name}: its table stays as it is")
            continue
        content = json.loads(path.read_text())
        block = (
            f"<!-- {name} -->\n\n{table(content['results'])}\n\n{footer(content['environment'])}\n\n<!-- /{name} -->"
        )
        count = 0
        for page, text in texts.items():
            place = re.compile(rf"<!-- {name} -->.*?<!-- /{name} -->", re.DOTALL)
            texts[page], found = place.subn(lambda _, block=block: block, text)
            count += found
        if count != 1:
            raise SystemExit(f"docs/benchmarks has {count} places for '{name}'")
    for page, text in texts.items():
        page.write_text(text)


if __name__ == "__main__":
    main()
