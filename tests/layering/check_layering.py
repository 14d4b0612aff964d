"""Fails when an #include points against the arrows of the design: base <- graph <- plan <- {order, layout, budget, strategy, sharding} <-
planner <- {cli, runtime, python}; within the runtime: {torch, memory} <- record <- replay, and {torch, memory} <- evict. Also: only runtime/ and
python/ may know torch, and the core never knows Python."""

import re
import sys
from pathlib import Path

# What each room may include, besides itself.
GROUND = {"base", "graph"}
SEARCH = GROUND | {"plan", "solver"}
MAY_INCLUDE = {
    "base": set(),
    "solver": {"base"},
    "graph": {"base"},
    "plan": GROUND,
    "layout": SEARCH,
    "order": SEARCH,
    "strategy": SEARCH,
    "sharding": SEARCH,
    "budget": SEARCH | {"order", "layout"},  # a budget is met by plans that are ordered and laid out
    "eager": {"base"},  # the policies of the eager budget: plain numbers
    "roam": SEARCH | {"order", "layout"},  # the rival that is built in
    "io": GROUND | {"plan", "layout", "strategy", "sharding"},  # the values that have a file form
    "report": GROUND | {"plan", "budget", "io"},  # what the plan says, and what it costs
    "planner": SEARCH | {"order", "layout", "budget", "strategy", "roam"},
    "explain": GROUND | {"plan", "planner", "io"},
}
EVERYTHING = set(MAY_INCLUDE)

# The same for the runtime's rooms, among themselves and of the core.
RUNTIME_MAY_INCLUDE = {
    "runtime/torch": set(),  # facts about PyTorch
    "runtime/memory": {"base"},
    "runtime/record": {"runtime/torch", "runtime/memory", "base", "graph"},
    "runtime/replay": {"runtime/torch", "runtime/memory", "runtime/record", "base", "graph", "plan", "layout", "io"},
    "runtime/evict": {"runtime/torch", "runtime/memory", "base", "eager"},
}

# The room that each public header belongs to.
PUBLIC = {
    "ids.h": "base",
    "error.h": "base",
    "outcome.h": "base",
    "graph.h": "graph",
    "plan.h": "plan",
    "check.h": "plan",
    "layout.h": "layout",
    "io.h": "io",
    "roam.h": "roam",
    "planner.h": "planner",
    "explain.h": "explain",
    "strategy.h": "strategy",
    "eager.h": "eager",
    "sharding.h": "sharding",
    "report.h": "report",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
FOREIGN = re.compile(r"^(torch|ATen|c10|nanobind)/|^Python\.h$")


def room_of(path):
    """The room of a source file, from its path below the repository."""
    parts = path.parts
    if parts[0] == "include":
        return PUBLIC.get(parts[-1])
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else "planner"
    if parts[0] == "runtime":
        return "/".join(parts[:2]) if len(parts) > 2 else None
    return parts[0]


def target_room(included):
    parts = included.split("/")
    if parts[0] == "stowage":
        return PUBLIC.get(parts[-1], "?")
    if parts[0] == "runtime":
        return "/".join(parts[:2])
    return parts[0] if parts[0] in EVERYTHING else None


def violations(root):
    for folder in ("include", "src", "cli", "runtime", "python"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp"}:
                continue
            relative = path.relative_to(root)
            room = room_of(relative)
            if room is None:
                yield f"{relative}: belongs to no room; see {Path(__file__).name}"
                continue
            allowed = {**MAY_INCLUDE, **RUNTIME_MAY_INCLUDE}.get(room, EVERYTHING | set(RUNTIME_MAY_INCLUDE)) | {room}
            core = room in MAY_INCLUDE or room == "cli"
            for _, included in INCLUDE.findall(path.read_text()):
                target = target_room(included)
                if target is not None and target not in allowed:
                    yield f"{relative}: {room} must not include {included} (of {target})"
                if core and FOREIGN.search(included):
                    yield f"{relative}: the core must not include {included}"


def main():
    found = list(violations(Path(sys.argv[1])))
    print("\n".join(found) if found else "layering: all includes follow the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
