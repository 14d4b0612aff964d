"""Puts the tables of bench/results/*.json into docs/benchmarks.md, between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

bench/tables.py
"""

from __future__ import annotations

import json
import re

import batch
import budget_planning
import budget_report
import checking
import common
import eager_bits
import eager_report
import executed
import limit_holds
import long_runs
import oracle
import order_tables
import peak
import planning_time
import repeatability
import run_scripts
import scale
import scaling
import shard_replay
import shard_tables
import step_time
import strangers_tables
import will_it_fit

import layout
import strategy

TABLES = {
    "batch": batch.table,
    "budget": budget_report.table,
    "budget_planning": budget_planning.table,
    "checking": checking.table,
    "eager": eager_report.table,
    "eager_bits": eager_bits.table,
    "executed": executed.table,
    "layout": layout.table,
    "limit_holds": limit_holds.table,
    "long_runs": long_runs.table,
    "oracle": oracle.table,
    "order": order_tables.table,
    "peak": peak.table,
    "planning_time": planning_time.table,
    "step_time": step_time.table,
    "scale": scale.table,
    "scaling": scaling.table,
    "repeatability": repeatability.table,
    "run_scripts": run_scripts.table,
    "shard": shard_tables.table,
    "shard_replay": shard_replay.table,
    "strangers": strangers_tables.cases,
    "operators": strangers_tables.operators,
    "strategy": strategy.table,
    "will_it_fit": will_it_fit.table,
}
PAGE = common.ROOT / "docs" / "benchmarks.md"


def footer(environment: dict) -> str:
    e = environment
    return (
        f'{e["cpu"]}, {e["cores"]} cores, transparent huge pages "{e["transparent_huge_pages"]}"; Python {e["python"]}, '
        f"PyTorch {e['torch']}, transformers {e['transformers']}; commit {e['commit']}."
    )


def main() -> None:
    page = PAGE.read_text()
    for name, table in TABLES.items():
        path = common.RESULTS / f"{name}.json"
        if not path.exists():
            common.say(f"no {path.name}: its table stays as it is")
            continue
        content = json.loads(path.read_text())
        block = (
            f"<!-- {name} -->\n\n{table(content['results'])}\n\n{footer(content['environment'])}\n\n<!-- /{name} -->"
        )
        page, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _: block, page, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE.name} has {count} places for '{name}'")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
