"""Random worlds of Python state for the guards: where a number lies, how the step reads it, and one change (or none).

A world is source code. A leaf value lies in a chain of holders (lists, slots, closures, classes, weak references, ...),
each with an expression that makes it, some that read it and some statements that change it:

    root (a global, a closure, a default, another module, ...)  ->  holder  ->  holder  ->  leaf

The chain is read by a function that runs in the step itself, in a called function of another module, in forward, in a
hook, in a comprehension or as a callback. What is read becomes a number (num) that the step's result depends on.

    guard_leaves.py    values            guard_roots.py      where the chain begins
    guard_holders.py   what holds them   guard_sources.py    the code around it; guard_survey.py tries many

All that is random comes from the seed."""

from __future__ import annotations

import random
import re
import sys
import textwrap
import types
from dataclasses import dataclass, field

import torch
from guard_holders import HOLDERS, Holder
from guard_leaves import LEAVES, MUTABLE, num
from guard_roots import ROOTS
from guard_sources import PLACES, PLACES_SOURCE, PRELUDE


@dataclass
class World:
    """``step(x)`` reads the chain; ``change()`` alters one thing; ``told``: what, for messages."""

    seed: int
    source: str
    module: types.ModuleType
    other: types.ModuleType
    told: str
    changes: str
    names: list[str] = field(default_factory=list)

    def step(self, x: torch.Tensor):
        return self.module.step(x)

    def change(self) -> None:
        exec(self.changes, {"W": self.module, "other": self.other, **vars(self.module)})

    def close(self) -> None:
        sys.modules.pop(self.module.__name__, None)
        sys.modules.pop(self.other.__name__, None)


def _substitute(template: str, **parts: str) -> str:
    """Replaces the single capital letters that stand alone."""
    return re.sub(r"\b([EVR])\b", lambda m: parts.get(m.group(1), m.group(1)), template)


def make(seed: int, kinds: list[Holder] | None = None, roots: dict[str, tuple[str, str, str]] | None = None) -> World:
    """The world of a seed."""
    r = random.Random(seed)
    root_name = (
        r.choice(list(roots or ROOTS))
        if roots or r.random() < 0.6
        else r.choice(["global", "closure", "class", "instance", "global of a called function"])
    )
    define, root_read, rebind = (roots or ROOTS)[root_name]
    depth = r.choice([0, 1, 1, 1, 2, 2, 3, 5, 12])
    chain = [r.choice(kinds or HOLDERS) for _ in range(depth)]
    if r.random() < 0.3:
        leaf, mutations = r.choice(MUTABLE)
        other_leaf = "7.25"
    else:
        leaf, other_leaf = r.choice(LEAVES)
        mutations = []
        if r.random() < 0.5:
            leaf, other_leaf = other_leaf, leaf

    def made(from_level: int, leaf_source: str) -> str:
        source = leaf_source
        for holder in reversed(chain[from_level:]):
            source = _substitute(holder.make, V=f"({source})")
        return source

    reads = [r.choice(h.read) for h in chain]
    expression = root_read
    outside = {
        "global": "W.root",
        "closure": "W.get()",
        "class": "W.CFG.inner",
        "nested class": "W.CFG.Sub.inner",
        "instance": "W.cfg.a",
    }.get(root_name, root_read)
    places = [outside]  # expression for each holder, from outside
    for read in reads:
        expression = _substitute(read, E=f"({expression})")
        outside = _substitute(read, E=f"({outside})")
        places.append(outside)

    options: list[tuple[str, str]] = [
        (f"rebind the {root_name}", _substitute(rebind, V=f"({made(0, other_leaf)})"))
    ] * 2
    for level, holder in enumerate(chain):
        for write in holder.write:
            told = f"level {level}, {holder.name}: {write}"
            options.append(
                (told, f"e = {places[level]}\n" + _substitute(write, E="e", V=f"({made(level + 1, other_leaf)})"))
            )
    for mutation in mutations:
        options += [(f"leaf {leaf}: {mutation}", f"e = {places[-1]}\n" + _substitute(mutation, E="e"))] * 2
    told, changes = r.choice(options)
    if r.random() < 0.06:
        told, changes = "nothing", "pass"
    elif r.random() < 0.06:
        told, changes = (
            "something that nobody reads",
            r.choice(["W.unread = 3", "other.unread = 3", "W.Obj.unread = 3", "W.KEY.unread = 1", "KEPT.append(1)"]),
        )

    place = r.choice(PLACES)
    source = PRELUDE + _substitute(define, R=f"({made(0, leaf)})")
    source += textwrap.dedent(PLACES_SOURCE).replace("EXPRESSION", expression).replace("PLACE", repr(place))
    name = f"guard_world_{seed}"
    module, other = types.ModuleType(name), types.ModuleType(name + "_other")
    sys.modules[name], sys.modules[other.__name__] = module, other
    exec(
        compile(PRELUDE.split("ATTR =")[0] + "def take_a(o): return o.a\n", f"/worlds/{name}_other.py", "exec"),
        other.__dict__,
    )
    module.__dict__.update(other=other, num=num, OTHER=other.__name__)
    exec(compile(source, f"/worlds/{name}.py", "exec"), module.__dict__)
    described = (
        f"{root_name} > {' > '.join(h.name for h in chain)} > {leaf}; read in {place} by {expression}; change: {told}"
    )
    return World(seed, source, module, other, described, changes, [root_name, place, *(h.name for h in chain)])
