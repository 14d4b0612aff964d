"""The eager budget: step time and peak under limits from 90 % of eager's peak down to the least that can be met, for each policy.

Each model trains in one process; its configurations take turns with plain eager, so a ratio compares steps that ran seconds apart. Peaks
are all live bytes that tensors asked for, parameters and optimizer state included. The link to the host is simulated: copies are held to
its bandwidth each way, beside the kernels. Beside the policies: PyTorch's own checkpointing of every block, and saved-tensor hooks that
keep what backward needs in host memory (torch.autograd.graph.save_on_cpu copies nothing on a CPU).

    bench/eager.py --quick                                      two models, three limits, one link: minutes
    bench/eager.py                                              all of it
    bench/eager.py --models gpt2 --links 4 --shares 0.5 --policies default,delta
"""

from __future__ import annotations

import common

MODELS = ("gpt2", "bert", "resnet50", "resnet101", "varying", "depth", "launch")
POLICIES = ("default", "delta", "dtr", "capuchin", "lru", "size", "random")
SHARES = (0.9, 0.75, 0.5, 0.35, 0.2)
LINKS = (12.0, 4.0, 1.0)
SMALLEST = "smallest"


def point(worker: common.Worker, limit_bytes: int, options: dict, count: int) -> dict:
    import eager_report

    eager = worker.ask("plain", kind="eager", count=count)
    run = worker.ask("under", limit_bytes=limit_bytes, count=count, options=options)
    if "failed" in run:
        return {"policy": options["policy"], "failed": run["failed"]}
    again = worker.ask("plain", kind="eager", count=count)
    beside = {"wall": [min(a, b) for a, b in zip(eager["wall"], again["wall"])], "cpu": eager["cpu"]}
    eager_s = sum(beside["wall"])
    return {"policy": options["policy"], "limit_bytes": limit_bytes, "ratio": eager_report.ratio(run, beside),
            "peak_bytes": run["peak_bytes"], "host_peak_bytes": run["host_peak_bytes"],
            "recompute_share": run["changes"]["recompute_ns"] / 1e9 / eager_s, "stall_ms": eager_report.per_step_ms(run, "stall_ns"),
            "evict_ms": eager_report.per_step_ms(run, "evict_ns"), "swapped_bytes": run["changes"]["swapped_bytes"] // count,
            "swapped_in_bytes": run["changes"]["swapped_in_bytes"] // count, "recomputed_ops": run["changes"]["recomputed_ops"] / count,
            "counters": run["policy"], "wall": run["wall"], "eager_wall": beside["wall"]}


def measure(name: str, arguments) -> dict:
    import eager_report

    with common.Worker({"model": name}, arguments.threads) as worker:
        eager = worker.ask("plain", kind="eager", count=arguments.steps)
        peak, residents = eager["peak_bytes"], worker.ask("resident_bytes")
        default = {"policy": "default", "link_gbps": max(arguments.links)}
        unbound = point(worker, 2 * peak, default, 2 * arguments.steps)
        model = {"name": name, "peak_bytes": peak, "resident_bytes": residents, "step_s": common.median(eager["wall"]),
                 "unbound_ratio": unbound["ratio"], "groups": [], "ways": {}}
        model["smallest_bytes"] = worker.ask("smallest", above_bytes=0, below_bytes=peak, options=default)
        common.say(f"{name}: step {1e3 * model['step_s']:.0f} ms, peak {common.mebibytes(peak)} MiB, not binding {unbound['ratio']:.2f}, "
                   f"smallest {model['smallest_bytes'] / peak:.0%}")
        limits = {f"{share:.0%}": int(share * peak) for share in arguments.shares if share * peak > model["smallest_bytes"]}
        limits[SMALLEST] = model["smallest_bytes"]
        for link in arguments.links:
            for label, limit in limits.items():
                points = [point(worker, limit, {"policy": p, "link_gbps": link}, arguments.steps) for p in arguments.policies]
                if link == max(arguments.links):
                    for release in ("recompute", "swap"):
                        way = point(worker, limit, {"policy": "default", "link_gbps": link, "release": release}, arguments.steps)
                        points.append(way | {"policy": f"default/{release}"})
                model["groups"].append({"link_gbps": link, "label": label, "limit_bytes": limit, "points": points})
                common.say(f"  {link:g} GB/s {label}: " + ", ".join(f"{p['policy']} {eager_report.cell(p)}" for p in points))
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
                rows.append({"policy": policy, "link_gbps": link, "label": "50%", "with_ms": runs[True]["stall_ms"],
                             "without_ms": runs[False]["stall_ms"]})
    return rows


def largest_batch(name: str, arguments) -> dict:
    """In the bytes that eager needs at ``batch``."""
    batch = arguments.batch
    with common.Worker({"model": name}, arguments.threads) as worker:
        eager = worker.ask("peak_at", batch=batch)
        found = worker.ask("largest_batch", batch=batch, limit_bytes=eager["peak_bytes"], most=64 * batch,
                           options={"policy": "default", "link_gbps": max(arguments.links)})
    an_image = common.median(found["seconds"]) / found["batch"] if found["seconds"] else float("nan")
    return {"model": name, "batch": batch, "limit_bytes": eager["peak_bytes"], "largest": found["batch"],
            "slowdown": an_image / (common.median(eager["wall"]) / batch)}


def main() -> None:
    numbers = lambda text: tuple(float(x) for x in text.split(","))  # noqa: E731
    names = lambda text: tuple(text.split(","))  # noqa: E731
    parser = common.parser(__doc__, "eager")
    parser.add_argument("--quick", action="store_true", help="gpt2 and depth, three limits, one link, fewer steps")
    parser.add_argument("--models", type=names, default=MODELS)
    parser.add_argument("--policies", type=names, default=POLICIES)
    parser.add_argument("--shares", type=numbers, default=SHARES, help="of eager's peak; the smallest limit that can be met comes on top")
    parser.add_argument("--links", type=numbers, default=LINKS, help="GB/s each way, the fastest first")
    parser.add_argument("--steps", type=int, default=5, help="counted ones for each configuration")
    parser.add_argument("--batch", type=int, default=16, help="of eager, for the largest batch in its bytes; 0: leave that out")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.models, arguments.shares, arguments.links = ("gpt2", "depth"), (0.75, 0.5), (4.0,)
        arguments.policies, arguments.steps, arguments.batch = ("default", *POLICIES[1:5]), 3, 0

    import eager_report

    result = {"threads": arguments.threads, "policies": list(arguments.policies), "models": [measure(m, arguments) for m in arguments.models]}
    if arguments.batch:
        result["batches"] = [largest_batch(m, arguments) for m in ("resnet50", "resnet101") if m in arguments.models]
    judged = eager_report.judge(result)
    table = "\n\n".join([eager_report.ways_table(result), eager_report.step_table(result), "\n".join(f"- {line}" for line in judged)])
    common.publish("eager", result, table, arguments.output)


if __name__ == "__main__":
    if common.is_worker():
        import eager_worker

        common.serve(eager_worker.handlers)
    else:
        main()
