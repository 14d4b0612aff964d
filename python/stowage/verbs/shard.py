"""stowage shard --model-from script.py:make_step --mesh 2,4 [--budget 24GiB | --frontier | --pipeline 8]: stowage.shard_plan from the
command line.

Exit codes as of all verbs: 0 there is a plan, 2 usage, 3 the script is not usable, 4 nothing meets the limit, 1 the plan
cannot be written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from stowage.errors import Error, Infeasible
from stowage.sizes import in_words, parse_bytes
from stowage.verbs.script import Parser, fail, size, told

DONE, FAILED, BAD_INPUT, INFEASIBLE = 0, 1, 3, 4
_MS = 1e6


def run(arguments: list[str]) -> int:
    options = _options(arguments)
    try:
        from stowage.sharding.paper import budget_frontier, made_step_of, program_of_made, shard_plan
        from stowage.step.fit.made_step import load
    except (ImportError, Error) as error:
        return fail(BAD_INPUT, f"shard needs PyTorch: {error}")
    try:
        sizes = {"batch_size": options.batch_size, "length": options.length}
        made = load(options.model_from)
        if options.pipeline is not None:
            return _pipeline(options, *made_step_of(made, sizes))
        program = program_of_made(made, sizes)
    except Infeasible as error:
        return fail(INFEASIBLE, str(error))
    except Error as error:
        return fail(BAD_INPUT, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the script's own: told with its line
        return fail(BAD_INPUT, told(error))
    how = {
        "mesh": options.mesh, "links": options.links, "link_gbps": options.link_gbps,
        **({"time_limit_seconds": options.time_limit} if options.time_limit else {}),
    }  # fmt: skip
    try:
        if options.frontier:
            points = budget_frontier(program, limits=options.limits or None, **how)
            print(json.dumps(points) if options.json else _table(points), end="\n")
            return INFEASIBLE if all(p["outcome"] == "infeasible" for p in points) else DONE
        plan = shard_plan(program, budget=options.budget, **how)
    except Infeasible as error:
        return fail(INFEASIBLE, str(error))
    except Error as error:
        return fail(BAD_INPUT, str(error))
    return _done(options, plan, _told)


def _pipeline(options: argparse.Namespace, chain: Any, batch: tuple) -> int:
    from stowage.sharding.paper import shard_plan

    plan = shard_plan(
        chain,
        batch,
        mesh=options.mesh,
        pipeline=options.pipeline,
        memory_limit=options.memory_limit,
        links=options.links,
    )
    return _done(options, plan, _pipeline_told)


def _done(options: argparse.Namespace, plan: Any, told_in_words: Callable[[dict], str]) -> int:
    if options.output:
        try:
            plan.save(options.output)
        except OSError as error:
            return fail(FAILED, f"'{options.output}' cannot be written: {error.strerror}")
    summary = plan.summary()
    print(json.dumps(summary) if options.json else told_in_words(summary))
    return DONE


def _pipeline_told(summary: dict) -> str:
    """The schedule, and one row a rank."""
    rows = [["rank", "layers", "state", "saved", "buffers", "peak", "busy ms", "idle ms"]]
    for r, rank in enumerate(summary["ranks"]):
        own = [f"{s['first']}-{s['end'] - 1}" for s in summary["stages"] if s["rank"] == r]
        state = rank["parameters"] + rank["gradients"] + rank["optimizer_state"]
        sizes = [in_words(n) for n in (state, rank["saved"], rank["buffers"], rank["peak"])]
        rows.append([str(r), ", ".join(own), *sizes, *(f"{rank[k] / _MS:.3f}" for k in ("busy_ns", "idle_ns"))])
    several = f", {summary['stages_per_rank']} stages a rank" if summary["stages_per_rank"] > 1 else ""
    step = f"step   {summary['step_ns'] / _MS:.3f} ms modelled, {summary['schedule']}{several}; "
    proof = (
        "proven the least"
        if summary["outcome"] == "optimal"
        else f"at most {100 * summary['gap']:.1f} % above the least"
    )
    return step + proof + "\n" + _aligned(rows)


def _told(summary: dict) -> str:
    b = summary["bytes"]
    lines = [
        f"state  {in_words(b['parameters'] + b['optimizer_state'] + b['buffers'])} a rank, gradients {in_words(b['gradients'])}, "
        f"kept for backward {in_words(b['saved'])}",
        f"step   {(summary['compute_ns'] + summary['communication_ns']) / _MS:.3f} ms modelled, "
        f"of it collectives {summary['communication_ns'] / _MS:.3f} ms",
    ]
    if budget := summary.get("budget"):
        lines += [_table([budget])]
    return "\n".join(lines)


_PARTS = ("parameters", "optimizer_state", "gradients", "activations")


def _table(points: list[dict]) -> str:
    """One row a limit."""
    head = [
        "limit",
        "step ms",
        "compute",
        "collectives",
        "again",
        "host",
        "parameters",
        "optimizer",
        "gradients",
        "activations",
        "rest",
        "by",
    ]
    rows = [head]
    for p in points:
        limit = "none" if p["limit_bytes"] is None else in_words(p["limit_bytes"])
        if p["outcome"] == "infeasible":
            rows.append(
                [limit, "does not fit; the smallest: " + in_words(p["smallest_bytes"], 1), *[""] * (len(head) - 2)]
            )
            continue
        times, held = p["time"], p["bytes"]
        rows.append(
            [
                limit,
                f"{p['step_ns'] / _MS:.3f}",
                *(f"{times[k] / _MS:.3f}" for k in ("compute_ns", "collectives_ns", "recompute_ns", "host_ns")),
                *(in_words(held[k]) for k in _PARTS),
                in_words(sum(n for k, n in held.items() if k not in _PARTS)),
                ", ".join(p["means"]) or "as it is",
            ]
        )
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows if row[i] and len(row[2])) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "shard",
        "How a training step is split over a mesh of devices, and what a limit of bytes per rank costs. "
        "Runs on tensors without memory; no device is needed.",
    )
    parser.add_argument("--mesh", required=True, type=_mesh, metavar="N[,N...]", help="sizes of its axes, such as 2,4")
    parser.add_argument(
        "--batch-size", type=size, metavar="N", help="of all ranks together; default: make_step's own, else 1"
    )
    parser.add_argument("--length", type=size, metavar="N", help="default: make_step's own, else 1")
    parser.add_argument("--budget", type=_bytes, metavar="BYTES", help="what a rank may hold")
    parser.add_argument("--frontier", action="store_true", help="what several limits cost, and by what they are met")
    parser.add_argument("--limits", nargs="+", type=_bytes, metavar="BYTES", help="of the frontier; default: six")
    parser.add_argument("--links", type=_links, metavar="JSON", help='such as {"0": {"gbps": 25}, "tflops": 300}')
    parser.add_argument(
        "--link-gbps", type=float, help="speed of each lane to the host, in 10^9 bytes a second; 0: none"
    )
    parser.add_argument(
        "--time-limit", type=float, default=0.0, help="of each search for a placement, in seconds; 0: none"
    )
    parser.add_argument(
        "--pipeline",
        type=size,
        metavar="N",
        help="micro-batches: the step is a stowage.Chain, cut into stages over the mesh's first axis, with replicas over the others",
    )
    parser.add_argument(
        "--memory-limit", type=_bytes, metavar="BYTES", help="of a rank's modelled peak, with --pipeline"
    )
    parser.add_argument("-o", dest="output", metavar="PLAN", help="write the sharding plan")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    options = parser.parse_args(arguments)
    if options.frontier and (options.budget is not None or options.output):
        parser.error("--frontier goes with --limits, not with --budget or -o")
    if options.limits and not options.frontier:
        parser.error("--limits goes with --frontier")
    if options.pipeline and (options.frontier or options.budget is not None or options.link_gbps is not None):
        parser.error("--pipeline goes with --memory-limit, not with --frontier, --budget or --link-gbps")
    if options.memory_limit is not None and not options.pipeline:
        parser.error("--memory-limit goes with --pipeline")
    return options


def _mesh(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(p.isascii() and p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"whole numbers of at least 1, such as 2,4, not '{text}'")
    return tuple(int(p) for p in parts)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text) or 0
    except (Error, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _links(text: str) -> dict:
    try:
        links = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(links, dict):
        raise argparse.ArgumentTypeError('an object, such as {"tflops": 300}')
    return {int(k) if k.isdigit() else k: v for k, v in links.items()}
