"""One case in a process of its own: trains it eagerly and compiled from the same seeds, and compares every bit of what
both leave.

    bench/strangers/worker.py NAME SEED        prints one JSON object

Where both differ, a second eager run tells whether eager agrees with itself.

After each iteration: the result, and digests of parameters, buffers and gradients. At the end: optimizer state,
hyperparameters, the generators of torch, Python and NumPy, and what the case names.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]

THREADS = 1
COMPILED = "STOWAGE_STRANGERS_COMPILED"  # set: models go through torch.compile in both runs
MOST_EACH_TIME_BYTES = 4 << 20  # of parameters, to be compared after each iteration and not each fourth


class Eagerly:
    """Leaves a function as it is."""

    def __call__(self, step: Callable, **_: Any) -> Callable:
        return step

    def trainer(self, trainer: Any) -> None:
        pass

    def callbacks(self) -> list:
        return []

    def steps(self) -> list:
        return []


class Compiled:
    """stowage.compile, and what it has made."""

    def __init__(self) -> None:
        self._made: list[Callable] = []

    def __call__(self, step: Callable, **options: Any) -> Callable:
        import stowage

        compiled = stowage.compile(step, **options)
        self._made.append(lambda: compiled)
        return compiled

    def trainer(self, trainer: Any) -> None:
        import stowage.hf

        plan = stowage.hf.plan(trainer)
        self._made.append(lambda: plan.step)

    def callbacks(self) -> list:
        """For Lightning's Trainer."""
        import stowage.lightning

        callback = stowage.lightning.Stowage()
        self._made.append(lambda: callback.step)
        return [callback]

    def steps(self) -> list:
        return [step for made in self._made if (step := made()) is not None]


# ---- What a run leaves


def bits(value: Any) -> Any:
    """Something that is equal for equal bits and types."""
    import torch

    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.layout != torch.strided:
            value = value.to_dense()
        plain = value.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
        return (
            str(value.dtype),
            tuple(value.shape),
            hashlib.blake2b(plain.flatten().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest(),
        )
    if isinstance(value, dict):
        return {str(key): bits(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(v) for v in value]
    if isinstance(value, float):
        return value.hex()
    if hasattr(value, "__dict__") and not callable(value):
        return {
            k: bits(v)
            for k, v in vars(value).items()
            if isinstance(v, (torch.Tensor, float, int, str, list, tuple, dict))
        }
    return value if isinstance(value, (int, str, bytes, type(None))) else type(value).__name__


def tensors_of(job: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, module in enumerate(job.modules):
        for name, parameter in module.named_parameters():
            found[f"module {i} {name}"] = bits(parameter)
            found[f"module {i} {name}.grad"] = bits(parameter.grad)
        for name, buffer in module.named_buffers():
            found[f"module {i} {name}"] = bits(buffer)
    return found


def optimizers_of(job: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, optimizer in enumerate(job.optimizers):
        for g, group in enumerate(optimizer.param_groups):
            found[f"optimizer {i} group {g}"] = bits({k: v for k, v in group.items() if k != "params"})
            for p, parameter in enumerate(group["params"]):
                found[f"optimizer {i} group {g} state {p}"] = bits(dict(optimizer.state.get(parameter, {})))
    return found


def generators() -> dict[str, Any]:
    import numpy
    import torch

    return {
        "generator of torch": bits(torch.get_rng_state()),
        "generator of Python": hashlib.sha256(repr(random.getstate()).encode()).hexdigest(),
        "generator of NumPy": hashlib.sha256(repr(numpy.random.get_state()).encode()).hexdigest(),
    }


# ---- One run


def seed_all(seed: int) -> None:
    import numpy
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def train(case: Any, compile: Any, seed: int) -> dict:
    from stowage import _runtime

    gc.collect()
    seed_all(seed)
    job = case.build(compile)
    if os.environ.get(COMPILED):
        import torch

        torch._dynamo.reset()
        for module in job.modules:
            module.compile()
    seed_all(seed + 1)
    run: dict[str, Any] = {"left": [], "seconds": [], "planned": [], "peaks": []}
    planned_before = 0

    def begin() -> None:
        arenas = [step._room.arena for step in compile.steps()]
        grads = [p.grad for m in job.modules for p in m.parameters() if p.grad is not None]
        run["live"] = _runtime.live_bytes() - sum(
            g.nbytes
            for g in grads
            if g.layout == torch.strided and not any(arena.holds(g.data_ptr()) for arena in arenas)
        )
        _runtime.reset_peak()
        run["start"] = time.perf_counter()

    def observe(result: Any) -> None:
        nonlocal planned_before
        run["seconds"].append(time.perf_counter() - run["start"])
        run["peaks"].append(_runtime.peak_bytes() - run["live"])
        planned_now = sum(step.stats()["planned_steps"] for step in compile.steps())
        run["planned"].append(planned_now - planned_before)
        planned_before = planned_now
        whole = (
            len(run["left"]) % 4 == 3
            or sum(t.nbytes for m in job.modules for t in m.parameters()) <= MOST_EACH_TIME_BYTES
        )
        run["left"].append({"result": bits(result), **(tensors_of(job) if whole else {})})
        del result
        begin()

    import torch

    begin()
    job.run(observe)
    run["end"] = {
        **tensors_of(job),
        **optimizers_of(job),
        **generators(),
        **{f"more: {k}": bits(v) for k, v in job.more().items()},
    }
    return run


def differences(eager: dict, planned: dict) -> list[str]:
    """What differs, the first iteration first."""
    if len(eager["left"]) != len(planned["left"]):
        return [f"{len(eager['left'])} and {len(planned['left'])} iterations"]
    found = []
    for i, (a, b) in enumerate(zip(eager["left"], planned["left"])):
        found += [
            f"iteration {i} ({'planned' if planned['planned'][i] else 'not planned'}): {k}"
            for k in {**a, **b}
            if a.get(k) != b.get(k)
        ]
    return found + [k for k in {**eager["end"], **planned["end"]} if eager["end"].get(k) != planned["end"].get(k)]


# ---- The verdict


def median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0


def verdict(case: Any, seed: int) -> dict:
    import torch

    torch.set_num_threads(THREADS)
    result: dict[str, Any] = {"steps": 0}
    try:
        eager = train(case, Eagerly(), seed)
    except Exception:
        return {"outcome": "broken", "reason": traceback.format_exc()[-2000:]}
    result |= {
        "steps": len(eager["seconds"]),
        "eager_s": median(eager["seconds"][2:]),
        "eager_peak_bytes": eager["peaks"][-1],
    }
    compile = Compiled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            planned = train(case, compile, seed)
        except Exception as error:
            return {
                **result,
                "outcome": "raises",
                "reason": f"{type(error).__name__}: {error}"[:500],
                "trace": traceback.format_exc()[-3000:],
            }
    steps = compile.steps()
    stats = [step.stats() for step in steps]
    served = [bool(n) for n in planned["planned"]]
    different = differences(eager, planned)
    if different and (found := differences(eager, train(case, Eagerly(), seed))):
        return {"outcome": "broken", "reason": f"two eager runs differ: {found[:3]}"}
    reasons = list(dict.fromkeys(step.refusal for step in steps if step.refusal))
    result |= {
        "planned_steps": sum(served),
        "refused": sum(bool(step.refusal) for step in steps),
        "compiled_steps": len(steps),
        "bits_equal": not different,
        "differences": different[:5],
        "only_gradients": bool(different) and all(d.endswith(".grad") for d in different),
        "reason": "; ".join(reasons),
        "misses": sum(s["misses"] for s in stats),
        "warnings": list(dict.fromkeys(str(w.message)[:300] for w in caught if "stowage" in str(w.message))),
        "planned_s": median([s for s, p in zip(planned["seconds"], served) if p]),
        "plan_s": sum(max(0.0, s - result["eager_s"]) for s, p in zip(planned["seconds"][1:], served[1:]) if not p),
        # In the arena, and what a planned call takes beside it: its results
        "planned_peak_bytes": max((s["planned_peak_bytes"] for s in stats), default=0)
        + next((peak for peak, p in zip(reversed(planned["peaks"]), reversed(served)) if p), 0),
        "ops": max(
            (
                step.graph.op_count if hasattr(step.graph, "op_count") else step.plan.summary().get("ops", 0)
                for step in steps
                if step.graph
            ),
            default=0,
        ),
    }
    if different:
        result["outcome"] = "wrong"
    elif reasons:
        result["outcome"] = "partly" if sum(served) else "refused"
    elif sum(served):
        result["outcome"] = "planned"
    else:
        result |= {"outcome": "refused" if result["warnings"] else "never", "reason": "; ".join(result["warnings"])}
    return result


def prepare() -> None:
    """Before torch makes its first tensor."""
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TOKENIZERS_PARALLELISM": "false",
            "STOWAGE_PLAN_CACHE": "off",
        }
    )
    import stowage  # noqa: F401  so that its allocator counts all


def answer(name: str, seed: int, descriptor: int) -> None:
    """Writes the verdict to ``descriptor`` and ends the process, without a teardown of threads that libraries left
    behind."""
    os.dup2(2, 1)  # what libraries print is no answer
    import packages

    start = time.perf_counter()
    result = verdict(packages.load(name), seed)
    with os.fdopen(descriptor, "w") as answers:
        answers.write(json.dumps({"wall_s": time.perf_counter() - start, **result}) + "\n")
    os._exit(0)


def main() -> None:
    prepare()
    answer(sys.argv[1], int(sys.argv[2]), os.dup(1))


if __name__ == "__main__":
    main()
