"""What the actions of test_api_model.py work on: the loop of a sequence, batches, ways to call, and the table of
actions."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from api_pair import Pair, Side
from test_signals import Interruption


@dataclass(frozen=True)
class Action:
    name: str
    args: dict

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.args.items())})"


class World:
    """The loop of a sequence, and another one for a second thread, where none draws random numbers: they would come in
    any order."""

    def __init__(self, config: dict):
        self.config = config
        self.main = Pair(config)
        self._other: Pair | None = None

    @property
    def other(self) -> Pair:
        if self._other is None:
            self._other = Pair({**self.config, "net": "plain", "moody": False, "reads": False}, "other")
        return self._other

    def pairs(self) -> list[Pair]:
        return [self.main, *([self._other] if self._other else [])]


# ---- Batches and ways to call


def batch_of(side: Side, seed: int, rows: int, layout: str) -> tuple:
    made = torch.Generator().manual_seed(seed)
    if layout == "slice":
        x = torch.randn(rows + 5, 6, 8, generator=made)[seed % 5 : seed % 5 + rows]
    elif layout == "transposed":
        x = torch.randn(8, 6, rows, generator=made).permute(2, 1, 0)
    elif layout == "strided":
        x = torch.randn(rows, 6, 16, generator=made)[..., ::2]
    elif layout == "negative":
        x = torch.randn(rows, 6, 8, dtype=torch.complex64, generator=made).conj().imag
    elif layout == "expanded":
        x = torch.randn(rows, 1, 8, generator=made).expand(rows, 6, 8)
    else:
        x = torch.randn(rows, 6, 8, generator=made)
    dtype = side.loop.model.head.weight.dtype
    return x if x.dtype == dtype else x.to(dtype), torch.randint(0, 5, (rows, 6), generator=made)


def within(context: Callable[[], Any]) -> Callable:
    def wrap(call):
        def run():
            with context():
                return call()

        return run

    return wrap


AROUND: dict[str, Callable] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "enable_grad": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "no mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
}


def interrupted(at: int) -> Callable:
    def wrap(call):
        def run():
            try:
                sys.settrace(Interruption(at))
                result = call()
                sys.settrace(None)
                return result
            finally:
                sys.settrace(None)

        return run

    return wrap


# ---- Actions. draw(rng) -> arguments, which do not depend on what happens; run(world, **arguments)

ACTIONS: dict[str, tuple[float, Callable, Callable]] = {}


def action(weight: float, draw: Callable[[random.Random], dict] = lambda rng: {}):
    def register(run):
        ACTIONS[run.__name__] = weight, draw, run
        return run

    return register


def a_call(rng: random.Random) -> dict:
    layout = rng.choice(["plain"] * 6 + ["slice", "transposed", "strided", "negative", "expanded"])
    return {
        "step": rng.choice(["train"] * 4 + ["accumulate"]),
        "seed": rng.randrange(10**6),
        "rows": rng.choice([4, 4, 4, 6, 3]),
        "layout": layout,
    }


def data(seed: int, rows: int, layout: str = "plain") -> Callable[[Side], tuple]:
    return lambda side: batch_of(side, seed, rows, layout)
