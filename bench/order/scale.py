"""GPT2-XL (1.6 B parameters, sequence 1024), captured on FakeTensors and planned on a machine that need not hold it.

Targets: capture in at most 10 s, plan and bound in at most 5 s. Each form of the optimizer runs in a process of its
own, several times.

    ./dev bench scale
    ./dev bench scale --layers 12 --width 768 --heads 12 --form fused
"""

from __future__ import annotations

import time

from bench import common

FORMS = {"fused": {"fused": True}, "loop": {"foreach": False}}
FIGURES = (
    "ops",
    "buffers",
    "resident_bytes",
    "program_peak_bytes",
    "peak_bytes",
    "lower_bound_bytes",
    "gap",
    "arena_bytes",
    "outcome",
)


def handlers(config: dict) -> dict:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import GPT2Config, GPT2LMHeadModel

    import stowage

    def measure() -> dict:
        shape = GPT2Config(
            n_layer=config["layers"],
            n_embd=config["width"],
            n_head=config["heads"],
            n_positions=config["sequence"],
            use_cache=False,
        )
        with FakeTensorMode():
            model = GPT2LMHeadModel(shape).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **FORMS[config["form"]])
            tokens = torch.zeros((config["batch"], config["sequence"]), dtype=torch.long)

            def train_step(batch):
                loss = model(input_ids=batch, labels=batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            start = time.perf_counter()
            graph = stowage.capture(train_step, tokens, name="gpt2-xl")
            captured = time.perf_counter()
        plan = stowage.plan(graph)
        planned = time.perf_counter()
        stowage.check(graph, plan)
        checked = time.perf_counter()
        summary = plan.summary()
        return {
            "capture_s": captured - start,
            "plan_s": planned - captured,
            "check_s": checked - planned,
            "parameters": sum(p.numel() for p in model.parameters()),
            **{key: summary[key] for key in FIGURES},
        }

    return {"measure": measure}


def measure(options, form: str) -> dict:
    """Medians of seconds over fresh processes; everything else must be the same in each."""
    config = {"form": form, **{key: getattr(options, key) for key in ("layers", "width", "heads", "sequence", "batch")}}
    runs = []
    for _ in range(options.repetitions):
        with common.Worker(config, threads=1) as worker:
            runs.append(worker.ask("measure"))
    for key in FIGURES:
        if len({run[key] for run in runs}) != 1:
            raise SystemExit(f"{form}: {key} differs between two captures")
    times = {key: common.median([run[key] for run in runs]) for key in ("capture_s", "plan_s", "check_s")}
    return {**times, **config, "parameters": runs[0]["parameters"], **{key: runs[0][key] for key in FIGURES}}


def table(results: list[dict]) -> str:
    header = [
        "AdamW",
        "ops",
        "buffers",
        "capture s",
        "plan s",
        "check s",
        "residents GiB",
        "program GiB",
        "peak GiB",
        "bound GiB",
        "gap",
        "arena GiB",
        "outcome",
    ]
    gib = lambda count: f"{count / 2**30:.3f}"
    rows = [
        [
            r["form"],
            r["ops"],
            r["buffers"],
            f"{r['capture_s']:.2f}",
            f"{r['plan_s']:.2f}",
            f"{r['check_s']:.2f}",
            gib(r["resident_bytes"]),
            gib(r["program_peak_bytes"]),
            gib(r["peak_bytes"]),
            gib(r["lower_bound_bytes"]),
            f"{100 * r['gap']:.2f} %",
            gib(r["arena_bytes"]),
            r["outcome"],
        ]
        for r in results
    ]
    return common.markdown(header, rows)


def main() -> None:
    parser = common.parser(__doc__, "scale")
    for name, default in (("layers", 48), ("width", 1600), ("heads", 25), ("sequence", 1024), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--form", nargs="+", default=list(FORMS), choices=list(FORMS), help="of AdamW (default: both)")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    results = []
    for form in options.form:
        common.say(f"{form}: {options.repetitions} processes")
        results.append(measure(options, form))
    common.publish("scale", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
