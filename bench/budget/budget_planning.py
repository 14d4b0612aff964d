"""Planning under a byte limit: how long it takes, how close to the proven bound it comes, and whether more bytes ever
cost time.

Graphs are captured steps (bench/order/graphs.py). For each, budgets from the smallest that the planner meets up to what a
plan without a limit needs, spaced geometrically in the bytes beyond the residents. Every plan is verified by the
independent checker.

    s           whole planning, longest over the budgets; targets: 30 s for GPT2-XL, 5 s below 5,000 ops
    slowdown    predicted step over the step without a limit, at the smallest budget and at half of the arena without a limit
    gap         predicted step over the proven bound ``step_bound_ns``, less 1: median and largest over the budgets
    rises       budgets whose predicted step is longer than that of a smaller budget: none may be

    ./dev bench budget_planning
    ./dev bench budget_planning --only gpt2-s1024-b4 --budgets 30 --link-gbps 0
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile

from bench import common
from bench.order import graphs

LARGE = ("gpt2_xl-s1024-b1",)
SMALL = (
    "gpt2-s1024-b4",
    "bert-s128-b8",
    "resnet50-b32",
    "vit_b_16-b32",
    "densenet121-b32",
    "unet-b8",
    "moe-s512-b8",
    "t5_small-s128-b8",
    "swin_t-b16",
    "convnext_t-b16",
    "googlenet-b32",
    "mobilenet_v2-b32",
)
QUICK = ("gpt2-s1024-b4", "resnet50-b32", "unet-b8")
MOST_SECONDS = {True: 30, False: 5}


def stowage(*arguments: str) -> tuple[int, str]:
    command = os.environ.get("STOWAGE_CLI", str(common.ROOT / "build/release/bin/stowage"))
    done = subprocess.run([command, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 4, 5):
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.returncode, done.stdout


def plan(graph: pathlib.Path, *options: str) -> dict | None:
    """The summary of a plan that the checker has accepted; None when the budget is not met."""
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "plan.json")
        code, text = stowage("plan", str(graph), "-o", target, "--json", *options)
        if code:
            return None
        if stowage("check", str(graph), target)[0]:
            raise SystemExit(f"{graph.name}: the plan is not valid")
    return json.loads(text)


def budgets_between(low: int, high: int, count: int) -> list[int]:
    """From low to high, growing by a constant factor."""
    return [round(low * (high / low) ** (i / (count - 1))) for i in range(count)]


def study(name: str, path: pathlib.Path, count: int, link: list[str]) -> dict:
    free = plan(path)
    resident, arena = free["resident_bytes"], free["arena_bytes"]
    least = json.loads(stowage("fit", str(path), "--budget", "1", "--json", *link)[1])["tried"][0]["smallest_bytes"]
    runs = []
    for bytes_ in budgets_between(least - resident, arena, count):
        result = plan(path, "--budget", str(resident + bytes_), *link)
        runs.append(
            {
                "arena_limit_bytes": bytes_,
                "met": result is not None,
                **(
                    {
                        key: result[key]
                        for key in (
                            "arena_bytes",
                            "step_ns",
                            "step_bound_ns",
                            "recomputed_ops",
                            "swapped_bytes",
                            "peak_bytes",
                        )
                    }
                    | {"seconds": result["seconds"]["total"]}
                    if result
                    else {}
                ),
            }
        )
    met = [run for run in runs if run["met"]]
    over = [run for run in met if run["arena_bytes"] > run["arena_limit_bytes"]]
    if over:
        raise SystemExit(
            f"{name}: an arena of {over[0]['arena_bytes']} bytes exceeds its limit of {over[0]['arena_limit_bytes']}"
        )
    return {
        "graph": name,
        "ops": free["ops"],
        "large": name in LARGE,
        "resident_bytes": resident,
        "free_arena_bytes": arena,
        "least_arena_bytes": least - resident,
        "program_step_ns": free["program_step_ns"],
        "free_s": free["seconds"]["total"],
        "runs": runs,
    }


def rises(runs: list[dict]) -> int:
    met = [run for run in runs if run["met"]]
    return sum(later["step_ns"] > min(run["step_ns"] for run in met[: i + 1]) for i, later in enumerate(met[1:]))


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        met = [run for run in r["runs"] if run["met"]]
        gaps = [run["step_ns"] / run["step_bound_ns"] - 1 for run in met if run["step_bound_ns"]]
        half = min(
            (run for run in met if run["arena_limit_bytes"] <= r["free_arena_bytes"] / 2),
            key=lambda run: run["step_ns"],
            default=None,
        )
        slow = lambda run: f"{run['step_ns'] / r['program_step_ns']:.3f}" if run else ""
        rows.append(
            [
                r["graph"],
                r["ops"],
                f"{len(met)} of {len(r['runs'])}",
                f"{max(run['seconds'] for run in met):.2f}",
                f"{r['least_arena_bytes'] / r['free_arena_bytes']:.3f}",
                slow(met[0]),
                slow(half),
                f"{100 * common.median(gaps):.1f} %" if gaps else "",
                f"{100 * max(gaps):.1f} %" if gaps else "",
                rises(r["runs"]),
            ]
        )
    return common.markdown(
        [
            "graph",
            "ops",
            "budgets met",
            "longest s",
            "least / free arena",
            "slowdown at least",
            "at half",
            "median gap",
            "largest gap",
            "rises",
        ],
        rows,
    )


def failures(results: list[dict]) -> list[str]:
    found = []
    for r in results:
        longest = max((run["seconds"] for run in r["runs"] if run["met"]), default=0)
        if longest > MOST_SECONDS[r["large"] or r["ops"] >= 5000]:
            found.append(f"{r['graph']}: planning takes {longest:.1f} s")
        if rises(r["runs"]):
            found.append(f"{r['graph']}: {rises(r['runs'])} budgets are slower than a smaller one")
        if missed := [run for run in r["runs"] if not run["met"]]:
            found.append(f"{r['graph']}: {len(missed)} budgets at or above the smallest are not met")
    return found


def main() -> None:
    parser = common.parser(__doc__, "budget_planning")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(graphs.CASES),
        metavar="GRAPH",
        help="of those that bench/order/graphs.py lists",
    )
    parser.add_argument("--budgets", type=int, default=8, help="of each graph (default 8)")
    parser.add_argument("--link-gbps", type=float, help="of each swap lane; 0: recomputation alone")
    parser.add_argument("--quick", action="store_true", help="three graphs, 5 budgets")
    options = parser.parse_args()
    names = options.only or (QUICK if options.quick else (*SMALL, *LARGE))
    count = 5 if options.quick else options.budgets
    if count < 2:
        parser.error("--budgets must be at least 2")
    link = ["--link-gbps", str(options.link_gbps)] if options.link_gbps is not None else []
    store, results = graphs.Store(), []
    try:
        for name in names:
            common.say(name)
            results.append(study(name, store.path(name, "adam"), count, link))
    finally:
        store.close()
    common.publish(
        "budget_planning", {"results": results, "link_gbps": options.link_gbps}, table(results), options.output
    )
    found = failures(results)
    raise SystemExit("\n".join(found) if found else 0)


if __name__ == "__main__":
    main()
