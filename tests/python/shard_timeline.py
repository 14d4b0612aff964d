"""A sharding plan with overlap, timed anew from its text and from docs/formats.md, section 5, alone: what each
redistribution costs on which axis, which copies are alive beside which op, and how long the step takes. It shares
nothing with the planner."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math


class Links:
    """What it costs to bring a tensor elsewhere, axis by axis."""

    def __init__(self, mesh: dict):
        self._axes = mesh["axes"]
        self._parts = len(self._axes)
        self._known: dict[tuple, tuple] = {}

    def local_bytes(self, shape: tuple, item: int, place: tuple) -> int:
        sizes = list(shape)
        for axis, part in zip(self._axes, place):
            if part[0] == "S":
                d = int(part[1:])
                sizes[d] = -(-sizes[d] // axis["size"])
        return item * math.prod(sizes)

    def _step(self, shape: tuple, item: int, a: tuple, b: tuple, at: int) -> tuple[float, float] | None:
        """Latencies, and what bytes take, of one collective on axis ``at``; None: there is none."""
        old, new, axis = a[at], b[at], self._axes[at]
        for part in (old, new):  # a later axis cuts within the slices of an earlier one
            if part[0] == "S" and part in a[at + 1 :]:
                return None
        if old == "R":
            return 0.0, 0.0
        if new[0] == "P":
            return None
        n, times = axis["size"], 2 if old[0] == "P" and new == "R" else 1
        most = max(self.local_bytes(shape, item, a), self.local_bytes(shape, item, b))
        return times * (n - 1) * axis["latency_ns"], times * (n - 1) / n * most / axis["gbps"]

    def way(self, *question) -> tuple:
        """Of a shape, bytes of an item, first and last placement."""
        if question not in self._known:
            self._known[question] = self._find_way(*question)
        return self._known[question]

    def _find_way(self, shape: tuple, item: int, first: tuple, last: tuple) -> tuple:
        """The cheapest one, as (axis, latencies, bytes) of each collective, in nanoseconds."""
        kinds = {"R", *first, *last} | {f"S{d}" for d, size in enumerate(shape) if size > 1}
        summands = {p for p in (*first, *last) if p[0] == "P"}
        parts = sorted(k for k in kinds if k[0] != "P") + sorted(summands)
        open_, done, tie = [(0.0, 0, first, ())], set(), itertools.count(1)
        while open_:
            ns, _, place, legs = heapq.heappop(open_)
            if place == last:
                return legs
            if place in done:
                continue
            done.add(place)
            for at, part in itertools.product(range(self._parts), parts):
                there = (*place[:at], part, *place[at + 1 :])
                if part == place[at] or there in done:
                    continue
                step = self._step(shape, item, place, there, at)
                if step is not None:
                    more = (*legs, (at, *step)) if any(step) else legs
                    heapq.heappush(open_, (ns + sum(step), next(tie), there, more))
        raise AssertionError(f"no way from {first} to {last}")


class Turn:
    def __init__(self, ns: float):
        self.ns, self.still = ns, ns == 0
        self.before: list = []  # (tensor, bytes, legs)
        self.after: list = []
        self.reads: list = []
        self.writes: list = []
        self.makes: list = []


def turns_of(program: dict, mesh: dict, plan: dict) -> list[Turn]:
    links, tensors = Links(mesh), program["tensors"]

    def bring(t: int, first: str, last: str, held: str) -> tuple:
        shape, item = tuple(tensors[t]["shape"]), tensors[t]["item_bytes"]
        legs = links.way(shape, item, tuple(first.split(",")), tuple(last.split(",")))
        return t, links.local_bytes(shape, item, tuple(held.split(","))), legs

    turns = []
    for op, planned in zip(program["ops"], plan["ops"], strict=True):
        turn = Turn(planned["compute_ns"])
        args = [a if isinstance(a, list) else [a] for a in op["args"].values()]
        assert all(len(a) == 1 for a in args), f"{op['target']}: an op on lists is several turns"
        for (t,), want in zip(args, planned["inputs"], strict=True):
            home, changed = plan["tensors"][t]["placement"], t in op.get("writes", [])
            if changed:
                turn.writes.append(t)
            if home == want:
                turn.reads.append(t)
                continue
            turn.before.append(bring(t, home, want, want))
            if changed:
                turn.after.append(bring(t, want, home, want))
        for t, left, home in zip(op["outputs"], planned["computed"], planned["outputs"], strict=True):
            if t is None:
                continue
            turn.makes.append(t)
            if left != home:
                turn.after.append(bring(t, left, home, left))
        turns.append(turn)
    return turns


SOON = 4  # kernels


@dataclasses.dataclass
class Bucket:
    copies: list  # (turn, (tensor, bytes, legs))
    bytes: int = 0
    first: int = 0
    issued: int = 0


def timeline(program: dict, mesh: dict, plan: dict) -> dict:
    turns, limit, tensors = turns_of(program, mesh, plan), plan["bucket_bytes"], program["tensors"]

    def root(t: int) -> int:
        while "alias_of" in tensors[t] and tensors[t]["alias_of"] < t:
            t = tensors[t]["alias_of"]
        return t

    def is_view(turn: Turn) -> bool:
        return turn.still and not turn.before and not turn.after

    # ---- What is brought ahead: buckets in program order, and copies that go alone
    buckets, alone, origin, changed = [], [], {}, {}

    def known(t: int) -> int:
        """The turn that made or changed it last."""
        return max(origin.get(t, -1), changed.get(root(t), -1))

    def kernels(first: int, last: int) -> int:
        return sum(not turn.still for turn in turns[first:last])

    for j, turn in enumerate(turns):
        for copy in turn.before:
            after = known(copy[0])
            if copy[1] > limit:
                alone.append(Bucket([(j, copy)], first=j, issued=j))
                continue
            if kernels(after + 1, j) < SOON:
                alone.append(Bucket([(j, copy)], first=j, issued=min(after + 1, j)))
                continue
            last = buckets[-1] if buckets else None
            if last is None or after >= last.first or last.bytes + copy[1] > limit:
                buckets.append(Bucket([], first=j, issued=last.first if last else 0))
            buckets[-1].copies.append((j, copy))
            buckets[-1].bytes += copy[1]
            buckets[-1].issued = max(buckets[-1].issued, after + 1)
        made = max((known(t) for t in turn.reads), default=-1) if is_view(turn) else j
        origin.update(dict.fromkeys(turn.makes, made))
        changed.update({root(t): j for t in turn.writes})
    beside = [0] * len(turns)
    for bucket in (*alone, *buckets):
        for j, (_, size, _) in bucket.copies:
            for i in range(bucket.issued, j):
                beside[i] += size

    def needed(t: int, after: int) -> int | None:
        """The first turn later than ``after`` that needs the tensor; a view needs it where that is needed."""
        found = []
        for j in range(after + 1, len(turns)):
            turn = turns[j]
            used = [*turn.reads, *turn.writes, *(copy[0] for copy in turn.before)]
            if t in used and not is_view(turn):
                found.append(j)
                break
            if t in turn.reads:
                found += [need for made in turn.makes if (need := needed(made, j)) is not None]
        return min(found, default=None)

    # ---- Time
    free, carried = [0.0] * len(mesh["axes"]), [0.0] * len(mesh["axes"])
    there: dict[int, float] = {}
    since_change: dict[int, float] = {}
    arrived = [0.0] * len(turns)
    now = ended = landed = 0.0
    waited: list[float] = []
    collected: dict[int, bool] = {}  # tensors, and roots of changed ones, in the open bucket
    left: list[tuple] = []
    held = under_way = 0

    def has(t: int) -> float:
        return max(there.get(t, 0.0), since_change.get(root(t), 0.0))

    def pending(t: int) -> bool:
        return t in collected or root(t) in collected

    def carry(copies: list, at: float) -> float:
        for hop in range(max((len(legs) for _, _, legs in copies), default=0)):
            end = at
            for axis in range(len(free)):
                here = [legs[hop] for _, _, legs in copies if hop < len(legs) and legs[hop][0] == axis]
                if here:
                    ns = max(leg[1] for leg in here) + sum(leg[2] for leg in here)
                    free[axis] = max(at, free[axis]) + ns
                    carried[axis] += ns
                    end = max(end, free[axis])
            at = end
        return at

    def launch() -> None:
        nonlocal now, landed, held, under_way
        if not left:
            return
        now = max(now, landed)
        landed = carry([copy for copy, _ in left], max([now, *(has(copy[0]) for copy, _ in left)]))
        for t in collected:
            there[t] = max(there.get(t, 0.0), landed)
        for copy, new in left:
            if not new:
                since_change[root(copy[0])] = landed
        under_way, held = (0 if held > limit else held), 0
        left.clear()
        collected.clear()

    for i, turn in enumerate(turns):
        ahead = sorted((b for b in (*alone, *buckets) if b.issued == i), key=lambda b: b.first)
        used = [copy[0] for bucket in ahead for _, copy in bucket.copies]
        if any(pending(t) for t in (used if is_view(turn) else [*turn.reads, *turn.writes, *used])):
            launch()
        for bucket in ahead:
            copies = [copy for _, copy in bucket.copies]
            at = carry(copies, max([now, *(has(t) for t, _, _ in copies)]))
            for j, _ in bucket.copies:
                arrived[j] = max(arrived[j], at)
        beside[i] += under_way + held
        ready = max([arrived[i], *(has(t) for t in turn.reads)])
        end = ready
        if turn.still:
            waited.append(0.0)
        else:
            now = max(now, ready)
            waited.append(now - ended)
            end = ended = now = now + turn.ns
        there.update(dict.fromkeys(turn.makes, end))
        since_change.update({root(t): end for t in turn.writes})
        if is_view(turn) and any(pending(t) for t in turn.reads):
            collected.update(dict.fromkeys(turn.makes, True))
        later = []
        for copy in turn.after:
            t, size, _legs = copy
            new, until = t in turn.makes, needed(t, i)
            if until is None or kernels(i + 1, until) >= SOON:
                later.append((copy, new))
                continue
            at = carry([copy], max(end, now))
            (there if new else since_change)[t if new else root(t)] = at
            if size > limit:
                now = max(now, at)
                continue
            for j in range(i + 1, until):
                beside[j] += size
        size = sum(copy[1] for copy, _ in later)
        if held and held + size > limit and later:
            launch()
        for copy, new in later:
            left.append((copy, new))
            collected[copy[0] if new else root(copy[0])] = True
        held += size
        if held > limit:
            launch()
            now = max(now, landed)
    launch()
    every = [legs for turn in turns for _, _, legs in (*turn.before, *turn.after)]
    return {
        "overlapped_ns": max([now, *free]),
        "links_ns": carried,
        "waited_ns": waited,
        "ahead_bytes": beside,
        "communication_ns": sum(leg[1] + leg[2] for legs in every for leg in legs),
    }
