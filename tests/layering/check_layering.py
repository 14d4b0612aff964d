"""Fails when an #include points against the arrows of the design: base <- graph <- plan <- {order, layout, budget,
strategy, sharding} <- planner <- {cli, runtime, python}; within the runtime: {torch, memory} <- record <- replay, and
{torch, memory} <- evict. Also: the command line knows public headers alone, only runtime/ and python/ may know torch,
and the core never knows Python. In the Python package the same for its rooms, by its import statements."""

import ast
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
    "pipeline": {"base"},  # times and bytes of layers
    "budget": SEARCH | {"order", "layout"},  # a budget is met by plans that are ordered and laid out
    "eager": {"base"},  # the policies of the eager budget: plain numbers
    "roam": SEARCH | {"order", "layout"},  # the rival that is built in
    "io": GROUND | {"plan", "layout", "strategy", "sharding", "pipeline"},  # the values that have a file form
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

SEES_A_STEP = {"_core", "_runtime", "_torch", "by_class", "errors"}
IN_A_STEP = {"step/guards", "step/reach", "step/signature", "step/record", "step/replay", "step/cut"}

# What each room of the Python package may import, besides itself; a file that is in no room is one of its own.
PYTHON_MAY_IMPORT = {
    "by_class": set(),
    "errors": {"_core"},
    "sizes": {"_core"},
    "report": {"sizes", "_core", "errors"},
    "cache": {"_core", "errors"},
    "planning": {"sizes", "_core", "errors", "report", "cache"},
    "_torch": {"errors", "cache"},
    "_runtime": {"_torch"},
    "compiled_regions": {"_runtime", "_torch"},  # of torch.compile
    "eviction": {"sizes", "_runtime", "_torch", "errors", "report", "compiled_regions"},
    "step/guards": {"_core", "_torch", "by_class", "errors"},
    "step/reach": {"_core", "_runtime", "_torch", "errors", "step/guards"},  # what a step finds
    "step/signature": {"_core", "_runtime", "_torch", "by_class", "errors", "step/guards", "step/reach"},
    "step/record": {*SEES_A_STEP, "compiled_regions", "report", "cache", "step/guards", "step/reach", "step/signature"},
    "step/replay": {
        *SEES_A_STEP,
        "compiled_regions",
        "report",
        "cache",
        "planning",
        "eviction",
        "step/reach",
        "step/record",
    },
    "step/cut": {"_torch", "step/record", "step/replay"},
    "step": {*SEES_A_STEP, "compiled_regions", "sizes", "report", "eviction", *IN_A_STEP},
    "step/fit": {*SEES_A_STEP, "sizes", "report", "planning", *IN_A_STEP},  # without the life of a step
    "sharding": {
        "sizes",
        "_core",
        "_runtime",
        "_torch",
        "errors",
        "report",
        "planning",
        "step",
        "step/fit",
        *IN_A_STEP,
    },
    "inductor": {"sizes", "_core", "_runtime", "errors", "planning"},  # budgets within torch.compile
    "integrations": {"sizes", "_runtime", "errors", "eviction", "step", "step/reach"},
    "hf": {"integrations"},
    "lightning": {"integrations"},
    "run": {
        "sizes",
        "_runtime",
        "_torch",
        "by_class",
        "errors",
        "report",
        "eviction",
        "doctor",
    },  # any script under a limit
    "run/site": {"run"},  # what its Pythons begin with
    "doctor": {"sizes", "errors"},
    "verbs": {"sizes", "errors", "planning", "step/fit", "doctor", "sharding"},
    "command": {"planning", "run", "verbs"},
    "__main__": {"command"},
    "demo": {"sizes", "_runtime"},
    "__init__": {
        "_core",
        "_runtime",
        "_torch",
        "errors",
        "planning",
        "step",
        "step/fit",
        "step/record",
        "eviction",
        "sharding",
        "hf",
        "inductor",
        "lightning",
    },
}

# The room that each public header belongs to.
PUBLIC = {
    "ids.h": "base",
    "bytes.h": "base",
    "error.h": "base",
    "outcome.h": "base",
    "stopwatch.h": "base",
    "graph.h": "graph",
    "plan.h": "plan",
    "check.h": "plan",
    "layout.h": "layout",
    "io.h": "io",
    "json.h": "io",
    "roam.h": "roam",
    "planner.h": "planner",
    "summary.h": "planner",
    "explain.h": "explain",
    "strategy.h": "strategy",
    "eager.h": "eager",
    "value_table.h": "eager",
    "sharding.h": "sharding",
    "pipeline.h": "pipeline",
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
                outside = room in {"cli", "python", *RUNTIME_MAY_INCLUDE}
                if outside and target in EVERYTHING and not included.startswith("stowage/"):
                    yield f"{relative}: only public headers of the core are there for {room}, not {included}"
                if core and FOREIGN.search(included):
                    yield f"{relative}: the core must not include {included}"


def python_room(package, names):
    """Of a module, from its dotted name below the package."""
    if len(names) > 1 or (package / Path(*names)).is_dir():
        return "/".join(names if (package / Path(*names)).is_dir() else names[:-1])
    return names[0]


def imported(tree):
    """The modules of the package that a file imports, below the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1:] for alias in node.names if alias.name.startswith("stowage."))
        elif isinstance(node, ast.ImportFrom) and node.module == "stowage":
            yield from ([alias.name] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stowage."):
            names = node.module.split(".")[1:]
            yield names if len(names) > 1 else [*names, node.names[0].name]


def python_violations(package):
    for path in sorted(package.rglob("*.py")):
        names = path.relative_to(package).with_suffix("").parts
        room = python_room(package, names)
        if room not in PYTHON_MAY_IMPORT:
            yield f"{path}: belongs to no room; see {Path(__file__).name}"
            continue
        for target in {python_room(package, names) for names in imported(ast.parse(path.read_text()))}:
            if target not in PYTHON_MAY_IMPORT[room] | {room}:
                yield f"{path}: {room} must not import {target}"


def main():
    root = Path(sys.argv[1])
    found = [*violations(root), *python_violations(root / "python" / "stowage")]
    print("\n".join(found) if found else "layering: all includes and imports follow the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
