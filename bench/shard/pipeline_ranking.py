"""Plans of a pipeline over gloo ranks: does the model rank them as they are measured, and what does the chosen one lose?

    every schedule x numbers of micro-batches ─► plan (the best cut of each) ─► predicted
                                             └─► run in turns, beside DDP, FSDP2 and tensor parallel ─► measured

The costs of layers are measured before, once for each number of micro-batches, on rank 0; the link and what an action takes by itself are measured at the start.
Printed: times and bytes of each, Spearman's rank correlation of predicted and measured times, the worst regret: the
measured time of the plan of the least predicted time, over the least measured time of all plans."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from bench import common
from bench.shard import pipeline_models

ROUNDS = 12
SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1), ("zero-bubble", 2), ("zbv", 2))


def _optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


# ---- The machine


def link() -> dict:
    """Latency and rate between two ranks, by messages of two sizes there and back."""

    def seconds(count: int) -> float:
        message, taken = torch.zeros(count), []
        for _ in range(20):
            dist.barrier()
            begin = time.perf_counter()
            if dist.get_rank() == 0:
                dist.send(message, 1)
                dist.recv(message, 1)
            elif dist.get_rank() == 1:
                dist.recv(message, 0)
                dist.send(message, 0)
            taken.append((time.perf_counter() - begin) / 2)
        return common.median(taken[5:])

    small, large = 16, 1 << 18
    times = torch.tensor([seconds(small), seconds(large)], dtype=torch.float64)
    dist.broadcast(times, 0)
    rate = (large - small) * 4 / max(times[1].item() - times[0].item(), 1e-9) / 1e9
    return {"latency_ns": int(times[0].item() * 1e9), "gbps": min(max(rate, 1e-3), 1e3)}


def action_ns(size: int, measured_link: dict) -> int:
    """What an action takes besides its layers: of a pipeline whose layers do next to nothing."""
    import stowage

    count = 4 * size
    torch.manual_seed(0)
    chain = stowage.Chain([torch.nn.Linear(2, 2) for _ in range(size)], torch.nn.functional.mse_loss, _optimizer)
    options = {"micro_batches": count, "schedules": ["1f1b"]}
    step = stowage.shard(chain, (size,), pipeline=options, links={0: measured_link})
    batch = torch.zeros(count, 2), torch.zeros(count, 2)
    for _ in range(12):
        step(*batch)
    stats = step.stats()
    rest = torch.tensor([max(0, stats["step_ns"] - stats["planned_step_ns"]) // (2 * (count + size - 1))])
    dist.broadcast(rest, 0)
    return int(rest.item())


def measured_costs(name: str, layers: int, batch_size: int, micro_batches: int) -> list[dict]:
    """On rank 0, while the others wait; of a few measurements the least times."""
    from stowage.sharding.layer_costs import measured

    box: list = [[]]
    if dist.get_rank() == 0:
        import stowage

        modules, batch = pipeline_models.make(name, layers, batch_size)
        chain = stowage.Chain(modules, pipeline_models.loss, _optimizer)
        part = tuple(t[: batch_size // micro_batches] for t in batch)
        found = [measured(chain, part) for _ in range(3)]
        box[0] = [
            {k: min(v, *(f[i][k] for f in found)) if k.endswith("_ns") else v for k, v in layer.items()}
            for i, layer in enumerate(found[0])
        ]
    dist.broadcast_object_list(box, 0)
    return box[0]


# ---- Rivals


class _Whole(torch.nn.Module):
    def __init__(self, layers: list):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _stepped(model: torch.nn.Module, batch: tuple) -> Callable:
    optimizer = _optimizer(model.parameters())

    def step():
        loss = pipeline_models.loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _part(batch: tuple) -> tuple:
    return tuple(t.chunk(dist.get_world_size())[dist.get_rank()] for t in batch)


def ddp(layers: list, batch: tuple, size: int) -> Callable:
    return _stepped(torch.nn.parallel.DistributedDataParallel(_Whole(layers)), _part(batch))


def fsdp2(layers: list, batch: tuple, size: int) -> Callable:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (size,)), _Whole(layers)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return _stepped(fully_shard(model, mesh=mesh), _part(batch))


def tensor_parallel(layers: list, batch: tuple, size: int) -> Callable:
    """PyTorch's: attention and MLP by columns, then by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh, model = init_device_mesh("cpu", (size,)), _Whole(layers)
    for layer in model.layers[1:-1]:
        names = [f"attention.{n}" for n in "qkv"] + [n for n in ("mlp.gate", "mlp.up") if _is_linear(layer, n)]
        plan = {n: ColwiseParallel() for n in names}
        plan |= {n: RowwiseParallel() for n in ("attention.o", "mlp.down") if _is_linear(layer, n)}
        parallelize_module(layer, mesh, plan)
    return _stepped(model, batch)


def _is_linear(layer: torch.nn.Module, name: str) -> bool:
    found: object = layer
    for part in name.split("."):
        found = getattr(found, part, None)
    return isinstance(found, torch.nn.Linear)


RIVALS = {"DDP": ddp, "FSDP2": fsdp2, "tensor parallel": tensor_parallel}


# ---- A rank


def candidates(size: int, micro_batches: list[int]) -> list[dict]:
    return [
        {"micro_batches": m, "schedules": [schedule], "stages_per_rank": [v]}
        for schedule, v in SCHEDULES
        for m in micro_batches
        if m >= size or schedule != "1f1b"
    ]


def run_rank(name: str, size: int, layers: int, batch_size: int, micro_batches: list[int], rounds: int) -> dict:
    import stowage
    from stowage import _runtime

    made = link()
    costs = {m: measured_costs(name, layers, batch_size, m) for m in micro_batches}
    own = action_ns(size, made)
    plans, steps, held, skipped = {}, {}, {}, {}

    def add(label: str, build: Callable[[], Callable]) -> None:
        before = _runtime.live_bytes()
        run = build()
        run(), run()
        _runtime.reset_peak()
        run()
        held[label] = _runtime.peak_bytes() - before
        steps[label] = run

    for options in candidates(size, micro_batches):
        label = f"{options['schedules'][0]}, {options['stages_per_rank'][0]} a rank, {options['micro_batches']} parts"
        modules, batch = pipeline_models.make(name, layers, batch_size)
        chain = stowage.Chain(modules, pipeline_models.loss, _optimizer)
        step = stowage.shard(
            chain,
            (size,),
            pipeline={**options, "action_ns": own, "costs": costs[options["micro_batches"]]},
            links={0: made},
        )
        try:
            step.prepare(*batch)
        except stowage.Error as error:
            skipped[label] = str(error).splitlines()[0]
            continue
        add(label, lambda step=step, batch=batch: lambda: step(*batch))
        plans[label] = step.plan.document
    for label, build in RIVALS.items():
        modules, batch = pipeline_models.make(name, layers, batch_size)
        try:
            add(label, lambda build=build, modules=modules, batch=batch: build(modules, batch, size))
        except (NotImplementedError, RuntimeError, ValueError, AssertionError) as error:
            skipped[label] = f"{type(error).__name__}: {error}".splitlines()[0]
    seconds = _turns(steps, rounds)
    peaks = [None] * size
    dist.all_gather_object(peaks, held)
    rows = {
        label: {
            "measured_ms": 1000 * common.median(seconds[label]),
            "spread": common.spread(seconds[label]),
            "peak_bytes": [peak[label] for peak in peaks],
            **(
                {
                    "predicted_ms": plans[label]["step_ns"] / 1e6,
                    "planned_peak_bytes": [r["peak"] for r in plans[label]["ranks"]],
                    "outcome": plans[label]["outcome"],
                }
                if label in plans
                else {}
            ),
        }
        for label in steps
    }
    return {"link": made, "action_ns": own, "rows": rows, "skipped": skipped}


def _turns(steps: dict[str, Callable], rounds: int) -> dict[str, list]:
    """Wall seconds from barrier to barrier, after a round that warms up; each round begins with another."""
    names, taken = list(steps), {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            begin = time.perf_counter()
            steps[name]()
            dist.barrier()
            if turn:
                taken[name].append(time.perf_counter() - begin)
    return taken


def rank_main(rank: int, size: int, port: int, path: str, *how) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    result = run_rank(how[0], size, *how[1:])
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


# ---- The parent


def spearman(a: list[float], b: list[float]) -> float:
    """Of ranks; those that tie have the mean of their places."""
    n = len(a)
    place = lambda values: [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]
    x, y = place(a), place(b)
    mean = (n - 1) / 2
    over = sum((p - mean) * (q - mean) for p, q in zip(x, y))
    under = (sum((p - mean) ** 2 for p in x) * sum((q - mean) ** 2 for q in y)) ** 0.5
    return over / under if under else float("nan")


def judged(result: dict) -> dict:
    plans = {k: r for k, r in result["rows"].items() if "predicted_ms" in r}
    predicted, measured = ([r[k] for r in plans.values()] for k in ("predicted_ms", "measured_ms"))
    chosen = min(plans, key=lambda k: plans[k]["predicted_ms"])
    return {
        "plans": len(plans),
        "spearman": spearman(predicted, measured),
        "chosen": chosen,
        "regret": plans[chosen]["measured_ms"] / min(measured) - 1,
    }


def table(results: list[dict]) -> str:
    rows, verdicts = [], []
    for r in results:
        title = f"{r['model']}, {r['ranks']} ranks"
        for label, row in sorted(r["rows"].items(), key=lambda entry: entry[1]["measured_ms"]):
            predicted = f"{row['predicted_ms']:.1f}" if "predicted_ms" in row else ""
            planned = common.mebibytes(max(row["planned_peak_bytes"])) if "planned_peak_bytes" in row else ""
            peak = common.mebibytes(max(row["peak_bytes"]))
            rows.append(
                [title, label, f"{row['measured_ms']:.1f}", f"{100 * row['spread']:.0f} %", predicted, peak, planned]
            )
        rows += [[title, f"{label}: no", *[""] * 5] for label in r["skipped"]]
        j = r["judged"]
        verdicts.append([title, j["chosen"], j["plans"], f"{j['spearman']:.2f}", f"{100 * j['regret']:.1f} %"])
    header = ["model", "plan or rival", "measured ms", "quartiles", "predicted ms", "peak MiB", "planned MiB"]
    return (
        common.markdown(header, rows, left=2)
        + "\n\n"
        + common.markdown(["model", "chosen", "plans", "Spearman", "regret"], verdicts, left=2)
    )


def measure(name: str, ranks: int, layers: int, batch: int, micro_batches: list[int], rounds: int) -> dict:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        how = (ranks, port, path, name, layers, batch, micro_batches, rounds)
        torch.multiprocessing.start_processes(rank_main, how, nprocs=ranks, start_method="spawn")
        with open(path, encoding="utf-8") as file:
            result = {"model": name, "ranks": ranks, **json.load(file)}
    return {**result, "judged": judged(result)}


def main() -> None:
    parser = common.parser(__doc__, "pipeline_ranking")
    parser.add_argument(
        "--models", nargs="+", default=list(pipeline_models.MODELS), choices=list(pipeline_models.MODELS)
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8, help="blocks, beside embedding and head")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batches", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    o = parser.parse_args()
    results = []
    for name in o.models:
        common.say(f"{name}: {o.ranks} ranks, {o.rounds} rounds")
        results.append(measure(name, o.ranks, o.layers, o.batch, o.micro_batches, o.rounds))
        common.say(json.dumps(results[-1]["judged"]))
    common.publish("pipeline_ranking", {"results": results}, table(results), o.output)


if __name__ == "__main__":
    main()
