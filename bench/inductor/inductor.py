"""A byte limit inside torch.compile, beside Inductor's own knob (activation_memory_budget, in steps of 0.1).

Each way of a model has processes of its own, with the same weights and batch: the default, the knob's fractions, and
limits between Inductor's default and the least that is found. The allocator counts forward and backward, above
parameters and inputs; losses and gradients are compared by their bits. Then the processes take turns (--rounds), and
that is done again with others (--starts).
Compile time is that of the first step, in processes and with caches of their own (--compiles).

Models are smaller than people train: two cores compile each of them a dozen times."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import tempfile
import time

from bench import common

MODELS = ("gpt2", "bert", "vit", "resnet50", "t5", "llama", "mamba")
FRACTIONS = tuple(round(0.1 * i, 1) for i in range(10, -1, -1))
PARTS = (0.9, 0.7, 0.5, 0.3, 0.1, 0.0)  # of the way from the least that is found to the default
COMPILED_PART = 0.5  # the limit whose compile time is compared
_SEQUENCE = {"vocab_size": 4096, "use_cache": False}


def make(name: str):
    """(module of one batch that returns the loss, batch)."""
    import torch
    import torch.nn.functional as F
    import transformers as t

    class Loss(torch.nn.Module):
        def __init__(self, model, shift: bool = False, images: bool = False, both: bool = False):
            super().__init__()
            self.model, self.shift, self.images, self.both = model, shift, images, both

        def forward(self, batch):
            if self.images:
                return F.cross_entropy(self.model(pixel_values=batch[0]).logits, batch[1])
            given = {"decoder_input_ids": batch} if self.both else {}
            logits, labels = self.model(input_ids=batch, **given).logits, batch
            if self.shift:
                logits, labels = logits[:, :-1], labels[:, 1:]
            return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    torch.manual_seed(0)
    tokens, images = torch.randint(0, 4096, (4, 128)), (torch.randn(4, 3, 64, 64), torch.randint(0, 100, (4,)))
    if name == "gpt2":
        no_dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}
        config = t.GPT2Config(n_layer=3, n_embd=256, n_head=4, n_positions=128, **no_dropout, **_SEQUENCE)
        return Loss(t.GPT2LMHeadModel(config), shift=True), tokens
    if name == "bert":
        config = t.BertConfig(
            hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024, vocab_size=4096,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0,
        )  # fmt: skip
        return Loss(t.BertForMaskedLM(config)), tokens
    if name == "llama":
        config = t.LlamaConfig(
            hidden_size=256, intermediate_size=688, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            **_SEQUENCE,
        )  # fmt: skip
        return Loss(t.LlamaForCausalLM(config), shift=True), tokens
    if name == "t5":
        config = t.T5Config(
            d_model=256, d_kv=64, d_ff=1024, num_layers=2, num_heads=4, dropout_rate=0, decoder_start_token_id=0, **_SEQUENCE
        )  # fmt: skip
        return Loss(t.T5ForConditionalGeneration(config), both=True), tokens
    if name == "mamba":  # its scan is a loop over the tokens: few of them
        config = t.MambaConfig(hidden_size=256, num_hidden_layers=1, vocab_size=4096, use_cache=False)
        return Loss(t.MambaForCausalLM(config), shift=True), tokens[:, :8]
    if name == "vit":
        config = t.ViTConfig(
            hidden_size=192, num_hidden_layers=3, num_attention_heads=3, intermediate_size=768, num_labels=100,
            image_size=64, patch_size=8,
        )  # fmt: skip
        return Loss(t.ViTForImageClassification(config), images=True), images
    return Loss(t.ResNetForImageClassification(t.ResNetConfig(num_labels=100)), images=True), images


def _handlers(config: dict) -> dict:
    import torch
    import torch._functorch.config as functorch_config

    import stowage.inductor
    from stowage import _runtime
    from stowage.inductor.reports import records_of

    functorch_config.enable_autograd_cache = False  # each process plans for itself; compiled kernels are shared
    functorch_config.activation_memory_budget = config.get("fraction", 1.0)
    model, batch = make(config["model"])
    model.train()
    options = stowage.inductor.options(budget=config.get("budget")) if config["way"] == "stowage" else None
    function = torch.compile(model, options=options, dynamic=False)

    def step() -> torch.Tensor:
        for p in model.parameters():
            p.grad = None
        loss = function(batch)
        loss.backward()
        return loss.detach()

    def cpu_seconds() -> float:
        """With TORCHINDUCTOR_COMPILE_THREADS=1 the compilers of kernels are among the children that are counted."""
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    def compile_() -> dict:
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            loss = step()
        except stowage.Infeasible as error:
            return {"infeasible": True, "smallest_bytes": error.smallest_bytes}
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        digest = hashlib.sha256(loss.numpy().tobytes())
        for p in model.parameters():
            if p.grad is not None:
                digest.update(p.grad.contiguous().numpy().tobytes())
        peaks = []
        for _ in range(2):
            for p in model.parameters():
                p.grad = None
            before = _runtime.live_bytes()
            _runtime.reset_peak()
            step()
            peaks.append(_runtime.peak_bytes() - before)
        found = {"peak_bytes": max(peaks), "bits": digest.hexdigest(), "compile_s": wall, "compile_cpu_s": cpu}
        records = records_of(function) or []
        if records and records[0].chosen:
            chosen = records[0].chosen
            found |= {
                "predicted_bytes": chosen.peak_bytes,
                "recompute_ns": chosen.recompute_ns,
                "choice_s": records[0].seconds,
                "trials": records[0].ladder.trials,
                "graphs": len(records),
            }
        return found

    def steps(count: int) -> dict:
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "losses": []}

    return {"compile": compile_, "steps": steps}


def _measure(name: str, args: argparse.Namespace) -> dict:
    configs: dict[str, dict] = {}
    ways: dict[str, dict] = {}

    def add(key: str, config: dict) -> dict:
        configs[key] = {"model": name, **config}
        with common.Worker(configs[key], args.threads) as worker:
            ways[key] = worker.ask("compile")
        common.say(f"{name} {key}: {ways[key]}")
        if ways[key].get("infeasible"):
            del configs[key]
        return ways[key]

    default = add("default", {"way": "default"})
    free = add("stowage, no limit", {"way": "stowage"})
    smallest = add("stowage, 1 byte", {"way": "stowage", "budget": 1})["smallest_bytes"]
    del ways["stowage, 1 byte"]
    most = free["predicted_bytes"]
    for part in args.parts:
        limit = int(smallest + part * (most - smallest))
        add(f"stowage, {limit}", {"way": "stowage", "budget": limit})["limit_bytes"] = limit
    compiles = _compiles(name, args, int(smallest + COMPILED_PART * (most - smallest)))
    for fraction in args.fractions:
        if fraction != 1.0:
            add(f"knob, {fraction}", {"way": "knob", "fraction": fraction})["fraction"] = fraction
    bits = default["bits"]
    for way in ways.values():
        if "bits" in way:
            way["same_bits"] = way.pop("bits") == bits
    if args.rounds:
        for _ in range(args.starts):
            for key, seconds in _times(configs, args).items():
                ways[key].setdefault("medians_s", []).append(seconds)
    return {
        "model": name, "commit": common.environment()["commit"], "smallest_bytes": smallest, "ways": ways,
        "compiles": compiles,
    }  # fmt: skip


def _times(configs: dict[str, dict], args: argparse.Namespace) -> dict[str, float]:
    """Of each way the median of a process of its own, beside those of the others. Where its memory lies makes a process
    faster or slower than another of the same way, for as long as it lives: so each way has several."""
    workers = {key: common.Worker(config, args.threads) for key, config in configs.items()}
    try:
        for worker in workers.values():
            worker.ask("compile")
        taken = common.take_turns(workers, args.rounds, 1)
    finally:
        for worker in workers.values():
            worker.close()
    return {key: common.median(figures["seconds"]) for key, figures in taken.items()}


def _compiles(name: str, args: argparse.Namespace, limit: int) -> dict[str, list[dict]]:
    """What the first step takes with nothing in any cache, each time in a process of its own; they take turns."""
    configs = {
        "default": {"way": "default"},
        "no limit": {"way": "stowage"},
        "limit": {"way": "stowage", "budget": limit},
    }
    found: dict[str, list[dict]] = {key: [] for key in configs}
    shared = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    for _ in range(args.compiles):
        for key, config in configs.items():
            with tempfile.TemporaryDirectory() as folder:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
                with common.Worker({"model": name, **config}, args.threads) as worker:
                    way = worker.ask("compile")
            found[key].append({k: way[k] for k in ("compile_s", "compile_cpu_s", "choice_s", "trials") if k in way})
            common.say(f"{name} compiled, {key}: {found[key][-1]}")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = shared
    return found


def table(results: dict) -> str:
    """Of each model: what was predicted and measured, and the least that each way reaches."""
    rows = []
    for r in results["models"]:
        ways = r["ways"]
        ours = {k: w for k, w in ways.items() if k.startswith("stowage") and "peak_bytes" in w}
        knob = {k: w for k, w in ways.items() if k.startswith("knob") and "peak_bytes" in w}
        ratios = [w["peak_bytes"] / w["predicted_bytes"] for w in ours.values()]
        limits = sorted((w for w in ours.values() if "limit_bytes" in w), key=lambda w: w["limit_bytes"])
        peaks = [w["peak_bytes"] for w in limits]
        rows.append([
            r["model"], common.mebibytes(ways["default"]["peak_bytes"]),
            common.mebibytes(min(w["peak_bytes"] for w in ours.values())),
            common.mebibytes(min(w["peak_bytes"] for w in knob.values())) if knob else "",
            f"{min(ratios):.4f} to {max(ratios):.4f}",
            f"{sum(w['peak_bytes'] <= w['limit_bytes'] for w in limits)} of {len(limits)}",
            "yes" if peaks == sorted(peaks) else "no",
            f"{sum(w['same_bits'] for w in ours.values())} of {len(ours)}",
        ])  # fmt: skip
    header = [
        "model", "default MiB", "least, Stowage MiB", "least, knob MiB", "measured / predicted", "within the limit",
        "peaks rise with limits", "same bits",
    ]  # fmt: skip
    text = common.markdown(header, rows)
    compiled = [_compile_row(r) for r in results["models"] if r.get("compiles", {}).get("default")]
    if compiled:
        header = ["model", "default, CPU s", "no limit / default", "trials", "a limit / default", "trials"]
        text += "\n\nProcessor time of the first step, from empty caches:\n\n" + common.markdown(header, compiled)
    each = [_each(r) for r in results["models"]]
    return text + "\n\n" + "\n\n".join(each)


def _compile_row(result: dict) -> list[str]:
    times = result["compiles"]
    default = common.median([t["compile_cpu_s"] for t in times["default"]])  # steadier where other work waits beside
    row = [result["model"], f"{default:.0f}"]
    for key in ("no limit", "limit"):
        row += [
            f"{common.median([t['compile_cpu_s'] for t in times[key]]) / default:.2f}",
            str(times[key][0]["trials"]),
        ]
    return row


def _each(result: dict) -> str:
    rows = []
    for key, w in result["ways"].items():
        if "peak_bytes" not in w:
            continue
        name = "Inductor's default" if key == "default" else key
        if "limit_bytes" in w:
            name = f"limit {common.mebibytes(w['limit_bytes'])} MiB"
        elif "fraction" in w:
            name = f"activation_memory_budget {w['fraction']}"
        predicted = common.mebibytes(w["predicted_bytes"]) if "predicted_bytes" in w else ""
        rows.append([name, predicted, common.mebibytes(w["peak_bytes"])])
        if "median_s" in w:  # of one process
            rows[-1] += [f"{w['median_s'] / result['ways']['default']['median_s']:.3f}", ""]
        elif "medians_s" in w:
            ratios = [s / common.median(result["ways"]["default"]["medians_s"]) for s in w["medians_s"]]
            rows[-1] += [f"{common.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"]
    header = ["way", "predicted MiB", "measured MiB"] + (
        ["time / default", "its processes"] if len(rows[0]) > 3 else []
    )
    return f"{result['model']} (commit {result['commit']}):\n\n" + common.markdown(header, rows)


def main() -> None:
    parser = common.parser(__doc__, "inductor")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--fractions", nargs="*", type=float, default=FRACTIONS)
    parser.add_argument("--parts", nargs="*", type=float, default=PARTS)
    parser.add_argument("--rounds", type=int, default=10, help="0: no times, as on a busy machine")
    parser.add_argument("--starts", type=int, default=3, help="processes of each way whose times are taken")
    parser.add_argument("--compiles", type=int, default=3, help="from empty caches; 0: no compile times")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="models of the results file that are not measured now stay")
    args = parser.parse_args()
    path = pathlib.Path(args.output) if args.output else common.RESULTS / "inductor.json"
    found: list[dict] = []
    if args.keep and path.exists():
        found = json.loads(path.read_text())["results"]["models"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for name in args.models:
            found = [m for m in found if m["model"] != name] + [_measure(name, args)]
            results = {"rounds": args.rounds, "threads": args.threads, "models": found}
            common.publish("inductor", {"results": results}, table(results), args.output)


if __name__ == "__main__":
    common.serve(_handlers) if common.is_worker() else main()
