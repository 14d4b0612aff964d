"""The parts of bench/gpu.py, each in a process of its own:

    python gpu_parts.py '{"part": "budget", "model": "gpt2_xl", "share": 0.5, "device": "cuda", "size": "full", ...}' FILE

writes the part's result to FILE as JSON, last of all; so a part that dies leaves none. What a part finds is a figure or a
fact; "good" says whether it is what must hold, and is left out where nothing must.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import gpu_models as models
import torch

STEPS = 6  # of which the last three are planned
STEPS_WITH_GRAPHS = 14  # of which the last ones run in graphs


class Bits:
    """What each step leaves: a digest of all tensors, one of the device's generator, the loss."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, training: models.Training, loss: torch.Tensor) -> None:
        state = torch.get_device_module(loss.device.type).get_rng_state()
        self.lines.append(f"{training.digest(loss)} {models.digest([state])} {loss.item():.6g}")

    def first_difference(self, other: Bits) -> str:
        pairs = enumerate(zip(self.lines, other.lines), 1)
        return next((f"step {i}: {a} and {b}" for i, (a, b) in pairs if a != b), "")


def trained(training: models.Training, step: Any, steps: int) -> tuple[Bits, dict]:
    """Bits; and what the steps themselves took at most."""
    bits, most = Bits(), {"peak_bytes": 0, "reserved_bytes": 0}
    for i in range(steps):
        models.free_memory()
        start, busy = time.monotonic(), time.process_time()
        loss = step(training.batch)
        took = models.memory()
        said = f"{type(step).__name__} {i + 1} of {steps}: {time.monotonic() - start:.2f} s, {time.process_time() - busy:.2f} s of the host"
        print(said, file=sys.stderr, flush=True)
        most = {key: max(most[key], took[key]) for key in most}
        bits.note(training, loss)
    return bits, most


def new(config: dict, samples: int = 0, **options: Any) -> models.Training:
    return models.make(config["model"], config["size"], config["device"], samples, **options)


def eagerly(config: dict, steps: int = STEPS, **options: Any) -> tuple[Bits, dict]:
    """Bits of all steps; memory of those after the first."""
    training = new(config, **options)
    bits, took = settled(training, training.step, steps, 1)
    del training
    models.free_memory()
    return bits, took


def repeated(config: dict, **options: Any) -> tuple[Bits, dict]:
    """As eagerly(), in the way in which eager repeats its bits: as PyTorch comes, else by deterministic algorithms."""
    first, took = eagerly(config, **options)
    if config.get("deterministic") or not first.first_difference(eagerly(config, **options)[0]):
        return first, took | {"deterministic": torch.are_deterministic_algorithms_enabled()}
    models.deterministic()
    first, took = eagerly(config, **options)
    return first, took | {"deterministic": True, "repeats": not first.first_difference(eagerly(config, **options)[0])}


def planned(config: dict, training: models.Training, steps: int = STEPS, **options: Any) -> tuple[Any, Bits, dict]:
    """The compiled step after so many calls; memory of the last two, which are planned."""
    import stowage

    step = stowage.compile(training.step, **options)
    bits, took = settled(training, step, steps, steps - 2)
    return step, bits, took


def settled(training: models.Training, step: Any, steps: int, warm: int) -> tuple[Bits, dict]:
    bits, _ = trained(training, step, warm)
    rest, took = trained(training, step, steps - warm)
    bits.lines += rest.lines
    return bits, took


def figures(step: Any) -> dict:
    stats = step.stats()
    wanted = (
        *("planned_steps", "misses", "arena_bytes", "resident_bytes", "planned_peak_bytes", "measured_peak_bytes"),
        *("recomputed_ops", "swapped_bytes", "host_bytes", "stall_ns", "lower_bound_bytes"),
    )
    return {name: stats[name] for name in wanted} | {"refusal": step.refusal or ""}


def holds(found: dict) -> bool:
    """Of figures(): what every plan promises."""
    return (
        found["planned_steps"] >= 1
        and found["misses"] == 0
        and found["measured_peak_bytes"] == found["planned_peak_bytes"]
    )


# ---- (1) Does eager repeat its bits?


def eager_repeats(config: dict) -> dict:
    """Without Stowage in the process. Where it does not, the first operator whose results differ."""
    first, took = eagerly(config)
    again, _ = eagerly(config)
    differs = first.first_difference(again)
    found = took | {"bits": first.lines, "differs": differs, "op": "", "deterministic_differs": ""}
    if differs:
        found["op"] = _first_op(config)
        models.deterministic()
        found["deterministic_differs"] = eagerly(config)[0].first_difference(eagerly(config)[0])
    assert "stowage" not in sys.modules
    return found | {"good": not differs}


def _first_op(config: dict) -> str:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Sums(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.ops, self.sums = [], []

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            result = op(*args, **(kwargs or {}))
            for t in tree_leaves(result):
                # Numbers alone: attention without dropout leaves the seed that it returns unwritten
                if isinstance(t, torch.Tensor) and t.device.type == config["device"] and t.is_floating_point():
                    self.ops.append(str(op))
                    self.sums.append(models.sums_of(t))
            return result

    runs = []
    for _ in range(2):
        training, mode = new(config), Sums()
        with torch.autograd.set_multithreading_enabled(False), mode:
            training.step(training.batch)
        runs.append((mode.ops, torch.stack(mode.sums).cpu()))
        del training
        models.free_memory()
    (ops, sums), (other_ops, other_sums) = runs
    if ops != other_ops:
        return "another order of operators"
    differ = (sums != other_sums).any(1).nonzero().flatten().tolist()
    return f"{ops[differ[0]]} (result {differ[0]} of {len(ops)})" if differ else "none when each operator is watched"


# ---- (2) Is a step recorded the same way twice?


def records_twice(config: dict) -> dict:
    import stowage

    graphs = []
    for _ in range(2):
        training = new(config)
        graph = stowage.capture(training.step, training.batch)
        graphs.append((graph.structure_sha256, graph.ops, graph.buffers))
        del training
        models.free_memory()
    return {"graphs": graphs, "good": graphs[0] == graphs[1]}


# ---- (3) Armed replay over a poisoned arena, each operator watched


def armed_replay(config: dict) -> dict:
    eager, _ = repeated(config)
    step, bits, took = planned(config, new(config), strict="paranoid")
    found = figures(step) | took | {"differs": eager.first_difference(bits), "bits": eager.lines}
    return found | {"good": not found["differs"] and holds(found)}


# ---- (4) Pinned memory: how fast are copies, each way and both ways at once?


def link(config: dict) -> dict:
    device, rounds = config["device"], config["rounds"]
    count = {"full": 1 << 30, "middle": 1 << 28, "small": 1 << 20}[config["size"]]
    here = [torch.ones(count, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.ones(count, dtype=torch.uint8, device=device) for _ in range(2)]
    lanes = [torch.Stream(device) for _ in range(2)]

    def copies(*ways: str) -> None:
        for lane, way, host, far in zip(lanes, ways, here, there):
            with lane:
                (far if way == "in" else host).copy_(host if way == "in" else far, non_blocking=True)
        for lane in lanes:
            lane.synchronize()

    calls = {"in": lambda: copies("in"), "out": lambda: copies("out"), "both": lambda: copies("in", "out")}
    for call in calls.values():
        call()
    times = models.interleaved(calls, rounds)
    return {
        "bytes": count,
        "in_gbps": count / times["in"]["step_ns"],
        "out_gbps": count / times["out"]["step_ns"],
        "both_gbps": 2 * count / times["both"]["step_ns"],  # bytes both ways together
    }


# ---- (5) Dropout, recomputed with the device's generator


def dropout(config: dict) -> dict:
    """No link, so that what leaves comes back by recomputation alone. A limit that needs nothing of it shows nothing."""
    eager, _ = repeated(config)
    full, _, _ = planned(config, new(config), link_gbps=0)
    stats = full.stats()
    del full
    for share in (0.5, 0.7, 0.85):
        models.free_memory()
        budget = stats["resident_bytes"] + int(stats["arena_bytes"] * share)
        found = _within(config, budget, eager, link_gbps=0)
        if "infeasible_smallest_bytes" not in found:
            return found | {"share_of_arena": share, "good": found["good"] and found["recomputed_ops"] > 0}
    return found | {"good": False}


def _within(config: dict, budget: int, eager: Bits, **options: Any) -> dict:
    import stowage

    training = new(config)
    try:
        start = time.perf_counter_ns()
        step, bits, took = planned(config, training, budget=budget, **options)
    except stowage.Infeasible as error:
        return {"budget_bytes": budget, "infeasible_smallest_bytes": error.smallest_bytes}
    found = figures(step) | took
    found |= {
        "budget_bytes": budget,
        "until_planned_ns": time.perf_counter_ns() - start,
        "differs": eager.first_difference(bits),
        "held": found["resident_bytes"] + found["arena_bytes"] <= budget,
    }
    calls = {"eager": lambda: training.step(training.batch), "planned": lambda: step(training.batch)}
    times = models.interleaved(calls, config["rounds"])
    found |= {"times": times, "ratio": times["planned"]["step_ns"] / times["eager"]["step_ns"]}
    predicted = step.plan.summary() if step.plan else {}
    found["predicted"] = {k: predicted.get(k) for k in ("program_step_ns", "step_ns", "step_bound_ns", "outcome")}
    if config.get("graphs") and step.plan:  # to plan them again elsewhere
        name = f"{config['graphs']}/{config['model']}-{budget >> 20}"
        step.graph.save(f"{name}.graph.json.gz")
        step.plan.save(f"{name}.plan.json.gz")
    if config["device"] == "cuda":
        found["profile"] = {name: models.profile(call) for name, call in calls.items()}
    return found | {"good": not found["differs"] and holds(found) and found["held"]}


# ---- (6) Budgets: a share of what eager takes at most, or the smallest


def budget(config: dict) -> dict:
    eager, took = repeated(config)
    found: dict = {}
    limit = int(took["peak_bytes"] * config["share"]) if config["share"] else 1
    for _ in range(3 if not config["share"] else 1):
        found = _within(config, limit, eager)
        smallest = found.get("infeasible_smallest_bytes", 0)
        if not smallest or config["share"]:
            break
        limit = smallest
        models.free_memory()
    return {"eager": took} | found


# ---- (7) The eager budget


def eager_budget(config: dict) -> dict:
    """stowage.budget around a plain loop, at 70 % of what eager takes: bits, peak, time beside eager's."""
    import stowage

    eager, took = repeated(config)
    limit = int(took["peak_bytes"] * 0.7)
    training = new(config)
    with stowage.budget(limit) as block:
        bits, over = settled(training, training.step, STEPS, 1)
        calls = {"in the budget": lambda: training.step(training.batch)}
        times = models.interleaved(calls, config["rounds"])
    plain = new(config)
    times |= models.interleaved({"eager": lambda: plain.step(plain.batch)}, config["rounds"])
    stats = {name: block.stats()[name] for name in ("evictions", "recomputed_ops", "swapped_bytes", "stall_ns")}
    found = (
        over | stats | {"limit_bytes": limit, "eager": took, "differs": eager.first_difference(bits), "times": times}
    )
    found["asked_peak_bytes"] = block.stats()["peak_bytes"]  # the allocator rounds each block up
    return found | {"good": found["asked_peak_bytes"] <= limit and not found["differs"]}


# ---- (8) Graphs of the device


def graphs(config: dict) -> dict:
    """Of small steps, in which the device waits for the host: eagerly, planned, and planned with graphs. Without dropout:
    what draws is in no graph."""
    small = {"samples": 1, "dropout": 0.0}
    eager, took = repeated(config, steps=STEPS_WITH_GRAPHS, **small)
    training = new(config, **small)
    step, bits, _ = planned(config, training, STEPS_WITH_GRAPHS, graphs=True)
    plain, _, _ = planned(config, training)
    calls = {
        "eager": lambda: training.step(training.batch),
        "planned": lambda: plain(training.batch),
        "graphs": lambda: step(training.batch),
    }
    found = figures(step) | {name: step.stats()[name] for name in ("graph_ops", "graph_refusal")}
    found |= {"ops": step.plan.summary().get("ops", 0) if step.plan else 0, "deterministic": took["deterministic"]}
    found |= {"differs": eager.first_difference(bits), "times": models.interleaved(calls, config["rounds"])}
    return found | {"good": not found["differs"] and holds(found)}


# ---- (9) The largest batch


def largest_batch(config: dict) -> dict:
    """Doubled, then halved between what ran and what did not; first eagerly, then planned within what the device has
    free. max_batch serves the CPU alone, so the search is here."""
    deadline = time.monotonic() + config["seconds"] * 0.9
    total = torch.accelerator.get_memory_info()[1]
    limit = min(int(total * 0.9), config.get("limit_bytes") or total)
    found: dict = {"limit_bytes": limit}
    cause = [""]

    def fits(samples: int, compiled: bool) -> dict | None:
        models.free_memory()
        try:
            training = new(config, samples=samples)
            if compiled:
                step, _, took = planned(config, training, budget=limit)
                if step.stats()["planned_steps"] == 0:
                    raise stowage_error()(step.refusal or "nothing was planned")
            else:
                step = training.step
                _, took = settled(training, step, 3, 1)
            if max(took.values()) > limit:
                cause[0] = f"{samples} samples take {took['reserved_bytes']} bytes"
                return None
            ns = models.interleaved({"step": lambda: step(training.batch)}, 3)["step"]["step_ns"]
            return took | {"samples": samples, "samples_a_second": samples / ns * 1e9}
        except (torch.OutOfMemoryError, stowage_error()) as error:
            cause[0] = f"{samples} samples: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
            return None

    for kind in ("eager", "planned"):
        best, low, high = None, 0, 0
        samples = found["eager"]["samples"] if kind == "planned" and found.get("eager") else config["first"]
        while time.monotonic() < deadline and (high == 0 or high - low > max(1, low // 16)):
            result = fits(samples, kind == "planned")
            if result is None:
                high = samples
            else:
                best, low = result, samples
            samples = low * 2 if high == 0 else (low + high) // 2
            if samples == 0 or samples == low or samples > config.get("most", 1 << 20):
                break
        found[kind] = best
        found[f"{kind}_ended_by"] = cause[0] if time.monotonic() < deadline else "the time limit"
    if found["eager"] and found["planned"]:
        found["ratio"] = found["planned"]["samples"] / found["eager"]["samples"]
        if found["ratio"] <= 1 and "OutOfMemory" in found["planned_ended_by"]:
            found["not_there"] = "a step is recorded by running it eagerly, which takes eager's memory"
    return found


def stowage_error() -> type[Exception]:
    import stowage

    return stowage.Error


# ---- (10) Rivals, in turns with eager over the same model


def rival(config: dict) -> dict:
    name, rounds = config["rival"], config["rounds"]
    eager, took = repeated(config)
    training = new(config)
    step = _rival_of(training, config["device"], name)
    bits, most = settled(training, step, STEPS, 2)
    found = most | {"eager": took, "differs": eager.first_difference(bits)}
    calls = {"eager": lambda: training.step(training.batch), name: lambda: step(training.batch)}
    times = models.interleaved(calls, rounds)
    return found | {"times": times, "ratio": times[name]["step_ns"] / times["eager"]["step_ns"]}


def _rival_of(training: models.Training, device: str, name: str) -> Any:
    def checkpointed(batch):
        models.checkpointing(training.model, True)
        try:
            return training.step(batch)
        finally:
            models.checkpointing(training.model, False)

    def on_cpu(batch):
        with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type=device):
            return training.step(batch)

    if name == "torch.compile":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = 0.5
        # Inductor has no kernels for the stand-in; this one partitions the graph in the same way
        backend = "inductor" if device == "cuda" else "aot_eager_decomp_partition"
        return training.step_of(torch.compile(training.model, backend=backend))
    # expandable: by the process's environment (gpu.py), so that it is timed beside itself
    return {"expandable": training.step, "checkpointing": checkpointed, "save_on_cpu": on_cpu}[name]


# ---- One small step for compute-sanitizer


def small_step(config: dict) -> dict:
    step, _, _ = planned(config, new(config))
    found = figures(step)
    return found | {"good": holds(found)}


PARTS = {
    part.__name__: part
    for part in (
        *(eager_repeats, records_twice, armed_replay, link, dropout, budget),
        *(eager_budget, graphs, largest_batch, rival, small_step),
    )
}


def main() -> None:
    config = json.loads(sys.argv[1])
    models.start(config["device"])
    if config.get("deterministic"):
        models.deterministic()
    with contextlib.redirect_stdout(sys.stderr):
        found = PARTS[config["part"]](config)
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
