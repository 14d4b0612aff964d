"""Time of a planned step against eager, in turns, each rival in a process of its own.

Rivals: eager as installed (a process that never imports stowage); eager with tcmalloc preloaded and its pages kept,
which spares it the page faults that an arena spares too; Stowage; Stowage with tcmalloc. All train the same model from
the same seed on the same batch, so their losses must be equal at every step. A round gives each rival one turn,
beginning with another one each time: one step that is not counted (it warms the caches that the others have used), then
the counted ones.

Recording costs what the calls before the first planned one take, less what as many first calls of eager take, in units
of the median eager step; it is measured in fresh processes.

    ./dev bench step_time                     both models, 1 and 2 threads, 12 rounds
    ./dev bench step_time --model gpt2_small --threads 1 --rounds 20
    ./dev bench step_time --before FOLDER     and another build of the package, imported from FOLDER, in the same turns
"""

from __future__ import annotations

from bench import common, models

RIVALS = {
    "eager": {"planned": False, "tcmalloc": False},
    "eager+tcmalloc": {"planned": False, "tcmalloc": True},
    "planned": {"planned": True, "tcmalloc": False},
    "planned+tcmalloc": {"planned": True, "tcmalloc": True},
}
BEFORE = "planned, before"
MOST_FIRST_CALLS = 12


# ---- In a worker


def handlers(config: dict) -> dict:
    model, loss_fn, batch = models.make(config["model"])
    step = models.make_step(model, loss_fn, config["form"])
    if config["planned"]:
        import stowage

        step = stowage.compile(step)

    def steps(count: int) -> dict:
        return common.timed_steps(step, batch, count)

    def until_planned() -> dict:
        """Wall time of the calls before the first planned one, each."""
        seconds, losses = [], []
        while len(seconds) < MOST_FIRST_CALLS:
            turn = steps(1)
            losses += turn["losses"]
            if step.stats()["planned_steps"]:
                return {"seconds": seconds, "losses": losses}
            seconds += turn["seconds"]
        raise SystemExit(
            f"{config['model']} is not planned after {len(seconds)} calls: {step.refusal or 'no reason given'}"
        )

    return {"steps": steps, "until_planned": until_planned, "stats": lambda: step.stats()}


# ---- In the parent


def measure_turns(
    config: dict, threads: int, names: list[str], rounds: int, count: int, before: str | None = None
) -> dict:
    """Medians of interleaved steps, in seconds, and whether all losses were equal. ``before``: the folder of another
    build of the package, a rival of its own."""
    workers = {name: common.Worker(config | RIVALS[name], threads, RIVALS[name]["tcmalloc"]) for name in names}
    if before:
        workers[BEFORE] = common.Worker(config | RIVALS["planned"], threads, package=before)
    planned = [name for name in workers if name == BEFORE or RIVALS[name]["planned"]]
    losses = {
        name: (worker.ask("until_planned") if name in planned else worker.ask("steps", count=4))["losses"]
        for name, worker in workers.items()
    }
    turns = common.take_turns(workers, rounds, count)
    seconds = {name: turns[name]["seconds"] for name in workers}
    for name in workers:
        losses[name] += turns[name]["losses"]
    stats = {name: workers[name].ask("stats") for name in planned}
    for worker in workers.values():
        worker.close()
    shortest = min(len(values) for values in losses.values())
    same = len({tuple(values[:shortest]) for values in losses.values()}) == 1
    base = common.median(seconds["eager"])
    fair = common.median(seconds["eager+tcmalloc"])
    return {
        "losses_compared": shortest,
        "losses_equal": same,
        "rivals": {
            name: {
                "to_eager": common.median(seconds[name]) / base,
                "to_eager_tcmalloc": common.median(seconds[name]) / fair,
                "median_ms": 1000 * common.median(seconds[name]),
                "spread": common.spread(seconds[name]),
                "steps": len(seconds[name]),
                "misses": stats[name]["misses"] if name in stats else None,
            }
            for name in workers
        },
        "arena_bytes": stats["planned"]["arena_bytes"],
    }


def measure_recording(config: dict, threads: int, repetitions: int, step_seconds: float) -> dict:
    """Cost of becoming planned, in eager steps; median over fresh processes."""
    costs, calls = [], 0
    for _ in range(repetitions):
        with common.Worker(config | RIVALS["planned"], threads) as planned:
            first = planned.ask("until_planned")["seconds"]
        with common.Worker(config | RIVALS["eager"], threads) as eager:
            plain = eager.ask("steps", count=len(first))["seconds"]
        calls = len(first)
        costs.append((sum(first) - sum(plain)) / step_seconds)
    return {"eager_steps": common.median(costs), "each": costs, "first_calls": calls}


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        for name, f in r["rivals"].items():
            rows.append(
                [
                    f"{r['model']}, {common.threads_text(r['threads'])}" if name == "eager" else "",
                    name,
                    f"{f['to_eager']:.3f}",
                    f"{f['to_eager_tcmalloc']:.3f}",
                    f"{f['median_ms']:.1f}",
                    f"{100 * f['spread']:.0f} %",
                    "" if f["misses"] is None else f["misses"],
                ]
            )
    main = common.markdown(
        ["model", "rival", "to eager", "to eager+tcmalloc", "median ms", "quartiles", "misses"], rows, left=2
    )
    rest = common.markdown(
        ["model", "losses equal", "recording, eager steps", "first calls"],
        [
            [
                f"{r['model']}, {common.threads_text(r['threads'])}",
                f"{r['losses_equal']} ({r['losses_compared']} steps)",
                f"{r['recording']['eager_steps']:.2f}" if r["recording"] else "",
                r["recording"].get("first_calls", ""),
            ]
            for r in results
        ],
    )
    return main + "\n\n" + rest


def main() -> None:
    parser = common.parser(__doc__, "step_time")
    parser.add_argument("--model", nargs="+", default=["gpt2_small", "resnet50_small"], choices=list(models.BUILDERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--rivals",
        nargs="+",
        default=list(RIVALS),
        choices=list(RIVALS),
        help="eager, eager+tcmalloc and planned always run",
    )
    parser.add_argument(
        "--before", metavar="FOLDER", help="another build of the package takes part, imported from there"
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3, help="counted steps in a turn (default 3)")
    parser.add_argument(
        "--recordings", type=int, default=3, help="fresh processes for the cost of recording (default 3; 0: skip)"
    )
    parser.add_argument(
        "--form",
        default="default",
        choices=list(models.FORMS),
        help="of AdamW (default: torch.optim.AdamW's own choice)",
    )
    options = parser.parse_args()
    names = [name for name in RIVALS if name in options.rivals or name in ("eager", "eager+tcmalloc", "planned")]
    results = []
    for model in options.model:
        for threads in options.threads:
            common.say(f"{model}, {common.threads_text(threads)}: {options.rounds} rounds")
            config = {"model": model, "form": options.form}
            result = {"model": model, "what": models.BUILDERS[model].__doc__, "threads": threads, "form": options.form}
            result |= measure_turns(config, threads, names, options.rounds, options.steps, options.before)
            step_seconds = result["rivals"]["eager"]["median_ms"] / 1000
            result["recording"] = (
                measure_recording(config, threads, options.recordings, step_seconds) if options.recordings else {}
            )
            results.append(result)
    common.publish("step_time", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
