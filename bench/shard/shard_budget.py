"""A limit of bytes per rank: placement alone, one placement with recomputation and copies to the host, and all of it as one
decision. Modelled: no devices are needed, and none are there.

    ./dev bench shard_budget                                      into bench/results/shard_budget.json
    ./dev bench shard_budget --models moe --mesh 8 --layers 4     one model

For each limit, from what the fastest placement needs down to the least that is met, the step times of

    placement alone   the fastest placement that meets the limit with nothing computed again and nothing on the host
    fastest + rest    the placement that is fastest without a limit; recomputation and copies do the rest
    least + rest      the same of the placement of least redundancy (what stowage.shard did before)
    one decision      stowage.shard(step, mesh, budget=...)

All of them are priced by one model, and planned by one planner (order, layout, recomputation, copies)."""

from __future__ import annotations

import json
import time

from bench import common
from bench.shard.shard import mesh_document

MODELS = {"gpt": {"layers": 1}, "bert-large": {"layers": 1}, "moe": {"layers": 1}}
LINK_GBPS = 25.0
PARTS = ("parameters", "optimizer_state", "gradients", "activations")


def measure(model: str, layers: int | None, mesh: list[int], points: int) -> dict:
    from bench.shard import shard_models
    from stowage.errors import Infeasible
    from stowage.sharding.decision import Contender, decisions
    from stowage.sharding.placements import ShardingPlan, solve
    from stowage.sharding.rank_graph import rank_graph

    sizes = {"layers": layers} if layers else MODELS[model]
    program = shard_models.capture(model, **sizes)
    began = time.process_time()
    document, gap = mesh_document(mesh), {"relative_gap": 1e-3}
    made = decisions(program, document, tuple(mesh), gap, LINK_GBPS)
    least = ShardingPlan(program, solve(program.to_json(), document, {**gap, "eps": 0.0}), tuple(mesh))
    before = Contender(least, rank_graph(least))
    swept = time.process_time() - began
    top, bottom = made.unlimited_bytes(), made.smallest_bytes()
    rows = []
    for i in range(points):
        limit = round(top * (bottom / top) ** (i / (points - 1)))
        point = made.frontier([limit])[0]
        try:
            plan = before.within(limit, LINK_GBPS)
        except Infeasible:
            plan = None
        point["least + rest"] = None if plan is None else plan.summary()["step_ns"]
        rows.append(point)
        common.say(json.dumps({k: point[k] for k in ("limit_bytes", "step_ns", "means", "without", "least + rest")}))
    return {
        "model": f"{model}, {sizes['layers']} layer{'s'[: sizes['layers'] > 1]}",
        "mesh": mesh, "placements": len(made.contenders), "ops": made.contenders[0].graph.ops,
        "sweep_cpu_seconds": swept, "cpu_seconds": time.process_time() - began, "points": rows,
    }  # fmt: skip


def _ms(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e6:.2f}"


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f}"


def table(results: list[dict]) -> str:
    times, parts = [], []
    for r in results:
        name = f"{r['model']} ({','.join(map(str, r['mesh']))})"
        for i, p in enumerate(r["points"]):
            rivals = (p["without"]["recomputation and host"], p["without"]["placement"], p["least + rest"])
            known = [ns for ns in rivals if ns is not None]
            times.append(
                [
                    name if i == 0 else "",
                    _gib(p["limit_bytes"]),
                    *(_ms(ns) for ns in rivals),
                    _ms(p["step_ns"]),
                    f"{p['step_ns'] / min(known):.3f}" if known else "-",
                    _ms(p["without"]["host"]),
                    ", ".join(p["means"]) or "as it is",
                ]
            )
            parts.append(
                [
                    name if i == 0 else "",
                    _gib(p["limit_bytes"]),
                    *(_gib(p["bytes"][k]) for k in PARTS),
                    _gib(sum(n for k, n in p["bytes"].items() if k not in PARTS)),
                    *(_ms(p["time"][k]) for k in ("compute_ns", "collectives_ns", "recompute_ns", "host_ns")),
                ]
            )
    header = ["modelled ms", "GiB a rank", "placement alone", "fastest + rest", "least + rest", "one decision", "to the best of them", "without host", "by"]  # fmt: skip
    shares = ["one decision", "GiB a rank", "parameters", "optimizer", "gradients", "activations", "rest", "compute ms", "collectives ms", "again ms", "host ms"]  # fmt: skip
    cost = [
        [f"{r['model']} ({','.join(map(str, r['mesh']))})", f"{r['ops']:,}", r["placements"], f"{r['sweep_cpu_seconds']:.0f}", f"{r['cpu_seconds']:.0f}"]
        for r in results
    ]  # fmt: skip
    return "\n\n".join(
        (
            common.markdown(header, times),
            "**What a rank holds at its fullest moment, and where its time goes.**",
            common.markdown(shares, parts),
            "**The search.**",
            common.markdown(["planning", "ops of a rank", "placements", "CPU s to find them", "CPU s, all"], cost),
        )
    )


def main() -> None:
    parser = common.parser(__doc__, "shard_budget")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--mesh", default="8", help="sizes of its axes, such as 2,4")
    parser.add_argument("--layers", type=int, help="default: few")
    parser.add_argument("--points", type=int, default=4)
    options = parser.parse_args()
    results = []
    for model in options.models:
        common.say(f"{model} on {options.mesh}")
        results.append(measure(model, options.layers, [int(n) for n in options.mesh.split(",")], options.points))
    common.publish("shard_budget", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    main()
