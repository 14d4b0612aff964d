"""`stowage strategy` on public problems of intra-operator parallelism (google/iopddl, the contest of ASPLOS / EuroSys
2025).

    ./dev bench strategy --folder DATA          DATA holds iopddl-*.json.gz; writes bench/results/strategy.json

Each problem is solved in a process of its own under a limit of seconds; its memory is that process's largest resident
set. The choice is read back and priced anew, by a few lines that share nothing with the planner. Targets: 300 s and 8
GiB each."""

from __future__ import annotations

import gzip
import json
import pathlib

from bench import common
from bench.order import order

BEST_KNOWN = {"iopddl-G": 217_039, "iopddl-V": 1_632_000}  # G is proven; V is about that


def price(problem: dict, strategies: list[int]) -> int:
    """Cost of a choice; raises when it passes the limit of usage at some time."""
    nodes, edges = problem["nodes"], problem["edges"]
    cost = sum(c[s] for c, s in zip(nodes["costs"], strategies, strict=True))
    for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost += costs[strategies[u] * len(nodes["costs"][v]) + strategies[v]]
    limit = problem.get("usage_limit")
    if limit is None:
        return cost
    changes: dict[int, int] = {}
    for (lower, upper), usages, s in zip(nodes["intervals"], nodes["usages"], strategies, strict=True):
        if lower < upper:
            changes[lower] = changes.get(lower, 0) + usages[s]
            changes[upper] = changes.get(upper, 0) - usages[s]
    usage = 0
    for t in sorted(changes):
        usage += changes[t]
        if usage > limit:
            raise SystemExit(f"a choice uses {usage} at time {t}, more than {limit}")
    return cost


def solve(path: pathlib.Path, limit: float) -> dict:
    choice = common.ROOT / "build" / "strategy.choice.json"
    command = [order.stowage(), "strategy", str(path), "-o", str(choice), "--time-limit", str(limit), "--json"]
    text, took = common.measured_run(command)
    found = json.loads(text)
    with gzip.open(path) as file:
        problem = json.load(file)["problem"]
    priced = price(problem, json.loads(choice.read_text())["strategies"])
    if priced != found["cost"]:
        raise SystemExit(f"{path.name}: a cost of {found['cost']} was printed, the choice costs {priced}")
    choice.unlink()
    return found | took


def table(results: dict) -> str:
    rows = []
    for name, r in results["problems"].items():
        best = BEST_KNOWN.get(name)
        rows.append(
            [
                name,
                f"{r['nodes']:,}",
                f"{r['edges']:,}",
                f"{r['cost']:,}",
                f"{best:,}" if best else "",
                f"{r['bound']:,}",
                f"{100 * r['gap']:.2f} %",
                r["outcome"],
                f"{r['wall_s']:.0f}",
                f"{r['cpu_s']:.0f}",
                f"{r['resident_set_bytes'] / 2**30:.2f}",
            ]
        )
    return common.markdown(
        [
            "problem",
            "nodes",
            "edges",
            "cost",
            "best known",
            "bound",
            "gap",
            "outcome",
            "wall s",
            "CPU s",
            "resident set GiB",
        ],
        rows,
    )


def main() -> None:
    parser = common.parser(__doc__, "strategy")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the problems are")
    parser.add_argument("--problems", nargs="+", default=["G", "V", "K", "P"])
    parser.add_argument("--time-limit", type=float, default=270)
    arguments = parser.parse_args()
    target = pathlib.Path(arguments.output or common.RESULTS / "strategy.json")
    problems = json.loads(target.read_text())["results"]["problems"] if target.exists() else {}
    for letter in arguments.problems:
        name = f"iopddl-{letter}"
        problems[name] = solve(arguments.folder / f"{name}.json.gz", arguments.time_limit)
        common.say(f"{name}: {problems[name]['outcome']} {problems[name]['cost']}, {problems[name]['wall_s']:.0f} s")
    results = {"problems": dict(sorted(problems.items()))}
    common.publish("strategy", {"results": results}, table(results), arguments.output)


if __name__ == "__main__":
    main()
