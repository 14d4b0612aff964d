"""Random worlds (guard_worlds.py) against the guards alone, without planning: thousands a minute.

python guard_survey.py SEED COUNT [--missed | --false | --blind | --impossible | ...]    also tells these"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from guard_worlds import World, make

from stowage.step.reach.world import World as Reach


@dataclass
class Outcome:
    missed: str = ""
    false_alarm: str = ""
    alarm_without_change: str = ""
    blind: str = ""
    self_changing: str = ""
    impossible: str = ""
    noticed: bool = False
    differed: bool = False


def outcome(world: World) -> Outcome:
    """Records what the step reads, makes the change, and compares what the guard says with what the step then gives."""
    x = torch.tensor([[1.0, -2.0, 3.0]])
    found = Outcome()
    try:
        world.step(x)  # as before every recording
    except Exception as error:  # holders that do not go together: a function in a class is a method
        found.impossible = f"{type(error).__name__}: {error}"
        return found
    reach = Reach(world.module.step)
    with reach.noting():
        before = _bits(world.step(x))
    found.self_changing = reach.settle()
    if found.self_changing:
        return found
    found.alarm_without_change = reach.guard.changed()
    if found.alarm_without_change:
        return found
    found.blind = "; ".join(reach.guard.blind)
    try:
        world.change()
    except Exception as error:  # this combination has no such change
        found.impossible = f"{type(error).__name__}: {error}"
        return found
    found.noticed = bool(reach.guard.changed())
    try:
        after = _bits(world.step(x))
    except Exception as error:
        after = [repr(error).encode()]
    found.differed = before != after
    if found.differed and not found.noticed and not found.blind:
        found.missed = world.told
    if found.noticed and not found.differed:
        found.false_alarm = world.told
    return found


def _bits(results) -> list[bytes]:
    return [b"" if t is None else t.numpy().tobytes() for t in results]


def survey(
    first: int, count: int | None = None, seconds: float | None = None, report=print, **of_worlds: Any
) -> dict[str, int]:
    """Tries worlds from seed ``first`` on; raises AssertionError with the seeds when something went unnoticed.
    ``of_worlds``: what make() is given."""
    counts: dict[str, int] = {}
    wrong: list[str] = []
    end = time.monotonic() + seconds if seconds is not None else None
    seed = first
    while (count is None or seed < first + count) and (end is None or time.monotonic() < end):
        try:
            world = make(seed, **of_worlds)
        except Exception as error:
            counts["impossible"] = counts.get("impossible", 0) + 1
            if "--impossible" in sys.argv:
                report(f"seed {seed}: not made: {type(error).__name__}: {error}")
            seed += 1
            continue
        try:
            found = outcome(world)
        finally:
            world.close()
        kind = (
            "missed"
            if found.missed
            else "alarm without a change"
            if found.alarm_without_change
            else "self-changing"
            if found.self_changing
            else "impossible"
            if found.impossible
            else "false alarm"
            if found.false_alarm
            else "noticed"
            if found.noticed
            else "blind, differed"
            if found.differed
            else "quiet"
        )
        counts[kind] = counts.get(kind, 0) + 1
        if found.blind:
            counts["(blind)"] = counts.get("(blind)", 0) + 1
        if kind in ("missed", "alarm without a change", "self-changing"):
            wrong.append(
                f"seed {seed}: {kind}: {found.missed or found.alarm_without_change or found.self_changing} [{world.told}]"
            )
            report(wrong[-1])
        elif "--" + kind.split()[0] in sys.argv or (found.blind and "--blind" in sys.argv):
            report(f"seed {seed}: {kind}: {world.told} {found.blind} {found.impossible}")
        seed += 1
    report(f"worlds {first} to {seed - 1}: " + ", ".join(f"{k} {v}" for k, v in sorted(counts.items())))
    assert not wrong, "\n".join(wrong)
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    survey(int(arguments[0]) if arguments else 0, int(arguments[1]) if len(arguments) > 1 else 1000)
