"""The optimizers of torch, timm, transformers, torch-optimizer, pytorch_optimizer and some packages of one optimizer, on one
small net, with a learning-rate schedule."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from job import Job, case, each_call, vectors
from torch import nn


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))


def _with(compile, make: Callable, net: Callable = _net, schedule: bool = True) -> Job:
    model = net().train()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20) if schedule else None

    def train_step(x, y):
        value = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value.detach()

    step = compile(train_step)

    def run(observe) -> None:
        for batch in vectors(6, 8):
            value = step(*batch)
            if scheduler is not None:
                scheduler.step()
            observe(value)

    return Job(run, [model], [optimizer])


def _register(package: str, prefix: str, title: str, make: Callable, **how) -> None:
    @case(package, f"optimizer {title}", name=f"{prefix}_{title.lower().replace(' ', '_').replace(',', '')}")
    def build(compile) -> Job:
        return _with(compile, make, **how)


# ---- torch

_TORCH = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"fused": True},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4},
}
for _name, _options in _TORCH.items():
    _register(
        "torch", "optim", _name, lambda m, n=_name, o=_options: getattr(torch.optim, n)(m.parameters(), lr=1e-2, **o)
    )
_register("torch", "optim", "AdamW foreach", lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=True))


class _OnlyMatrices(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.two(F.gelu(self.one(x)))


_register("torch", "optim", "Muon", lambda m: torch.optim.Muon(m.parameters(), lr=1e-2), net=_OnlyMatrices)


@case("torch", "optimizer LBFGS, which calls a closure")
def optim_lbfgs(compile) -> Job:
    model = _net().train()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def train_step(x, y):
        def closure():
            optimizer.zero_grad()
            value = F.mse_loss(model(x), y)
            value.backward()
            return value

        return optimizer.step(closure).detach()

    return Job(each_call(compile(train_step), vectors(6, 8)), [model], [optimizer])


@case("torch", "optimizer SparseAdam, sparse gradients")
def optim_sparse_adam(compile) -> Job:
    model = nn.EmbeddingBag(50, 4, sparse=True, mode="mean")
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(7)
    batches = [(torch.randint(0, 50, (6, 5), generator=g), torch.randn(6, 4, generator=g)) for _ in range(12)]

    def train_step(x, y):
        optimizer.zero_grad()
        value = F.mse_loss(model(x), y)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(each_call(compile(train_step), batches), [model], [optimizer])


# ---- timm

for _name in (
    "lamb",
    "lion",
    "adan",
    "adabelief",
    "madgrad",
    "nadamw",
    "novograd",
    "adamp",
    "sgdp",
    "lars",
    "radabelief",
    "rmsproptf",
    "lookahead_adam",
    "adopt",
    "laprop",
    "mars",
    "kron",
    "cadamw",
    "muon",
    "adafactor",
    "adafactorbv",
):

    def _of_timm(m, n=_name):
        import timm.optim

        return timm.optim.create_optimizer_v2(m, opt=n, lr=1e-3)

    _register("timm", "timm", _name, _of_timm)


# ---- transformers and torch-optimizer


def _adafactor(relative: bool) -> Callable:
    def make(m):
        import transformers

        return transformers.Adafactor(
            m.parameters(), **({} if relative else {"lr": 1e-3, "relative_step": False, "scale_parameter": False})
        )

    return make


_register("transformers", "hf", "Adafactor relative steps", _adafactor(True), schedule=False)
_register("transformers", "hf", "Adafactor fixed rate", _adafactor(False))

for _name in ("AdaBound", "DiffGrad", "QHAdam", "Yogi", "SWATS", "RangerQH"):

    def _of_torch_optimizer(m, n=_name):
        import torch_optimizer

        return getattr(torch_optimizer, n)(m.parameters(), lr=1e-3)

    _register("torch-optimizer", "to", _name, _of_torch_optimizer)


@case("torch-optimizer", "Lookahead around Yogi")
def to_lookahead(compile) -> Job:
    import torch_optimizer

    def make(m):
        made = torch_optimizer.Lookahead(torch_optimizer.Yogi(m.parameters(), lr=1e-2), k=4)
        made.defaults = getattr(made, "defaults", {})
        return made

    return _with(compile, make, schedule=False)


# ---- pytorch_optimizer, and packages of one optimizer

for _name in (
    "AdaShift",
    "AdEMAMix",
    "AdamP",
    "AvaGrad",
    "Amos",
    "DAdaptAdam",
    "DAdaptLion",
    "DAdaptSGD",
    "FTRL",
    "Grams",
    "Lion",
    "MSVAG",
    "Nero",
    "PAdam",
    "Prodigy",
    "SM3",
    "SOAP",
    "ScheduleFreeAdamW",
    "Shampoo",
    "StableAdamW",
    "Tiger",
):

    def _of_pytorch_optimizer(m, n=_name):
        import pytorch_optimizer

        return pytorch_optimizer.load_optimizer(n)(m.parameters(), lr=1e-3)

    _register("pytorch_optimizer", "po", _name, _of_pytorch_optimizer, schedule=False)


def _of_module(package: str, module: str, name: str, lr: float) -> None:
    def make(m):
        optimizer = getattr(importlib.import_module(module), name)(m.parameters(), lr=lr)
        getattr(optimizer, "train", lambda: None)()
        return optimizer

    _register(package, module, name, make, schedule=False)


_of_module("schedulefree", "schedulefree", "AdamWScheduleFree", 1e-2)
_of_module("schedulefree", "schedulefree", "RAdamScheduleFree", 1e-2)
_of_module("prodigyopt", "prodigyopt", "Prodigy", 1.0)
_of_module("lion-pytorch", "lion_pytorch", "Lion", 1e-3)
