"""A Prediction as one screen of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowage.sizes import in_words

if TYPE_CHECKING:
    from stowage.step.fit.prediction import Largest, Prediction

KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "module_buffer": "module buffers",
    "input": "arguments",
    "activation": "activations",
    "temporary": "temporary",
    "constant": "constants",
    "output": "results",
}


def as_text(p: Prediction) -> str:
    rows = [("eager", p.eager_bytes)]
    if p.planned_bytes is not None:
        rows.append(("stowage.compile, no budget", p.planned_bytes))
    if p.least_bytes is not None and p.bound_bytes is not None:
        rows += [("least budget found", p.least_bytes), ("no plan below (proven)", p.bound_bytes)]
    lines = [verdict(p), "", *[f"  {name:<28}{in_words(bytes_):>14}" for name, bytes_ in rows]]
    if p.refusal:
        lines.append(f"  not planned: {p.refusal}")
    lines += [f"  taken as 1.0: a number that {line or 'the step'} reads" for line in p.guessed]
    lines += ["", f"eager's peak is at {p.peak_op} ({p.peak_line or 'no line of yours'}) and consists of"]
    lines += [
        f"  {KINDS.get(kind, kind):<28}{in_words(bytes_):>14}{100 * bytes_ / p.eager_bytes:>6.0f} %"
        for kind, bytes_ in p.by_kind.items()
    ]
    lines += ["", "made by these lines"]
    lines += [
        f"  {in_words(h.bytes):>12}  {KINDS.get(h.kind, h.kind):<16} {h.tensors:>5} tensors  {h.line or 'found'}"
        for h in p.by_line
    ]
    for name, found in p.largest.items():
        lines += ["", f"largest {name.replace('_', ' ')}: {_largest(found)}"]
    return "\n".join(lines) + "\n"


def verdict(p: Prediction) -> str:
    """The answer, in one line."""
    at = ", ".join(f"{name.replace('_', ' ')} {size}" for name, size in p.sizes.items())
    where = f"in {in_words(p.device_bytes)}" + (f" at {at}" if at else "")
    if p.outcome == "fits":
        return f"fits {where}: eager needs {in_words(p.eager_bytes)}"
    if p.outcome == "fits with a plan":
        assert p.planned_bytes is not None
        return (
            f"fits with a plan {where}: step = stowage.compile(train_step, budget={p.budget_bytes}) needs "
            f"{in_words(p.planned_bytes)}, eager {in_words(p.eager_bytes)}"
        )
    if p.outcome == "fits with a budget":
        return (
            f"fits with a budget {where}: step = stowage.compile(train_step, budget={p.budget_bytes}), predicted "
            f"{p.slowdown:.2f} times the step's time without a limit; eager needs {in_words(p.eager_bytes)}"
        )
    if p.outcome == "does not fit":
        assert p.bound_bytes is not None and p.least_bytes is not None
        return (
            f"does not fit {where}: it needs at least {in_words(p.bound_bytes)}, proven; the least that works is "
            f"{in_words(p.least_bytes)}"
        )
    if p.least_bytes is None:
        return f"does not fit {where} eagerly, which needs {in_words(p.eager_bytes)}; no plan: {p.refusal}"
    return f"unknown {where}: no plan was found, the least found needs {in_words(p.least_bytes)}; eager {in_words(p.eager_bytes)}"


def _largest(found: Largest) -> str:
    def told(size: int | None) -> str:
        return "not even 1" if size is None else str(size)

    more = " (larger ones were not tried)" if found.bounded else ""
    if found.budget is None:
        return f"{told(found.eager)} eagerly{more}"
    return f"{told(found.eager)} eagerly, {told(found.budget)} within a budget{more}"
