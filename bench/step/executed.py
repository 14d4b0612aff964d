"""Training steps that run: the planned step's arena against eager's peak, its time against eager's, its bits against
eager's.

Models whose gradients, not their activations, make the peak: checkpointed blocks, small batches. Three rivals train the
same model from the same seed on the same batches, each in a process of its own, in turns: eager, eager on tcmalloc with
its pages kept, and Stowage. At the end the losses of all steps and a digest of all parameters and optimizer states must
be equal.

    ./dev bench executed
    ./dev bench executed --only gpt2-ckpt-s1024 --rounds 5 --threads 1

All three processes live at once: BERT-large needs about 16 GiB of memory, the others less.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

from bench import common
from bench.order import models_sequence

MOST_FIRST_CALLS = 12
# The one that needs most memory at first goes first
RIVALS = {"planned": False, "eager": False, "eager+tcmalloc": True}

# Name: (factory, batch, tokens).
MODELS: dict[str, tuple[Callable, int, int]] = {
    "gpt2-ckpt-s1024": (functools.partial(models_sequence.gpt2, checkpoint=True), 1, 1024),
    "gpt2-s256": (models_sequence.gpt2, 1, 256),
    "bert_large-s128": (functools.partial(models_sequence.bert, 24, 1024, 16), 1, 128),
    "llama_350m-ckpt-s256": (
        functools.partial(models_sequence.llama, 16, 1024, 4096, 16, 4, 128256, True, True),
        1,
        256,
    ),
}


# ---- In a worker


def handlers(config: dict) -> dict:
    import torch

    factory, batch, length = MODELS[config["model"]]
    torch.manual_seed(0)
    model = factory().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)
    tokens = torch.randint(0, 1000, (batch, length), generator=torch.Generator().manual_seed(7))

    def train_step(x):
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = train_step

    def steps(count: int) -> dict:
        return common.timed_steps(step, tokens, count)

    def until_planned() -> dict:
        """Two eager steps with their peak, then calls until one runs as planned."""
        nonlocal step
        import stowage
        from stowage import _runtime

        losses = steps(1)["losses"]
        live = _runtime.live_bytes()
        _runtime.reset_peak()
        losses += steps(1)["losses"]
        peak = _runtime.peak_bytes() - live
        step = stowage.compile(train_step)
        while not step.stats()["planned_steps"]:
            if step.refusal or len(losses) > MOST_FIRST_CALLS:
                raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'not settled'}")
            losses += steps(1)["losses"]
        return {"losses": losses, "eager_peak_bytes": peak}

    def summary() -> dict:
        stats, plan = step.stats(), step.plan.summary()
        return {
            **{
                key: stats[key]
                for key in (
                    "arena_bytes",
                    "planned_peak_bytes",
                    "measured_peak_bytes",
                    "lower_bound_bytes",
                    "gap",
                    "outcome",
                    "misses",
                )
            },
            **{key: plan[key] for key in ("program_peak_bytes", "resident_bytes", "ops")},
            "plan_s": plan["seconds"]["total"],
        }

    def digest() -> str:
        sha = hashlib.sha256()
        states = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
        for tensor in [*model.parameters(), *model.buffers(), *states]:
            sha.update(memoryview(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()))
        return sha.hexdigest()

    return {"steps": steps, "until_planned": until_planned, "summary": summary, "digest": digest}


# ---- In the parent


def measure(model: str, threads: int, rounds: int, count: int) -> dict:
    workers, losses = {}, {}
    for name, tcmalloc in RIVALS.items():
        workers[name] = common.Worker({"model": model}, threads, tcmalloc)
        first = (
            workers[name].ask("until_planned")
            if name == "planned"
            else workers[name].ask("steps", count=len(losses["planned"]))
        )
        losses[name] = first["losses"]
        if name == "planned":
            eager_peak = first["eager_peak_bytes"]
    turns = common.take_turns(workers, rounds, count)
    for name in workers:
        losses[name] += turns[name]["losses"]
    digests = {name: worker.ask("digest") for name, worker in workers.items()}
    result = workers["planned"].ask("summary")
    for worker in workers.values():
        worker.close()
    seconds = {name: turns[name]["seconds"] for name in RIVALS}
    medians = {name: common.median(values) for name, values in seconds.items()}
    return {
        "model": model,
        "threads": threads,
        "eager_peak_bytes": eager_peak,
        **result,
        "steps": len(losses["planned"]),
        "losses_equal": len({tuple(values) for values in losses.values()}) == 1,
        "states_equal": len(set(digests.values())) == 1,
        "seconds": medians,
        "spread": {name: common.spread(values) for name, values in seconds.items()},
    }


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    rows = []
    for r in results:
        s = r["seconds"]
        bits = "equal" if r["losses_equal"] and r["states_equal"] else "differ"
        rows.append(
            [
                f"{r['model']}, {common.threads_text(r['threads'])}",
                f"{r['arena_bytes'] / r['eager_peak_bytes']:.3f}",
                mib(r["resident_bytes"]),
                mib(r["eager_peak_bytes"]),
                mib(r["program_peak_bytes"]),
                mib(r["arena_bytes"]),
                mib(r["lower_bound_bytes"]),
                f"{s['planned'] / s['eager']:.3f}",
                f"{s['planned'] / s['eager+tcmalloc']:.3f}",
                f"{s['planned']:.2f}",
                f"{bits} ({r['steps']} steps)",
                r["misses"],
            ]
        )
    return common.markdown(
        [
            "MiB",
            "arena / eager",
            "residents",
            "eager",
            "recorded order",
            "arena",
            "bound",
            "time to eager",
            "to eager+tcmalloc",
            "s",
            "bits",
            "misses",
        ],
        rows,
    )


def main() -> None:
    parser = common.parser(__doc__, "executed")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1, help="counted ones a turn (default 1)")
    options = parser.parse_args()
    results = []
    for model in options.only:
        results.append(measure(model, options.threads, options.rounds, options.steps))
        common.say(table(results[-1:]))
    common.publish(
        "executed",
        {"results": results},
        table(results),
        options.output or ("-" if len(results) < len(MODELS) else None),
    )
    if not all(r["losses_equal"] and r["states_equal"] for r in results):
        raise SystemExit("bits differ")


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
