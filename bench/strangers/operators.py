"""PyTorch's own operator database (torch.testing's op_db) through stowage.compile and under stowage.budget, bit against
eager.

Each sample becomes a small step: the inputs that may require grad are parameters, the others are arguments of the step;
forward, backward of a loss that weighs every element of the results otherwise, SGD. Arguments change in their order of
elements between calls, so that numbers that were read on the host and baked in show. Two ways:

    compile   seven calls; the results of each, the parameters and the generator afterwards
    budget    three calls beside other tensors that fill the limit, policy "random", so that what the operator saved for backward must leave

    planned    plans were executed (budget: things left), and every bit is eager's
    data       refused, as the data decide a shape, a number on the host or what runs
    refused    refused for another reason (budget: the least that the operator needs at once is above every limit tried)
    wrong, crash, hang        must not be

Samples that eager cannot run twice, or that return memory nobody has written, are not counted. Operators are dealt to
processes in chunks; a process that dies or stands still is one finding, and another continues behind it.

    ./dev bench operators                              float32, three samples an operator
    ./dev bench operators --samples 0 --dtypes float32,int64,complex64 --inplace
    ./dev bench operators --operators 'nn.functional.*' --seed 5
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
os.environ.setdefault("STOWAGE_PLAN_CACHE", "off")

import torch  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_unflatten  # noqa: E402

import stowage  # noqa: E402  before any tensor
from stowage import _runtime  # noqa: E402

CALLS = 7
BUDGET_CALLS = 3
SHARES = (0.35, 0.55, 0.8)  # of eager's peak above what is there before; the first that can be met counts
QUIET_S = 60.0  # without a line, a process hangs
CHUNK = 8
DATA = ("depends on data", "depend on data")  # in reasons
UNWRITTEN = ("empty", "new_empty", "resize", "_chunk_cat.unwritten")


# ---- Samples


@dataclass
class Sample:
    name: str  # of the operator, its dtype, form and number
    function: Callable
    leaves: list[Any]  # of (input, args, kwargs)
    spec: Any


def database() -> list:
    from torch.testing._internal.common_methods_invocations import op_db

    return sorted(op_db, key=_name)


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op: Any, dtype: torch.dtype, form: str, most: int, seed: int) -> list[Sample]:
    """``most`` samples, spread over all that there are (0: all of them). ``form``: "plain", or "inplace" for the
    operator's in-place one."""
    function = op.op if form == "plain" else op.inplace_variant
    if function is None or dtype not in op.supported_dtypes("cpu"):
        return []
    text = f"{_name(op)} {str(dtype).removeprefix('torch.')} {form}"
    torch.manual_seed(int(hashlib.sha256(f"{seed} {text}".encode()).hexdigest()[:8], 16))
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    found = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
    chosen = (
        range(len(found))
        if most == 0 or len(found) <= most
        else sorted(random.Random(f"{seed} {text}").sample(range(len(found)), most))
    )
    made = []
    for i in chosen:
        s = found[i]
        if form == "inplace" and s.broadcasts_input:
            continue
        leaves, spec = tree_flatten((s.input, s.args, s.kwargs))
        made.append(Sample(f"{text} {i}", function, [_detached(t) for t in leaves], spec))
    return made


def _detached(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides, in memory of its own."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(
        tensor.detach().untyped_storage().clone(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def _rolled(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, in another order."""
    made = _copy(tensor)
    if tensor.layout == torch.strided and tensor.numel() > 1:
        with contextlib.suppress(RuntimeError):  # elements that share their memory
            made.copy_(made.clone().flatten().roll(1).view(made.shape))
    return made


# ---- Its step


class Trial:
    """A sample's parameters and its step; ``tensors(rolled)`` are the step's arguments. ``beside``: the step also makes
    large tensors, which its backward reads."""

    def __init__(self, sample: Sample, beside: bool = False):
        leaves = [_copy(v) if isinstance(v, torch.Tensor) else v for v in sample.leaves]
        of_step = [i for i, v in enumerate(sample.leaves) if isinstance(v, torch.Tensor) and not v.requires_grad]
        self.parameters = [
            leaves[i].requires_grad_()
            for i, v in enumerate(sample.leaves)
            if isinstance(v, torch.Tensor) and v.requires_grad
        ]
        if beside:
            ballast = torch.linspace(0.5, 1.5, 1 << 14).requires_grad_()
            self.parameters.append(ballast)
        self._arguments = [sample.leaves[i] for i in of_step]
        optimizer = torch.optim.SGD(self.parameters, lr=1e-4, foreach=False) if self.parameters else None
        self.step = _step(
            sample.function,
            leaves,
            sample.spec,
            of_step,
            optimizer,
            self.parameters,
            ballast if beside else None,
            "inplace" in sample.name,
        )

    def tensors(self, rolled: bool) -> list[torch.Tensor]:
        return [_rolled(t) if rolled else _copy(t) for t in self._arguments]

    def left(self) -> list:
        return [_bits(p) for p in self.parameters] + [_bits(torch.get_rng_state())]


def _step(function, leaves, spec, of_step, optimizer, parameters, ballast, inplace) -> Callable:
    def train_step(*tensors):
        given = list(leaves)
        for i, t in zip(of_step, tensors):
            given[i] = t
        first, args, kwargs = tree_unflatten(given, spec)
        if inplace:
            first = first * 1 if first.requires_grad else first.clone()
        results = [t for t in tree_flatten(function(first, *args, **kwargs))[0] if isinstance(t, torch.Tensor)]
        losses = [_weighed(t) for t in results if t.requires_grad]
        if ballast is not None:
            x = ballast
            for _ in range(6):
                x = torch.sin(x) * x
            losses.append(x.sum())
        if losses:
            sum(losses).backward()
            optimizer.step()
            for p in parameters:
                p.grad = None
        return [t.detach() for t in results]

    return train_step


def _weighed(t: torch.Tensor) -> torch.Tensor:
    if t.is_complex():
        t = torch.view_as_real(t)
    return (t * torch.cos(t.detach())).sum().to(torch.float32)


def _bits(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_bits(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.int_repr()
    plain = value.resolve_conj().resolve_neg().contiguous().flatten()
    return str(value.dtype), tuple(value.shape), bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b""


# ---- Runs


def _train(trial: Trial, step: Callable, calls: int, rolled_from: int) -> list:
    torch.manual_seed(3)
    found = []
    for i in range(calls):
        found.append(_bits(step(*trial.tensors(i >= rolled_from))))
    return [*found, trial.left()]


def _reference(sample: Sample, calls: int, beside: bool = False) -> tuple[list | None, int, str]:
    """What eager leaves, from which call on arguments are rolled; or why this sample is not counted."""
    why = ""
    for rolled_from in (4, calls):  # some arguments have but one valid order
        try:
            trial = Trial(sample, beside)
            return _train(trial, trial.step, calls, rolled_from), rolled_from, ""
        except Exception as error:
            why = f"eager raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None, 0, why


def compiled(sample: Sample) -> dict:
    """One sample through stowage.compile."""
    expected, rolled_from, why = _reference(sample, CALLS)
    if expected is None:
        return {"outcome": "not counted", "reason": why}
    trial = Trial(sample)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = stowage.compile(trial.step)
        try:
            got = _train(trial, step, CALLS, rolled_from)
        except Exception as error:
            return {"outcome": "wrong", "reason": f"raises {type(error).__name__}: {error}"[:300]}
    if got != expected:
        again = Trial(sample)
        if sample.name.split()[0].startswith(UNWRITTEN) or _train(again, again.step, CALLS, rolled_from) != expected:
            return {"outcome": "not counted", "reason": "eager does not repeat its own numbers"}
        first = next(i for i, (a, b) in enumerate(zip(expected, got)) if a != b)
        what = f"call {first}" if first < CALLS else "parameters or generator afterwards"
        return {"outcome": "wrong", "reason": f"{what}; planned calls {step.stats()['planned_steps']}, {step.refusal}"}
    planned = step.stats()["planned_steps"]
    if step.refusal:
        data = any(part in step.refusal for part in DATA)
        return {"outcome": "data" if data else "refused", "reason": step.refusal}
    return {"outcome": "planned"} if planned else {"outcome": "refused", "reason": "never planned, and no reason given"}


def budgeted(sample: Sample, seed: int) -> dict:
    """One sample under a limit that makes things leave."""
    expected, rolled_from, why = _reference(sample, BUDGET_CALLS, beside=True)
    if expected is None:
        return {"outcome": "not counted", "reason": why}
    trial = Trial(sample, beside=True)
    before = _runtime.live_bytes()
    _runtime.reset_peak()
    _train(trial, trial.step, BUDGET_CALLS, rolled_from)
    peak = _runtime.peak_bytes() - before
    release = ("both", "recompute", "swap")[seed % 3]
    why = ""
    for share in SHARES:
        trial = Trial(sample, beside=True)
        block = stowage.budget(
            _runtime.live_bytes() + int(share * peak), "random", release, seed=seed, debug=True, progress=False
        )
        try:
            with block:
                got = _train(trial, trial.step, BUDGET_CALLS, rolled_from)
        except stowage.OutOfMemory as error:
            why = str(error)
            continue
        except Exception as error:
            return {
                "outcome": "wrong",
                "reason": f"{release}, share {share}: raises {type(error).__name__}: {error}"[:300],
            }
        left = block.stats()["evictions"]
        if got != expected:
            again = Trial(sample, beside=True)
            if (
                sample.name.split()[0].startswith(UNWRITTEN)
                or _train(again, again.step, BUDGET_CALLS, rolled_from) != expected
            ):
                return {"outcome": "not counted", "reason": "eager does not repeat its own numbers"}
            first = next(i for i, (a, b) in enumerate(zip(expected, got)) if a != b)
            return {"outcome": "wrong", "reason": f"{release}, share {share}: call {first}; {left} evictions"}
        return (
            {"outcome": "planned", "evictions": left}
            if left
            else {"outcome": "refused", "reason": "nothing left", "evictions": 0}
        )
    return {"outcome": "refused", "reason": f"no limit could be met: {why}"[:300]}


# ---- In a process


def names_of(op: Any, options: argparse.Namespace) -> list[Sample]:
    made = []
    for dtype in options.dtypes:
        for form in ("plain", "inplace") if options.inplace else ("plain",):
            # Generators of samples may fail on their own
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                made += samples(op, getattr(torch, dtype), form, options.samples, options.seed)
    return made


def work(ops: list, options: argparse.Namespace, after: str, say: Callable[[dict], None]) -> None:
    """Every sample of ``ops`` behind the one named ``after``."""
    torch.set_num_threads(1)
    skipping = bool(after)
    for op in ops:
        for sample in names_of(op, options):
            for way in options.ways:
                name = f"{way} {sample.name}"
                if skipping:
                    skipping = name != after
                    continue
                say({"begins": name})
                start = time.perf_counter()
                seed = int(hashlib.sha256(f"{options.seed} {name}".encode()).hexdigest()[:6], 16)
                try:
                    found = compiled(sample) if way == "compile" else budgeted(sample, seed)
                except Exception as error:  # of this file
                    found = {"outcome": "not counted", "reason": f"the harness: {type(error).__name__}: {error}"[:300]}
                say({"sample": name, "seconds": time.perf_counter() - start, **found})


def forked(ops: list, options: argparse.Namespace) -> Iterator[dict]:
    """Findings of a chunk, by as many processes as it takes."""
    after = ""
    while True:
        ends, last = _one_process(ops, options, after, found := [])
        yield from found
        if ends == "":
            return
        yield {"sample": last, "outcome": "hang" if ends == "hang" else "crash", "reason": ends}
        after = last


def _one_process(ops: list, options: argparse.Namespace, after: str, found: list[dict]) -> tuple[str, str]:
    """("" or how it ended, the sample it was at)"""
    answers, child_answers = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        with os.fdopen(child_answers, "w") as pipe:

            def say(line: dict) -> None:
                pipe.write(json.dumps(line) + "\n")
                pipe.flush()

            work(ops, options, after, say)
        os._exit(0)
    os.close(child_answers)
    last, ends = "", ""
    with os.fdopen(answers, "rb", buffering=0) as pipe:
        text = b""
        while True:
            if not select.select([pipe], [], [], QUIET_S)[0]:
                ends = "hang"
                os.killpg(child, signal.SIGKILL)
                break
            part = pipe.read(1 << 16)
            if not part:
                break
            *lines, text = (text + part).split(b"\n")
            for line in map(json.loads, lines):
                last = line.get("begins", last)
                if "sample" in line:
                    found.append(line)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ends and code != 0:
        ends = signal.Signals(-code).name if code < 0 else f"status {code}"
    return ends, last


# ---- In the parent


def run(options: argparse.Namespace, progress: Callable[[str], None]) -> list[dict]:
    ops = [op for op in database() if any(fnmatch.fnmatchcase(_name(op), p) for p in options.operators)]
    if options.some:
        ops = [op for op in ops if op in random.Random(options.seed).sample(ops, min(options.some, len(ops)))]
    found: list[dict] = []
    for i in range(0, len(ops), CHUNK):
        here = list(forked(ops[i : i + CHUNK], options))
        found += here
        bad = [f for f in here if f["outcome"] in ("wrong", "crash", "hang")]
        progress(
            f"[{min(i + CHUNK, len(ops))}/{len(ops)}] {_name(ops[i])}: {len(here)} samples"
            + "".join(f"\n    {f['outcome']}: {f['sample']}: {f['reason']}" for f in bad)
        )
    return found


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    names = lambda text: tuple(text.split(","))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], prog="./dev bench operators")
    parser.add_argument("--operators", type=names, default=("*",), help="names or patterns, by commas")
    parser.add_argument("--some", type=int, default=0, help="so many of them, drawn by the seed")
    parser.add_argument("--samples", type=int, default=3, help="of each operator and dtype; 0: all")
    parser.add_argument("--dtypes", type=names, default=("float32",))
    parser.add_argument("--inplace", action="store_true", help="the in-place forms, too")
    parser.add_argument("--ways", type=names, default=("compile", "budget"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", help='results as JSON (default bench/results/operators.json; "-": none)')
    return parser.parse_args(arguments)


def main() -> None:
    from bench import common
    from bench.strangers import strangers_tables

    options = parsed()
    common.say(f"seed {options.seed}")
    start = time.perf_counter()
    found = run(options, common.say)
    count = collections.Counter(f["outcome"] for f in found)
    shown = [f for f in found if f["outcome"] not in ("planned", "data", "not counted")]
    results = {"groups": strangers_tables.counted(found), "refused": strangers_tables.refused(found), "findings": shown}
    common.publish(
        "operators",
        {
            "seed": options.seed,
            "arguments": {"samples": options.samples, "dtypes": options.dtypes, "inplace": options.inplace},
            "seconds": time.perf_counter() - start,
            "counts": count,
            "results": results,
        },
        strangers_tables.operators(results),
        options.output,
    )
    sys.exit(any(count[bad] for bad in ("wrong", "crash", "hang")))


if __name__ == "__main__":
    main()
