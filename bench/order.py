"""Peaks of training steps as others and as Stowage plan them, on graphs that stowage.capture made (bench/graphs.py).

Every planner gets the same graph and the same padded bytes; every order and layout is verified by the independent checker.

    program     eager's order, each buffer freed after its last use; what a layout without holes would need
    PyTorch     the same order through a model of PyTorch's caching allocator: bytes reserved (modelled, not measured)
    LESCEA      greedy order and LLFB layout, the baselines of ROAM's paper: arena
    Inductor    the best of Inductor's three orders and program order: peak, as if nothing were lost to fragmentation
    Stowage     order and layout without in-place takeover, which the others do not have either: arena, bound, gap
    takeover    the same with it

    bench/order.py                 all graphs; those done by the same build are kept in build/order and not planned again
    bench/order.py --quick         ten graphs
    bench/order.py --only gpt2-ckpt-s1024-b1 llama_1b-ckpt-s2048-b1
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import pathlib
import subprocess

import common
import graphs

MIB = 2**20
SHORT_SECONDS = 1.0  # below it a time is the median of three runs
_BUILD = common.ROOT / "build" / "release"


def stowage() -> str:
    return os.environ.get("STOWAGE_CLI", str(_BUILD / "bin" / "stowage"))


def rivals() -> str:
    subprocess.run(["cmake", "--build", str(_BUILD), "--target", "rivals"], check=True, stdout=subprocess.DEVNULL)
    return str(_BUILD / "bin" / "rivals")


def json_of(*command: str) -> dict:
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def plan(graph: pathlib.Path, *options: str) -> dict:
    """The summary of `stowage plan`; seconds from the graph's file to the checked plan's."""
    target = graph.parent / f"{graph.name}.plan.json.gz"
    command = [stowage(), "plan", str(graph), "-o", str(target), "--json", *options]
    runs = [json_of(*command)]
    while runs[0]["seconds"]["total"] < SHORT_SECONDS and len(runs) < 3:
        runs.append(json_of(*command))
    checked = json_of(stowage(), "check", str(graph), str(target), "--json")
    if checked["peak_bytes"] != runs[0]["peak_bytes"]:
        raise SystemExit(f"{graph.name}: the checker counts another peak than the plan's summary")
    target.unlink()
    if any({k: v for k, v in run.items() if k != "seconds"} != {k: v for k, v in runs[0].items() if k != "seconds"} for run in runs):
        raise SystemExit(f"{graph.name}: two runs gave two plans")
    result = dict(runs[0])
    result["seconds"] = {key: common.median([run["seconds"][key] for run in runs]) for key in runs[0]["seconds"]}
    return result


def parameter_bytes(graph: pathlib.Path) -> int:
    import gzip

    buffers = json.loads(gzip.decompress(graph.read_bytes()))["buffers"]
    return sum(b["bytes"] for b in buffers if b["kind"] == "parameter")


class Kept:
    """Results of graphs that are done, under build/order, by the digest of the programs that made them."""

    def __init__(self, programs: list[str], enabled: bool):
        digest = hashlib.sha256(b"".join(pathlib.Path(p).read_bytes() for p in programs)).hexdigest()[:12]
        self._folder = common.ROOT / "build" / "order" / digest
        self._enabled = enabled

    def get(self, graph: pathlib.Path, make) -> dict:
        path = self._folder / f"{graph.parent.name}-{graph.name.removesuffix('.graph.json.gz')}.json"
        if self._enabled and path.exists():
            return json.loads(path.read_text())
        result = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
        return result


def measure(rivals: str, graph: pathlib.Path) -> dict:
    others = json_of(rivals, "order", str(graph))
    return {**others, "stowage": plan(graph, "--no-takeover"), "takeover": plan(graph), "parameter_bytes": parameter_bytes(graph)}


def _chosen(only: list[str] | None, quick: bool) -> list[tuple[str, str]]:
    names = [n for n in graphs.CASES if (not quick or n in graphs.QUICK) and (not only or any(fnmatch.fnmatch(n, o) for o in only))]
    if not names:
        raise SystemExit(f"no graph is named {' or '.join(only or [])}; bench/graphs.py lists them")
    return [(n, "adam") for n in names] + [(n, "paper") for n in names if graphs.CASES[n].paper or n.startswith("gpt2_xl-s1024")]


# ---- Figures


def best_rival_bytes(r: dict) -> int:
    """The least peak or arena that any rival's plan has."""
    found = [r["program"]["peak_bytes"], r["lescea_llfb"]["arena_bytes"], r["inductor"]["peak_bytes"]]
    return min(found)


def saving(results: list[dict], of, parameters: bool) -> float:
    """Mean of 1 - Stowage's bytes / the rival's, as the paper averages; with the parameters on both sides, as the paper counts."""
    each = []
    for r in results:
        more = r["parameter_bytes"] if parameters else 0
        each.append(1 - (r["stowage"]["arena_bytes"] + more) / (of(r) + more))
    return sum(each) / len(each)


def bound_saving(results: list[dict], of, parameters: bool) -> float:
    """The mean saving of a plan that met the lower bound of every graph: no order and no layout can save more."""
    each = []
    for r in results:
        more = r["parameter_bytes"] if parameters else 0
        each.append(1 - (r["stowage"]["lower_bound_bytes"] + more) / (of(r) + more))
    return sum(each) / len(each)


def _pytorch(r: dict) -> int:
    return r["program"]["reserved_bytes"]


def _lescea(r: dict) -> int:
    return r["lescea_llfb"]["arena_bytes"]


# ---- Tables


def _mib(count: int) -> str:
    return f"{count / MIB:,.1f}"


def _gap(r: dict) -> str:
    gap = 100 * r["stowage"]["gap"]
    return "0" if gap == 0 else f"{gap:.3f} %"


def main_table(results: list[dict]) -> str:
    rows = []
    for r in results:
        s = r["stowage"]
        rows.append([r["name"], r["form"], s["ops"], _mib(s["program_peak_bytes"]), _mib(_pytorch(r)), _mib(_lescea(r)),
                     _mib(r["inductor"]["peak_bytes"]), _mib(s["arena_bytes"]), _mib(s["lower_bound_bytes"]), _gap(r), f"{s['seconds']['total']:.2f}", _mib(r["takeover"]["arena_bytes"])])
    header = ["MiB", "Adam", "ops", "program", "PyTorch (model)", "LESCEA+LLFB", "Inductor", "**Stowage**", "bound", "gap", "s", "takeover"]
    return common.markdown(header, rows, left=2)


def headline_table(results: list[dict]) -> str:
    rows = []
    for form in graphs.FORMS:
        cases = [r for r in results if r["form"] == form and graphs.CASES[r["name"]].paper]
        if not cases:
            continue
        for parameters in (True, False):
            rows.append([f"{form}, {'with' if parameters else 'without'} parameters", len(cases),
                         *(f"{100 * figure(cases, of, parameters):.1f} %" for of in (_pytorch, _lescea) for figure in (saving, bound_saving))])
    return common.markdown(["mean saving over the paper's cases", "cases", "against PyTorch (model)", "no plan above", "against LESCEA+LLFB",
                            "no plan above"], rows)


def counts(results: list[dict]) -> dict:
    return {
        "graphs": len(results),
        "optimal": sum(r["stowage"]["gap"] == 0 for r in results),
        "gap_at_most_0.1_percent": sum(r["stowage"]["gap"] <= 1e-3 for r in results),
        "open": {f"{r['name']}.{r['form']}": r["stowage"]["gap"] for r in results if r["stowage"]["gap"] > 1e-3},
        "with_holes": [f"{r['name']}.{r['form']}" for r in results if r["stowage"]["arena_bytes"] != r["stowage"]["peak_bytes"]],
        "worse_than_a_rival": [f"{r['name']}.{r['form']}" for r in results if r["stowage"]["arena_bytes"] > best_rival_bytes(r)],
        "slowest_seconds": max(r["stowage"]["seconds"]["total"] for r in results),
    }


def counts_text(results: list[dict]) -> str:
    c = counts(results)
    lines = [f"{c['optimal']} of {c['graphs']} graphs proven optimal, {c['gap_at_most_0.1_percent']} within 0.1 % of the bound.",
             "Open: " + (", ".join(f"{name} {100 * gap:.2f} %" for name, gap in c["open"].items()) or "none") + ".",
             "Arena above the peak: " + (", ".join(c["with_holes"]) or "none") + ".",
             "Worse than a rival: " + (", ".join(c["worse_than_a_rival"]) or "none") + "."]
    return "\n".join(lines)


def table(results: list[dict]) -> str:
    return "\n\n".join([main_table(results), headline_table(results), counts_text(results)])


def main() -> None:
    parser = common.parser(__doc__, "order")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="graphs to plan; * and ? match as in a shell")
    parser.add_argument("--quick", action="store_true", help="ten graphs")
    parser.add_argument("--anew", action="store_true", help="do not use results that an earlier run of the same build kept")
    options = parser.parse_args()
    others = rivals()
    kept = Kept([stowage(), others], not options.anew)
    store = graphs.Store()
    results = []
    for name, form in _chosen(options.only, options.quick):
        graph = store.path(name, form)
        result = kept.get(graph, lambda: measure(others, graph))
        results.append({"name": name, "form": form, **result})
        s = result["stowage"]
        common.say(f"{name}.{form}: {_mib(s['program_peak_bytes'])} -> {_mib(s['arena_bytes'])} MiB, {s['outcome']}, {s['seconds']['total']:.2f} s")
    store.close()
    output = options.output or ("-" if options.only or options.quick else None)
    common.publish("order", {"results": results, "counts": counts(results)}, table(results), output)


if __name__ == "__main__":
    main()
