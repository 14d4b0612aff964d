"""The eager budget: step time and peak under limits from 90 % of eager's peak down to the least that can be met, for
each policy.

Each model trains in one process; its configurations take turns with plain eager, so a ratio compares steps that ran
seconds apart. Peaks are all live bytes that tensors asked for, parameters and optimizer state included. The link to the
host is simulated: copies are held to its bandwidth each way, beside the kernels. But they take processor time, which
those of a device do not: leave them a core of their own, or they add to the step's wall time. So there is a second
ratio: the time of the program's own thread and its waits for copies, over eager's. Beside the policies: PyTorch's own
checkpointing of every block, and saved-tensor hooks that keep what backward needs in host memory
(torch.autograd.graph.save_on_cpu copies nothing on a CPU).

    ./dev bench eager --quick                                      two models, three limits, one link: minutes
    ./dev bench eager                                              all of it: hours
    ./dev bench eager --models gpt2 --links 4 --shares 0.5 --policies default,delta

The result file is written after each model. With --add, what has been measured takes its places in the file that is
there: models, limits, links and policies can be run one after the other.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable

from bench import common

MODELS = ("gpt2", "bert", "resnet50", "resnet101", "varying", "depth", "launch")
POLICIES = ("default", "delta", "dtr", "capuchin", "lru", "size", "random")
SHARES = (0.9, 0.75, 0.5, 0.35, 0.2)
LINKS = (12.0, 4.0, 1.0)
SMALLEST = "smallest"


def point(worker: common.Worker, limit_bytes: int, options: dict, count: int) -> dict:
    from bench.eager import eager_report

    eager = worker.ask("plain", kind="eager", count=count)
    run = worker.ask("under", limit_bytes=limit_bytes, count=count, options=options)
    if "failed" in run:
        return {"policy": options["policy"], "failed": run["failed"]}
    again = worker.ask("plain", kind="eager", count=count)
    beside = {clock: [(a + b) / 2 for a, b in zip(eager[clock], again[clock])] for clock in ("wall", "own")}
    eager_s = sum(beside["wall"])
    return {
        "policy": options["policy"],
        "limit_bytes": limit_bytes,
        "ratio": eager_report.ratio(run, beside),
        "beside_ratio": eager_report.beside_ratio(run, beside),
        "peak_bytes": run["peak_bytes"],
        "host_peak_bytes": run["host_peak_bytes"],
        "recompute_share": run["changes"]["recompute_ns"] / 1e9 / eager_s,
        "stall_ms": eager_report.per_step_ms(run, "stall_ns"),
        "evict_ms": eager_report.per_step_ms(run, "evict_ns"),
        "swapped_bytes": run["changes"]["swapped_bytes"] // count,
        "swapped_in_bytes": run["changes"]["swapped_in_bytes"] // count,
        "recomputed_ops": run["changes"]["recomputed_ops"] / count,
        "counters": run["policy"],
        "wall": [round(s, 6) for s in run["wall"]],
        "eager_wall": [round(s, 6) for s in beside["wall"]],
    }


def measure(name: str, arguments, smallest_bytes: int, save: Callable[[dict], None]) -> dict:
    """``smallest_bytes``: the least limit that can be met, where it is known, else 0. ``save``: called with what there
    is so far."""
    from bench.eager import eager_report

    with common.Worker({"model": name}, arguments.threads) as worker:
        eager = worker.ask("plain", kind="eager", count=arguments.steps)
        peak, residents = eager["peak_bytes"], worker.ask("resident_bytes")
        default = {"policy": "default", "link_gbps": max(arguments.links)}
        unbound = point(worker, 2 * peak, default, 2 * arguments.steps)
        model = {
            "name": name,
            "peak_bytes": peak,
            "resident_bytes": residents,
            "step_s": common.median(eager["wall"]),
            "unbound_ratio": unbound["ratio"],
            "unbound_beside_ratio": unbound["beside_ratio"],
            "groups": [],
            "ways": {},
            "prefetch": [],
        }
        model["smallest_bytes"] = smallest_bytes or worker.ask(
            "smallest", above_bytes=0, below_bytes=peak, options=default
        )
        common.say(
            f"{name}: step {1e3 * model['step_s']:.0f} ms, peak {common.mebibytes(peak)} MiB, not binding {unbound['ratio']:.2f}, "
            f"smallest {model['smallest_bytes'] / peak:.0%}"
        )
        limits = {
            f"{share:.0%}": int(share * peak) for share in arguments.shares if share * peak > model["smallest_bytes"]
        }
        limits[SMALLEST] = model["smallest_bytes"]
        for link in arguments.links:
            for label, limit in limits.items():
                points = [
                    point(worker, limit, {"policy": p, "link_gbps": link}, arguments.steps) for p in arguments.policies
                ]
                if link == max(arguments.links) and not arguments.brief:
                    for release in ("recompute", "swap"):
                        way = point(
                            worker, limit, {"policy": "default", "link_gbps": link, "release": release}, arguments.steps
                        )
                        points.append(way | {"policy": f"default/{release}"})
                model["groups"].append({"link_gbps": link, "label": label, "limit_bytes": limit, "points": points})
                save(model)
                common.say(
                    f"  {link:g} GB/s {label}: " + ", ".join(f"{p['policy']} {eager_report.cell(p)}" for p in points)
                )
        if arguments.brief:
            return model
        model["prefetch"] = prefetch(worker, limits, arguments) if "50%" in limits else []
        for way in ("checkpoint", "host"):
            taken = worker.ask("plain", kind=way, count=arguments.steps)
            beside = worker.ask("plain", kind="eager", count=arguments.steps)
            model["ways"][way] = {"peak_bytes": taken["peak_bytes"], "ratio": eager_report.ratio(taken, beside)}
    return model


def prefetch(worker: common.Worker, limits: dict, arguments) -> list[dict]:
    """Stalls of swap-only runs with and without, where the link is slower than the fastest one."""
    rows = []
    for link in arguments.links[1:] or arguments.links:
        for policy in ("default", "delta"):
            runs = {}
            for on in (True, False):
                options = {"policy": policy, "link_gbps": link, "release": "swap", "prefetch": on}
                runs[on] = point(worker, limits["50%"], options, arguments.steps)
            if not any("failed" in r for r in runs.values()):
                rows.append(
                    {
                        "policy": policy,
                        "link_gbps": link,
                        "label": "50%",
                        "with_ms": runs[True]["stall_ms"],
                        "without_ms": runs[False]["stall_ms"],
                    }
                )
    return rows


def add_bounds(result: dict, arguments) -> None:
    """To each limit and link that has been measured: what no policy can do better."""
    for model in result["models"]:
        if model["name"] not in arguments.models:
            continue
        with common.Worker({"model": model["name"]}, arguments.threads) as worker:
            lost = worker.ask("lost_s", cases=[(g["limit_bytes"], g["link_gbps"]) for g in model["groups"]])
        for group, seconds in zip(model["groups"], lost, strict=True):
            group["bound_ratio"] = 1 + seconds / model["step_s"]


def largest_batch(name: str, arguments) -> dict:
    """In the bytes that eager needs at ``batch``."""
    batch = arguments.batch
    with common.Worker({"model": name}, arguments.threads) as worker:
        eager = worker.ask("peak_at", batch=batch)
        found = worker.ask(
            "largest_batch",
            batch=batch,
            limit_bytes=eager["peak_bytes"],
            most=16 * batch,
            options={"policy": "default", "link_gbps": max(arguments.links)},
        )
    an_image = common.median(found["seconds"]) / found["batch"] if found["seconds"] else float("nan")
    return {
        "model": name,
        "batch": batch,
        "limit_bytes": eager["peak_bytes"],
        "largest": found["batch"],
        "slowdown": an_image / (common.median(eager["wall"]) / batch),
    }


def main() -> None:
    numbers = lambda text: tuple(float(x) for x in text.split(","))
    names = lambda text: tuple(filter(None, text.split(",")))
    parser = common.parser(__doc__, "eager")
    parser.add_argument("--quick", action="store_true", help="gpt2 and depth, three limits, one link, fewer steps")
    parser.add_argument("--models", type=names, default=MODELS)
    parser.add_argument("--policies", type=names, default=POLICIES)
    parser.add_argument(
        "--shares",
        type=numbers,
        default=SHARES,
        help="of eager's peak; the smallest limit that can be met comes on top",
    )
    parser.add_argument("--links", type=numbers, default=LINKS, help="GB/s each way, the fastest first")
    parser.add_argument("--steps", type=int, default=10, help="counted ones for each configuration")
    parser.add_argument(
        "--batch", type=int, default=16, help="of eager, for the largest batch in its bytes; 0: leave that out"
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="the policies alone: no single ways of release, no PyTorch's own ways, no prefetch",
    )
    parser.add_argument("--bounds", action="store_true", help="also bound from below what any policy can reach")
    parser.add_argument("--add", action="store_true", help="to what the result file holds already")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    # Pages that were touched once stay: else glibc gives them back and faults them in anew, in some steps and not in
    # others, which moves a step's time by a quarter.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    if arguments.quick:
        arguments.models, arguments.shares, arguments.links = ("gpt2", "depth"), (0.75, 0.5), (4.0,)
        arguments.policies, arguments.steps, arguments.batch = ("default", *POLICIES[1:5]), 3, 0
    path = pathlib.Path(arguments.output or common.RESULTS / "eager.json")
    result = {"threads": arguments.threads, "models": [], "batches": []}
    if arguments.add and path.is_file():
        found = json.loads(path.read_text())["results"]
        found = found.get("results", found)
        result = {key: found[key] for key in result}
    for name in arguments.models if arguments.policies else ():
        before = result["models"]
        known = next((m["smallest_bytes"] for m in before if m["name"] == name), 0)

        def save(model: dict) -> None:
            result["models"] = with_model(before, model)
            publish(result, arguments)

        save(measure(name, arguments, known, save))
    if arguments.bounds:
        add_bounds(result, arguments)
        publish(result, arguments)
    for name in ("resnet50", "resnet101") if arguments.batch else ():
        if name in arguments.models:
            result["batches"] = [b for b in result["batches"] if b["model"] != name] + [largest_batch(name, arguments)]
            publish(result, arguments)


def publish(result: dict, arguments) -> None:
    from bench.eager import eager_report

    common.publish("eager", {"results": result}, eager_report.table(result), arguments.output)


def with_model(models: list[dict], new: dict) -> list[dict]:
    """What was measured again takes the place of what was there: points by limit and policy."""
    old = next((m for m in models if m["name"] == new["name"]), None)
    if old is None:
        return [*models, new]
    groups = {(g["link_gbps"], g["label"]): g for g in old["groups"]}
    for group in new["groups"]:
        known = groups.get((group["link_gbps"], group["label"]))
        if known is not None and known["limit_bytes"] == group["limit_bytes"]:
            again = {p["policy"] for p in group["points"]}
            group = (
                known | group | {"points": [p for p in known["points"] if p["policy"] not in again] + group["points"]}
            )
        groups[group["link_gbps"], group["label"]] = group
    ways, prefetch = (
        {**old["ways"], **new["ways"]},
        {(p["policy"], p["link_gbps"]): p for p in [*old["prefetch"], *new["prefetch"]]},
    )
    joined = old | new | {"groups": list(groups.values()), "ways": ways, "prefetch": list(prefetch.values())}
    return [joined if m is old else m for m in models]


if __name__ == "__main__":
    if common.is_worker():
        from bench.eager import eager_worker

        common.serve(eager_worker.handlers)
    else:
        main()
