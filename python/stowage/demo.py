"""python -m stowage.demo: one GPT-2, trained in five ways from one seed: what each takes, and whether the numbers are the same.

    eager             as anybody would write it
    checkpointing     PyTorch's own answer: each block's forward pass is run again in the backward pass
    stowage           planned: order and addresses
    half the bytes    planned within half of what eager takes
    the least         planned within the least that works

The model reads the sources of Python's standard library as bytes; the step has what such a step usually has: dropout,
AdamW, a warm-up schedule, gradient clipping. Each way is a process of its own, and they take turns, a step each, so that
times can be compared. Bytes are counted by the allocator under all CPU tensors, parameters and optimizer state included;
bytes and times are of the steps after the plan has been made. Exit code 1 when a loss or a parameter differs from
eager's, or an allocation was not where a plan has it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import stowage
from stowage import _runtime
from stowage.sizes import in_words

VOCABULARY = 256  # bytes
CORPUS_BYTES = 4 << 20
WARM_UP = 10  # steps until the learning rate is reached
WAYS = ("eager", "checkpointing", "stowage", "half the bytes", "the least")
SETTLING = 4  # first steps: eager ones, recorded, compared


# ---- The training, as anybody would write it


def corpus() -> torch.Tensor:
    """Bytes of the standard library's sources, files in the order of their names."""
    text = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text, dtype=torch.uint8)


def batches(text: torch.Tensor, options: argparse.Namespace):
    """Random windows of the text, the same ones for every run."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(options.steps):
        starts = torch.randint(0, len(text) - options.sequence, (options.batch,), generator=generator)
        yield torch.stack([text[s : s + options.sequence] for s in starts.tolist()]).long()


def make_model(options: argparse.Namespace) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    config = GPT2Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.width // 64 or 1,
        n_positions=options.sequence,
        vocab_size=VOCABULARY,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config).train()


def make_step(model: torch.nn.Module, clip: str):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))

    def train_step(tokens):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if clip == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        elif clip == "value":
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


# ---- One way, in a process of its own


class Training:
    """``budget_bytes``: of "half the bytes". Bytes are those of this training alone; times are in seconds."""

    def __init__(self, options: argparse.Namespace, way: str, budget_bytes: int):
        if way == "the least":
            budget_bytes = least_budget(options)
        self.before_bytes = _runtime.live_bytes()
        torch.manual_seed(0)
        model: Any = make_model(options)
        if way == "checkpointing":
            # By its newer name where there is one: the older warns, in the middle of the picture.
            older = model.gradient_checkpointing_enable
            getattr(model, "activation_checkpointing_enable", older)({"use_reentrant": False})
        self.model = model
        self.step: Any = make_step(model, options.clip)
        self.seconds: list[float] = []
        self.peaks: list[int] = []
        self.losses: list[str] = []
        self.batches = batches(corpus(), options)
        if way in WAYS[2:]:
            self.step = stowage.compile(self.step, budget=budget_bytes or None)
        self.budget_bytes = budget_bytes

    def advance(self) -> dict:
        """One step: its time, the loss to the bit, and the most bytes that lived."""
        tokens = next(self.batches)
        _runtime.reset_peak()
        start = time.perf_counter()
        while True:
            try:
                loss = self.step(tokens)
                break
            except (stowage.Infeasible, stowage.OutOfMemory) as error:  # which have changed nothing: a little more
                needed_bytes = error.smallest_bytes if isinstance(error, stowage.Infeasible) else error.bound_bytes
                self.budget_bytes = max(needed_bytes, self.budget_bytes + self.budget_bytes // 64)
                self.step = stowage.compile(self.step.__wrapped__, budget=self.budget_bytes)
        took = time.perf_counter() - start
        peak_bytes = _runtime.peak_bytes() - self.before_bytes - tokens.nbytes
        return {"seconds": took, "loss": loss.item().hex(), "peak_bytes": peak_bytes}

    def end(self, report: str) -> dict:
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        found: dict[str, Any] = {"parameters": digest.hexdigest(), "budget_bytes": self.budget_bytes}
        if isinstance(self.step, stowage.CompiledStep):
            stats = self.step.stats()
            found |= {key: stats[key] for key in ("misses", "planned_steps", "outcome", "gap", "recomputed_ops")}
            found |= {key: stats[key] for key in ("arena_bytes", "lower_bound_bytes", "swapped_bytes")}
            found["refusal"] = self.step.refusal
            if report and not self.step.refusal:
                self.step.report(report)
        return found


def least_budget(options: argparse.Namespace) -> int:
    """The smallest budget for which a plan is found. The model is one of fake tensors: stowage.capture runs its step, and
    one of real tensors would be trained by that."""
    with FakeTensorMode():
        step = make_step(make_model(options), options.clip)
        tokens = torch.empty(options.batch, options.sequence, dtype=torch.long)
        graph = stowage.capture(step, tokens, name="demo")
    try:
        stowage.plan(graph, budget=1)
    except stowage.Infeasible as error:
        return error.smallest_bytes
    return 0


def serve(options: argparse.Namespace) -> None:
    """The process of one way: answers a line of JSON for each that it reads."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    torch.set_num_threads(options.threads)
    training = Training(options, options.way, options.budget_bytes)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = training.end(asked["report"]) if asked["do"] == "end" else training.advance()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Way:
    """The other end. Raises RuntimeError when the process dies."""

    def __init__(self, options: argparse.Namespace, name: str, budget_bytes: int = 0):
        self.name = name
        self.steps: list[dict] = []
        command = [sys.executable, "-m", "stowage.demo", "--way", name, "--budget-bytes", str(budget_bytes)]
        for option in ("steps", "batch", "sequence", "layers", "width", "threads", "clip"):
            command += [f"--{option}", str(getattr(options, option))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **asked: Any) -> dict:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of '{self.name}' ended with status {self._process.wait()}")
        return json.loads(line)

    def advance(self) -> None:
        self.steps.append(self.ask(do="advance"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# ---- All of them


def train(options: argparse.Namespace, progress: Any = None) -> dict[str, Way]:
    """Each way with its steps, in turns; what is half of the bytes is known after eager's first steps."""
    said = progress or (lambda text: None)
    said("eager, to know what it takes")
    ways = {"eager": Way(options, "eager")}
    for _ in range(2):
        ways["eager"].advance()
    half = max(step["peak_bytes"] for step in ways["eager"].steps) // 2
    for name in WAYS[1:]:
        ways[name] = Way(options, name, half if name == "half the bytes" else 0)
    for step in range(options.steps):
        said(f"step {step + 1} of {options.steps}")
        for way in ways.values():
            if len(way.steps) <= step:
                way.advance()
    return ways


def summarize(ways: dict[str, Way], report: str) -> dict:
    """All figures: bytes, milliseconds, counts, by way. Bytes and times are medians and maxima of the steps after
    SETTLING."""
    figures: dict[str, Any] = {}
    for name, way in ways.items():
        ended = way.ask(do="end", report=report if name == "half the bytes" else "")
        way.close()
        settled = way.steps[SETTLING:]
        figures[name] = ended | {
            "peak_bytes": max(step["peak_bytes"] for step in settled),
            "first_calls_peak_bytes": max(step["peak_bytes"] for step in way.steps[:SETTLING]),
            "step_ms": 1000 * statistics.median(step["seconds"] for step in settled),
            "last_loss": float.fromhex(way.steps[-1]["loss"]),
            "losses_equal": [s["loss"] for s in way.steps] == [s["loss"] for s in ways["eager"].steps],
        }
        figures[name]["parameters_equal"] = ended["parameters"] == figures["eager"]["parameters"]
    return {"steps": len(ways["eager"].steps), "ways": figures, "report": report}


def same_numbers(way: dict) -> bool:
    return way["losses_equal"] and way["parameters_equal"]


def succeeded(figures: dict) -> bool:
    return all(
        same_numbers(way) and way.get("misses", 0) == 0 and way.get("planned_steps", 1) > 0
        for way in figures["ways"].values()
    )


# ---- Showing it


def show(figures: dict, options: argparse.Namespace, console) -> None:
    from rich.table import Table

    ways, eager = figures["ways"], figures["ways"]["eager"]
    table = Table(
        title=f"GPT-2, {options.layers} layers of width {options.width}, batch {options.batch} x {options.sequence} bytes of "
        f"Python, {options.threads} thread{'s' * (options.threads > 1)}: {figures['steps']} steps each",
        title_justify="left",
    )
    for title in ("", "peak of a step", "of eager's", "step", "of eager's", "same numbers"):
        table.add_column(title, justify="left" if title in ("", "same numbers") else "right")
    for name, way in ways.items():
        table.add_row(
            name,
            in_words(way["peak_bytes"]),
            f"{way['peak_bytes'] / eager['peak_bytes']:.2f}",
            f"{way['step_ms']:.0f} ms",
            f"{way['step_ms'] / eager['step_ms']:.2f}",
            "yes" if same_numbers(way) else "[bold red]NO[/]",
        )
    console.print(table)
    console.print(picture(ways), highlight=False, soft_wrap=True)
    for line in notes(figures):
        console.print(line, soft_wrap=True, highlight=False)


def picture(ways: dict[str, dict], columns: int = 60) -> str:
    """A bar for each way: full blocks are bytes; light ones what eager takes beyond."""
    most = max(way["peak_bytes"] for way in ways.values())
    lines = []
    for name, way in ways.items():
        full = round(columns * way["peak_bytes"] / most)
        lines.append(f"  {name:<15} {'█' * full}{'░' * (columns - full)} {in_words(way['peak_bytes'])}")
    return "\n".join(lines)


def notes(figures: dict) -> list[str]:
    """What a reader of the table should know to read it right."""
    ways = figures["ways"]
    lines = [f"{name} was not planned: {way['refusal']}" for name, way in ways.items() if way.get("refusal")]
    first = ways["stowage"]["first_calls_peak_bytes"]
    lines.append(
        f"Without a budget the first {SETTLING} calls run eagerly, in {in_words(first)}, to be recorded and compared; with one "
        "they keep it."
    )
    if not ways["half the bytes"].get("refusal"):
        lines.append(f"What lies where, and when, in half the bytes: {figures['report']}")
    return lines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stowage.demo",
        description="Trains one GPT-2 in five ways, and compares bytes, times and numbers.",
    )
    parser.add_argument("--steps", type=int, default=14, help="training steps of each way (default 14)")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a batch (default 4)")
    parser.add_argument("--sequence", type=int, default=256, help="bytes in a sequence (default 256)")
    parser.add_argument("--layers", type=int, default=4, help="blocks of the model (default 4)")
    parser.add_argument("--width", type=int, default=256, help="of the model, a multiple of 64 (default 256)")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="threads of PyTorch (default: PyTorch's own choice)",
    )
    parser.add_argument(
        "--clip", choices=("norm", "value", "none"), default="norm", help="gradient clipping (default norm)"
    )
    report = os.path.join(tempfile.gettempdir(), "stowage-demo.html")
    parser.add_argument(
        "--report", default=report, metavar="FILE", help=f"page of the plan in half the bytes ({report})"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--budget-bytes", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name, least in (("steps", SETTLING + 2), ("batch", 1), ("sequence", 2), ("threads", 1), ("layers", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    if options.width < 64 or options.width % 64:
        parser.error("--width must be a multiple of 64")
    return options


def main(arguments: list[str] | None = None) -> int:
    from rich.console import Console

    options = parse(arguments)
    if options.way:
        serve(options)
        return 0
    console = Console(stderr=True)
    with console.status("training") as status:
        ways = train(options, lambda text: status.update(f"training: {text}"))
    figures = summarize(ways, options.report)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures, options, Console(width=None if sys.stdout.isatty() else 100))
    return 0 if succeeded(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
