"""What a case of the suite is, and the register of all of them.

A case is a function that builds what a user's script would have, anew and by the seeds that it is called under, and
returns a Job:

    @case("timm", "ResNet-18")
    def resnet18(compile):
        return images(compile, timm.create_model("resnet18", num_classes=10))

``compile`` is stowage.compile, or what leaves a function as it is. Models come from their packages, with random weights
and small sizes; data is made up here. ``data_decides``: says why no plan can exist (the data decide a shape or what
runs), where that is so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

STEPS = 12
LONG = 40  # calls of a step that has several ways

Observe = Callable[[Any], None]


@dataclass
class Job:
    """``run(observe)`` trains; it calls observe(result) after each iteration. ``more``: what else training changes, by
    name."""

    run: Callable[[Observe], None]
    modules: list[nn.Module]
    optimizers: list[Any] = field(default_factory=list)
    more: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Case:
    name: str
    package: str
    title: str
    build: Callable[[Callable], Job]
    data_decides: str


CASES: dict[str, Case] = {}


def case(package: str, title: str, *, name: str = "", data_decides: str = "") -> Callable:
    def register(build: Callable) -> Callable:
        key = name or build.__name__
        assert key not in CASES, f"two cases are named {key}"
        CASES[key] = Case(key, package, title, build, data_decides)
        return build

    return register


def each_call(step: Callable, batches: Iterable[tuple]) -> Callable[[Observe], None]:
    """Trains by one call a batch."""

    def run(observe: Observe) -> None:
        for batch in batches:
            observe(step(*batch))

    return run


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def training(
    compile: Callable, model: nn.Module, batches: Iterable[tuple], loss: Callable, optimizer: Any = None
) -> Job:
    """The plain loop: zero_grad, loss(model, *batch), backward, step."""
    optimizer = optimizer or adamw(model)
    model.train()

    def train_step(*batch):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), batches), [model], [optimizer])


def net(inputs: int = 8, outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


# ---- Data


def classed(*shape: int, classes: int = 4, count: int = STEPS) -> list[tuple]:
    g = generator()
    return [(torch.randn(shape, generator=g), torch.randint(0, classes, shape[:1], generator=g)) for _ in range(count)]


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(vocabulary: int, *shape: int, count: int = STEPS) -> list[tuple]:
    g = generator()
    return [(torch.randint(3, vocabulary, shape, generator=g),) for _ in range(count)]


def padded(vocabulary: int, batch: int, length: int, count: int = STEPS) -> list[dict]:
    """As a tokenizer and its collator make them: some rows are shorter, the rest is padding and its labels are -100."""
    g, made = generator(), []
    for _ in range(count):
        ids = torch.randint(3, vocabulary, (batch, length), generator=g)
        lengths = torch.randint(length // 2, length, (batch,), generator=g)
        lengths[0] = length
        mask = (torch.arange(length)[None] < lengths[:, None]).long()
        made.append({"input_ids": ids * mask, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)})
    return made


def pictures(*shape: int, classes: int = 10, count: int = STEPS) -> list[tuple]:
    g = generator()
    return [(torch.randn(shape, generator=g), torch.randint(0, classes, shape[:1], generator=g)) for _ in range(count)]


def vectors(*shape: int, count: int = STEPS, out: int = 4) -> list[tuple]:
    g = generator()
    return [(torch.randn(shape, generator=g), torch.randn((*shape[:-1], out), generator=g)) for _ in range(count)]


def of_images(
    compile: Callable, model: nn.Module, batch: int = 4, size: int = 32, optimizer: Any = None, classes: int = 10
) -> Job:
    """Image classification."""
    return training(compile, model, pictures(batch, 3, size, size, classes=classes),
                    lambda m, x, y: nn.functional.cross_entropy(m(x), y), optimizer)  # fmt: skip
