"""How much larger a batch trains in the bytes that eager needs, and how much slower its steps are.

At batch b, eager needs its residents (parameters, AdamW's state, buffers, batch) and its peak beyond them. With these
bytes as the budget, stowage.max_batch finds the largest batch on FakeTensors: no tensor of the model has memory, costs
are estimates from shapes. What kernels of the CPU allocate for themselves is measured, each kernel alone, and counts. The
slowdown is that of the predicted step, over the one without a limit at that batch. Recomputation alone does not depend on
how fast the machine is; how much a copy to the host hides does: here the kernels are those of one CPU core, so a link of
12 GB/s hides far more than beside a GPU. DELTA (arXiv 2203.15980) reports, on a GPU, 2.04 times the batch for ResNet-50
and 2.25 times for ResNet-101.

The second table is executed, at a batch that fits the machine: eager at b and at ``--factor`` b, then planned at
``--factor`` b within what eager was measured to need at b. Bytes are counted by the allocator under all CPU tensors.

    ./dev bench batch
    ./dev bench batch --model gpt2 --batch 8 --execute 1
"""

from __future__ import annotations

import time

from bench import common, models

BATCH = {"resnet50": 32, "resnet101": 32, "gpt2": 4}
EXECUTED = {"resnet50": 2, "resnet101": 2, "gpt2": 1}
WAYS = {"recomputation alone": 0, "with the host": None}  # GB/s of the link
MOST_CALLS = 12


# ---- In a worker


def make_step(name: str, batch_size: int):
    import torch

    torch.manual_seed(0)
    model, loss_fn, batch = models.BY_BATCH[name](batch_size)
    return models.make_step(model.train(), loss_fn, "fused"), (batch,)


def handlers(config: dict) -> dict:
    import stowage
    from stowage import _runtime
    from stowage.step.fit.made_step import MakeStep
    from stowage.step.fit.sized_step import SizedSteps

    name = config["model"]

    def predict(batch: int, factor: int, link_gbps: float | None) -> dict:
        made = MakeStep(lambda size: make_step(name, size), "batch_size")
        graph = SizedSteps(made).at(made.sizes({"batch_size": batch})).graphs()[0]
        needed = graph.resident_bytes + graph.program_peak_bytes
        start = time.perf_counter()
        found = stowage.max_batch(lambda size: make_step(name, size), needed, start=batch, link_gbps=link_gbps)
        seconds = time.perf_counter() - start
        wanted = next((t for t in found.tried if t.batch == factor * batch), None)
        if wanted is None and found.batch >= factor * batch:
            at = {"start": factor * batch, "most": factor * batch}
            (wanted,) = stowage.max_batch(lambda size: make_step(name, size), needed, link_gbps=link_gbps, **at).tried
        return {
            "eager_bytes": needed,
            "largest": found.batch,
            "slowdown": found.slowdown,
            "slowdown_at_factor": wanted.slowdown if wanted else None,
            "tried": len(found.tried),
            "seconds": seconds,
            "most_plan_s": max(t.plan_s for t in found.tried),
        }

    def eager(batch: int, steps: int) -> dict:
        step, arguments = make_step(name, batch)
        seconds, losses, peak = [], [], 0
        for _ in range(steps):
            _runtime.reset_peak()
            start = time.perf_counter()
            losses.append(step(*arguments).item().hex())
            seconds.append(time.perf_counter() - start)
            peak = _runtime.peak_bytes()
        return {"bytes": peak, "seconds": seconds[1:], "losses": losses}

    def planned(batch: int, budget: int, steps: int) -> dict:
        plain, arguments = make_step(name, batch)
        step = stowage.compile(plain, budget=budget)
        seconds, losses = [], []
        for _ in range(MOST_CALLS):
            done = step.stats()["planned_steps"]
            if done >= steps:
                break
            _runtime.reset_peak()
            start = time.perf_counter()
            losses.append(step(*arguments).item().hex())
            if step.stats()["planned_steps"] > done:
                seconds.append(time.perf_counter() - start)
        if not seconds:
            raise SystemExit(f"{name} is not planned after {len(losses)} calls: {step.refusal or 'no reason given'}")
        summary = step.plan.summary()
        return {
            "bytes": _runtime.peak_bytes(),
            "seconds": seconds,
            "losses": losses,
            "misses": step.stats()["misses"],
            **{key: summary[key] for key in ("step_ns", "program_step_ns", "recomputed_ops", "swapped_bytes")},
        }

    return {"predict": predict, "eager": eager, "planned": planned}


# ---- In the parent


def execute(name: str, batch: int, factor: int, threads: int, steps: int) -> dict:
    """Eager at both sizes and the plan, each in a process of its own."""

    def ask(what: str, **arguments) -> dict:
        with common.Worker({"model": name}, threads, tcmalloc=True) as worker:
            return worker.ask(what, **arguments)

    small = ask("eager", batch=batch, steps=3)
    large = ask("eager", batch=factor * batch, steps=steps + 3)
    ours = ask("planned", batch=factor * batch, budget=small["bytes"], steps=steps)
    shared = min(len(large["losses"]), len(ours["losses"]))
    return {
        "batch": batch,
        "factor": factor,
        "budget_bytes": small["bytes"],
        "eager_bytes": large["bytes"],
        "planned_bytes": ours["bytes"],
        "losses_equal": ours["losses"][:shared] == large["losses"][:shared],
        "losses_compared": shared,
        "misses": ours["misses"],
        "slowdown": common.median(ours["seconds"]) / common.median(large["seconds"]),
        "predicted_slowdown": ours["step_ns"] / ours["program_step_ns"],
        "recomputed_ops": ours["recomputed_ops"],
        "swapped_bytes": ours["swapped_bytes"],
    }


def table(results: list[dict]) -> str:
    gib = lambda count: f"{count / 2**30:.2f}"
    rows = [
        [
            f"{r['model']}, {way}",
            r["batch"],
            gib(p["eager_bytes"]),
            p["largest"],
            f"{p['largest'] / r['batch']:.2f}",
            f"{p['slowdown']:.3f}",
            f"{p['slowdown_at_factor']:.3f}" if p["slowdown_at_factor"] else "",
            p["tried"],
            f"{p['seconds']:.1f}",
            f"{p['most_plan_s']:.2f}",
        ]
        for r in results
        for way, p in r["predicted"].items()
    ]
    factor = results[0]["factor"] if results else 4
    text = common.markdown(
        [
            "predicted",
            "batch",
            "eager GiB",
            "largest",
            "factor",
            "slowdown",
            f"slowdown at {factor} b",
            "tried",
            "s",
            "longest plan s",
        ],
        rows,
    )
    rows = [
        [
            r["model"],
            f"{e['batch']} to {e['batch'] * e['factor']}",
            gib(e["budget_bytes"]),
            gib(e["planned_bytes"]),
            gib(e["eager_bytes"]),
            f"{e['slowdown']:.3f}",
            f"{e['predicted_slowdown']:.3f}",
            e["recomputed_ops"],
            gib(e["swapped_bytes"]),
            e["misses"],
            e["losses_equal"],
        ]
        for r in results
        for e in [r["executed"]]
        if e
    ]
    if rows:
        text += "\n\n" + common.markdown(
            [
                "executed",
                "batch",
                "budget GiB",
                "planned GiB",
                "eager GiB",
                "slowdown",
                "predicted",
                "recomputed ops",
                "swapped GiB",
                "misses",
                "losses equal",
            ],
            rows,
            left=2,
        )
    return text


def main() -> None:
    parser = common.parser(__doc__, "batch")
    parser.add_argument("--model", nargs="+", default=list(models.BY_BATCH), choices=list(models.BY_BATCH))
    parser.add_argument("--batch", type=int, help="eager's, for the prediction (default 32; gpt2: 4)")
    parser.add_argument("--execute", type=int, help="eager's, for the execution (default 2; gpt2: 1); 0: none")
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4, help="planned steps that are timed (default 4)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    results, failed = [], []
    for name in options.model:
        batch = options.batch or BATCH[name]
        common.say(f"{name}: predicted at batch {batch}")
        try:
            with common.Worker({"model": name}, options.threads) as worker:
                predicted = {
                    way: worker.ask("predict", batch=batch, factor=options.factor, link_gbps=link)
                    for way, link in WAYS.items()
                }
            small, executed = EXECUTED[name] if options.execute is None else options.execute, {}
            if small:
                common.say(f"{name}: executed at batch {small} and {options.factor * small}")
                executed = execute(name, small, options.factor, options.threads, options.steps)
        except RuntimeError as error:
            failed.append(name)
            common.say(f"{name}: {error}")
            continue
        results.append(
            {
                "model": name,
                "batch": batch,
                "factor": options.factor,
                "threads": options.threads,
                "predicted": predicted,
                "executed": executed,
            }
        )
    common.publish("batch", {"results": results}, table(results), options.output)
    raise SystemExit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
