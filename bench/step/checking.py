"""What it costs that a planned step stays true: the guards before each call, the shadow calls of `check=`, and a step
that is refused.

Rivals, each in a process of its own, in turns: eager; eager with tcmalloc preloaded; planned with check="never" (guards
alone), "auto", "always" (the user's Python runs over shells in each call); and a step with torch.unique, which is
refused, against the same step in eager. All train the same model from the same seed on the same batch, so their losses
must be equal.

The guards' own time is measured inside the process: median of 200 walks over all that is watched.

    ./dev bench checking                  every model, 1 thread, 12 rounds
    ./dev bench checking --model gpt2_small --rounds 20
"""

from __future__ import annotations

import time

from bench import common, models

RIVALS = {
    "eager": {},
    "eager+tcmalloc": {"tcmalloc": True},
    "never": {"check": "never"},
    "auto": {"check": "auto"},
    "always": {"check": "always"},
    "eager, unique": {"unique": True},
    "refused": {"unique": True, "check": "auto"},
    "refused, budget": {"unique": True, "check": "auto", "budget": "64GiB"},
}
MOST_FIRST_CALLS = 24


def handlers(config: dict) -> dict:
    import torch

    model, loss_fn, batch = models.make(config["model"])
    plain = models.make_step(model, loss_fn, "default")
    numbers = torch.arange(8)

    def with_unique(batch):
        torch.unique(numbers)
        return plain(batch)

    step = with_unique if config.get("unique") else plain
    if "check" in config:
        import stowage

        step = stowage.compile(step, check=config["check"], budget=config.get("budget"))

    def settle() -> dict:
        """The calls until it is planned and has been checked a few times, or refused."""
        losses = common.timed_steps(step, batch, MOST_FIRST_CALLS)["losses"]
        if config.get("unique") and "check" in config and not step.refusal:
            raise SystemExit("the step was to be refused")
        if "check" in config and not config.get("unique") and not step.stats()["planned_steps"]:
            raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'no reason given'}")
        return {"losses": losses}

    def guards() -> dict:
        replay = step._latest
        seconds = []
        for _ in range(200):
            start = time.perf_counter()
            changed = replay.recording.world.guard.changed()
            seconds.append(time.perf_counter() - start)
            if changed:
                raise SystemExit(f"a guard sounds: {changed}")
        return {"seconds": common.median(seconds)}

    return {"steps": lambda count: common.timed_steps(step, batch, count), "settle": settle, "guards": guards}


def measure(model: str, threads: int, rounds: int, count: int) -> dict:
    workers = {
        name: common.Worker({"model": model, **rival}, threads, rival.get("tcmalloc", False))
        for name, rival in RIVALS.items()
    }
    losses = {name: worker.ask("settle")["losses"] for name, worker in workers.items()}
    turns = common.take_turns(workers, rounds, count)
    guards_s = workers["never"].ask("guards")["seconds"]
    for worker in workers.values():
        worker.close()
    for name in RIVALS:
        losses[name] += turns[name]["losses"]
    median = {name: common.median(turns[name]["seconds"]) for name in RIVALS}
    return {
        "model": model,
        "threads": threads,
        "losses_equal": len({tuple(values) for values in losses.values()}) == 1,
        "guards_s": guards_s,
        "rivals": {
            name: {
                "median_s": median[name],
                "spread": common.spread(turns[name]["seconds"]),
                "steps": len(turns[name]["seconds"]),
                "to_base": median[name] / median["eager, unique" if "refused" in name else "eager"],
            }
            for name in RIVALS
        },
    }


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        for name, f in r["rivals"].items():
            rows.append(
                [
                    f"{r['model']}, {common.threads_text(r['threads'])}" if name == "eager" else "",
                    name,
                    f"{f['to_base']:.3f}",
                    f"{1000 * f['median_s']:.2f}",
                    f"{100 * f['spread']:.0f} %",
                ]
            )
    more = [
        [
            r["model"],
            f"{1e6 * r['guards_s']:.0f}",
            f"{100 * r['guards_s'] / r['rivals']['never']['median_s']:.2f} %",
            f"{1000 * (r['rivals']['always']['median_s'] - r['rivals']['never']['median_s']):.2f}",
            str(r["losses_equal"]),
        ]
        for r in results
    ]
    return (
        common.markdown(["model", "rival", "to eager", "median ms", "quartiles"], rows, left=2)
        + "\n\n"
        + common.markdown(["model", "guards us", "of a planned step", "a shadow call costs ms", "losses equal"], more)
    )


def main() -> None:
    parser = common.parser(__doc__, "checking")
    parser.add_argument("--model", nargs="+", default=["gpt2_small", "resnet50_small"], choices=list(models.BUILDERS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3, help="counted steps in a turn (default 3)")
    options = parser.parse_args()
    results = []
    for model in options.model:
        common.say(f"{model}, {common.threads_text(options.threads)}: {options.rounds} rounds")
        results.append(measure(model, options.threads, options.rounds, options.steps))
    common.publish("checking", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
