"""Training loops small enough to be stopped at every op, and all of their state, for the tests that stop them.

twins = Twins(WORLDS["gru"], check="never")     the same loop eagerly and compiled, from the same start
twins.settle()                                  until it is planned
twins.stopped(error)                            after a call that raised: the state is that before the step, or that after it
twins.step()                                    both do one step: same result, same state
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import stowage

SETTLED = 12  # calls at most until a step is planned


class Loop:
    """model, optimizer and what else a step changes; ``step(*batch)``."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        scaler: torch.amp.GradScaler | None = None,
    ):
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.step: Callable = None
        self.generator = torch.get_rng_state()

    def state(self) -> dict[str, Any]:
        """Everything, copied. Gradients apart."""
        state: dict[str, Any] = {f"model {k}": v.clone() for k, v in self.model.state_dict().items()}
        for i, values in enumerate(self.optimizer.state.values()):
            state |= {
                f"optimizer {i} {k}": v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v)
                for k, v in values.items()
            }
        for i, group in enumerate(self.optimizer.param_groups):
            state |= {f"group {i} {k}": v for k, v in group.items() if k != "params"}
        if self.scheduler is not None:
            state |= {f"scheduler {k}": copy.deepcopy(v) for k, v in self.scheduler.state_dict().items()}
        if self.scaler is not None:
            state |= {
                "scaler": self.scaler.state_dict(),
                "scaler's stages": {k: str(v["stage"]) for k, v in self.scaler._per_optimizer_states.items()},
            }
        state["generator"] = torch.get_rng_state()
        return state

    def gradients(self) -> list[torch.Tensor | None]:
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]


def differs(a: dict[str, Any], b: dict[str, Any]) -> str:
    """The first name under which they differ, or ""."""
    if a.keys() != b.keys():
        return f"names {sorted(a.keys() ^ b.keys())}"
    return next((k for k in a if not same(a[k], b[k])), "")


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return a == b


class Torn(AssertionError):
    pass


class Twins:
    def __init__(self, make: Callable[[], Loop], **options):
        torch.manual_seed(3)
        self.eager = make()
        torch.manual_seed(3)
        self.planned = make()
        self.compiled = stowage.compile(self.planned.step, strict=True, **options)
        self._batches = torch.Generator().manual_seed(5)
        self.befores = self.afters = 0
        self.next_batch()

    def next_batch(self) -> None:
        x = torch.randn(4, 6, 8, generator=self._batches)
        self.batch = x, torch.randint(0, 5, (4, 6), generator=self._batches)

    def eagerly(self) -> Any:
        torch.set_rng_state(self.eager.generator)
        result = self.eager.step(*self.batch)
        self.after, self.eager.generator = self.eager.state(), torch.get_rng_state()
        return result

    def ready(self) -> None:
        torch.set_rng_state(self.planned.generator)
        self.before, self.grads_before = self.planned.state(), self.planned.gradients()

    def call(self) -> Any:
        """The compiled step; whatever it raises."""
        self.ready()
        return self.compiled(*self.batch)

    def step(self) -> None:
        planned = self.call()
        self.agree(planned)

    def agree(self, planned: Any) -> None:
        """After a call that went through."""
        now = self.planned.state()
        self.planned.generator = torch.get_rng_state()
        eager = self.eagerly()
        what = differs(self.after, now)
        if what or not same(eager, planned) or not same(self.eager.gradients(), self.planned.gradients()):
            raise Torn(f"a call that went through is not as eager: {what or 'result or gradients'}")
        self.next_batch()

    def settle(self) -> None:
        for _ in range(SETTLED):
            self.step()
            if self.compiled.stats()["planned_steps"] >= 5:
                return
        raise AssertionError(f"not planned: {self.compiled.refusal}")

    def stopped(self, error: BaseException, says: bool = True) -> None:
        """The call raised: before, or after, never between; and the error says which."""
        now, grads = self.planned.state(), self.planned.gradients()
        notes = " ".join(getattr(error, "__notes__", []))
        if not (what := differs(self.before, now)):
            # None: zero_grad() comes first
            fine = all(g is None or same(g, b) for g, b in zip(grads, self.grads_before))
            if not fine or (says and "nothing of this step has happened" not in notes):
                raise Torn(f"as before, but for {'what the error says' if fine else 'gradients'}: {error!r} {notes}")
            self.befores += 1
            self.planned.generator = torch.get_rng_state()
            return
        self.eagerly()
        if whatnot := differs(self.after, now):
            raise Torn(f"neither as before ({what}) nor as after ({whatnot}): {error!r} {notes}")
        if not same(grads, self.eager.gradients()) or (says and "has been finished" not in notes):
            raise Torn(f"as after, but for gradients or what the error says: {error!r} {notes}")
        self.afters += 1
        self.planned.generator = torch.get_rng_state()
        self.next_batch()


# ---- Worlds


def _loop(model: nn.Module, optimizer: Callable, loss: Callable, schedule: bool = False, begin: bool = True) -> Loop:
    model.train()
    opt = optimizer(model.parameters())
    loop = Loop(model, opt, torch.optim.lr_scheduler.LambdaLR(opt, lambda e: 1 / (1 + 0.01 * e)) if schedule else None)

    def step(x, y):
        if begin:
            opt.zero_grad()
        value = loss(model, x, y)
        value.backward()
        opt.step()
        if loop.scheduler is not None:
            loop.scheduler.step()
        if not begin:
            opt.zero_grad()
        return value.detach()

    loop.step = step
    return loop


def classes(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def mlp(width: int = 16) -> Loop:
    model = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 5))
    return _loop(
        model, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, foreach=False), classes, schedule=True
    )


class _Conv(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(6, width, 3, padding=1),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, 6, 3, padding=1),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Linear(8, 5),
        )

    def forward(self, x):
        return self.layers(x)


def conv(width: int = 8) -> Loop:
    return _loop(
        _Conv(width),
        lambda p: torch.optim.Adam(p, 0.01, foreach=True),
        lambda m, x, y: F.mse_loss(m(x).sum(-1), y.float()),
        begin=False,
    )


def transformer(width: int = 16) -> Loop:
    model = nn.Sequential(
        nn.Linear(8, width),
        nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True),
        nn.Linear(width, 5),
    )
    return _loop(model, lambda p: torch.optim.AdamW(p, 0.01, foreach=False), classes, schedule=True)


class _Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gru, self.lstm, self.out = (
            nn.GRU(8, width, batch_first=True),
            nn.LSTM(width, width, batch_first=True),
            nn.Linear(width, 5),
        )

    def forward(self, x):
        return self.out(self.lstm(self.gru(x)[0])[0])


def recurrent(width: int = 8) -> Loop:
    return _loop(_Recurrent(width), lambda p: torch.optim.RMSprop(p, 0.01, foreach=False), classes, begin=False)


class _Embedding(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.table, self.out = nn.Embedding(5, width), nn.Linear(width, 5)

    def forward(self, y):
        return self.out(self.table(y).cumsum(1))


def embedding(width: int = 16) -> Loop:
    return _loop(
        _Embedding(width),
        lambda p: torch.optim.AdamW(p, 0.01, fused=True),
        lambda m, x, y: F.cross_entropy(m(y).flatten(0, 1), y.flatten()),
    )


def dropout(width: int = 16) -> Loop:
    model = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.2), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 5))
    return _loop(
        model,
        lambda p: torch.optim.NAdam(p, 0.01, foreach=False),
        lambda m, x, y: classes(m, x + 0.1 * torch.randn_like(x), y),
        begin=False,
    )


def accumulation(width: int = 16) -> Loop:
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 5)).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, amsgrad=True, foreach=True)
    loop = Loop(model, optimizer)

    def step(x, y):
        for i in range(2):
            (classes(model, x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2]) / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    loop.step = step
    return loop


def reader(width: int = 16) -> Loop:
    """Its Python asks for the loss."""
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(width, 5)).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, foreach=False)
    loop = Loop(model, optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = classes(model, x, y)
        if loss.item() > 1e4:
            return loss.detach()
        loss.backward()
        optimizer.step()
        return loss.detach()

    loop.step = step
    return loop


def checked(width: int = 16) -> Loop:
    """Its Python asks whether all went well, which is so in each call: the plan looks by itself."""
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(width, 5)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    loop = Loop(model, optimizer)

    def step(x, y):
        optimizer.zero_grad()
        loss = classes(model, x, y)
        if not torch.isfinite(loss):
            return None
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        return loss.detach()

    loop.step = step
    return loop


def logged(width: int = 16) -> Loop:
    """What comes behind its work runs by itself."""
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(width, 5)).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, foreach=True)
    loop, log = Loop(model, optimizer), []

    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        log.append((loss.item(), (out.argmax(-1) == y).float().mean().item()))
        return {"loss": log[-1][0], "right": log[-1][1]}

    loop.step = step
    return loop


def called_back(width: int = 16) -> Loop:
    """PyTorch calls a function of its own, and it returns a number."""
    model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(width, 5)).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, foreach=False)
    loop = Loop(model, optimizer)

    def far(a, b):
        return 1 - F.cosine_similarity(a, b, dim=-1)

    def step(x, y):
        optimizer.zero_grad()
        h = model(x)
        loss = F.triplet_margin_with_distance_loss(h, h.roll(1, 0), h.roll(2, 0), distance_function=far)
        loss = loss + classes(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    loop.step = step
    return loop


def scaled(width: int = 16) -> Loop:
    """GradScaler's Python asks whether gradients are finite, and keeps at which stage the optimizer is."""
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 5)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    loop = Loop(model, optimizer, scaler=scaler)

    def step(x, y):
        optimizer.zero_grad()
        loss = classes(model, x, y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    loop.step = step
    return loop


WORLDS = {
    f.__name__: f
    for f in (
        mlp,
        conv,
        transformer,
        recurrent,
        embedding,
        dropout,
        accumulation,
        reader,
        checked,
        logged,
        called_back,
        scaled,
    )
}
WIDE = {
    "mlp": 128,
    "conv": 512,
    "transformer": 48,
    "recurrent": 48,
    "embedding": 1024,
    "dropout": 512,
    "accumulation": 512,
    "reader": 1024,
    "checked": 1024,
    "logged": 1024,
    "called_back": 1024,
    "scaled": 1024,
}
