"""All bytes of a training step, by where its ``zero_grad()`` stands: parameters, gradients, what the step makes.

A step that begins with ``zero_grad()``, or has it before ``backward()``, leaves its gradients behind; one that ends with it lets
each go after its update.
Eager and planned are measured by the same counter, under all CPU tensors, in a steady step. Each row is a process of its
own; the bits are those of all parameters after all steps.

    ./dev bench kept_gradients
"""

from __future__ import annotations

import hashlib
import sys

from bench import common, models

CALLS = 16  # of which the last is measured
STEADY = 3  # planned ones among them, at least
CLEARS = ("first", "before backward", "last")
MODELS = ("linear", "gpt2_small", "resnet50_small")


def handlers(config: dict) -> dict:
    import torch

    import stowage
    from stowage import _runtime

    def build():
        model, loss_fn, batch = models.make(config["model"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(batch):
            if config["clears"] == "first":
                optimizer.zero_grad()
            loss = loss_fn(model, batch)
            if config["clears"] == "before backward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if config["clears"] == "last":
                optimizer.zero_grad()
            return loss.detach()

        return model, step, batch

    def measure() -> dict:
        model, step, batch = build()
        if config["planned"]:
            step = stowage.compile(step)
        peak_bytes = 0
        for _ in range(CALLS):
            _runtime.reset_peak()
            step(batch)
            peak_bytes = _runtime.peak_bytes()
        if config["planned"] and (step.refusal or step.stats()["planned_steps"] < STEADY):
            raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'not settled'}")
        parameters = [p.detach() for p in model.parameters()]
        return {
            "total_bytes": peak_bytes,
            "parameter_bytes": sum(p.nbytes for p in parameters),
            "digest": hashlib.sha256(b"".join(p.numpy().tobytes() for p in parameters)).hexdigest(),
        }

    return {"measure": measure}


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    rows = [
        [
            f"{r['model']}, {r['clears']}",
            mib(r["parameter_bytes"]),
            mib(r["eager_bytes"]),
            mib(r["planned_bytes"]),
            f"{r['planned_bytes'] / r['eager_bytes']:.3f}",
            "equal" if r["equal"] else "DIFFER",
        ]
        for r in results
    ]
    return common.markdown(
        ["MiB; zero_grad() stands", "parameters", "eager, all", "planned, all", "planned / eager", "bits"], rows
    )


def main() -> None:
    parser = common.parser(__doc__, "kept_gradients")
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(models.BUILDERS))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    results = []
    for model in options.model:
        for clears in CLEARS:
            rows = {}
            for planned in (False, True):
                with common.Worker({"model": model, "clears": clears, "planned": planned}, options.threads) as worker:
                    rows[planned] = worker.ask("measure")
            results.append(
                {
                    "model": model,
                    "clears": clears,
                    "threads": options.threads,
                    "parameter_bytes": rows[False]["parameter_bytes"],
                    "eager_bytes": rows[False]["total_bytes"],
                    "planned_bytes": rows[True]["total_bytes"],
                    "equal": rows[False]["digest"] == rows[True]["digest"],
                }
            )
    common.publish("kept_gradients", {"results": results}, table(results), options.output)
    sys.exit(0 if all(r["equal"] for r in results) else "the bits differ")


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
