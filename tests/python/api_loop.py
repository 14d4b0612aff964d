"""The training loop of test_api_model.py, with all that a user may change between two calls. The module is loaded
twice, once for the eager twin and once for the compiled steps, so that its globals are two as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

GAIN = 1.0  # a global that the steps read
RAISES_AT = ""  # place at which the user's Python raises


class Stop(Exception):
    """Of the user's own code."""


def pass_by(place: str) -> None:
    if place == RAISES_AT:
        raise Stop(place)


class Body(nn.Module):
    """Its first layers. Attributes that forward reads: scale, chance, depth."""

    def __init__(self, width: int, chance: float):
        super().__init__()
        self.scale, self.chance, self.depth = 1.0, chance, 1
        self.norm = nn.BatchNorm1d(width)
        self.more = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.spare = nn.Parameter(torch.ones(width))  # of no optimizer at first

    def forward(self, h):
        pass_by("body")
        h = self.norm(h.flatten(0, 1)).view_as(h)
        for layer in self.more[: self.depth]:
            h = torch.tanh(layer(h))
        return F.dropout(h * self.scale * self.spare, self.chance, self.training)


class Net(nn.Module):
    def __init__(self, kind: str, width: int, chance: float):
        super().__init__()
        first = {
            "plain": lambda: nn.Sequential(nn.Linear(8, width), nn.ReLU(inplace=True)),
            "conv": lambda: nn.Conv1d(8, width, 3, padding=1),
            "gru": lambda: nn.GRU(8, width, batch_first=True),
            "attention": lambda: nn.Sequential(
                nn.Linear(8, width), nn.TransformerEncoderLayer(width, 2, width, dropout=chance, batch_first=True)
            ),
            "embedding": lambda: nn.Embedding(16, width),
        }
        self.kind = kind
        self.first = first[kind]()
        self.body = Body(width, chance)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        pass_by("forward")
        if self.kind == "conv":
            h = self.first(x.transpose(1, 2)).transpose(1, 2)
        elif self.kind == "embedding":
            h = self.first((x.sum(-1).abs() * 4).long() % 16)
        else:
            h = self.first(x)
        return self.head(self.body(h[0] if isinstance(h, tuple) else h))


OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01, foreach=False),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
}


class Loop:
    """A model, its optimizers, and two steps over them."""

    def __init__(self, config: dict):
        self.config = config
        self.model = self.make_model()
        self.kind = config["optimizer"]
        self.optimizers = [self.make_optimizer(config["optimizer"])]
        self.scheduler = self.make_scheduler()
        self.begins = config["begins"]  # zero_grad() is the step's first act, else its last
        self.to_none = config["to_none"]
        self.parts = 1  # that a batch is cut into
        self.clips = 0.0
        self.reads = config["reads"]  # the loss, as a number
        self.seen: list[float] = []
        self.handles: list[Any] = []

    def make_model(self) -> Net:
        model = Net(self.config["net"], self.config["width"], 0.1 if self.config["draws"] else 0.0)
        return model.train()

    def owned(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p is not self.model.body.spare]

    def make_optimizer(self, kind: str) -> torch.optim.Optimizer:
        made = OPTIMIZERS[kind](self.owned())
        if self.config["moody"]:
            made.register_step_pre_hook(lambda *_: pass_by("optimizer"))
        return made

    def make_scheduler(self) -> Any:
        if not self.config["schedule"]:
            return None
        return torch.optim.lr_scheduler.LambdaLR(self.optimizers[0], lambda e: 1 / (1 + 0.01 * e))

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self.to_none)

    def backward(self, x, y):
        total = None
        for xs, ys in zip(x.chunk(self.parts), y.chunk(self.parts)):
            loss = F.cross_entropy(self.model(xs).flatten(0, 1), ys.flatten()) * (GAIN / self.parts)
            pass_by("loss")
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        if self.reads:
            self.seen.append(total.item())
            if total > 50:
                return total
        return total

    def train(self, x, y):
        pass_by("begin")
        if self.begins:
            self.zero_grad()
        loss = self.backward(x, y)
        if self.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clips)
        pass_by("update")
        for optimizer in self.optimizers:
            optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        pass_by("end")
        if not self.begins:
            self.zero_grad()
        return loss

    def accumulate(self, x, y):
        """Adds to the gradients."""
        loss = self.backward(x, y)
        return (
            {"loss": loss, "largest": self.model.head.weight.grad.abs().max()}
            if self.model.head.weight.grad is not None
            else loss
        )

    def add_hook(self, kind: str) -> None:
        body, weight = self.model.body, self.model.head.weight
        made = {
            "forward": lambda: body.register_forward_hook(lambda m, inputs, out: out * 1.25),
            "pre": lambda: body.register_forward_pre_hook(lambda m, inputs: (inputs[0] + 0.5,)),
            "tensor": lambda: weight.register_hook(lambda g: g * 0.5),
            "accumulated": lambda: weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5)),
            "backward": lambda: body.register_full_backward_hook(raising_backward),
            "step": lambda: self.optimizers[0].register_step_post_hook(lambda *_: weight.data.mul_(0.99)),
        }
        self.handles.append(made[kind]())


def raising_backward(module, grad_inputs, grad_outputs):
    pass_by("backward")
    return
