"""A configuration of bench/budget/budget.py in a process of its own: trains, times, counts bytes, and digests its state."""

from __future__ import annotations

import pathlib
import time

from bench import models
from bench.budget import budget_rivals

TRACED = 12  # first steps of eager whose bits are known


def handlers(config: dict) -> dict:
    import torch

    stowage_options = config.get("stowage")
    if stowage_options is not None:
        import stowage  # before the model is made, so that its allocator counts everything

    rival = budget_rivals.Step(config["model"], config.get("form", {}))
    step = rival
    if stowage_options is not None:
        step = stowage.compile(models.step_with(rival.model, rival.loss_fn, rival.optimizers[0]), **stowage_options)

    def residents() -> int:
        tensors = [*rival.stateless_residents(), *rival.optimizer_state()]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    def steps(count: int) -> dict:
        wall, cpu, losses = [], [], []
        for _ in range(count):
            start = time.perf_counter(), time.process_time()
            loss = step(rival.batch)
            wall.append(time.perf_counter() - start[0])
            cpu.append(time.process_time() - start[1])
            losses.append(loss.item().hex())
        return {"wall": wall, "cpu": cpu, "losses": losses}

    def trace(count: int) -> dict:
        """The losses of the first steps and digests of the state after them. Stowage: until two steps were planned."""
        losses = steps(count)["losses"]
        if stowage_options is not None:
            try:
                losses += until_planned(TRACED - 1 - count)
            except stowage.Infeasible as error:
                return {"smallest_bytes": error.smallest_bytes}
            give_pages_back()
            losses += steps(1)["losses"]
        return {"losses": losses, "digest": digest(), "resident_bytes": residents(), "partition": rival.partition}

    def until_planned(most: int) -> list[str]:
        losses = []
        while step.stats()["planned_steps"] < 2:
            if step.refusal or len(losses) >= most:
                raise SystemExit(f"{config['model']} is not planned: {step.refusal or 'too many calls'}")
            losses += steps(1)["losses"]
        return losses

    def digest() -> dict:
        parts = {
            "parameters": rival.model.parameters(),
            "buffers": rival.model.buffers(),
            "state": rival.optimizer_state(),
            "generator": [torch.get_rng_state()],
        }
        return {part: checksum(tensors) for part, tensors in parts.items()}

    def peak() -> dict:
        from stowage import _runtime

        steps(1)
        _runtime.reset_peak()
        base = _runtime.live_bytes() if stowage_options is None else residents()
        steps(1)
        result = {"peak_bytes": _runtime.peak_bytes() - base, "host_bytes": rival.host_bytes}
        if stowage_options is not None:
            summary, stats = step.plan.summary(), step.stats()
            result |= {
                key: summary[key]
                for key in (
                    "resident_bytes",
                    "recomputed_ops",
                    "recompute_ns",
                    "swapped_bytes",
                    "step_ns",
                    "program_step_ns",
                    "step_bound_ns",
                    "outcome",
                    "arena_bytes",
                    "lower_bound_bytes",
                )
            }
            result |= {
                key: stats[key]
                for key in ("misses", "measured_peak_bytes", "planned_peak_bytes", "host_bytes", "stall_ns")
            }
            result["plan_s"] = summary["seconds"]["total"]
        return result

    def smallest(link_gbps: float | None) -> int:
        """The smallest budget that Stowage finds a plan for."""
        try:
            return stowage.plan(step.graph, 1, link_gbps=link_gbps).summary()["resident_bytes"]
        except stowage.Infeasible as error:
            return error.smallest_bytes

    def memory() -> int:
        status = pathlib.Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    return {"steps": steps, "trace": trace, "peak": peak, "smallest": smallest, "memory": memory}


def checksum(tensors) -> str:
    import zlib

    value = 0
    for t in tensors:
        value = zlib.crc32(t.detach().contiguous().numpy().reshape(-1).view("uint8"), value)
    return f"{value:08x}"


def give_pages_back() -> None:
    """What the eager first steps have left in tcmalloc would count against the memory of a group."""
    import ctypes

    release = getattr(ctypes.CDLL(None), "MallocExtension_ReleaseFreeMemory", None)
    if release is not None:
        release()
