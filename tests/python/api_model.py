"""Random sequences of what a user does with compiled steps: calls of all kinds, changes between them, errors,
interrupts, copies, forks, threads.

    sequence(seed)        a config of the loop and a list of actions
    failure(seed, keep)   runs it, or the actions of it named by ``keep``; what went wrong, or ""
    shortest(...)         the actions that are needed for that

``python api_model.py SEED COUNT`` tries so many sequences and prints each seed first, so that the one that ends the
process is known; ``python api_model.py SEED --keep 0,3,4`` runs some actions of one.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import api_calls  # noqa: F401  their actions
import api_changes  # noqa: F401
import torch
from api_pair import count_plain_calls
from api_world import ACTIONS, Action, World

_HANG_S = 240


def sequence(seed: int) -> tuple[dict, list[Action]]:
    rng = random.Random(seed)
    config = {
        "seed": seed % 1000,
        "net": rng.choice(["plain", "plain", "conv", "gru", "attention", "embedding"]),
        "width": rng.choice([8, 8, 32]),
        "optimizer": rng.choice(
            ["sgd", "momentum", "adam", "adamw", "amsgrad", "rmsprop", "adagrad", "nadam", "adadelta"]
        ),
        "schedule": rng.random() < 0.4,
        "begins": rng.random() < 0.6,
        "to_none": rng.random() < 0.8,
        "reads": rng.random() < 0.25,
        "moody": rng.random() < 0.15,
        "draws": rng.random() < 0.6,
        "leaves": rng.random() < 0.25,
    }
    if config["leaves"]:  # wide enough for what may leave
        config["width"] = 160
    names = list(ACTIONS)
    weights = [ACTIONS[name][0] for name in names]
    actions = [compile_options(rng)]
    for name in ["settle", *rng.choices(names, weights, k=rng.randrange(8, 22))]:
        actions.append(Action(name, ACTIONS[name][1](rng)))
    return config, actions


def compile_options(rng: random.Random) -> Action:
    return Action("compile_anew", ACTIONS["compile_anew"][1](rng))


@dataclass
class Ran:
    """Calls made in all sequences so far."""

    calls: int = 0
    planned: int = 0
    raised: int = 0
    before: int = 0


RAN = Ran()


def failure(seed: int, keep: list[int] | None = None, told: Callable[[str], Any] = lambda text: None) -> str:
    config, actions = sequence(seed)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(_HANG_S, exit=True)
    world = None
    try:
        world = World(config)
        for i in range(len(actions)) if keep is None else keep:
            told(f"  {i}: {actions[i]}")
            ACTIONS[actions[i].name][2](world, **actions[i].args)
            for pair in world.pairs():
                pair.same(str(actions[i]))
        return ""
    except Exception as error:
        return f"{actions[i]}: {error!r}\n{''.join(traceback.format_exception(error)[-12:])}" if world else repr(error)
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.settrace(None)
        torch.set_num_threads(1)
        for pair in world.pairs() if world else []:
            RAN.calls += pair.calls
            RAN.planned += pair.planned_calls + sum(step.stats()["planned_steps"] for step in pair.compiled.values())
            RAN.raised += pair.raised
            RAN.before += pair.before


def shortest(count: int, fails: Callable[[list[int]], bool], seconds: float = 90) -> list[int]:
    """Indices of actions without which it does not fail, as far as found: halves are dropped, then quarters, ..., then
    one by one."""
    keep, end = list(range(count)), time.monotonic() + seconds
    size = max(1, count // 2)
    while size:
        start, dropped = 0, False
        while start < len(keep) and time.monotonic() < end:
            tried = keep[:start] + keep[start + size :]
            if fails(tried):
                keep, dropped = tried, True
            else:
                start += size
        if size > 1 or not dropped:
            size //= 2
        if time.monotonic() >= end:
            break
    return keep


def told(seed: int, keep: list[int]) -> str:
    config, actions = sequence(seed)
    return "\n".join(
        [
            f"config {config}",
            *(f"  {i}: {actions[i]}" for i in keep),
            f"again: python {__file__} {seed} --keep {','.join(map(str, keep))}",
        ]
    )


def try_one(seed: int) -> str:
    """ "" or a failure, with the shortest sequence that fails in the same way."""
    found = failure(seed)
    if not found:
        return ""
    kind = found.split("\n")[0].split(": ", 1)[-1][:40]
    keep = shortest(len(sequence(seed)[1]), lambda keep: kind in failure(seed, keep))
    return f"seed {seed}: {found}\nshortest, {len(keep)} actions:\n{told(seed, keep)}\n{failure(seed, keep)}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--keep", default=None)
    parser.add_argument("--seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", message=".*in a way that is not watched.*")
    count_plain_calls()
    if arguments.keep is not None:
        keep = [int(i) for i in arguments.keep.split(",") if i]
        print(found := failure(arguments.seed, keep, told=lambda text: print(text, flush=True)))
        return bool(found)
    end = time.monotonic() + arguments.seconds
    bad = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if time.monotonic() > end:
            break
        print(f"sequence {seed}", flush=True)
        if found := try_one(seed):
            print("FAILED", found, flush=True)
            bad += 1
    print(f"{RAN.calls} calls, {RAN.planned} planned, {RAN.raised} raised, {RAN.before} of these left all as before")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
