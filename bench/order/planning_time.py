"""How long planning takes for steps of many small ops (bench/order/small_ops.py), which run in milliseconds themselves.

Each step is captured once (real tensors, measured costs) and kept under build/small_ops; then, one process each, from
the graph's file to the checked plan's:

    program     eager's order, addresses alone (--keep-order --no-takeover)
    no reuse    order and addresses, no result over an input (no in-place reuse)
    plan        all of it: seconds, bytes
    explain     `stowage explain`: the plan, what other budgets would cost, what to change
    budgets     `stowage plan --budget` at 90, 75 and 50 % of the free arena (`--budgets`)

Targets for up to 10,000 ops: plan at most 3 eager steps or 2 s, whichever is more; explain at most 5 s. Times are CPU
seconds of the process, so that a busy machine does not show.

    ./dev bench planning_time
    ./dev bench planning_time --only lstm-59 rnn-200 --budgets
"""

from __future__ import annotations

import fnmatch
import json
import os
import pathlib
import subprocess
import sys

from bench import common
from bench.order import small_ops

QUICK = ("lstm-10", "lstm-59", "adam-loop-300", "ode-rk4-60")
MOST_S, MOST_STEPS, MOST_EXPLAIN_S = 2.0, 3, 5.0
LARGEST = 10_000
PARTS = (90, 75, 50)


def stowage() -> str:
    return os.environ.get("STOWAGE_CLI", str(common.ROOT / "build/release/bin/stowage"))


def kept(name: str) -> pathlib.Path:
    path = common.ROOT / "build" / "small_ops" / f"{name}.graph.json.gz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(common.ROOT / "bench" / "order" / "small_ops.py"), name, "-o", str(path)]
        subprocess.run(command, check=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return path


def run(*arguments: str) -> tuple[dict, float]:
    """What the command prints as JSON, and its CPU seconds. A budget that is not met gives {}."""
    process = subprocess.Popen([stowage(), *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 4, 5):
        raise SystemExit(f"{' '.join(arguments)}: ended with status {code}")
    return json.loads(text) if code == 0 else {}, usage.ru_utime + usage.ru_stime


def study(name: str, budgets: bool) -> dict:
    graph, target = str(kept(name)), str(common.ROOT / "build" / "small_ops" / "plan.json.gz")
    planned, plan_s = run("plan", graph, "-o", target)
    again, _ = run("plan", graph, "-o", target)
    if {**planned, "seconds": 0} != {**again, "seconds": 0}:
        raise SystemExit(f"{name}: two runs gave two plans")
    plain, plain_s = run("plan", graph, "-o", target, "--no-takeover")
    program, program_s = run("plan", graph, "-o", target, "--no-takeover", "--keep-order")
    explained, explain_s = run("explain", graph)
    result = {
        "name": name,
        "plan_s": plan_s,
        "plain_s": plain_s,
        "program_s": program_s,
        "explain_s": explain_s,
        "program_arena_bytes": program["arena_bytes"],
        "plain_arena_bytes": plain["arena_bytes"],
        "prices": len(explained["prices"]),
        "prices_left_out": explained["prices_left_out"],
        **{k: v for k, v in planned.items() if k != "seconds"},
    }
    if budgets:
        result["budgets"] = []
        for part in PARTS:
            limit = planned["resident_bytes"] + planned["arena_bytes"] * part // 100
            met, seconds = run("plan", graph, "-o", target, "--budget", str(limit))
            result["budgets"].append(
                {"part": part, "met": bool(met), "seconds": seconds, "step_ns": met.get("step_ns")}
            )
    return result


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        kib = lambda count: f"{count / 1024:,.0f}"
        rows.append(
            [
                r["name"],
                f"{r['ops']:,}",
                f"{r['program_step_ns'] / 1e6:.0f}",
                kib(r["program_arena_bytes"]),
                kib(r["plain_arena_bytes"]),
                kib(r["arena_bytes"]),
                f"{100 * r['gap']:.2f} %",
                f"{100 * (r['arena_bytes'] / max(1, r['peak_bytes']) - 1):.2f} %",
                f"{r['program_s']:.2f}",
                f"{r['plain_s']:.2f}",
                f"{r['plan_s']:.2f}",
                f"{r['explain_s']:.2f}",
                f"{r['prices']} of {r['prices'] + r['prices_left_out']}",
            ]
        )
    return common.markdown(
        [
            "step",
            "ops",
            "step ms",
            "program KiB",
            "no reuse",
            "plan",
            "gap",
            "holes",
            "program s",
            "no reuse s",
            "plan s",
            "explain s",
            "prices",
        ],
        rows,
    )


def failures(results: list[dict]) -> list[str]:
    found = []
    for r in results:
        most_s = max(MOST_S, MOST_STEPS * r["program_step_ns"] / 1e9)
        if r["ops"] <= LARGEST and r["plan_s"] > most_s:
            found.append(f"{r['name']}: planning took {r['plan_s']:.2f} s, not {most_s:.2f}")
        if r["ops"] <= LARGEST and r["explain_s"] > MOST_EXPLAIN_S:
            found.append(f"{r['name']}: explaining took {r['explain_s']:.2f} s, not {MOST_EXPLAIN_S:.0f}")
    return found


def main() -> None:
    parser = common.parser(__doc__, "planning_time")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="steps of bench/order/small_ops.py; * and ? match as in a shell"
    )
    parser.add_argument("--budgets", action="store_true", help="plan within 90, 75 and 50 % of the free arena, too")
    parser.add_argument("--quick", action="store_true", help="four steps")
    options = parser.parse_args()
    names = [
        n
        for n in small_ops.CASES
        if (not options.quick or n in QUICK) and (not options.only or any(fnmatch.fnmatch(n, o) for o in options.only))
    ]
    if not names:
        raise SystemExit(f"no step is named {' or '.join(options.only or [])}; bench/order/small_ops.py lists them")
    results = []
    for name in names:
        results.append(study(name, options.budgets))
        r = results[-1]
        common.say(
            f"{name}: {r['ops']} ops, plan {r['plan_s']:.2f} s, explain {r['explain_s']:.2f} s, arena {r['arena_bytes']}, gap {100 * r['gap']:.2f} %"
        )
    output = options.output or ("-" if options.only or options.quick else None)
    common.publish("planning_time", {"results": results}, table(results), output)
    found = failures(results)
    raise SystemExit("\n".join(found) if found else 0)


if __name__ == "__main__":
    main()
