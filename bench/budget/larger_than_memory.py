"""Training state that fills the machine's memory, or more: one model under budgets that hold a part of its parameters and
AdamW's state, the rest in a file (``residents="leave"``, STOWAGE_HOST_STORE).

A run without a budget hardly fits, or not at all. So the runs are compared with each other: the losses of all steps, and a digest of
parameters, buffers and optimizer state at the end. (State that fits is compared with eager by ./dev bench residents.)

    state        parameters, buffers and optimizer state
    anonymous    RssAnon above what the process held without the model, the most of what another process saw every few
                 milliseconds: it is what no file has. In the first calls, which run eagerly and are recorded and
                 rehearsed, the model as it was made in memory counts, too
    moved        what one step reads and writes of the file, as the kernel counts it (rchar and wchar of /proc/self/io)

    ./dev bench larger_than_memory                                     1.3 B parameters within 6 and 5 GiB, an hour
    ./dev bench larger_than_memory --model gpt2 --budgets 900MiB 700MiB
"""

from __future__ import annotations

import os
import tempfile
import time

from bench import common
from bench.budget import residents


def measure(options, budget: str) -> dict:
    """One process: the first calls, then steps one by one."""
    os.environ["STOWAGE_HOST_STORE"] = options.store
    config = {"model": options.model, "form": options.form, "budget": budget, "rival": "leave file"}
    with common.Worker(config, options.threads) as worker:
        floor = worker.ask("floor")["RssAnon"]
        pid = worker.ask("pid")
        first, planned = residents.Watch(pid), residents.Watch(pid)
        began = time.perf_counter()
        with first.running():
            losses = worker.ask("until_planned")["losses"]
        first_s = time.perf_counter() - began
        common.say(f"{budget}: planned after {len(losses)} calls in {first_s:.0f} s")
        before = worker.ask("begin_watch")
        seconds = []
        while len(losses) < options.steps:
            with planned.running():
                answer = worker.ask("steps", count=1)
            losses += answer["losses"]
            seconds += answer["seconds"]
            common.say(f"{budget}, step {len(losses)}: {seconds[-1]:.1f} s")
        moved = worker.ask("end_watch", before=before)["moved"]
        return {
            "budget": budget,
            "losses": losses,
            "first_calls": len(losses) - len(seconds),
            "first_s": first_s,
            "first_anonymous_bytes": first.most["RssAnon"] - floor,
            "anonymous_bytes": planned.most["RssAnon"] - floor,
            "seconds": common.median(seconds),
            "spread": common.spread(seconds),
            "moved_bytes": sum(moved.values()) // len(seconds),
            "state_bytes": worker.ask("residents"),
            "stats": worker.ask("stats"),
            "digest": worker.ask("digest"),
        }


def table(results: list[dict]) -> str:
    return "\n\n".join(map(_table, results))


def _table(result: dict) -> str:
    def gib(count: int) -> str:
        return f"{count / 2**30:.2f}"

    rows = [
        [
            r["budget"],
            gib(r["stats"]["resident_bytes"] + r["stats"]["measured_peak_bytes"]),
            gib(r["anonymous_bytes"]),
            gib(r["first_anonymous_bytes"]),
            f"{r['first_s'] / r['first_calls']:.0f}",
            f"{r['seconds']:.1f}",
            f"{100 * r['spread']:.0f} %",
            gib(r["moved_bytes"]),
            r["stats"]["misses"],
        ]
        for r in result["runs"]
    ]
    header = [
        "GiB, seconds", "allocator", "anonymous", "in first calls", "s a first call", "s a step", "quartiles",
        "moved a step", "misses",
    ]  # fmt: skip
    head = (
        f"{result['model']}: {result['what']} AdamW, {common.threads_text(result['threads'])}. State "
        f"{gib(result['runs'][0]['state_bytes'])} GiB, memory of the machine {gib(result['memory_bytes'])} GiB. Losses of "
        f"{len(result['runs'][0]['losses'])} steps and a digest of all state: "
        f"{'equal' if result['equal'] else 'they differ'}."
    )
    return f"{head}\n\n{common.markdown(header, rows)}"


def main() -> None:
    parser = common.parser(__doc__, "larger_than_memory")
    parser.add_argument("--model", default="gpt2_1b3", help="of bench/models.py (default gpt2_1b3)")
    parser.add_argument("--budgets", nargs="+", default=["6GiB", "5GiB"])
    parser.add_argument("--form", default="default", help="of AdamW: default, loop, foreach or fused")
    parser.add_argument("--steps", type=int, default=12, help="whose losses are compared (default 12)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--store", default=tempfile.gettempdir(), help="directory of the file (default: the system's)")
    options = parser.parse_args()
    from bench import models

    if options.model not in models.BUILDERS or options.form not in models.FORMS:
        parser.error(f"models: {', '.join(models.BUILDERS)}; forms: {', '.join(models.FORMS)}")
    runs = [measure(options, budget) for budget in options.budgets]
    result = {
        "model": options.model,
        "what": models.BUILDERS[options.model].__doc__,
        "threads": options.threads,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "runs": runs,
        "equal": len({(run["digest"], *run["losses"]) for run in runs}) == 1,
    }
    common.publish("larger_than_memory", {"results": [result]}, table([result]), options.output)
    if not result["equal"]:
        raise SystemExit("the runs differ")


if __name__ == "__main__":
    common.serve(residents.handlers) if common.is_worker() else main()
