"""Steps whose operators are small: what a call of a planned step costs beside its kernels, and what it saves of Python.

Four ways to end a step, of three models. Planned calls do not run the step's Python, but for what is behind its work.

    loss           return loss.detach()
    number         return loss.item()
    logged         losses.append(loss.item()), cleared now and then; return loss.item(): this runs by itself
    clipped        clip_grad_norm_ before the update; return loss.item()

Rivals, each in a process of its own, in turns: eager; eager with tcmalloc; planned. A turn is 20 steps, timed together. All
train from the same seed on the same batch; their losses must be equal in every step.

    ./dev bench small_steps                    all models, 1 thread, 12 rounds
    ./dev bench small_steps --model "mlp, SGD"
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import nn

from bench import common

RIVALS = {
    "eager": {"planned": False, "tcmalloc": False},
    "eager+tcmalloc": {"planned": False, "tcmalloc": True},
    "planned": {"planned": True, "tcmalloc": False},
}
ENDS = ("loss", "number", "logged", "clipped")
STEPS = 20
WARM_UP = 40


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.layers(x).mean(1))


def _mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


# Name: (model, optimizer, shape of a batch, what it is)
MODELS = {
    "mlp, SGD": (_mlp, lambda p: torch.optim.SGD(p, 1e-3), (8, 16), "3 layers of 32, batch 8"),
    "mlp, Adam": (_mlp, lambda p: torch.optim.Adam(p, 1e-3), (8, 16), "3 layers of 32, batch 8"),
    "transformer, AdamW": (_Encoder, lambda p: torch.optim.AdamW(p, 1e-3), (4, 8, 32), "2 layers of 32, batch 4 x 8"),
}


# ---- In a worker


def handlers(config: dict) -> dict:
    torch.manual_seed(0)
    build, optimize, shape, _ = MODELS[config["model"]]
    model = build()
    optimizer = optimize(model.parameters())
    x, y = torch.randn(shape), torch.randint(0, 4, shape[:1])
    losses: list[float] = []

    def trained(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def number(x, y):
        return trained(x, y).item()

    def logged(x, y):
        value = trained(x, y).item()
        losses.append(value)
        if len(losses) > 50:
            losses.clear()
        return value

    def clipped(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    step = {"loss": trained, "number": number, "logged": logged, "clipped": clipped}[config["end"]]
    if config["planned"]:
        import stowage

        step = stowage.compile(step)

    def steps(count: int) -> dict:
        """Seconds of a step, of ``count`` turns of STEPS."""
        seconds, values = [], []
        for _ in range(count):
            start = time.perf_counter()
            results = [step(x, y) for _ in range(STEPS)]
            seconds.append((time.perf_counter() - start) / STEPS)
            values += [float(result).hex() for result in results]
        return {"seconds": seconds, "losses": values}

    return {"steps": steps, "stats": lambda: step.stats()}


# ---- In the parent


def measure(model: str, end: str, threads: int, rounds: int) -> dict:
    config = {"model": model, "end": end}
    workers = {name: common.Worker(config | rival, threads, rival["tcmalloc"]) for name, rival in RIVALS.items()}
    for worker in workers.values():
        worker.ask("steps", count=WARM_UP // STEPS)
    turns = common.take_turns(workers, rounds, 1)
    stats = workers["planned"].ask("stats")
    for worker in workers.values():
        worker.close()
    base, fair = (common.median(turns[name]["seconds"]) for name in ("eager", "eager+tcmalloc"))
    return {
        "model": model,
        "what": MODELS[model][3],
        "end": end,
        "eager_us": 1e6 * base,
        "planned_to_eager": common.median(turns["planned"]["seconds"]) / base,
        "planned_to_eager_tcmalloc": common.median(turns["planned"]["seconds"]) / fair,
        "spread": max(common.spread(turns[name]["seconds"]) for name in RIVALS),
        "losses_equal": len({tuple(turns[name]["losses"]) for name in RIVALS}) == 1,
        "losses_compared": len(turns["planned"]["losses"]),
        "planned_steps": stats["planned_steps"],
    }


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        first = r["end"] == ENDS[0]
        rows.append(
            [
                f"{r['model']} ({r['what']})" if first else "",
                r["end"],
                f"{r['eager_us']:.0f}",
                f"{r['planned_to_eager']:.2f}",
                f"{r['planned_to_eager_tcmalloc']:.2f}",
                f"{100 * r['spread']:.0f} %",
                f"{r['losses_equal']} ({r['losses_compared']} steps)",
            ]
        )
    header = [
        "model",
        "the step ends with",
        "eager, us",
        "planned to eager",
        "to eager+tcmalloc",
        "quartiles",
        "losses equal",
    ]
    return common.markdown(header, rows, left=2)


def main() -> None:
    parser = common.parser(__doc__, "small_steps")
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--end", nargs="+", default=list(ENDS), choices=ENDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    results = []
    for model in options.model:
        for end in options.end:
            common.say(f"{model}, {end}: {options.rounds} rounds")
            results.append(measure(model, end, options.threads, options.rounds))
    common.publish("small_steps", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
