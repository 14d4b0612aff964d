"""A model of bench/eager/eager.py in a process of its own: all its configurations take turns on the same loop, so that a
ratio compares steps that ran seconds apart on the same machine."""

from __future__ import annotations

import json
import time

from bench.eager import models_eager

LEARN = 3  # steps before counted ones: the default policy has seen an iteration repeat by then


def handlers(config: dict) -> dict:
    import torch

    import stowage  # before the model is made, so that its allocator counts everything
    from bench.budget import budget_rivals
    from stowage import _runtime

    name = config["model"]
    loops = {"eager": models_eager.make(name)}

    def loop_of(kind: str) -> models_eager.Loop:
        if kind not in loops:
            loops.clear()  # one at a time: they are not small
            loops[kind] = models_eager.make(name, checkpointed=kind == "checkpoint")
            if kind == "host":
                stay = {
                    t.untyped_storage()._cdata for t in [*loops[kind].model.parameters(), *loops[kind].model.buffers()]
                }
                loops[kind].around_forward = budget_rivals.OnHost(stay).hooks
            for i in range(2):
                loops[kind].step(i)
        return loops[kind]

    def counted(loop: models_eager.Loop, count: int) -> dict:
        wall, own = [], []
        for i in range(count):
            start = time.perf_counter(), time.thread_time()
            loop.step(i)
            wall.append(time.perf_counter() - start[0])
            # Of the program's thread, kernels included; copies have their lanes
            own.append(time.thread_time() - start[1])
        return {"wall": wall, "own": own}

    def plain(kind: str, count: int) -> dict:
        """Eager, or one of PyTorch's own ways, without a budget."""
        loop = loop_of(kind)
        loop.step(0)
        _runtime.reset_peak()
        return counted(loop, count) | {"peak_bytes": _runtime.peak_bytes()}

    def resident_bytes() -> int:
        loop = loop_of("eager")
        state = [t for s in loop.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        return sum(t.untyped_storage().nbytes() for t in [*loop.model.parameters(), *loop.model.buffers(), *state])

    def under(limit_bytes: int, count: int, options: dict, learn: int = LEARN) -> dict:
        """Steps within a limit. {"failed": why} when it cannot be met."""
        loop = loop_of("eager")
        try:
            with stowage.budget(int(limit_bytes), **options) as b:
                for i in range(learn):
                    loop.step(i)
                before = b.stats()
                result = counted(loop, count)
                after = b.stats()
        except stowage.OutOfMemory as error:
            loop.optimizer.zero_grad()
            return {"failed": str(error)}
        changes = {
            key: after[key] - before[key]
            for key in after
            if isinstance(after[key], (int, float)) and key not in ("limit_bytes", "peak_bytes")
        }
        policy = {key: after["policy"][key] - before["policy"][key] for key in after["policy"] if key != "name"}
        return result | {
            "peak_bytes": after["peak_bytes"],
            "host_peak_bytes": after.get("host_peak_bytes", 0),
            "changes": changes,
            "policy": policy,
        }

    def lost_s(cases: list) -> list[float]:
        """For each limit and link: seconds a step, the mean over batches, that any policy loses (eager_bound.py)."""
        from bench.eager.eager_bound import StepBound

        loop = loop_of("eager")
        for i in range(2):
            loop.step(i)
        steps = [
            StepBound(json.loads(stowage.capture(lambda i=i: loop.step(i)).to_json())) for i in range(len(loop.batches))
        ]
        return [sum(step.lost_s(*case) for step in steps) / len(steps) for case in cases]

    def smallest(above_bytes: int, below_bytes: int, options: dict) -> int:
        """The least limit, to 1 %, under which three steps run; below_bytes is known to do."""
        while below_bytes - above_bytes > below_bytes // 100:
            middle = (above_bytes + below_bytes) // 2
            if "failed" in under(middle, 1, options, learn=2):
                above_bytes = middle
            else:
                below_bytes = middle
        return below_bytes

    def largest_batch(batch: int, limit_bytes: int, options: dict, most: int) -> dict:
        """The most images a step under the limit, to 1/8 of ``batch``: doubled until one fails, then halved between."""
        best, failed, timing = batch, most + 1, None
        count = 2 * batch
        while best < count < failed:
            loops.clear()
            loops["eager"] = models_eager.make(name, count=count)
            tried = under(limit_bytes, 1, options, learn=1)
            if "failed" in tried:
                failed = count
            else:
                best, timing = count, tried
            count = min(2 * best, most) if failed > most else (best + failed) // 2
            if failed - best <= max(batch // 8, 1):
                break
        loops.clear()
        return {"batch": best, "seconds": timing["wall"] if timing else None}

    def peak_at(batch: int) -> dict:
        loops.clear()
        loops["eager"] = models_eager.make(name, count=batch)
        return plain("eager", 2)

    return {
        "plain": plain,
        "under": under,
        "lost_s": lost_s,
        "smallest": smallest,
        "resident_bytes": resident_bytes,
        "largest_batch": largest_batch,
        "peak_at": peak_at,
    }
