"""Peak bytes of a training step: eager, the recorded order, the plan, and the bound below which no order can go.

Eager's peak is counted by the allocator under all CPU tensors, above what is there between steps (parameters, optimizer
state, buffers, batch). Eager keeps a tensor as long as Python does, a recorded step only up to its last use: the
difference between the first two columns. Each model runs in a process of its own.

    ./dev bench peak                  eight models, AdamW
    ./dev bench peak --model gpt2 --form fused
"""

from __future__ import annotations

import sys

from bench import common, models

STEADY = 3  # planned steps that are measured
MOST_CALLS = 12


def handlers(config: dict) -> dict:
    import stowage
    from stowage import _runtime

    model, loss_fn, batch = models.make(config["model"])
    plain = models.make_step(model, loss_fn, config["form"])

    def measure() -> dict:
        eager = 0
        for _ in range(2):  # the second one has its optimizer state
            live = _runtime.live_bytes()
            _runtime.reset_peak()
            plain(batch)
            eager = _runtime.peak_bytes() - live
        step = stowage.compile(plain)
        for _ in range(MOST_CALLS):
            step(batch)
            if step.refusal or step.stats()["planned_steps"] >= STEADY:
                break
        stats = step.stats()
        if step.refusal or not stats["planned_steps"]:
            raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'not settled'}")
        summary = step.plan.summary()
        return {
            "eager_peak_bytes": eager,
            **{key: summary[key] for key in ("program_peak_bytes", "resident_bytes", "ops", "buffers")},
            **{
                key: stats[key]
                for key in (
                    "planned_peak_bytes",
                    "measured_peak_bytes",
                    "arena_bytes",
                    "lower_bound_bytes",
                    "gap",
                    "outcome",
                    "misses",
                )
            },
            "plan_s": summary["seconds"]["total"],
        }

    return {"measure": measure}


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    rows = [
        [
            r["model"],
            f"{r['arena_bytes'] / r['eager_peak_bytes']:.3f}",
            mib(r["resident_bytes"]),
            mib(r["eager_peak_bytes"]),
            mib(r["program_peak_bytes"]),
            mib(r["planned_peak_bytes"]),
            mib(r["arena_bytes"]),
            mib(r["lower_bound_bytes"]),
            f"{100 * r['gap']:.2f} %",
            r["outcome"],
            r["misses"],
            f"{r['plan_s']:.2f}",
        ]
        for r in results
    ]
    return common.markdown(
        [
            "MiB",
            "arena / eager",
            "residents",
            "eager",
            "recorded order",
            "plan",
            "arena",
            "bound",
            "gap",
            "outcome",
            "misses",
            "plan s",
        ],
        rows,
    )


def main() -> None:
    parser = common.parser(__doc__, "peak")
    parser.add_argument("--model", nargs="+", default=list(models.REALISTIC), choices=list(models.BUILDERS))
    parser.add_argument(
        "--form",
        default="default",
        choices=list(models.FORMS),
        help="of AdamW (default: torch.optim.AdamW's own choice)",
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    results, failed = [], []
    for model in options.model:
        common.say(f"{model}: {models.BUILDERS[model].__doc__}")
        try:
            with common.Worker({"model": model, "form": options.form}, options.threads) as worker:
                result = worker.ask("measure")
        except RuntimeError as error:
            failed.append(model)
            common.say(f"{model}: {error}")
            continue
        if result["measured_peak_bytes"] != result["planned_peak_bytes"]:
            common.say(
                f"{model}: measured peak {result['measured_peak_bytes']} is not the planned {result['planned_peak_bytes']}"
            )
        results.append(
            {
                "model": model,
                "what": models.BUILDERS[model].__doc__,
                "form": options.form,
                "threads": options.threads,
                **result,
            }
        )
    common.publish("peak", {"results": results}, table(results), options.output)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
