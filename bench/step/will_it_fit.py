"""Does will_it_fit() tell the truth? Predictions against measured peaks: model x optimizer x batch, and what scripts do
besides (clipping, accumulation, autocast, checkpointing).

Each case has a process of its own. There it is predicted on tensors without memory, and then trained for three steps,
while the allocator counts every byte from the building of the model on. The smallest device that the prediction lets it fit is
derived from it: a false "fits" is a measured peak above that. For each model one case is also compiled within the
smallest device said to fit with a budget, and trained for real: the peak of all its calls has to stay within."""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

from bench import common, models
from bench.order import models_sequence, models_vision

BATCHES = (2, 5)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
}
# What scripts do besides: each with AdamW, one of the batches, and two of the models.
BESIDES = ("clip", "accumulate", "autocast", "checkpoint", "zero_grad late")


class _Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 2048), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10)
        )

    def forward(self, x):
        return self.layers(x)


class _Encoder(nn.Module):
    def __init__(self, vocabulary: int = 5000, width: int = 256):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 4), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.out(self.encoder(self.embed(tokens)))


def _llama() -> nn.Module:
    return models_sequence.llama(4, 256, 688, 8, 4, 8000, False)


def _images(model, classes: int, size: int):
    return model, lambda n: (torch.randn(n, 3, size, size), torch.randint(0, classes, (n,))), _of_classes


def _tokens(model, vocabulary: int, length: int, loss=None):
    return model, lambda n: (torch.randint(0, vocabulary, (n, length)),), loss or _of_tokens


def _of_classes(model, x, y):
    return F.cross_entropy(model(x), y)


def _of_tokens(model, x):
    out = model(x)
    return F.cross_entropy(out.flatten(0, 1), x.flatten())


def _of_transformers(model, x):
    return model(input_ids=x, labels=x).loss


# name -> (model, arguments of a batch size, loss)
MODELS = {
    "perceptron": lambda: (_Perceptron(), lambda n: (torch.randn(16 * n, 784), torch.randint(0, 10, (16 * n,))), _of_classes),
    "resnet50": lambda: _images(models_vision.resnet50(), 1000, 64),
    "unet": lambda: _unet(),
    "vit": lambda: _vit(),
    "encoder": lambda: _tokens(_Encoder(), 5000, 160),
    "lstm": lambda: _tokens(models.LstmLanguageModel(5000, 320), 5000, 64),
    "gpt2": lambda: _tokens(models_sequence.gpt2(4, 256, 4), 50257, 96, _of_transformers),
    "bert": lambda: _tokens(models_sequence.bert(4, 256, 4), 30522, 128, _of_transformers),
    "llama": lambda: _tokens(_llama(), 8000, 128, _of_transformers),
}  # fmt: skip


def _unet():
    from bench import models

    return (
        models._UNet((16, 32, 64, 128)),
        lambda n: (torch.randn(n, 3, 96, 96), torch.randint(0, 10, (n, 96, 96))),
        _of_classes,
    )


def _vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=128,
        num_labels=100,
    )
    model = ViTForImageClassification(config)
    return (
        model,
        lambda n: (torch.randn(n, 3, 128, 128), torch.randint(0, 100, (n,))),
        lambda m, x, y: m(pixel_values=x, labels=y).loss,
    )


def make_step_of(name: str, optimizer: str, besides: str):
    def make_step(batch_size):
        model, arguments, loss_of = MODELS[name]()
        model.train()
        if besides == "checkpoint":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        opt = OPTIMIZERS[optimizer](list(model.parameters()))

        def train_step(*batch):
            if besides == "accumulate":
                for part in zip(*[t.chunk(2) for t in batch]):
                    loss = loss_of(model, *part) / 2
                    loss.backward()
            else:
                with torch.autocast("cpu", torch.bfloat16, enabled=besides == "autocast"):
                    loss = loss_of(model, *batch)
                if besides == "zero_grad late":
                    opt.zero_grad()
                loss.backward()
            if besides == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if besides != "zero_grad late":
                opt.zero_grad()
            return loss.detach()

        return train_step, arguments(batch_size)

    return make_step


def cases(names: list[str]) -> list[dict]:
    found = [
        {
            "model": name,
            "optimizer": optimizer,
            "batch": batch,
            "besides": "",
            "budget": (optimizer, batch) == ("adamw", BATCHES[0]),
        }
        for name in names
        for optimizer in OPTIMIZERS
        for batch in BATCHES
    ]
    for besides in BESIDES:
        for name in ("gpt2", "bert") if besides == "checkpoint" else ("encoder", "gpt2"):
            if name in names:
                found.append({"model": name, "optimizer": "adamw", "batch": 4, "besides": besides, "budget": False})
    return found


# ---- In processes of their own


def handlers(config: dict) -> dict:
    make_step = make_step_of(config["model"], config["optimizer"], config["besides"])

    def predicted() -> dict:
        import stowage
        from stowage.step.fit.prediction import eager_bytes

        if not config["budget"]:
            return {"eager_bytes": eager_bytes(make_step, batch_size=config["batch"]), "least_bytes": None}
        p = stowage.will_it_fit(make_step, "1TiB", batch_size=config["batch"], largest=False)
        return {
            k: v
            for k, v in p.summary().items()
            if k in ("eager_bytes", "planned_bytes", "least_bytes", "bound_bytes", "refusal")
        }

    def measured(budget: int | None = None) -> dict:
        import stowage
        from stowage import _runtime

        torch.manual_seed(0)
        _runtime.install_allocator()
        _runtime.reset_peak()
        before = _runtime.live_bytes()
        step, batch = make_step(config["batch"])
        if budget is None:
            for _ in range(3):
                result = step(*batch)  # the last result is there until the next has come
            return {"bytes": _runtime.peak_bytes() - before}
        _runtime.reset_peak()
        compiled = stowage.compile(step, budget=budget)
        for _ in range(6):
            result = compiled(*batch)  # noqa: F841
        stats = compiled.stats()
        return {"bytes": _runtime.peak_bytes(), "planned_steps": stats["planned_steps"], "misses": stats["misses"],
                "refusal": compiled.refusal}  # fmt: skip

    return {"predicted": predicted, "measured": measured}


def least_device(bytes_: int) -> int:
    """The smallest device of which 127/128 hold so many bytes."""
    from stowage.step.fit.fit import without_scratch

    device = bytes_ + bytes_ // 127 - 2
    while without_scratch(device) < bytes_:
        device += 1
    return device


def case(config: dict, threads: int) -> dict:
    with common.Worker(config, threads) as worker:
        predicted = worker.ask("predicted")
        measured = worker.ask("measured")["bytes"]
    device = least_device(predicted["eager_bytes"])
    within = None
    if config["budget"] and predicted["least_bytes"]:
        budget = least_device(predicted["least_bytes"])
        with common.Worker(config, threads) as worker:
            within = {"device_bytes": budget, **worker.ask("measured", budget=budget)}
    error = predicted["eager_bytes"] / measured - 1
    return {**config, **predicted, "measured_bytes": measured, "error": error, "least_device_bytes": device,
            "false_fits": measured > device, "within": within}  # fmt: skip


def fits_within(c: dict) -> bool:
    return c["within"]["bytes"] <= c["within"]["device_bytes"] and c["within"]["planned_steps"] > 0


def table(results: dict) -> str:
    def row(name: str, mine: list[dict]) -> list:
        errors = sorted(abs(c["error"]) for c in mine)
        compiled = [c for c in mine if c["within"]]
        smallest, largest = (f(c["measured_bytes"] for c in mine) for f in (min, max))
        return [name, len(mine), f"{common.mebibytes(smallest)} to {common.mebibytes(largest)}",
                f"{100 * common.median(errors):.3f} %", f"{100 * errors[-1]:.3f} %", sum(c["false_fits"] for c in mine),
                f"{sum(fits_within(c) for c in compiled)} of {len(compiled)}" if compiled else "-"]  # fmt: skip

    plain = [c for c in results["cases"] if not c["besides"]]
    rows = [row(name, [c for c in plain if c["model"] == name]) for name in dict.fromkeys(c["model"] for c in plain)]
    for besides in BESIDES:
        if mine := [c for c in results["cases"] if c["besides"] == besides]:
            rows.append(row(f"with {besides}", mine))
    rows.append(row("**all**", results["cases"]))
    return common.markdown(
        [
            "model",
            "predictions",
            "measured MiB",
            "median error",
            "worst error",
            'false "fits"',
            "trained within the least budget",
        ],
        rows,
    )


def main() -> None:
    parser = common.parser(__doc__, "will_it_fit")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    found = []
    for config in cases(arguments.models):
        found.append(case(config, arguments.threads))
        c = found[-1]
        within = f", within {c['within']['device_bytes']:,}: {json.dumps(c['within'])}" if c["within"] else ""
        common.say(f"{c['model']} {c['optimizer']} {c['batch']} {c['besides']}: {100 * c['error']:+.4f} %{within}")
    results = {"threads": arguments.threads, "cases": found}
    common.publish("will_it_fit", {"results": results}, table(results), arguments.output)
    bad = any(c["false_fits"] or abs(c["error"]) > 0.02 for c in found)
    sys.exit(bad or not all(fits_within(c) for c in found if c["within"]))


if __name__ == "__main__":
    if common.is_worker():
        common.serve(handlers)
    else:
        main()
