"""Actions of test_api_model.py: changes of the loop between two calls, made to both of a pair."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable

import torch
from api_pair import Side
from api_world import ACTIONS, batch_of


def _everywhere(change: Callable) -> Callable:
    def run(world, **args):
        world.main.both(lambda side: change(side, **args))

    run.__name__ = change.__name__
    return run


def change(weight: float, draw: Callable[[random.Random], dict] = lambda rng: {}):
    def register(run):
        ACTIONS[run.__name__] = weight, draw, _everywhere(run)
        return run

    return register


def _parameter(side: Side, which: int) -> torch.nn.Parameter:
    parameters = list(side.loop.model.parameters())
    return parameters[which % len(parameters)]


@change(
    1.5,
    lambda rng: {
        "key": rng.choice(["lr", "lr", "weight_decay", "momentum", "eps", "maximize", "betas"]),
        "value": rng.uniform(0.001, 0.05),
    },
)
def hyperparameter(side, key, value):
    for group in side.loop.optimizers[0].param_groups:
        if key in group:
            group[key] = {"betas": (0.8, 1 - value), "maximize": value < 0.02}.get(key, value)


@change(
    1.5,
    lambda rng: dict(
        [
            rng.choice(
                [
                    ("scale", 0.75),
                    ("scale", 1.0),
                    ("chance", 0.0),
                    ("chance", 0.25),
                    ("depth", 0),
                    ("depth", 2),
                    ("depth", 1),
                ]
            )
        ]
    ),
)
def attribute(side, **values):
    for name, value in values.items():
        setattr(side.loop.model.body, name, value if side.loop.config["draws"] or name != "chance" else 0.0)


@change(
    1,
    lambda rng: dict(
        [
            rng.choice(
                [
                    ("parts", 2),
                    ("parts", 1),
                    ("clips", 0.5),
                    ("clips", 0.0),
                    ("to_none", True),
                    ("to_none", False),
                    ("begins", True),
                    ("begins", False),
                ]
            )
        ]
    ),
)
def setting(side, **values):
    for name, value in values.items():
        setattr(side.loop, name, value)


@change(1, lambda rng: {"value": rng.choice([1.0, 0.5, 2])})
def a_global(side, value):
    side.globals.GAIN = value


@change(1.2, lambda rng: {"which": rng.randrange(20), "how": rng.choice(["new", "in place", "drop", "clear"])})
def optimizer_state(side, which, how):
    optimizer, p = side.loop.optimizers[0], _parameter(side, which)
    values = optimizer.state.get(p, {})
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and value.dim():
            if how == "new":
                values[key] = value * 0.5
            elif how == "in place":
                value.mul_(0.5)
    if how == "drop":
        optimizer.state.pop(p, None)
    elif how == "clear":
        optimizer.state.clear()


@change(1.2, lambda rng: {"which": rng.randrange(20), "how": rng.choice(["data", "in place", "swap", "set_"])})
def parameter(side, which, how):
    p = _parameter(side, which)
    with torch.no_grad():
        if how == "data":
            p.data = p.data * 0.9
        elif how == "in place":
            p.mul_(0.9)
        elif how == "set_":
            p.set_(p.detach() * 0.9)
        else:
            p.data, kept = torch.zeros_like(p), p.data
            p.add_(kept, alpha=0.9)


@change(1, lambda rng: {"assign": rng.random() < 0.4, "what": rng.choice(["model", "optimizer", "both"])})
def load_state_dict(side, assign, what):
    loop = side.loop
    if what != "optimizer":
        loop.model.load_state_dict(
            {k: v * 0.9 if v.is_floating_point() else v.clone() for k, v in loop.model.state_dict().items()},
            assign=assign,
        )
        if assign:
            _renew(side, loop.model)
    if what != "model":
        for optimizer in loop.optimizers:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _renew(side: Side, model: torch.nn.Module, kind: str | None = None, state: bool = True) -> None:
    """Another model, with optimizers of its own."""
    loop = side.loop
    states = [o.state_dict() for o in loop.optimizers]
    loop.model = model
    loop.kind = kind or loop.kind
    loop.optimizers = [loop.make_optimizer(loop.kind)]
    loop.scheduler = loop.make_scheduler()
    if state and kind is None and len(states[0]["param_groups"]) == 1:
        loop.optimizers[0].load_state_dict(copy.deepcopy(states[0]))


@change(1, lambda rng: {"fresh": rng.random() < 0.5})
def save_and_load(side, fresh):
    loop, file = side.loop, io.BytesIO()
    torch.save({"model": loop.model.state_dict(), "optimizers": [o.state_dict() for o in loop.optimizers]}, file)
    file.seek(0)
    saved = torch.load(file)
    if fresh:
        model = loop.make_model().to(loop.model.head.weight.dtype).train(loop.model.training)
        model.load_state_dict(saved["model"])
        _renew(side, model)
        return
    loop.model.load_state_dict(saved["model"])
    for optimizer, state in zip(loop.optimizers, saved["optimizers"]):
        optimizer.load_state_dict(state)


@change(0.8, lambda rng: {"goes_on": rng.random() < 0.5, "seed": rng.randrange(10**6)})
def deep_copy(side, goes_on, seed):
    loop = side.loop
    model = copy.deepcopy(loop.model)
    if goes_on:
        _renew(side, model)
        return
    x, _y = batch_of(side, seed, 4, "plain")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = model(x).square().mean()
    if loss.requires_grad:
        loss.backward()
        optimizer.step()


@change(0.7, lambda rng: {"kind": rng.choice(["sgd", "adam", "adamw", "momentum", "adagrad"])})
def new_optimizer(side, kind):
    _renew(side, side.loop.model, kind)


@change(0.4, lambda rng: {"dtype": rng.choice(["float64", "float32"])})
def dtype(side, dtype):
    _renew(side, side.loop.model.to(getattr(torch, dtype)), state=False)


@change(1, lambda rng: {"to_none": rng.random() < 0.5})
def zero_grad(side, to_none):
    side.loop.model.zero_grad(set_to_none=to_none)


@change(
    1.2,
    lambda rng: {
        "which": rng.randrange(20),
        "seed": rng.randrange(1000),
        "layout": rng.choice(["plain", "transposed", "none", "shared"]),
    },
)
def set_grad(side, which, seed, layout):
    p = _parameter(side, which)
    values = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed), dtype=p.dtype)
    if layout == "none":
        p.grad = None
    elif layout == "transposed" and p.dim() == 2:
        p.grad = values.t().contiguous().t()
    elif layout == "shared":
        p.grad = torch.cat([values.flatten(), values.flatten()])[: p.numel()].view(p.shape)
    else:
        p.grad = values


@change(1, lambda rng: {"kind": rng.choice(["forward", "pre", "tensor", "accumulated", "backward", "step"])})
def add_hook(side, kind):
    if kind in ("tensor", "accumulated") and not side.loop.model.head.weight.requires_grad:
        return
    side.loop.add_hook(kind)


@change(0.8)
def remove_hooks(side):
    for handle in side.loop.handles:
        handle.remove()
    side.loop.handles.clear()


@change(1, lambda rng: {"which": rng.randrange(20), "on": rng.random() < 0.5})
def freeze(side, which, on):
    if on:
        side.loop.model.requires_grad_(True)
    else:
        _parameter(side, which).requires_grad_(False)


@change(0.6)
def add_param_group(side):
    spare = side.loop.model.body.spare
    if not any(p is spare for o in side.loop.optimizers for g in o.param_groups for p in g["params"]):
        side.loop.optimizers[0].add_param_group({"params": [spare], "lr": 0.02})
        side.loop.scheduler = side.loop.make_scheduler()


@change(0.6, lambda rng: {"kind": rng.choice(["sgd", "adam", "adamw"])})
def second_optimizer(side, kind):
    if len(side.loop.optimizers) > 1:
        side.loop.optimizers.pop()
        return
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    side.loop.optimizers.append(made([side.loop.model.body.spare], lr=0.01))


@change(1, lambda rng: {"train": rng.random() < 0.6, "of": rng.choice(["model", "body", "norm"])})
def mode(side, train, of):
    model = side.loop.model
    {"model": model, "body": model.body, "norm": model.body.norm}[of].train(train)


@change(0.7, lambda rng: {"how": rng.choice(["grad", "state", "weight", "drop"])})
def keep(side, how):
    """Tensors that the user holds on to."""
    loop = side.loop
    if how == "drop":
        side.kept.clear()
    elif how == "weight":
        side.kept.append(loop.model.head.weight.detach())
    elif how == "grad" and loop.model.head.weight.grad is not None:
        side.kept.append(loop.model.head.weight.grad)
    elif how == "state":
        side.kept += [
            v for v in loop.optimizers[0].state.get(loop.model.head.weight, {}).values() if isinstance(v, torch.Tensor)
        ]


@change(0.7, lambda rng: {"seed": rng.randrange(1000)})
def reseed(side, seed):
    torch.manual_seed(seed)
