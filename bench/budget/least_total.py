"""The smallest total, parameters and optimizer state included, within which a step trains, and what it takes there.

    eager      residents and the peak beyond them, as recorded
    stay       the smallest budget for which a plan was found, with all residents in place
    leave      the same where residents may wait on the host (``residents="leave"``), in a file; its proven bound beside it
    limit      ``stowage.budget`` around eager steps with the total of "leave": by how much it is short, where it is

Then the step is trained at the total of "leave": seconds a step, over eager's on an allocator that keeps its pages
(tcmalloc), a step each in turn, beside the predicted time over its proven bound. Losses and a digest of all state are
compared.

    ./dev bench least_total
    ./dev bench least_total --models lstm
"""

from __future__ import annotations

import os
import tempfile

from bench import common
from bench.budget import residents

MODELS = ("gpt2", "bert", "vit", "resnet50", "llama")
NO_LIMIT = "1TiB"


# ---- In a worker


def handlers(config: dict) -> dict:
    if config["rival"] != "planner":
        return residents.handlers(config)
    import stowage
    from bench import models

    model, loss_fn, batch = models.make(config["model"])

    def least(leave: bool) -> dict:
        import torch

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        step = models.step_with(model, loss_fn, optimizer)
        step = stowage.compile(step, budget=NO_LIMIT, residents="leave" if leave else "stay")
        while step.graph is None:
            step(batch)
            if step.refusal:
                raise SystemExit(f"{config['model']} is not planned: {step.refusal}")
        graph = step.graph
        found = {"eager_bytes": graph.resident_bytes + graph.program_peak_bytes, "resident_bytes": graph.resident_bytes}
        try:
            stowage.plan(graph, 1, link_gbps=config["link_gbps"])
        except stowage.Infeasible as error:
            return found | {"smallest_bytes": error.smallest_bytes, "bound_bytes": error.bound_bytes}
        raise SystemExit("a byte is enough")

    def limit(limit_bytes: int) -> dict:
        """Eager steps in a block, in a process that holds nothing else."""
        import torch

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        step = models.step_with(model, loss_fn, optimizer)
        block = stowage.budget(limit_bytes, progress=False)
        try:
            with block:
                for _ in range(2):
                    step(batch)
        except stowage.OutOfMemory:
            return {"short_bytes": block.stats()["short_bytes"]}
        return {"short_bytes": 0}

    return {"least": least, "limit": limit}


# ---- In the parent


def measure(name: str, options) -> dict:
    os.environ["STOWAGE_HOST_STORE"] = options.store
    found: dict = {"model": name}
    for way, leave in (("stay", False), ("leave", True)):
        config = {"model": name, "rival": "planner", "link_gbps": options.link_gbps}
        with common.Worker(config, options.threads) as worker:
            found[way] = worker.ask("least", leave=leave)
        common.say(f"{name}, {way}: {common.mebibytes(found[way]['smallest_bytes'])} MiB")
    budget_bytes = found["leave"]["smallest_bytes"]
    with common.Worker(config, options.threads) as worker:
        found["limit"] = worker.ask("limit", limit_bytes=budget_bytes)
    workers, losses = {}, {}
    for rival, tcmalloc in (("leave file", False), ("eager tcmalloc", True)):
        config = {"model": name, "form": "default", "budget": budget_bytes, "rival": rival}
        workers[rival] = common.Worker(config, options.threads, tcmalloc=tcmalloc)
    losses["leave file"] = workers["leave file"].ask("until_planned")["losses"]
    losses["eager tcmalloc"] = workers["eager tcmalloc"].ask("steps", count=len(losses["leave file"]))["losses"]
    turns = common.take_turns(workers, options.rounds, 1)
    for rival, taken in turns.items():
        losses[rival] += taken["losses"]
        found[rival] = {"seconds": common.median(taken["seconds"]), "spread": common.spread(taken["seconds"])}
    stats = workers["leave file"].ask("stats")
    keys = ("misses", "resident_bytes", "measured_peak_bytes", "away_bytes", "fetched_bytes", "gap", "outcome")
    found["stats"] = {key: stats[key] for key in keys}
    digests = {worker.ask("digest") for worker in workers.values()}
    found["equal"] = len(digests) == 1 and len({tuple(values) for values in losses.values()}) == 1
    for worker in workers.values():
        worker.close()
    return found


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    rows = []
    for r in results:
        stay, leave, stats = r["stay"], r["leave"], r["stats"]
        planned, eager = r["leave file"], r["eager tcmalloc"]
        rows.append(
            [
                r["model"],
                mib(stay["eager_bytes"]),
                mib(stay["resident_bytes"]),
                mib(stay["smallest_bytes"]),
                mib(leave["smallest_bytes"]),
                f"{leave['smallest_bytes'] / stay['smallest_bytes']:.2f}",
                mib(leave["bound_bytes"]),
                mib(stats["resident_bytes"] + stats["measured_peak_bytes"]),
                stats["misses"],
                f"{planned['seconds'] / eager['seconds']:.2f}",
                f"{100 * planned['spread']:.0f} %",
                "=" if r["equal"] else "differ",
                f"short by {mib(r['limit']['short_bytes'])}" if r["limit"]["short_bytes"] else "fits",
            ]
        )
    header = [
        "MiB", "eager", "residents", "stay", "leave", "leave / stay", "bound", "counted", "misses", "time", "quartiles",
        "bits", "limit",
    ]  # fmt: skip
    return common.markdown(header, rows)


def main() -> None:
    parser = common.parser(__doc__, "least_total")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--link-gbps", type=float, default=None, help="while planning (default: what plan() takes)")
    parser.add_argument("--store", default=tempfile.gettempdir(), help="directory of the file (default: the system's)")
    options = parser.parse_args()
    results = []
    for name in options.models:
        results.append(measure(name, options))
        common.publish("least_total", {"results": results}, table(results), options.output)
    if not all(r["equal"] for r in results):
        raise SystemExit("bits differ")


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
