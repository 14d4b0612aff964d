"""The eager budget changes no bit: six steps with and without it, compared tensor by tensor.

Models x policies x ways of release x limits (75 %, 50 % of eager's peak, and the least that the policy and way can
meet, to 2 %), then forms of training at 50 %: gradient accumulation, checkpointed blocks, autocast, several backward
passes over one graph, foreach and loop optimizers. Compared are losses, parameters, buffers, optimizer state and the
generator's state, with torch.equal; memory that is let go is filled with a byte, so that a stale read shows. The peak
that the allocator counted is checked against the limit.

Small instances of the models, unless --large: every op is there, and hundreds of runs take minutes. What has been run
is kept in the result file after each model, and the models named next time take their places in it.

    ./dev bench eager_bits --quick                 one model, three policies
    ./dev bench eager_bits                         all of it
    ./dev bench eager_bits --models bert,depth     these again, the others as they are
"""

from __future__ import annotations

import collections
import json
import pathlib
import time

from bench import common

MODELS = ("launch", "gpt2", "bert", "resnet50", "resnet101", "varying", "depth")
POLICIES = ("default", "delta", "dtr", "capuchin", "lru", "size", "random")
RELEASES = ("both", "recompute", "swap")
FORMS = ("accumulation", "checkpoint", "autocast", "retain_graph", "foreach", "loop")
STEPS = 6


# ---- In a worker


def handlers(config: dict) -> dict:
    import torch

    import stowage  # before the model is made, so that its allocator counts everything
    from bench.eager import models_eager
    from stowage import _runtime

    def train_step(loop: models_eager.Loop, i: int, form: str) -> torch.Tensor:
        if form == "accumulation":
            for part in (2 * i, 2 * i + 1):
                loss = loop.loss(loop.model, loop.batches[part % len(loop.batches)]) / 2
                loss.backward()
        elif form == "retain_graph":
            loss = loop.loss(loop.model, loop.batches[i % len(loop.batches)])
            for last in (False, False, True):
                loss.backward(retain_graph=not last)
        elif form == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                loss = loop.loss(loop.model, loop.batches[i % len(loop.batches)])
            loss.backward()
        else:
            return loop.step(i)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        return loss.detach()

    def train(form: str, budget=None) -> dict[str, torch.Tensor]:
        optimizer = form if form in ("foreach", "loop") else None
        loop = models_eager.make(
            config["model"],
            {"foreach": "foreach", "loop": "adamw"}.get(optimizer),
            small=not config["large"],
            checkpointed=form == "checkpoint",
        )
        torch.manual_seed(1)
        _runtime.reset_peak()
        if budget is None:
            losses = [train_step(loop, i, form) for i in range(STEPS)]
        else:
            with budget:
                losses = [train_step(loop, i, form) for i in range(STEPS)]
        left = {f"loss {i}": loss.clone() for i, loss in enumerate(losses)} | {
            k: t.clone() for k, t in loop.model.state_dict().items()
        }
        for i, state in enumerate(loop.optimizer.state.values()):
            left |= {f"optimizer {i} {k}": t.clone() for k, t in state.items() if isinstance(t, torch.Tensor)}
        return left | {"generator": torch.get_rng_state()}

    references: dict[str, tuple] = {}

    def reference(form: str) -> tuple:
        if form not in references:
            references.clear()
            left = train(form)
            peak = _runtime.peak_bytes()
            references[form] = left, peak
        return references[form]

    def compare(form: str, limit_share: float, options: dict) -> dict:
        expected, peak = reference(form)
        held = sum(t.untyped_storage().nbytes() for t in expected.values())  # our own copies are live too
        limit = int(limit_share * peak) + held
        budget = stowage.budget(limit, debug=True, **options)
        try:
            got = train(form, budget)
        except stowage.OutOfMemory as error:
            return {"outcome": "infeasible", "why": str(error)}
        different = [k for k in expected if not torch.equal(expected[k], got[k])]
        stats = budget.stats()
        outcome = "differs" if different else "over the limit" if stats["peak_bytes"] > limit else "same"
        if any(budget.alive().values()):
            outcome = "leaks"
        return {
            "outcome": outcome,
            "different": different[:3],
            "evictions": stats["evictions"],
            "recomputed_ops": stats["recomputed_ops"],
            "swapped_bytes": stats["swapped_bytes"],
        }

    def smallest(form: str, options: dict) -> dict:
        """At the least share that works, found by halving to 2 %."""
        low, high, last = 0.0, 1.0, {"outcome": "infeasible"}
        while high - low > 0.02:
            middle = (low + high) / 2
            tried = compare(form, middle, options)
            if tried["outcome"] == "infeasible":
                low = middle
                continue
            high, last = middle, tried | {"share": middle}
            if tried["outcome"] != "same":
                break
        return last

    return {"compare": compare, "smallest": smallest}


# ---- In the parent


def runs(model: str, policies: tuple[str, ...]):
    """(form, policy, release, share or None for the smallest)"""
    for policy in policies:
        for release in RELEASES:
            for share in (0.75, 0.5, None):
                yield "plain", policy, release, share
    for form in FORMS:
        for release in RELEASES:
            yield form, "default", release, 0.5


def measure(model: str, arguments) -> list[dict]:
    results = []
    with common.Worker({"model": model, "large": arguments.large}, arguments.threads) as worker:
        for form, policy, release, share in runs(model, arguments.policies):
            options = {"policy": policy, "release": release, "link_gbps": arguments.link}
            start = time.monotonic()
            found = (
                worker.ask("smallest", form=form, options=options)
                if share is None
                else worker.ask("compare", form=form, limit_share=share, options=options)
            )
            results.append({"model": model, "form": form, "policy": policy, "release": release, "share": share} | found)
            common.say(
                f"{model} {form} {policy} {release} {share}: {found['outcome']} ({time.monotonic() - start:.1f} s)"
            )
    return results


def table(results: dict) -> str:
    counts: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for run in results["runs"]:
        counts[run["model"], run["form"] if run["form"] != "plain" else run["policy"]][run["outcome"]] += 1
    models, whats = (list(dict.fromkeys(key[i] for key in counts)) for i in (0, 1))
    return common.markdown(
        ["policy or form", *models], [[what, *(cell(counts[model, what]) for model in models)] for what in whats]
    )


def cell(count: collections.Counter) -> str:
    """Runs with the same bits, + those whose limit was not met, and what must not be."""
    wrong = count.total() - count["same"] - count["infeasible"]
    return f"{count['same']} + {count['infeasible']}" + (f", {wrong} WRONG" if wrong else "")


def main() -> None:
    names = lambda text: tuple(text.split(","))
    parser = common.parser(__doc__, "eager_bits")
    parser.add_argument("--quick", action="store_true", help="launch alone, three policies")
    parser.add_argument("--models", type=names, default=MODELS)
    parser.add_argument("--policies", type=names, default=POLICIES)
    parser.add_argument("--link", type=float, default=4.0, help="GB/s each way")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="the models of bench/eager/eager.py")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.models, arguments.policies = ("launch",), ("default", "delta", "random")
    path = pathlib.Path(arguments.output or common.RESULTS / "eager_bits.json")
    kept = json.loads(path.read_text())["results"]["runs"] if path.is_file() else []
    for model in arguments.models:
        kept = [run for run in kept if run["model"] != model] + measure(model, arguments)
        common.publish("eager_bits", {"results": {"runs": kept}}, table({"runs": kept}), arguments.output)
    if any(run["outcome"] not in ("same", "infeasible") for run in kept):
        raise SystemExit(1)


if __name__ == "__main__":
    if common.is_worker():
        common.serve(handlers)
    else:
        main()
