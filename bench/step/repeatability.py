"""Does eager repeat its own bits? Trains the same steps in fresh processes that never import Stowage, and compares
digests.

"Bit for bit as eager" needs an eager that agrees with itself. With one thread it always did; with two, a process now
and then leaves the others. This counts how often, and where it first shows: the output, gradient or update of which
step and layer."""

from __future__ import annotations

import collections
import hashlib

from bench import common, models


def digest(tensor) -> str:
    return hashlib.md5(tensor.detach().contiguous().numpy().tobytes()).hexdigest()[:12]


def handlers(config: dict) -> dict:
    import torch

    def trace(steps: int) -> list[list[str]]:
        """[where, digest] of each leaf module's output and each gradient, in order."""
        torch.manual_seed(0)
        model, loss_fn, batch = models.make(config["model"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen: list[list[str]] = []
        step = 0
        for name, module in model.named_modules():
            if not list(module.children()):
                module.register_forward_hook(
                    lambda _, __, out, name=name: (
                        seen.append([f"step {step}, output of {name}", digest(out)]) if torch.is_tensor(out) else None
                    )
                )
        for step in range(steps):
            optimizer.zero_grad()
            loss_fn(model, batch).backward()
            seen += [[f"step {step}, gradient of {name}", digest(p.grad)] for name, p in model.named_parameters()]
            optimizer.step()
            seen += [[f"step {step}, updated {name}", digest(p)] for name, p in model.named_parameters()]
        return seen

    return {"trace": trace}


def first_difference(trace: list[list[str]], usual: list[list[str]]) -> str:
    return next((a[0] for a, b in zip(trace, usual) if a != b), "nowhere")


def study(model: str, threads: int, processes: int, steps: int) -> dict:
    traces = []
    for i in range(processes):
        with common.Worker({"model": model}, threads) as worker:
            traces.append(worker.ask("trace", steps=steps))
        common.say(f"{model}, {common.threads_text(threads)}: {i + 1} of {processes}")
    counts = collections.Counter(str(t) for t in traces)
    usual = next(t for t in traces if str(t) == counts.most_common(1)[0][0])
    strays = [first_difference(t, usual) for t in traces if t != usual]
    return {
        "model": model,
        "threads": threads,
        "processes": processes,
        "strays": len(strays),
        "first_difference": strays,
    }


def table(results: list[dict]) -> str:
    places = [", ".join(sorted(set(r["first_difference"]))) or "-" for r in results]
    rows = [[r["model"], r["threads"], r["processes"], r["strays"], place] for r, place in zip(results, places)]
    return common.markdown(["eager against eager", "threads", "processes", "strays", "first difference"], rows)


def main() -> None:
    parser = common.parser(__doc__, "repeatability")
    parser.add_argument("--model", default="resnet50_small", choices=list(models.BUILDERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--processes", type=int, default=40)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    studies = [study(arguments.model, threads, arguments.processes, arguments.steps) for threads in arguments.threads]
    common.publish("repeatability", {"results": studies}, table(studies), arguments.output)


if __name__ == "__main__":
    if common.is_worker():
        common.serve(handlers)
    else:
        main()
