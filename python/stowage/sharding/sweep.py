"""Placements to choose from under any limit of bytes: along the frontier of bytes and time, the fastest of each.

    peak   ■ fastest of all                       the next limit lies below the peak of the plan before: each search finds
           │    ■                                 the fastest plan with less
           │         ■  ■
           │               ■    ■
    floor  └──────────────────────── step time    where none is found, the floor is there

The epsilon-constraint method (Haimes, Lasdon and Wismer, IEEE Trans. SMC 1, 1971), with the solver's limit on the peak as the
constraint. What counts towards the limit is swept, too: all that is alive, or nothing but state and the op's own. The first
are placements that meet a limit by themselves; the last are those that leave saved activations to recomputation and to the
host. Besides, the frontier over `eps`.

Arguments of the step lie whole on every rank, as they do when it runs. What is found depends on the program, the mesh and the
options alone, never on the limit that is then asked for: so a larger limit has all that a smaller one has. At most
len(SHARES) * (STEPS + 1) + len(EPS) searches; each limit goes three tenths of the way to the floor. Each search is ended
early: what it finds is a placement to plan, and needs no proof. Placements between those that are found go unseen, and so
may one that needs a little less."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from stowage import _core
from stowage.sharding.placements import ShardingPlan
from stowage.sharding.program import Program, tensor_ids
from stowage.sharding.rank_graph import looks_at_shapes, works_by_element

SHARES = (1.0, 0.0)
STEPS = 7
CLOSER = 0.7  # of what is between the peak and the floor stays
ROUGHLY = {"relative_gap": 0.01, "iteration_limit": 1000}  # each search, where the caller says nothing: there are many
EPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
_STAYS_WHOLE = ("input", "constant", "activation", "output")  # where it is there before the step


@dataclass(frozen=True)
class Sweep:
    """``plans``: each placement once. ``bound_ns``: proven, no plan whose ops share choices as theirs do is faster."""

    plans: list[ShardingPlan]
    bound_ns: float


def sweep(program: Program, mesh: dict, sizes: tuple[int, ...], options: dict) -> Sweep:
    whole = ",".join("R" for _ in sizes)
    made = {o for op in program.ops for o in op["outputs"] if o is not None}
    arguments = {
        str(i): whole
        for i, t in enumerate(program.tensors)
        if i not in made and t["kind"] in _STAYS_WHOLE and "alias_of" not in t
    }
    asked = {**ROUGHLY, **options, "fixed": {**arguments, **options.get("fixed", {})}}
    text = program.to_json()
    found: dict[str, ShardingPlan] = {}

    def search(**more: object) -> dict | None:
        answer = _core.plan_sharding(text, json.dumps(mesh), json.dumps({**asked, **more}))
        if answer.endswith('"ops":[]}'):
            return None
        plan = ShardingPlan(program, answer, sizes)
        key = json.dumps([plan.document["ops"], plan.document["tensors"]], sort_keys=True)
        found.setdefault(key, plan)
        return plan.document

    bound_ns = 0.0
    floor = least_bytes(program, sizes)
    for share in SHARES:
        document = search(goal="time", kept_share=share)
        if document is not None:
            bound_ns = max(bound_ns, document["time"]["bound"])
        below = floor  # no plan was found there
        for _ in range(STEPS):
            if document is None or (peak := _limited_peak(document)) <= below:
                break
            limit = min(peak - 1, below + math.floor(CLOSER * (peak - below)))
            closer = search(goal="time", kept_share=share, memory_limit_bytes=limit)
            document, below = (closer, below) if closer is not None else (document, limit)
    for eps in EPS:
        search(eps=eps)
    return Sweep(list(found.values()), bound_ns)


def _limited_peak(document: dict) -> int:
    return document["bytes"].get("limited_peak", document["bytes"]["peak"])


def least_bytes(program: Program, sizes: tuple[int, ...]) -> int:
    """Proven: whatever the placements, and whatever is computed again or waits on the host, the fullest rank needs so many.
    It holds its even share at least of all state that the step touches, such arguments whole, and at each kernel its share of
    what that reads, or of what it makes (the one may lie over the other). Constants may come and go. State that a plan lets go to the host is not looked at: sharded steps
    keep theirs."""
    devices, tensors = math.prod(sizes), program.tensors
    made = {o for op in program.ops for o in op["outputs"] if o is not None}

    def share(t: int) -> int:
        return -(-math.prod(tensors[t]["shape"]) // devices) * tensors[t]["item_bytes"]

    def whole(t: int) -> int:
        return math.prod(tensors[t]["shape"]) * tensors[t]["item_bytes"]

    used = {tensors[t].get("alias_of", t) for op in program.ops for t in tensor_ids(op)} - made
    state = sum(
        whole(t) if tensors[t]["kind"] == "input" else share(t)
        for t in used
        if tensors[t]["kind"] in ("input", "parameter", "optimizer_state", "module_buffer")
    )

    def together(ids: list[int]) -> int:
        by_storage: dict[int, int] = {}
        for t in ids:
            root = tensors[t].get("alias_of", t)
            if root in made:
                by_storage[root] = max(by_storage.get(root, 0), share(t))
        return sum(by_storage.values())

    most = 0
    for op in program.ops:
        if works_by_element(op):
            continue
        makes = [o for o in op["outputs"] if o is not None]
        roots = {tensors[t].get("alias_of", t) for t in tensor_ids(op)}
        views = not op.get("writes") and all(tensors[o].get("alias_of") in roots for o in makes)
        if not views:
            most = max(most, together(makes), 0 if looks_at_shapes(op) else together(tensor_ids(op)))
    return state + most


__all__ = ["Sweep", "least_bytes", "sweep"]
