"""Peaks of training steps as others and as Stowage plan them, on graphs that stowage.capture made (bench/order/graphs.py).

Every planner gets the same graph and the same padded bytes; every order and layout is verified by the independent
checker.

    program     eager's order, each buffer freed after its last use; what a layout without holes would need
    PyTorch     the same order through a model of PyTorch's caching allocator: bytes reserved (modelled, not measured)
    LESCEA      greedy order and LLFB layout, the baselines of ROAM's paper: arena
    Inductor    the best of Inductor's three orders and program order: peak, as if nothing were lost to fragmentation
    ROAM        as described in its paper (src/roam), its ILPs solved by HiGHS, with an outer stop: arena
    MODeL       its two integer programs on the undivided step, solved by HiGHS within a limit a stage (the paper's cases): arena
    Stowage     order and layout without in-place reuse, which the others do not have either: arena, bound, gap
    takeover    the same with it, on the graph as captured; its bound is another one

    ./dev bench order                 all graphs; those done by the same build are kept in build/order and not planned again
    ./dev bench order --quick         ten graphs
    ./dev bench order --only gpt2-ckpt-s1024-b1 llama_1b-ckpt-s2048-b1
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import os
import pathlib
import subprocess

from bench import common
from bench.order import graphs, order_tables

SHORT_SECONDS = 1.0  # below it a time is the median of three runs
ROAM_LIMIT = 10.0  # seconds
MODEL_LIMIT = 10.0  # seconds of each of its two stages
ROAM_PARTS = ("segments", "tree", "order-ilp", "updates", "layout-ilp", "activation-stack", "concatenation")
ABLATION = (
    "alexnet-b1.paper",
    "roberta-b1.paper",
    "vit_b_16-b1.paper",
    "gpt2-ckpt-s1024-b1.adam",
    "bert_large-s128-b1.adam",
)
_BUILD = common.ROOT / "build" / "release"


def stowage() -> str:
    return os.environ.get("STOWAGE_CLI", str(_BUILD / "bin" / "stowage"))


def rivals() -> str:
    subprocess.run(["cmake", "--build", str(_BUILD), "--target", "rivals"], check=True, stdout=subprocess.DEVNULL)
    return str(_BUILD / "bin" / "rivals")


def json_of(*command: str) -> dict:
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def plan(graph: pathlib.Path, *options: str, repeatable: bool = True) -> dict:
    """The summary of `stowage plan`; seconds from the graph's file to the checked plan's. An outer stop is not
    repeatable."""
    target = graph.parent / f"{graph.name}.plan.json.gz"
    command = [stowage(), "plan", str(graph), "-o", str(target), "--json", *options]
    runs = [json_of(*command)]
    while repeatable and runs[0]["seconds"]["total"] < SHORT_SECONDS and len(runs) < 3:
        runs.append(json_of(*command))
    checked = json_of(stowage(), "check", str(graph), str(target), "--json")
    if checked["peak_bytes"] != runs[0]["peak_bytes"]:
        raise SystemExit(f"{graph.name}: the checker counts another peak than the plan's summary")
    target.unlink()
    if any(
        {k: v for k, v in run.items() if k != "seconds"} != {k: v for k, v in runs[0].items() if k != "seconds"}
        for run in runs
    ):
        raise SystemExit(f"{graph.name}: two runs gave two plans")
    result = dict(runs[0])
    result["seconds"] = {key: common.median([run["seconds"][key] for run in runs]) for key in runs[0]["seconds"]}
    return result


def without_reuse(graph: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The graph with no pairs for in-place reuse, in a file beside it, and its parameters' bytes: what the
    rivals get, and bounds that hold for them."""
    content = json.loads(gzip.decompress(graph.read_bytes()))
    for op in content["ops"]:
        op.pop("takeover", None)
    path = graph.with_name(graph.name.replace(".graph.json.gz", ".plain.graph.json.gz"))
    path.write_bytes(gzip.compress(json.dumps(content).encode(), 1, mtime=0))
    return path, sum(b["bytes"] for b in content["buffers"] if b["kind"] == "parameter")


class Kept:
    """Results of graphs that are done, under build/order, by the digest of the programs that made them, this one
    included."""

    def __init__(self, programs: list[str], enabled: bool):
        digest = hashlib.sha256(b"".join(pathlib.Path(p).read_bytes() for p in programs)).hexdigest()[:12]
        self._folder = common.ROOT / "build" / "order" / digest
        self._enabled = enabled

    def get(self, graph: pathlib.Path, what: str, make) -> dict:
        path = self._folder / f"{graph.parent.name}-{graph.name.removesuffix('.graph.json.gz')}.{what}.json"
        if self._enabled and path.exists():
            return json.loads(path.read_text())
        result = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
        return result


def measure(others: str, graph: pathlib.Path) -> dict:
    plain, parameters = without_reuse(graph)
    return {
        **json_of(others, "order", str(plain)),
        "stowage": plan(plain),
        "takeover": plan(graph),
        "parameter_bytes": parameters,
    }


def measure_roam(graph: pathlib.Path, limit: float) -> dict:
    """ROAM, and on few graphs ROAM with one part off."""
    plain, _ = without_reuse(graph)
    options = ("--method", "roam", "--time-limit", str(limit))
    result = {"roam": plan(plain, *options, repeatable=False)}
    if graph.name.removesuffix(".graph.json.gz") in ABLATION:
        result["ablation"] = {
            part: plan(plain, *options, "--roam-without", part, repeatable=False) for part in ROAM_PARTS
        }
    return result


def measure_model(others: str, graph: pathlib.Path, limit: float) -> dict:
    plain, _ = without_reuse(graph)
    return {"model": json_of(others, "model", str(plain), "--seconds", str(limit))}


def _chosen(only: list[str] | None, quick: bool) -> list[tuple[str, str]]:
    names = [
        n
        for n in graphs.CASES
        if (not quick or n in graphs.QUICK) and (not only or any(fnmatch.fnmatch(n, o) for o in only))
    ]
    if not names:
        raise SystemExit(f"no graph is named {' or '.join(only or [])}; bench/order/graphs.py lists them")
    return [(n, "adam") for n in names] + [
        (n, "paper") for n in names if graphs.CASES[n].paper or n.startswith("gpt2_xl-s1024")
    ]


def main() -> None:
    parser = common.parser(__doc__, "order")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="graphs to plan; * and ? match as in a shell")
    parser.add_argument("--quick", action="store_true", help="ten graphs")
    parser.add_argument(
        "--roam-limit",
        type=float,
        default=ROAM_LIMIT,
        help=f"outer stop of ROAM in seconds (default {ROAM_LIMIT:g}); 0: leave it out",
    )
    parser.add_argument(
        "--model-limit",
        type=float,
        default=MODEL_LIMIT,
        help=f"of each stage of MODeL (default {MODEL_LIMIT:g}); 0: leave it out",
    )
    parser.add_argument(
        "--anew", action="store_true", help="do not use results that an earlier run of the same build kept"
    )
    options = parser.parse_args()
    others = rivals()
    kept = Kept([stowage(), others, __file__], not options.anew)
    store = graphs.Store()
    results = []
    for name, form in _chosen(options.only, options.quick):
        graph = store.path(name, form)
        result = kept.get(graph, "all", lambda: measure(others, graph))
        if options.roam_limit > 0:
            result |= kept.get(graph, f"roam{options.roam_limit:g}", lambda: measure_roam(graph, options.roam_limit))
        if options.model_limit > 0 and graphs.CASES[name].paper:
            result |= kept.get(
                graph, f"model{options.model_limit:g}", lambda: measure_model(others, graph, options.model_limit)
            )
        results.append({"name": name, "form": form, **result})
        s = result["stowage"]
        common.say(
            f"{name}.{form}: {common.mebibytes(s['program_peak_bytes'])} -> {common.mebibytes(s['arena_bytes'])} MiB, {s['outcome']}, {s['seconds']['total']:.2f} s"
        )
    store.close()
    output = options.output or ("-" if options.only or options.quick else None)
    common.publish(
        "order",
        {"results": results, "counts": {mode: order_tables.counts(results, mode) for mode in ("stowage", "takeover")}},
        order_tables.table(results),
        output,
    )


if __name__ == "__main__":
    main()
