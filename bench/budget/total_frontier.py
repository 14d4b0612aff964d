"""Step time against total bytes, parameters and optimizer state included: what a limit on all of it costs, for Stowage, for
what PyTorch itself offers, and for an optimizer whose state waits on the host, in one run.

    leave x      stowage.compile with x of eager's total as budget and ``residents="leave"``; what is away waits in memory that
                 nobody counts, as it does for all rivals of this table
    limit x      eager steps in a stowage.budget block with that limit
    others       bench/budget/budget_rivals.py tells what they do

Totals are what is live in PyTorch's CPU allocator at the fullest moment of one step; a plan's arena and residents for
"leave". Each configuration has a process of its own, under tcmalloc. They take turns with eager under tcmalloc, and times are
medians of the ratios to it, turn by turn. Dropout is off, so that checkpointing keeps the bits; state is compared by digests.

    ./dev bench total_frontier
    ./dev bench total_frontier --models resnet50 --shares 0.5 0.3
"""

from __future__ import annotations

import itertools

from bench import common
from bench.budget import budget_report, budget_rivals, budget_worker

MODELS = ("gpt2", "bert", "vit", "resnet50", "llama")
KINDS = ("leave", "limit")
SHARES = (0.75, 0.5, 0.35, 0.25)
RIVALS: dict[str, dict] = {
    "checkpoint": {"blocks": {"every": 1}},
    "inside": {"inside": True},
    "inside+checkpoint": {"inside": True, "blocks": {"every": 1}},
    "inside+host": {"inside": True, "host": True},
    "inside+offload": {"inside": True, "offload": True},
    "inside+offload+checkpoint": {"inside": True, "offload": True, "blocks": {"every": 1}},
    "inside+offload+host": {"inside": True, "offload": True, "host": True},
}
STEPS = 6  # before the turns: a plan is at work then


# ---- In a worker


def handlers(config: dict) -> dict:
    kind = config["kind"]
    if kind != "rival":
        import stowage  # before the model is made, so that its allocator counts everything
    rival = step = budget_rivals.Step(config["model"], config.get("form", {}))
    if kind == "leave":
        from bench import models

        step = models.step_with(rival.model, rival.loss_fn, rival.optimizers[0])
        step = stowage.compile(step, budget=config["budget"], residents="leave")
    block = stowage.budget(config["budget"], progress=False) if kind == "limit" else None
    if block is not None:
        block.__enter__()

    def begin() -> dict:
        """The first steps. ``unmet``: why the limit cannot be kept."""
        if kind == "rival":
            return common.timed_steps(step, rival.batch, STEPS)
        try:
            answer = common.timed_steps(step, rival.batch, STEPS)
        except (stowage.Infeasible, stowage.OutOfMemory) as error:
            return {"unmet": str(error)}
        if kind == "leave" and not step.stats()["planned_steps"]:
            raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'not settled'}")
        return answer

    def digest() -> str:
        tensors = [*rival.stateless_residents(), *rival.optimizer_state()]
        # In a block, what NumPy looks into stays: it looks into copies
        return budget_worker.checksum(t.detach().clone() if block is not None else t for t in tensors)

    def total() -> dict:
        if kind == "leave":
            stats = step.stats()
            return {
                "total_bytes": stats["resident_bytes"] + stats["measured_peak_bytes"],
                "misses": stats["misses"],
                "predicted_ns": step.plan.summary()["step_ns"],
                "program_ns": step.plan.summary()["program_step_ns"],
                "bound_ns": step.plan.summary()["step_bound_ns"],
            }
        if block is not None:
            return {"total_bytes": block.stats()["peak_bytes"]}
        from stowage import _runtime  # its allocator counts what is made from now on

        offloaded = config.get("form", {}).get("offload")
        tensors = rival.stateless_residents() if offloaded else [*rival.stateless_residents(), *rival.optimizer_state()]
        held = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        common.timed_steps(step, rival.batch, 1)
        _runtime.reset_peak()
        live = _runtime.live_bytes()
        common.timed_steps(step, rival.batch, 1)
        return {"total_bytes": held + _runtime.peak_bytes() - live}

    def steps(count: int) -> dict:
        return common.timed_steps(step, rival.batch, count)

    return {"begin": begin, "digest": digest, "total": total, "steps": steps}


# ---- In the parent


def measure(name: str, options) -> dict:
    def start(config: dict) -> tuple[common.Worker, dict]:
        worker = common.Worker({"model": name, **config}, options.threads, tcmalloc=True)
        return worker, worker.ask("begin")

    reference, answer = start({"kind": "rival"})
    losses, digest = answer["losses"], reference.ask("digest")
    probe, _ = start({"kind": "rival"})
    eager_bytes = probe.ask("total")["total_bytes"]
    probe.close()
    configs = {rival: {"kind": "rival", "form": RIVALS[rival]} for rival in options.rivals}
    for kind, share in itertools.product(options.kinds, options.shares):
        configs[f"{kind} {share:g}"] = {"kind": kind, "budget": int(share * eager_bytes)}
    points = []
    for at in range(0, len(configs), options.at_once):
        workers: dict[str, common.Worker] = {}
        for rival in list(configs)[at : at + options.at_once]:
            point = {"rival": rival, **configs[rival]}
            points.append(point)
            try:
                worker, answer = start(configs[rival])
            except RuntimeError as error:
                point["unmet"] = str(error)
                continue
            if "unmet" in answer:
                point["unmet"] = answer["unmet"]
                common.say(f"{name}, {rival}: {answer['unmet']}")
                worker.close()
                continue
            point["equal"] = answer["losses"] == losses and worker.ask("digest") == digest
            workers[rival] = worker
        if not workers:
            continue
        common.say(f"{name}: {options.rounds} rounds of {', '.join(workers)}")
        turns = common.take_turns({"": reference, **workers}, options.rounds, 1)
        for point in points:
            if point["rival"] in workers:
                theirs, base = turns[point["rival"]]["seconds"], turns[""]["seconds"]
                ratios = [a / b for a, b in zip(theirs, base)]
                point |= {"ratio": common.median(ratios), "quartiles": budget_report.quartiles(ratios)}
                point |= workers[point["rival"]].ask("total")
                workers[point["rival"]].close()
    reference.close()
    return {"model": name, "threads": options.threads, "eager_bytes": eager_bytes, "points": points}


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    rows = []
    for r in results:
        rows.append([r["model"], "eager, tcmalloc", mib(r["eager_bytes"]), "1.000", "1.000", "", "", "="])
        for p in sorted(r["points"], key=lambda p: (-p.get("total_bytes", 0), p["rival"])):
            if "total_bytes" not in p:
                rows.append(
                    [
                        "",
                        p["rival"],
                        "not met",
                        f"({p['budget'] / r['eager_bytes']:.3f})" if "budget" in p else "",
                        "",
                        "",
                        "",
                        "",
                    ]
                )
                continue
            better = [
                q for q in r["points"] if q.get("total_bytes", 1 << 62) <= p["total_bytes"] and q["ratio"] < p["ratio"]
            ]
            predicted = f"{p['predicted_ns'] / p['bound_ns']:.2f}" if "bound_ns" in p else ""
            low, high = p["quartiles"]
            rows.append(
                [
                    "",
                    p["rival"] if better else f"**{p['rival']}**",
                    mib(p["total_bytes"]),
                    f"{p['total_bytes'] / r['eager_bytes']:.3f}",
                    f"{p['ratio']:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    predicted,
                    "=" if p["equal"] else "differ",
                ]
            )
    header = ["model", "rival", "total MiB", "to eager", "time", "quartiles", "predicted / bound", "bits"]
    return common.markdown(header, rows, left=2)


def main() -> None:
    parser = common.parser(__doc__, "total_frontier")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--shares", nargs="*", type=float, default=SHARES, help="budgets, of eager's total")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS), choices=list(RIVALS), metavar="RIVAL")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="what has the budgets")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=5, help="processes beside eager's (default 5)")
    options = parser.parse_args()
    results = []
    for name in options.models:
        results.append(measure(name, options))
        common.publish("total_frontier", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
