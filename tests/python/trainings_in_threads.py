"""Four threads, each with a compiled step of its own, against the same trainings one after the other, eagerly.

    python trainings_in_threads.py FIRST RUNS     so many runs, each from a seed of its own; status 0 where each is right

Random numbers come from one generator in the process, and two threads that draw have no order of their own, in eager
either: of the four one draws at most.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torn import Loop, _loop, classes

import stowage

THREADS, CALLS, PATIENCE_S = 4, 10, 120


def mlp(chance: float) -> Loop:
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(chance), nn.Linear(32, 5))
    return _loop(model, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True), classes, schedule=True)


def conv(chance: float) -> Loop:
    model = nn.Sequential(
        nn.Conv1d(6, 16, 3, padding=1),
        nn.BatchNorm1d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(chance),
        nn.Conv1d(16, 6, 3, padding=1),
        nn.Linear(8, 5),
    )
    return _loop(
        model,
        lambda p: torch.optim.Adam(p, 0.01, foreach=False),
        lambda m, x, y: F.mse_loss(m(x).sum(-1), y.float()),
        begin=False,
    )


def transformer(chance: float) -> Loop:
    model = nn.Sequential(
        nn.Linear(8, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=chance, batch_first=True), nn.Linear(16, 5)
    )
    return _loop(model, lambda p: torch.optim.AdamW(p, 0.01, fused=True), classes)


class _Recurrent(nn.Module):
    def __init__(self, chance: float):
        super().__init__()
        self.gru, self.out, self.chance = nn.GRU(8, 12, batch_first=True), nn.Linear(12, 5), chance

    def forward(self, x):
        return self.out(F.dropout(self.gru(x)[0], self.chance))


def recurrent(chance: float) -> Loop:
    return _loop(_Recurrent(chance), lambda p: torch.optim.RMSprop(p, 0.01), classes, begin=False)


MODELS = (mlp, conv, transformer, recurrent)


def made(model: Callable, seed: int, chance: float) -> Loop:
    torch.manual_seed(seed)
    return model(chance)


def trained(loop: Loop, step: Callable, seed: int, between: Callable = lambda: None) -> list[bytes]:
    """All bits that it leaves, results first."""
    batches = torch.Generator().manual_seed(seed)
    results = []
    for i in range(CALLS):
        rows = 3 if i == CALLS - 2 else 4  # once another shape
        results.append(
            step(torch.randn(rows, 6, 8, generator=batches), torch.randint(0, 5, (rows, 6), generator=batches))
        )
        between()
    return [
        bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        for t in (*results, *loop.model.state_dict().values())
    ]


def run(seed: int, draws: bool) -> tuple[int, int]:
    """One run: planned calls, and calls. Raises where a thread's bits differ, or what it raises."""
    rng = random.Random(seed)
    sys.setswitchinterval(rng.choice([1e-3, 1e-4, 1e-5, 1e-6]))  # threads change places often
    models = rng.sample(MODELS, THREADS) if rng.random() < 0.7 else [rng.choice(MODELS) for _ in range(THREADS)]
    drawing = rng.randrange(THREADS) if draws else -1
    options = [
        {
            "budget": rng.choice([None, None, "1GiB", 1 << 21]),
            "check": rng.choice(["auto", "auto", "always", "never", 3]),
        }
        for _ in models
    ]
    chances = [0.2 if i == drawing else 0.0 for i in range(THREADS)]
    loops = [made(model, seed + i, chances[i]) for i, model in enumerate(models)]
    torch.manual_seed(seed)
    expected = [trained(loop, loop.step, seed + i) for i, loop in enumerate(loops)]
    loops = [made(model, seed + i, chances[i]) for i, model in enumerate(models)]
    steps = [stowage.compile(loop.step, strict=True, **options[i]) for i, loop in enumerate(loops)]
    torch.manual_seed(seed)
    start = threading.Barrier(THREADS)
    found: list[Any] = [None] * THREADS

    def work(i: int) -> None:
        pauses = random.Random(seed + i)
        try:
            start.wait(PATIENCE_S)
            found[i] = trained(loops[i], steps[i], seed + i, lambda: time.sleep(pauses.choice([0, 0, 0, 0.002])))
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, one in enumerate(found):
        told = f"seed {seed}: thread {i}, {models[i].__name__}, {options[i]}{', draws' if i == drawing else ''}: "
        if isinstance(one, BaseException):
            raise AssertionError(told + repr(one)) from one
        if steps[i].refusal:
            raise AssertionError(told + steps[i].refusal)
        if one != expected[i]:
            raise AssertionError(told + f"{sum(a != b for a, b in zip(one, expected[i]))} of {len(one)} values differ")
    return sum(step.stats()["planned_steps"] for step in steps), CALLS * THREADS


def main(first: int, runs: int, draws: bool) -> int:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", message=".*not watched.*")
    torch.set_num_threads(1)
    planned = calls = wrong = 0
    for seed in range(first, first + runs):
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        try:
            now = run(seed, draws)
            planned, calls = planned + now[0], calls + now[1]
        except AssertionError as error:
            print(error, flush=True)
            wrong += 1
        faulthandler.cancel_dump_traceback_later()
    print(f"{runs} runs of {THREADS} threads, {wrong} wrong, {planned} of {calls} calls planned", flush=True)
    return wrong > 0 or planned < calls // 4


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), "--draws" in sys.argv))
