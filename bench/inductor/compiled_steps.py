"""Planned steps over a model that torch.compile has compiled, against the compiled step without Stowage, in turns.

Rivals: the compiled model with an eager optimizer; the same with tcmalloc preloaded and its pages kept; with the
optimizer's step compiled, too; Stowage over the compiled model, with tcmalloc and without, and within budgets that leave
parts of the compiled step's own peak. All train the same model from the same seed on the same batch, so their losses
must be equal at every step. Peaks are counted by the allocator above what is there between steps.

    ./dev bench compiled_steps
    ./dev bench compiled_steps --models gpt2 --threads 1 --rounds 20
"""

from __future__ import annotations

import os
import tempfile

from bench import common
from bench.inductor.inductor import make

MODELS = ("gpt2", "bert", "vit", "resnet50", "t5", "llama")
PARTS = (0.5, 0.4)  # of the compiled step's peak, as budgets
COMPILED = {
    "compiled": {},
    "compiled+tcmalloc": {"tcmalloc": True},
    "optimizer compiled, too": {"optimizer": "compiled"},
}
PLANNED = {"planned": {"planned": True}, "planned+tcmalloc": {"planned": True, "tcmalloc": True}}
MOST_FIRST_CALLS = 12


def handlers(config: dict) -> dict:
    import torch

    import stowage
    from stowage import _runtime

    model, batch = make(config["model"])
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)
    if config.get("optimizer") == "compiled":
        optimizer.step = torch.compile(optimizer.step)
    compiled = torch.compile(model, dynamic=False)

    def step(batch):
        loss = compiled(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if config.get("planned"):
        step = stowage.compile(step, budget=config.get("budget"))

    def first_calls() -> dict:
        """All that comes before the measured calls: those of a planned step until two are planned."""
        losses = []
        for _ in range(MOST_FIRST_CALLS):
            losses.append(step(batch).item().hex())
            if not config.get("planned") and len(losses) == 5:
                break
            if config.get("planned") and (step.refusal or step.stats()["planned_steps"] >= 2):
                break
        if config.get("planned") and not step.stats()["planned_steps"]:
            raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'not settled'}")
        return {"losses": losses}

    def peak() -> dict:
        live = _runtime.live_bytes()
        _runtime.reset_peak()
        losses = common.timed_steps(step, batch, 1)["losses"]
        arena_bytes = step.stats()["arena_bytes"] if config.get("planned") else 0  # it is there between steps, too
        return {"peak_bytes": _runtime.peak_bytes() - live + arena_bytes, "losses": losses}

    return {
        "first_calls": first_calls,
        "peak": peak,
        "steps": lambda count: common.timed_steps(step, batch, count),
        "stats": lambda: step.stats(),
    }


def measure(name: str, threads: int, options) -> dict:
    workers: dict[str, common.Worker] = {}
    losses: dict[str, list[str]] = {}
    peaks: dict[str, int] = {}
    refused: dict[str, str] = {}

    def add(rival: str, config: dict) -> None:
        tcmalloc = config.get("tcmalloc", False)
        worker = common.Worker({"model": name, **config}, threads, tcmalloc)
        try:
            losses[rival] = worker.ask("first_calls")["losses"]
        except RuntimeError as error:  # a budget that cannot be met; the worker has said why
            refused[rival] = str(error)
            return
        found = worker.ask("peak")
        losses[rival] += found["losses"]
        peaks[rival] = found["peak_bytes"]
        workers[rival] = worker
        common.say(f"{name}, {rival}: peak {common.mebibytes(found['peak_bytes'])} MiB")

    for rival, config in (COMPILED | PLANNED).items():
        add(rival, config)
    for part in options.parts:
        residents = workers["planned"].ask("stats")["resident_bytes"]
        add(
            f"budget, {100 * part:.0f} % of the peak",
            {"planned": True, "budget": residents + int(part * peaks["compiled"])},
        )
    turns = common.take_turns(workers, options.rounds, options.steps)
    for rival, taken in turns.items():
        losses[rival] += taken["losses"]
    stats = {rival: workers[rival].ask("stats") for rival in workers if rival not in COMPILED}
    for worker in workers.values():
        worker.close()
    shortest = min(len(values) for values in losses.values())
    reference = losses["compiled"][:shortest]
    base, fair = (common.median(turns[rival]["seconds"]) for rival in ("compiled", "compiled+tcmalloc"))
    rivals = {}
    for rival, taken in turns.items():
        seconds = taken["seconds"]
        rivals[rival] = {
            "to_compiled": common.median(seconds) / base,
            "to_compiled_tcmalloc": common.median(seconds) / fair,
            "median_ms": 1000 * common.median(seconds),
            "spread": common.spread(seconds),
            "steps": len(seconds),
            "peak_bytes": peaks[rival],
            "same_losses": losses[rival][:shortest] == reference,
        }
        if rival in stats:
            keys = ("misses", "planned_peak_bytes", "measured_peak_bytes", "arena_bytes", "outcome", "planned_steps")
            rivals[rival] |= {key: stats[rival][key] for key in keys}
    return {"model": name, "threads": threads, "losses_compared": shortest, "rivals": rivals, "refused": refused}


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        for rival, f in r["rivals"].items():
            planned = "misses" in f
            rows.append([
                f"{r['model']}, {common.threads_text(r['threads'])}" if rival == "compiled" else "",
                rival, f"{f['to_compiled']:.3f}", f"{f['to_compiled_tcmalloc']:.3f}", f"{f['median_ms']:.1f}",
                f"{100 * f['spread']:.0f} %", common.mebibytes(f["peak_bytes"]),
                ("yes" if f["measured_peak_bytes"] == f["planned_peak_bytes"] else "no") if planned else "",
                f["misses"] if planned else "", "yes" if f["same_losses"] else "no",
            ])  # fmt: skip
        rows += [["", f"{rival}: not planned", *[""] * 8] for rival in r["refused"]]
    header = [
        "model", "rival", "to compiled", "to compiled+tcmalloc", "median ms", "quartiles", "peak MiB", "peak = plan",
        "misses", "same losses",
    ]  # fmt: skip
    return common.markdown(header, rows, left=2)


def main() -> None:
    parser = common.parser(__doc__, "compiled_steps")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--parts", nargs="*", type=float, default=PARTS)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3, help="counted steps in a turn (default 3)")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for name in options.models:
            for threads in options.threads:
                results.append(measure(name, threads, options))
                common.publish("compiled_steps", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
