"""What tiles save: the arena, the time and the numbers of planned steps with ``tile_mlp=True`` and with ``tile_loss=True``, beside
the exact plan.

Whole models, SGD. Each rival trains from the same seed on the same batch in a process of its own, in turns. Bits are not
those of eager where anything is tiled: "error" is the largest difference of a number from that of the recorded kernels, as a part
of the largest number of its result, and "loss" the largest difference of a loss from the exact one.

    ./dev bench tiles
    ./dev bench tiles --only gpt2 --rounds 5

GPT-2 alone takes about twenty minutes of one core.
"""

from __future__ import annotations

from bench import common
from bench.step.loss_head import Whole, until_planned

CASES = {
    "gpt2": Whole("gpt2", (1024, 50257)),
    "gpt2-ckpt-s1024": Whole("gpt2-ckpt", (1024, 50257)),
    "llama": Whole("llama", (1024, 32000)),
    "vit": Whole("vit", (0, 0)),
    "bert": Whole("bert", (1024, 30522)),
}
RIVALS: dict[str, dict] = {
    "exact": {},
    "tile_mlp": {"tile_mlp": True},
    "tile_mlp, tile_loss": {"tile_mlp": True, "tile_loss": True},
}


# ---- In a worker


def handlers(config: dict) -> dict:
    import torch

    import stowage
    from bench import models

    torch.manual_seed(0)
    model, loss_fn, batch = CASES[config["case"]].make()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    train_step = models.step_with(model, loss_fn, optimizer)
    step = stowage.compile(train_step, **RIVALS[config["rival"]])

    return {
        "steps": lambda count: common.timed_steps(step, batch, count),
        "until_planned": lambda: until_planned(step, batch, config["case"]),
        "stats": lambda: step.stats(),
    }


# ---- In the parent


def measure(case: str, threads: int, rounds: int) -> dict:
    workers = {rival: common.Worker({"case": case, "rival": rival}, threads) for rival in RIVALS}
    losses = {rival: worker.ask("until_planned")["losses"] for rival, worker in workers.items()}
    most = max(map(len, losses.values()))
    for rival, worker in workers.items():
        if len(losses[rival]) < most:
            losses[rival] += worker.ask("steps", count=most - len(losses[rival]))["losses"]
    turns = common.take_turns(workers, rounds, 1)
    points = {}
    for rival, worker in workers.items():
        losses[rival] += turns[rival]["losses"]
        stats = worker.ask("stats")
        worker.close()
        ratios = [a / b for a, b in zip(turns[rival]["seconds"], turns["exact"]["seconds"])]
        apart = (abs(float.fromhex(a) - float.fromhex(b)) for a, b in zip(losses[rival], losses["exact"]))
        points[rival] = {
            "ratio": common.median(ratios),
            "spread": common.spread(ratios),
            "loss_difference": max(apart),
            **{key: stats[key] for key in ("arena_bytes", "measured_peak_bytes", "misses", "tiled_ops", "tile_error")},
            "tile_refusal": stats["tile_refusal"],
        }
    return {"case": case, "threads": threads, "rounds": rounds, "steps": len(losses["exact"]), "points": points}


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        exact = r["points"]["exact"]["arena_bytes"]
        for rival, p in r["points"].items():
            tiled = p["tiled_ops"] > 0
            rows.append(
                [
                    f"{r['case']}, {common.threads_text(r['threads'])}" if rival == "exact" else "",
                    rival,
                    common.mebibytes(p["arena_bytes"]),
                    f"{p['arena_bytes'] / exact:.3f}",
                    f"{p['ratio']:.3f}",
                    f"{100 * p['spread']:.0f} %",
                    p["tiled_ops"] or "",
                    f"{p['tile_error']:.1e}" if tiled else "",
                    f"{p['loss_difference']:.1e}" if tiled else "",
                    p["misses"],
                ]
            )
    header = [
        "MiB",
        "plan",
        "arena",
        "to exact",
        "time / exact",
        "quartiles",
        "kernels on tiles",
        "error",
        "loss",
        "misses",
    ]
    return common.markdown(header, rows, left=2)


def main() -> None:
    parser = common.parser(__doc__, "tiles")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    results = []
    whole = len(options.only) == len(CASES)
    for case in options.only:
        results.append(measure(case, options.threads, options.rounds))
        common.publish("tiles", {"results": results}, table(results), options.output or (None if whole else "-"))


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
