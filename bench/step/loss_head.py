"""The loss head holds its logits once: the arena, the time and the bits of planned steps without and with lean kernels.

Heads alone (a hidden state, its matmul with the vocabulary, cross entropy, plain SGD), and whole models. Three rivals
train the same from the same seed on the same batch, each in a process of its own, in turns: eager, planned with the
recorded kernels alone, planned with those that work in slices of rows. All losses and a digest of all parameters must be
equal.

    ./dev bench loss_head
    ./dev bench loss_head --only gpt2-head t5 --rounds 5

All three processes live at once: the Llama head needs about 10 GiB of memory, the others less.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

from bench import common

MOST_FIRST_CALLS = 12
RIVALS = {"lean": True, "recorded": False, "eager": None}


@dataclasses.dataclass(frozen=True)
class Head:
    """``logits_as``: their type when they are no fp32."""

    tokens: int
    width: int
    vocabulary: int
    smoothing: float = 0.0
    weighted: bool = False
    logits_as: str = "float32"

    def make(self) -> tuple[Any, Callable, Any]:
        import torch
        import torch.nn.functional as F
        from torch import nn

        kind = getattr(torch, self.logits_as)
        model = nn.Linear(self.width, self.vocabulary, bias=False, dtype=kind)
        generator = torch.Generator().manual_seed(7)
        hidden = torch.randn(self.tokens, self.width, generator=generator).to(kind)
        targets = torch.randint(0, self.vocabulary, (self.tokens,), generator=generator)
        weight = torch.rand(self.vocabulary, generator=generator) if self.weighted else None

        def loss(model, batch):
            logits = model(batch[0]).float()
            return F.cross_entropy(logits, batch[1], weight, label_smoothing=self.smoothing)

        return model, loss, (hidden, targets)

    def logits_bytes(self) -> int:
        return self.tokens * self.vocabulary * 4


@dataclasses.dataclass(frozen=True)
class Whole:
    """A model of bench/models.py, or GPT-2 with checkpointed blocks."""

    builder: str
    logits: tuple[int, int]

    def make(self) -> tuple[Any, Callable, Any]:
        from bench import models

        if not self.builder.startswith("gpt2-ckpt"):
            return models.BUILDERS[self.builder]()
        return _checkpointed_gpt2(dropout=0.1 if self.builder.endswith("dropout") else 0.0)

    def logits_bytes(self) -> int:
        return self.logits[0] * self.logits[1] * 4


def _checkpointed_gpt2(dropout: float) -> tuple[Any, Callable, Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.randint(0, 50257, (1, 1024), generator=torch.Generator().manual_seed(7))
    return model, lambda m, x: m(input_ids=x, labels=x).loss, tokens


CASES: dict[str, Head | Whole] = {
    "gpt2-head": Head(1024, 768, 50257),
    "gpt2-head, 4096 tokens": Head(4096, 768, 50257),
    "gpt2-head, smoothing": Head(1024, 768, 50257, smoothing=0.1),
    "gpt2-head, weights": Head(1024, 768, 50257, weighted=True),
    "gpt2-head, smoothing, weights": Head(1024, 768, 50257, smoothing=0.1, weighted=True),
    "gpt2-head, bf16": Head(1024, 768, 50257, logits_as="bfloat16"),
    "llama-1b-head": Head(1024, 2048, 128256),
    "t5-head": Head(1024, 512, 32128),
    "vit-head": Head(1024, 768, 1000),
    "gpt2-ckpt-s1024": Whole("gpt2-ckpt", (1024, 50257)),
    "gpt2-ckpt-s1024-dropout": Whole("gpt2-ckpt-dropout", (1024, 50257)),
    "t5": Whole("t5", (1024, 32128)),
    "llama": Whole("llama", (1024, 32000)),
}


# ---- In a worker


def until_planned(step, batch, case: str) -> dict:
    """Calls of a compiled step, up to the first that is planned."""
    losses: list = []
    while not step.stats()["planned_steps"]:
        if step.refusal or len(losses) > MOST_FIRST_CALLS:
            raise SystemExit(f"{case} is not planned: {step.refusal or 'not settled'}")
        losses += common.timed_steps(step, batch, 1)["losses"]
    return {"losses": losses}


def handlers(config: dict) -> dict:
    import torch

    import stowage
    from bench import models

    torch.manual_seed(0)
    model, loss_fn, batch = CASES[config["case"]].make()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    train_step = models.step_with(model, loss_fn, optimizer)
    lean = RIVALS[config["rival"]]
    step = train_step if lean is None else stowage.compile(train_step, lean_kernels=lean)

    def digest() -> str:
        sha = hashlib.sha256()
        for tensor in [*model.parameters(), *model.buffers()]:
            sha.update(memoryview(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()))
        return sha.hexdigest()

    return {
        "steps": lambda count: common.timed_steps(step, batch, count),
        "until_planned": lambda: until_planned(step, batch, config["case"]),
        "stats": lambda: step.stats(),
        "digest": digest,
    }


# ---- In the parent


def measure(case: str, threads: int, rounds: int, count: int) -> dict:
    workers = {rival: common.Worker({"case": case, "rival": rival}, threads) for rival in RIVALS}
    losses = {}
    for name, lean in RIVALS.items():
        first = workers[name].ask("until_planned") if lean is not None else None
        losses[name] = first["losses"] if first else []
    most = max(map(len, losses.values()))
    for name, worker in workers.items():
        if len(losses[name]) < most:
            losses[name] += worker.ask("steps", count=most - len(losses[name]))["losses"]
    turns = common.take_turns(workers, rounds, count)
    for name in workers:
        losses[name] += turns[name]["losses"]
    digests = {name: worker.ask("digest") for name, worker in workers.items()}
    stats = {name: workers[name].ask("stats") for name in ("lean", "recorded")}
    for worker in workers.values():
        worker.close()
    return {
        "case": case,
        "threads": threads,
        "logits_bytes": CASES[case].logits_bytes(),
        **{
            f"{name}_{key}": stats[name][key]
            for name in stats
            for key in ("arena_bytes", "planned_peak_bytes", "measured_peak_bytes", "lower_bound_bytes", "misses")
        },
        "replaced_ops": stats["lean"]["replaced_ops"],
        "replacement_refusal": stats["lean"]["replacement_refusal"],
        "steps": len(losses["lean"]),
        "equal": len(set(digests.values())) == 1 and len({tuple(values) for values in losses.values()}) == 1,
        "seconds": {name: common.median(turns[name]["seconds"]) for name in RIVALS},
        "spread": {name: common.spread(turns[name]["seconds"]) for name in RIVALS},
    }


def table(results: list[dict]) -> str:
    mib = common.mebibytes
    rows = []
    for r in results:
        s = r["seconds"]
        rows.append(
            [
                f"{r['case']}, {common.threads_text(r['threads'])}",
                mib(r["logits_bytes"]),
                mib(r["recorded_arena_bytes"]),
                mib(r["lean_arena_bytes"]),
                f"{r['lean_arena_bytes'] / r['recorded_arena_bytes']:.3f}",
                f"{s['lean'] / s['recorded']:.3f}",
                f"{s['lean'] / s['eager']:.3f}",
                f"{'equal' if r['equal'] else 'differ'} ({r['steps']} steps)",
                r["replaced_ops"],
            ]
        )
    header = [
        "MiB",
        "logits, fp32",
        "arena, recorded kernels",
        "arena, lean",
        "lean / recorded",
        "time, lean / recorded",
        "time, lean / eager",
        "bits of the three",
        "replaced",
    ]
    return common.markdown(header, rows)


def main() -> None:
    parser = common.parser(__doc__, "loss_head")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1, help="counted ones a turn (default 1)")
    options = parser.parse_args()
    results = []
    for case in options.only:
        results.append(measure(case, options.threads, options.rounds, options.steps))
        common.say(table(results[-1:]))
    common.publish(
        "loss_head",
        {"results": results},
        table(results),
        options.output or ("-" if len(results) < len(CASES) else None),
    )
    if not all(r["equal"] for r in results):
        raise SystemExit("bits differ")


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
