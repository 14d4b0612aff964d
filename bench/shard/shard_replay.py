"""A sharded step on real ranks: planned and replayed, against DTensor.

    ./dev bench shard_replay                    all models on two gloo ranks, one thread each
    ./dev bench shard_replay --models gpt --ranks 4 --rounds 20

Four rivals in the same processes, in turns, a round beginning with another one each time; parameters lie where the
plan has them:

    dtensor   the model's parameters as DTensors, PyTorch's own rules and choices for every op, its own optimizer step
    placed    the plan's placement of every op, on DTensors: what stowage.shard runs before it has planned, and what it records
    logged    the same step, whose Python keeps each loss as a number, and so runs in every call: over shells, then the local tape
    planned   the recorded local tape, replayed

A step is timed from one barrier to the next; CPU time is rank 0's, without what it waits; both are medians. The first
loss of each must be that of one process. Bytes: what lives between steps against the sharding plan's ledger, the
arena's measured peak against the local plan's (which orders ops anew, and so may be below what the sharding plan
modelled in program order)."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import common

ROUNDS = 12


# ---- Models: small enough that two ranks on two cores are not all arithmetic


def gpt(layers: int, width: int, heads: int, batch: int, tokens: int):
    from bench.shard import shard_models

    model, loss_of, _ = shard_models.gpt(layers, width, heads, batch, tokens, 1000)
    model.set_attn_implementation("eager")  # PyTorch has no DTensor rule for the CPU's attention kernel
    return model, loss_of, (torch.randint(0, 1000, (batch, tokens)),)


def moe():
    from bench.shard import shard_models

    model = shard_models._Moe(2, 128, 4, 4, 24, 1000)
    for block in model.blocks:  # its experts are left empty for plans
        torch.nn.init.normal_(block.mlp.up, std=0.05)
        torch.nn.init.normal_(block.mlp.down, std=0.05)

    def loss_of(model, tokens):
        with sdpa_kernel(SDPBackend.MATH):  # as in gpt()
            return shard_models._next_token(model, tokens)

    return model, loss_of, (torch.randint(0, 1000, (4, 64)),)


def resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64], depths=[2, 2, 2], layer_type="basic", num_labels=10
    )
    return (
        ResNetForImageClassification(config),
        lambda m, x, y: m(pixel_values=x, labels=y).loss,
        (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))),
    )


MODELS: dict[str, Callable] = {
    "gpt": lambda: gpt(2, 128, 4, 4, 64),
    "gpt wide": lambda: gpt(4, 256, 4, 4, 128),
    "moe": moe,
    "resnet": resnet,
}


def make(name: str):
    """(model, a function that makes its step, batch), the same in every process."""
    torch.manual_seed(0)
    model, loss_of, batch = MODELS[name]()
    model.train()

    def make_step():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(*args):
            optimizer.zero_grad()
            loss = loss_of(model, *args)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        return step

    return model, make_step, batch


# ---- A rank


def dtensor_step(name: str, mesh, placements: dict[str, tuple]) -> Callable:
    """PyTorch's own: parameters distributed at these placements, everything else as DTensor does it."""
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torch.distributed.tensor.experimental import implicit_replication

    model, make_step, _ = make(name)
    shared: dict[int, torch.nn.Parameter] = {}
    for path, module in model.named_modules():
        for key, p in module._parameters.items():
            if p is not None and id(p) not in shared:
                shared[id(p)] = torch.nn.Parameter(
                    distribute_tensor(p.data, mesh, placements[f"{path}.{key}" if path else key])
                )
            if p is not None:
                module._parameters[key] = shared[id(p)]
    step = make_step()

    def whole_loss(*args):
        with implicit_replication():
            loss = step(*args)
        return loss.full_tensor() if isinstance(loss, DTensor) else loss

    return whole_loss


def rank_main(rank: int, size: int, port: int, name: str, rounds: int, eps: float, path: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    result = run_rank(name, size, rounds, eps)
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


def run_rank(name: str, size: int, rounds: int, eps: float) -> dict:
    _, make_alone, batch = make(name)
    loss, losses = make_alone()(*batch).item(), {}
    step, losses["placed"] = planned(name, size, eps, batch, logs=False)
    logged, losses["logged"] = planned(name, size, eps, batch, logs=True)
    entry, plan, stats = step._latest, step.plan, step.stats()
    rivals = {
        "placed": lambda: step._eager(entry, batch, {}),
        "logged": lambda: logged(*batch),
        "planned": lambda: step(*batch),
    }
    result = {"ops": len(plan.program.ops), "replicated_ops": stats["replicated_ops"]}
    try:
        rivals["dtensor"] = theirs(name, step, batch, losses)
    # An op that PyTorch has no rule for
    except (NotImplementedError, RuntimeError, ValueError, AssertionError) as error:
        result["dtensor_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    for rival, other in losses.items():
        if abs(other - loss) > 1e-4 * abs(loss):
            raise SystemExit(f"{name}: the loss of one process is {loss}, that of {rival} {other}")
    for _ in range(8):  # models that were made meanwhile change what the first step reads: it is watched anew
        step(*batch)
    seconds, cpu = turns(rivals, rounds)
    ledger = plan.local_bytes(step.mesh.get_coordinate(), [size])
    stats = step.stats()
    return result | {
        "rivals": {
            rival: {
                "median_ms": 1000 * common.median(seconds[rival]),
                "spread": common.spread(seconds[rival]),
                "cpu_ms": 1000 * common.median(cpu[rival]),
                "steps": rounds,
            }
            for rival in rivals
        },
        "state_bytes": sum(ledger.values()),
        "ledger_exact": step.measured_bytes() == ledger,
        "modelled": plan.summary()["bytes"],
        "arena_planned_bytes": stats["planned_peak_bytes"],
        "arena_measured_bytes": stats["measured_peak_bytes"],
        "misses": stats["misses"],
    }


def planned(name: str, size: int, eps: float, batch: tuple, logs: bool) -> tuple[Any, float]:
    """A sharded step whose calls are planned, and its first loss. ``logs``: its Python keeps them, too."""
    import stowage

    _, make_step, _ = make(name)
    own, log = make_step(), []

    def logging_step(*args):
        loss = own(*args)
        log.append(loss.item())
        return loss

    step = stowage.shard(logging_step if logs else own, (size,), eps=eps, relative_gap=0.05, strict=True)
    first = step(*batch).item()
    while not step.stats()["planned_steps"]:
        step(*batch)
        if step.refusal:
            raise SystemExit(f"{name}: {step.refusal}")
    return step, first


def theirs(name: str, step, batch: tuple, losses: dict) -> Callable:
    """PyTorch's own step at the plan's placements, after its first call."""
    placements = {n.split(".", 1)[1]: at.parameter for n, at in step.plan.state_placements().items()}
    run = dtensor_step(name, step.mesh, placements)
    losses["dtensor"] = run(*batch).item()
    return lambda: run(*batch)


def turns(rivals: dict[str, Callable], rounds: int) -> tuple[dict, dict]:
    """Wall seconds from barrier to barrier and this rank's CPU seconds, after a round that warms up."""
    seconds, cpu = {rival: [] for rival in rivals}, {rival: [] for rival in rivals}
    names = list(rivals)
    for turn in range(rounds + 1):
        for rival in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            start, start_cpu = time.perf_counter(), time.process_time()
            rivals[rival]()
            worked = time.process_time() - start_cpu
            dist.barrier()
            if turn:
                seconds[rival].append(time.perf_counter() - start)
                cpu[rival].append(worked)
    return seconds, cpu


# ---- The parent


def table(results: list[dict]) -> str:
    rows, sizes = [], []
    for r in results:
        planned, modelled = r["rivals"]["planned"], r["modelled"]
        for i, name in enumerate(n for n in ("dtensor", "placed", "logged", "planned") if n in r["rivals"]):
            f = r["rivals"][name]
            rows.append(
                [
                    f"{r['model']}, {r['ranks']} ranks" if i == 0 else "",
                    name,
                    f"{planned['median_ms'] / f['median_ms']:.2f}",
                    f"{planned['cpu_ms'] / f['cpu_ms']:.2f}",
                    f"{f['median_ms']:.0f}",
                    f"{100 * f['spread']:.0f} %",
                    f"{f['cpu_ms']:.1f}",
                ]
            )
        if "dtensor_error" in r:
            rows.append(["", "dtensor: no", *[""] * 5])
        sizes.append(
            [
                r["model"],
                f"{r['state_bytes']:,}",
                "yes" if r["ledger_exact"] else "no",
                f"{modelled['saved']:,}",
                f"{modelled['peak'] - r['state_bytes'] + modelled['gradients']:,}",
                f"{r['arena_planned_bytes']:,}",
                f"{r['arena_measured_bytes']:,}",
                r["misses"],
            ]
        )
    times = common.markdown(
        ["model", "rival", "planned to it, wall", "planned to it, CPU", "wall ms", "quartiles", "CPU ms"], rows, left=2
    )
    held = common.markdown(
        [
            "bytes of rank 0",
            "state",
            "as the ledger says",
            "saved, modelled",
            "peak above state, modelled",
            "arena, planned",
            "arena, measured",
            "misses",
        ],
        sizes,
    )
    return times + "\n\n" + held


def measure(name: str, ranks: int, rounds: int, eps: float) -> dict:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        torch.multiprocessing.start_processes(
            rank_main, (ranks, port, name, rounds, eps, path), nprocs=ranks, start_method="spawn"
        )
        with open(path, encoding="utf-8") as file:
            return {"model": name, "ranks": ranks, "eps": eps, **json.load(file)}


def main() -> None:
    parser = common.parser(__doc__, "shard_replay")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--eps", type=float, default=1.0, help="state and saved bytes may be 1 + eps times the least (default 1)"
    )
    options = parser.parse_args()
    results = []
    for name in options.models:
        common.say(f"{name}: {options.ranks} ranks, {options.rounds} rounds")
        results.append(measure(name, options.ranks, options.rounds, options.eps))
        common.say(json.dumps(results[-1]))
    common.publish("shard_replay", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    main()
