"""Sharding plans of large training steps on meshes that nobody needs to own: the least redundancy against the usual
strategies.

    ./dev bench shard                                          all cases into bench/results/shard.json
    ./dev bench shard --models gpt --meshes 4,8 --eps 0 0.1    some; what the file has already is kept (--again: solved anew)
    ./dev bench shard --overlap                                the same cases where collectives run beside kernels; no rivals

Every strategy is priced by one model (docs/formats.md, section 5) and solved to one relative gap. The rivals:
bench/shard/shard_rivals.py, and

    time first    the least time, whatever it holds: what planners without a memory objective do
    capped        the least time with a peak at most halfway between that of `time first` and that of `stowage eps 0`

A plan is solved in a process of its own, under limits of CPU seconds (it may then end `feasible`, with a bound) and, as
a last resort, of life. Results are written after every plan.
"""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import resource
import time

from bench import common
from bench.shard import shard_tables
from bench.shard.shard_rivals import rivals

MODELS = ("gpt", "llama-8b", "bert-large", "moe", "resnet152")
MESHES = ("8", "2,4", "4,8", "4,4,4")
# How far the search goes: deep programs, three axes, and a mesh that is large but has few axes.
SEARCHES = (("gpt-96", "4,8"), ("gpt-96", "4,4,4"), ("gpt", "128,8"), ("gpt", "1024"))
EPS = (0.0, 0.01, 0.1, 0.2, 0.5)
EPS_OVERLAP = (0.0, 0.1)


def mesh_document(sizes: list[int]) -> dict:
    """The last axis within a host (300 GB/s, 6 us a hop), the others between hosts (25 GB/s, 15 us); 300 TFLOP/s and
    1.5 TB/s reached."""
    last = len(sizes) - 1
    axes = [
        {"size": n, "gbps": 300 if a == last else 25, "latency_ns": 6000 if a == last else 15000}
        for a, n in enumerate(sizes)
    ]
    return {"axes": axes, "tflops": 300, "memory_gbps": 1500, "kernel_ns": 2000}


# ---- One plan, in a process of its own


def solve(program: str, mesh: list[int], options: dict) -> dict:
    from stowage import _core

    wall, cpu = time.perf_counter(), time.process_time()
    plan = json.loads(_core.plan_sharding(program, json.dumps(mesh_document(mesh)), json.dumps(options)))
    seconds = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    kept = {k: v for k, v in plan.items() if k not in ("ops", "tensors", "format", "version")}
    copies = max((op["transient_bytes"] for op in plan["ops"]), default=0)
    why = sorted({op["why"] for op in plan["ops"] if op["replicated"]})
    return (
        kept
        | seconds
        | {
            "copies_bytes": copies,
            "whole_ops": why,
            "resident_set_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )


def _worker(answer, limit: int, *question) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    try:
        answer.send(solve(*question))
    except Exception as reason:  # of any kind: it is the row's outcome
        answer.send({"time": {"outcome": str(reason)[:80]}})


def ask(limit: int, *question) -> dict:
    import stowage  # noqa: F401  once here; its forks have it

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_worker, args=(theirs, limit, *question))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return {"time": {"outcome": f"> {limit} s"}}
    finally:
        process.join()


# ---- A case: one model on one mesh


def capped(rows: dict[str, dict]) -> dict | None:
    """The options of that rival, once both ends are known."""
    least, most = (rows.get(name, {}).get("bytes", {}).get("peak") for name in ("stowage eps 0", "time first"))
    return None if not least or not most else {"goal": "time", "memory_limit_bytes": max(least, (least + most) // 2)}


class Case:
    def __init__(self, path: pathlib.Path, mesh: str, rows: dict[str, dict], arguments):
        self._name, self._text = path.name.split(".")[0], path.read_text()
        self._mesh, self.rows, self._arguments = [int(n) for n in mesh.split(",")], rows, arguments

    def solve(self, name: str, options: dict | None, keep) -> None:
        if options is None or (name in self.rows and not self._arguments.again):
            return
        limits = {"relative_gap": self._arguments.relative_gap, "time_limit_seconds": self._arguments.time_limit}
        if self._arguments.overlap:
            limits["overlap"] = True
        self.rows[name] = ask(self._arguments.life, self._text, self._mesh, limits | options)
        row = self.rows[name]
        common.say(f"{self._name} {self._mesh} {name}: {row['time']['outcome']} {row.get('cpu_seconds', 0):.1f} s")
        keep()

    def solve_all(self, eps: list[float], search_only: bool, keep) -> None:
        for e in eps[:1] if search_only else eps:
            self.solve(f"stowage eps {e:g}", {"eps": e}, keep)
        self.solve("time first", {"goal": "time"}, keep)
        if search_only or self._arguments.overlap:
            return
        for name, options in rivals(json.loads(self._text), len(self._mesh)).items():
            self.solve(name, options, keep)
        self.solve("capped", capped(self.rows), keep)


def program_of(model: str, folder: pathlib.Path) -> pathlib.Path:
    path = folder / f"{model}.program.json"
    if not path.exists():
        from bench.shard import shard_models

        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(shard_models.capture(model).to_json())
    return path


def main() -> None:
    parser = common.parser(__doc__, "shard")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--meshes", nargs="+", default=MESHES)
    parser.add_argument("--eps", nargs="+", type=float)
    parser.add_argument("--overlap", action="store_true", help="collectives run beside kernels")
    parser.add_argument("--searches", action="store_true", help="only the cases of the search's own speed")
    parser.add_argument("--relative-gap", type=float, default=1e-3)
    parser.add_argument("--time-limit", type=float, default=120, help="seconds after which a search shows what it has")
    parser.add_argument("--life", type=int, default=600, help="CPU seconds of one plan's process")
    parser.add_argument("--again", action="store_true", help="solve also what the results have")
    parser.add_argument(
        "--programs",
        type=pathlib.Path,
        default=common.ROOT / "build" / "programs",
        help="captured programs are kept here",
    )
    arguments = parser.parse_args()
    target = pathlib.Path(arguments.output or common.RESULTS / "shard.json")
    results = json.loads(target.read_text())["results"] if target.exists() else {"cases": {}, "searches": {}}

    environment = common.environment()
    part_of_all = "overlapped" if arguments.overlap else "cases"
    eps = arguments.eps or (EPS_OVERLAP if arguments.overlap else EPS)

    def keep() -> None:
        target.write_text(
            json.dumps({"benchmark": "shard", "results": results, "environment": environment}, indent=1) + "\n"
        )

    cases = (
        []
        if arguments.searches
        else [(part_of_all, model, mesh) for mesh in arguments.meshes for model in arguments.models]
    )
    if arguments.searches or (len(cases) == len(MODELS) * len(MESHES) and not arguments.overlap):
        cases += [("searches", *s) for s in SEARCHES]
    for part, model, mesh in cases:
        rows = results.setdefault(part, {}).setdefault(f"{model} ({mesh})", {})
        Case(program_of(model, arguments.programs), mesh, rows, arguments).solve_all(
            list(eps), part == "searches", keep
        )
    print(shard_tables.table(results))


if __name__ == "__main__":
    main()
