"""What the constants of the searches are worth: each is given other values, the command line (or the runtime) is built
with each, and plans the same work.

    order work, family work, quick work    units of about a nanosecond that a node of the budget grants (src/planner/effort.h)
    rungs, looks                           the ladder of budgets (src/budget/ladder.cpp)
    lane worth                             what a copy that nobody waits for counts (src/eager/cost_aware.cpp)
    far enough                             how far the eager budget looks for what needs a recipe (runtime/evict/graph.cpp)

Graphs are files: FOLDER/*.graph.json.gz. The builds lie in build/constants and are made from the files that git knows, with
one value replaced. Bytes and times that are predicted repeat exactly; seconds are the median of the turns.

    ./dev bench constants --graphs FOLDER
    ./dev bench constants --graphs FOLDER --only rungs looks --turns 5
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from bench import common

BUILD = common.ROOT / "build" / "constants"
TREE = BUILD / "tree"
BUDGETS = (0.15, 0.4, 0.7)  # of the way from the smallest arena to the one without a budget


@dataclass(frozen=True)
class Constant:
    """``pattern``: its value is the first group. ``values``: the one in the sources is among them."""

    file: str
    pattern: str
    values: tuple[str, ...]
    measure: str  # "plans", "budgets" or "eager"


CONSTANTS = {
    "order work": Constant(
        "src/planner/effort.h", r"order_node_budget / share\) \* (\d+)", ("5", "50", "500", "5000"), "plans"
    ),
    "family work": Constant(
        "src/planner/effort.h", r"layout_work\(layout_nodes \* (\d+)\)", ("8", "80", "800", "8000"), "plans"
    ),
    "quick work": Constant(
        "src/planner/effort.h", r"quick_work\(layout_nodes \* (\d+)\)", ("16", "160", "1600", "16000"), "plans"
    ),
    "rungs": Constant(
        "src/budget/ladder.cpp",
        r"return ops <= kSmall \? (48 : ops < 1500 \? 160 : ops < 6000 \? 64 : 40);",
        tuple(
            f"{48 * n // 4} : ops < 1500 ? {160 * n // 4} : ops < 6000 ? {64 * n // 4} : {40 * n // 4}"
            for n in (1, 2, 4, 8)
        ),
        "budgets",
    ),
    "looks": Constant("src/budget/ladder.cpp", r"kLooks = (\d+);", ("1", "4", "8", "16"), "budgets"),
    "lane worth": Constant(
        "src/eager/cost_aware.cpp", r"kLaneWorth = ([\d.]+);", ("0.0", "0.01", "0.05", "0.25", "1.0"), "eager"
    ),
    "far enough": Constant("runtime/evict/graph.cpp", r"kFarEnough = (\d+);", ("8", "64", "512", "4096"), "eager"),
}


# ---- Builds


def prepare() -> None:
    """The sources as they are, those not committed too."""
    names = subprocess.run(["git", "ls-files"], cwd=common.ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\n"):
        source, target = common.ROOT / name, TREE / name
        if not name or not source.is_file() or name.startswith(("docs/", "bench/results")):
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def built(constant: Constant, value: str) -> dict[str, str]:
    """Builds with the value; the environment in which the build is used."""
    text = (common.ROOT / constant.file).read_text()
    found = re.search(constant.pattern, text)
    if found is None or found.group(1) not in constant.values:
        raise SystemExit(f"{constant.file}: its constant is not where, or not what, bench/constants.py says")
    target = TREE / constant.file
    changed = text[: found.start(1)] + value + text[found.end(1) :]
    if target.read_text() != changed:
        target.write_text(changed)
    runtime = constant.measure == "eager"
    folder = BUILD / ("runtime" if runtime else "planner")
    if not (folder / "build.ninja").exists():
        options = [f"-DSTOWAGE_{part}={'ON' if runtime else 'OFF'}" for part in ("PYTHON", "TORCH")]
        command = [
            "cmake",
            "-G",
            "Ninja",
            "-S",
            TREE,
            "-B",
            folder,
            "-DCMAKE_BUILD_TYPE=Release",
            "-DSTOWAGE_TESTS=OFF",
        ]
        python = common.ROOT / ".venv" / "bin" / "python"
        subprocess.run([*command, *options, f"-DPython_EXECUTABLE={python}"], check=True, stdout=subprocess.DEVNULL)
    targets = ["_core", "_runtime"] if runtime else ["stowage"]
    subprocess.run(["cmake", "--build", folder, "--target", *targets], check=True, stdout=subprocess.DEVNULL)
    target.write_text(text)  # the next constant begins with the sources as they are
    if runtime:
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(common.ROOT), str(folder / "python")])}
    return {**os.environ, "STOWAGE_CLI": str(folder / "bin" / "stowage")}


# ---- Measures: figures of one build


def plan(environment: dict[str, str], graph: pathlib.Path, *options: str) -> dict | None:
    """The result, with the CPU seconds that it took; None: no plan."""
    command = [environment["STOWAGE_CLI"], "plan", str(graph), "-o", os.devnull, "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        return None
    return json.loads(text) | {"cpu_s": usage.ru_utime + usage.ru_stime}


def plans(environment: dict[str, str], graphs: list[pathlib.Path], turns: int) -> dict:
    found = [[plan(environment, graph) for _ in range(turns)] for graph in graphs]
    first = [runs[0] for runs in found]
    return {
        "optimal": sum(p["outcome"] == "optimal" for p in first),
        "arena_bytes": sum(p["arena_bytes"] for p in first),
        "cpu_s": sum(common.median([p["cpu_s"] for p in runs]) for runs in found),
    }


def budgets_of(environment: dict[str, str], graph: pathlib.Path) -> list[int]:
    """From the sources as they are, so that all builds get the same."""
    free = plan(environment, graph)
    told = subprocess.run(
        [environment["STOWAGE_CLI"], "plan", str(graph), "-o", os.devnull, "--json", "--budget", str(free["resident_bytes"])],
        capture_output=True, text=True,
    )  # fmt: skip
    found = re.search(r"the smallest budget met is .*?\((\d+) bytes\)", told.stderr)
    if found is None:
        return []
    smallest, most = int(found.group(1)), free["resident_bytes"] + free["arena_bytes"]
    return [smallest + int(share * (most - smallest)) for share in BUDGETS] if smallest < most else []


def budgets(environment: dict[str, str], cases: list[tuple[pathlib.Path, int]], turns: int) -> dict:
    found = [
        [plan(environment, graph, "--budget", str(limit), "--link-gbps", "0") for _ in range(turns)]
        for graph, limit in cases
    ]
    met = [runs for runs in found if runs[0] is not None]
    return {
        "met": len(met),
        "slowdown": math.exp(sum(math.log(r[0]["step_ns"] / r[0]["program_step_ns"]) for r in met) / max(len(met), 1)),
        "cpu_s": sum(common.median([r["cpu_s"] for r in runs]) for runs in met),
    }


def eager(environment: dict[str, str], turns: int) -> dict:
    """bench/eager/eager.py on two models at half of their bytes; a step's time over eager's beside it."""
    out = BUILD / "eager.json"
    command = [str(common.ROOT / ".venv" / "bin" / "python"), "bench/eager/eager.py", "--models", "gpt2,resnet50"]
    command += ["--links", "4", "--shares", "0.5", "--policies", "default", "--brief", "--steps", str(8 * turns)]
    out.unlink(missing_ok=True)
    subprocess.run([*command, "-o", str(out)], check=True, env=environment, cwd=common.ROOT, stdout=subprocess.DEVNULL)
    points = [
        p
        for model in json.loads(out.read_text())["results"]["models"]
        for group in model["groups"]
        for p in group["points"]
        if "failed" not in p
    ]
    return {
        "met": len(points),
        "slowdown": math.exp(sum(math.log(p["ratio"]) for p in points) / max(len(points), 1)),
        "stall_ms": sum(p["stall_ms"] for p in points),
    }


# ---- The sweep


def measures(graphs: list[pathlib.Path], turns: int) -> dict[str, Callable[[dict[str, str]], dict]]:
    cases: list[tuple[pathlib.Path, int]] = []

    def with_cases(environment: dict[str, str]) -> dict:
        if not cases:
            cases.extend((graph, limit) for graph in graphs for limit in budgets_of(environment, graph))
        return budgets(environment, cases, turns)

    return {
        "plans": lambda environment: plans(environment, graphs, turns),
        "budgets": with_cases,
        "eager": lambda environment: eager(environment, turns),
    }


def sweep(name: str, measure: Callable[[dict[str, str]], dict]) -> list[dict]:
    constant = CONSTANTS[name]
    found = re.search(constant.pattern, (common.ROOT / constant.file).read_text())
    ours = found.group(1) if found else ""
    rows = []
    for value in sorted(constant.values, key=lambda v: v != ours):  # ours first: its budgets are everyone's
        figures = measure(built(constant, value))
        rows.append({"value": value, "ours": value == ours, **figures})
        common.say(f"{name} = {value}{' (ours)' if value == ours else ''}: {figures}")
    return sorted(rows, key=lambda row: constant.values.index(row["value"]))


def table(results: dict) -> str:
    tables = []
    for measure, columns in {
        "plans": ("optimal", "arena MiB", "CPU s"),
        "budgets": ("met", "slowdown", "CPU s"),
        "eager": ("met", "slowdown", "stall ms"),
    }.items():
        rows = [
            [name, f"**{r['value']}**" if r["ours"] else r["value"], *_cells(r)]
            for name, found in results.items()
            if CONSTANTS[name].measure == measure
            for r in found
        ]
        if rows:
            tables.append(common.markdown(["constant", "value", *columns], rows, left=2))
    return "\n\n".join(tables)


def _cells(row: dict) -> list[str]:
    if "optimal" in row:
        return [str(row["optimal"]), common.mebibytes(row["arena_bytes"]), f"{row['cpu_s']:.2f}"]
    last = f"{row['cpu_s']:.2f}" if "cpu_s" in row else f"{row['stall_ms']:.1f}"
    return [str(row["met"]), f"{row['slowdown']:.4f}", last]


def main() -> None:
    parser = common.parser(__doc__, "constants")
    parser.add_argument("--graphs", required=True, type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=list(CONSTANTS), metavar="NAME", default=list(CONSTANTS))
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    graphs = sorted(options.graphs.glob("*.graph.json.gz"))
    if not graphs:
        raise SystemExit(f"{options.graphs}: no *.graph.json.gz there")
    prepare()
    how = measures(graphs, options.turns)
    results = {name: sweep(name, how[CONSTANTS[name].measure]) for name in options.only}
    common.publish("constants", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    main()
