"""Training a model twice, eagerly and compiled, and comparing every bit of what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import zoo

import stowage

OPTIMIZERS = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=1e-2, momentum=0.9, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=1e-3, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=1e-3, **k),
}
FORMS = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass
class Run:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    results: list[Any]
    rng_state: torch.Tensor
    step: Any


StepMaker = Callable[..., Callable]


def plain_step(model, optimizer, loss_fn):
    def train_step(batch):
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step


def train(
    name: str,
    make_step: StepMaker = plain_step,
    optimizer: str = "adamw",
    form: str = "loop",
    compiled: bool = False,
    count: int = zoo.STEPS,
    between: Callable | None = None,
    started: list | None = None,
    **compile_options,
) -> Run:
    """Trains ``count`` steps. ``between(i, model, optimizer)`` runs before step i; ``started`` receives the compiled
    step."""
    model, loss_fn, batches = zoo.make(name, count)
    opt = OPTIMIZERS[optimizer](model.parameters(), **FORMS[form])
    step = make_step(model, opt, loss_fn)
    if compiled:
        step = stowage.compile(step, strict=True, **compile_options)
        if started is not None:
            started.append(step)
    torch.manual_seed(11)
    results = []
    for i, batch in enumerate(batches):
        if between is not None:
            between(i, model, opt)
        results.append(step(batch))
    return Run(model, opt, results, torch.get_rng_state(), step)


def assert_same_state(a: Run, b: Run) -> None:
    """Losses, parameters, buffers, optimizer state and generator state, by torch.equal."""
    for i, (x, y) in enumerate(zip(a.results, b.results, strict=True)):
        assert torch.equal(x, y), f"loss of step {i}: {x.item()!r} and {y.item()!r}"
    for (key, x), (_, y) in zip(a.model.state_dict().items(), b.model.state_dict().items(), strict=True):
        assert torch.equal(x, y), key
    for i, (s, t) in enumerate(zip(a.optimizer.state.values(), b.optimizer.state.values(), strict=True)):
        for key in s:
            same = torch.equal(s[key], t[key]) if isinstance(s[key], torch.Tensor) else s[key] == t[key]
            assert same, f"optimizer state {i} {key}"
    assert torch.equal(a.rng_state, b.rng_state), "generator state"


def assert_planned(run: Run, least_steps: int = 2, exact_peak: bool = True) -> None:
    """The run really executed plans, and every allocation was where the plan put it. The peak is not exact where a
    result that outlives the second run of its op is born late in it: the plan counts it from the start."""
    stats = run.step.stats()
    assert run.step.refusal == "", run.step.refusal
    assert stats["planned_steps"] >= least_steps, stats
    assert stats["misses"] == 0, stats
    assert stats["measured_peak_bytes"] <= stats["planned_peak_bytes"], stats
    assert not exact_peak or stats["measured_peak_bytes"] == stats["planned_peak_bytes"], stats
    assert stats["planned_peak_bytes"] <= stats["arena_bytes"], stats
