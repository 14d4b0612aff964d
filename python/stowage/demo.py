"""python -m stowage.demo: trains the same GPT-2 twice from one seed, eagerly and planned, and prints what differed.

The model has 29 M parameters (width and heads of GPT-2 small, 4 layers, dropout on) and reads the sources of Python's
standard library as bytes; the step has what such a step usually has: AdamW, a warm-up schedule, gradient clipping.

Both trainings advance in turns, a step each, so that their times can be compared. Bytes are counted by the allocator
under all CPU tensors. Peaks and times are of the same steps in both: those after the planned training has made its
plan. Exit code 1 when a loss or a parameter differs, or when an allocation was not where the plan has it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import sysconfig
import time

import torch

import stowage
from stowage import _runtime

VOCABULARY = 256  # bytes
CORPUS_BYTES = 4 << 20
WARM_UP = 10  # steps until the learning rate is reached
PLAN_FIGURES = (
    "arena_bytes",
    "planned_peak_bytes",
    "measured_peak_bytes",
    "lower_bound_bytes",
    "gap",
    "outcome",
    "misses",
)


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
        n_layer=4,
        n_embd=768,
        n_head=12,
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


# ---- Running and measuring it


class Training:
    """One training, with a random generator of its own. Bytes are those that it alone asked for; times are in
    seconds."""

    def __init__(self, options: argparse.Namespace, planned: bool):
        before = _runtime.live_bytes()
        torch.manual_seed(0)
        self.model = make_model(options)
        self.step = make_step(self.model, options.clip)
        if planned:
            self.step = stowage.compile(self.step)
        self.gradient_bytes = sum(p.nbytes for p in self.model.parameters())
        self.resident_bytes = _runtime.live_bytes() - before  # then: parameters and optimizer state
        self.losses: list[torch.Tensor] = []
        self.seconds: list[float] = []
        self.step_peaks: list[int] = []  # above the residents
        self.ran_plan: list[bool] = []
        self._random_state = torch.get_rng_state()

    def stats(self) -> dict:
        return self.step.stats() if isinstance(self.step, stowage.CompiledStep) else {"planned_steps": 0}

    def live_bytes(self) -> int:
        """Of all tensors, but not of the arena, which serves the steps alone."""
        arena = self.step._arena.bytes if isinstance(self.step, stowage.CompiledStep) else 0
        return _runtime.live_bytes() - arena

    def advance(self, tokens: torch.Tensor) -> None:
        torch.set_rng_state(self._random_state)
        known = self.stats()["planned_steps"]
        _runtime.reset_peak()
        before = self.live_bytes()
        start = time.perf_counter()
        loss = self.step(tokens)
        self.seconds.append(time.perf_counter() - start)
        self.step_peaks.append(_runtime.peak_bytes() - before)
        self.resident_bytes += self.live_bytes() - before - loss.nbytes
        self.losses.append(loss)
        self.ran_plan.append(self.stats()["planned_steps"] > known)
        self._random_state = torch.get_rng_state()


def same_bits(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def summarize(eager: Training, planned: Training) -> dict:
    """All figures: bytes, milliseconds, counts. Peaks and times are of the steps that were planned, in both
    trainings."""
    stats = planned.stats()
    steady = [i for i, ran in enumerate(planned.ran_plan) if ran]
    figures = {
        "steps": len(eager.losses),
        "planned_steps": len(steady),
        "losses_equal": same_bits(eager.losses, planned.losses),
        "parameters_equal": same_bits(list(eager.model.parameters()), list(planned.model.parameters())),
        "last_loss": eager.losses[-1].item(),
        "gradient_bytes": eager.gradient_bytes,
        "first_calls_peak_bytes": planned.resident_bytes
        + max(p for p, ran in zip(planned.step_peaks, planned.ran_plan) if not ran),
        "refusal": planned.step.refusal,
        **{key: stats[key] for key in PLAN_FIGURES},
    }
    for name, training in (("eager", eager), ("planned", planned)):
        step_peak = max((training.step_peaks[i] for i in steady), default=0)
        figures[f"{name}_resident_bytes"] = training.resident_bytes
        figures[f"{name}_step_peak_bytes"] = step_peak
        figures[f"{name}_total_peak_bytes"] = training.resident_bytes + step_peak
        figures[f"{name}_step_ms"] = 1000 * statistics.median([training.seconds[i] for i in steady] or [0.0])
    return figures


def succeeded(figures: dict) -> bool:
    return (
        figures["losses_equal"]
        and figures["parameters_equal"]
        and figures["misses"] == 0
        and figures["planned_steps"] > 0
    )


# ---- Showing it


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def show(figures: dict, options: argparse.Namespace, console) -> None:
    from rich.table import Table

    f = figures
    yes = {True: "equal, bit for bit", False: "[bold red]DIFFERENT[/]"}
    table = Table(
        title=f"GPT-2, {f['gradient_bytes'] / 4e6:.1f} M parameters, batch {options.batch} x {options.sequence} bytes of Python, "
        f"{options.threads} thread{'s' * (options.threads > 1)}",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("eager", justify="right")
    table.add_column("planned", justify="right")
    table.add_column("ratio", justify="right")

    def row(label: str, eager, planned, text=mebibytes):
        table.add_row(label, text(eager), text(planned), f"{planned / eager:.3f}" if eager else "")

    table.add_row(f"losses of {f['steps']} steps", f"last {f['last_loss']:.4f}", yes[f["losses_equal"]], "")
    table.add_row("parameters afterwards", "", yes[f["parameters_equal"]], "", end_section=True)
    row("peak of a step, all counted", f["eager_total_peak_bytes"], f["planned_total_peak_bytes"])
    row("  parameters, optimizer state", f["eager_resident_bytes"], f["planned_resident_bytes"])
    row("  the step's own", f["eager_step_peak_bytes"], f["planned_step_peak_bytes"])
    table.add_section()
    table.add_row("peak of the plan", "", mebibytes(f["planned_peak_bytes"]), "")
    table.add_row("peak measured in the arena", "", mebibytes(f["measured_peak_bytes"]), "")
    table.add_row("no order can need less than", "", mebibytes(f["lower_bound_bytes"]), "")
    table.add_row("gap, outcome", "", f"{100 * f['gap']:.2f} %, {f['outcome']}", "")
    table.add_row("allocations not as planned", "", str(f["misses"]), "", end_section=True)
    row("step time, median", f["eager_step_ms"], f["planned_step_ms"], lambda ms: f"{ms:.0f} ms")
    console.print(table)
    for line in notes(f, options):
        console.print(line, soft_wrap=True, highlight=False)


def notes(f: dict, options: argparse.Namespace) -> list[str]:
    """What a reader of the table should know to read it right."""
    lines = []
    if f["refusal"]:
        lines.append(f"The step was not planned: {f['refusal']}")
    if options.clip == "norm":
        lines.append(
            f"{mebibytes(f['gradient_bytes'])} of the planned peak are gradients: clip_grad_norm_ needs all of them at once. "
            "Try --clip value, which lets each update follow its gradient."
        )
    if f["first_calls_peak_bytes"]:
        lines.append(
            f"The first {f['steps'] - f['planned_steps']} calls ran eagerly, to record and to compare; "
            f"their peak, all counted: {mebibytes(f['first_calls_peak_bytes'])}."
        )
    return lines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stowage.demo", description="Trains one GPT-2 eagerly and planned, and compares."
    )
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run (default 30)")
    parser.add_argument("--batch", type=int, default=2, help="sequences in a batch (default 2)")
    parser.add_argument("--sequence", type=int, default=64, help="bytes in a sequence (default 64)")
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="threads of PyTorch (default: PyTorch's own choice)",
    )
    parser.add_argument(
        "--clip", choices=("norm", "value", "none"), default="norm", help="gradient clipping (default norm)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    for name, least in (("steps", 6), ("batch", 1), ("sequence", 2), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    return options


def main(arguments: list[str] | None = None) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    options = parse(arguments)
    torch.set_num_threads(options.threads)
    text = corpus()
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=options.steps)
        trainings = [Training(options, planned) for planned in (False, True)]
        for tokens in batches(text, options):
            for training in trainings:
                training.advance(tokens)
            progress.advance(task)
    figures = summarize(*trainings)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures, options, Console(width=None if sys.stdout.isatty() else 100))
    return 0 if succeeded(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
