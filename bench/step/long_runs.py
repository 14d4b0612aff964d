"""Nothing grows: 10,000 planned steps, 10,000 under stowage.budget with a tight limit, 10,000 of a compiled step with a
tight budget.

Each in a process of its own, beside the same steps without: losses must be equal to the bit, and after a warm-up
neither the resident set nor the number of open files may grow. Compared are the medians of the first and of the last
tenth of what was seen after the warm-up (a tenth of the steps). The tolerance for the resident set is 2 MiB: the
allocator of C gives pages back when it likes, and Python's own objects (the list of losses is kept by the benchmark)
come in arenas of 1 MiB; a leak of 300 bytes a step would be seen. For files it is none.

    ./dev bench long_runs                     some minutes
    ./dev bench long_runs --steps 500 -o -    a short look
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import sys
import time

from bench import common

sys.path.insert(0, str(common.ROOT / "tests" / "python"))

TOLERATED_BYTES = 2 << 20
LOOKS = 200  # at memory and files, over all steps
KINDS = ("planned", "planned, checked", "compiled with a budget", "in a budget's block")
WORLDS = ("transformer", "conv", "recurrent")
ROWS = (32, 32, 32, 16)  # of the batches, which come in turn


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- In a worker


def handlers(config: dict) -> dict:
    import torch
    from torn import WORLDS as MAKE

    import stowage  # its allocator first
    from stowage import _runtime

    made = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(rows, 6, 8, generator=made), torch.randint(0, 5, (rows, 6), generator=made)) for rows in ROWS
    ]

    def loop():
        torch.manual_seed(7)
        return MAKE[config["world"]](config["width"])

    def run(step, steps: int) -> dict:
        torch.manual_seed(11)
        losses, looks, wall_s = bytearray(), [], 0.0
        for i in range(steps):
            start = time.perf_counter()
            loss = step(*batches[i % len(batches)])
            wall_s += time.perf_counter() - start
            losses += loss.numpy().tobytes()
            if i % max(1, steps // LOOKS) == 0:
                looks.append((i, resident_bytes(), open_files()))
        return {"losses": losses.hex(), "looks": looks, "wall_s": wall_s}

    def peak_bytes(step) -> int:
        """Live bytes before, and at most in a step."""
        for batch in batches:
            step(*batch)
        gc.collect()
        live = _runtime.live_bytes()
        _runtime.reset_peak()
        for batch in batches:
            step(*batch)
        return _runtime.peak_bytes() - live

    def eager(steps: int) -> dict:
        return run(loop().step, steps)

    def planned(steps: int) -> dict:
        options = {"check": "always"} if config["kind"] == "planned, checked" else {}
        step = stowage.compile(loop().step, strict=True, **options)
        return run(step, steps) | told(step)

    def budgeted(steps: int) -> dict:
        free = stowage.compile(loop().step)
        for batch in batches * 3:
            free(*batch)
        budget = tight(free)
        del free
        gc.collect()
        step = stowage.compile(loop().step, budget, strict=True)
        return run(step, steps) | told(step) | {"limit_bytes": budget}

    def tight(step) -> int:
        """Of the shares of the peak the smallest with which plans fit and the eager calls go through, and a twentieth
        of the peak more: which plan is found depends on measured costs."""
        needs = max(replay.graph.program_peak_bytes for entry in step._entries.values() for replay in entry.replays)
        for share in (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2):
            budget = step.graph.resident_bytes + int(share * needs)
            tried = stowage.compile(loop().step, budget)
            try:
                for batch in batches * 4:
                    tried(*batch)
                return budget + needs // 20
            except (stowage.OutOfMemory, stowage.Infeasible):
                continue
        raise SystemExit("no budget fits")

    def in_block(steps: int) -> dict:
        spent = peak_bytes(loop().step)
        extra = next(
            bytes_
            for bytes_ in (int(share * spent) for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2))
            if goes_through(bytes_)
        )
        extra += extra // 20
        mine = loop()
        make_state(mine)
        gc.collect()
        limit = _runtime.live_bytes() + extra
        with stowage.budget(limit, progress=False) as block:
            found = run(mine.step, steps)
            stats = block.stats()
        return found | {"limit_bytes": extra, "evictions": stats["evictions"], "planned": 0}

    def goes_through(extra: int) -> bool:
        tried = loop()
        make_state(tried)
        gc.collect()
        try:
            with stowage.budget(_runtime.live_bytes() + extra, progress=False):
                for batch in batches * 4:
                    tried.step(*batch)
            return True
        except stowage.OutOfMemory:
            return False

    def make_state(of) -> None:
        """The optimizer's, and then all as it was: it belongs to what is there before the block."""
        kept = {k: v.clone() for k, v in of.model.state_dict().items()}
        of.step(*batches[0])
        of.model.load_state_dict(kept)
        of.optimizer.zero_grad()
        for values in of.optimizer.state.values():
            for value in values.values():
                value.zero_()
        if of.scheduler is not None:
            of.scheduler.last_epoch, of.scheduler._step_count = 0, 1
            for group in of.optimizer.param_groups:
                group["lr"] = group["initial_lr"]

    def told(step) -> dict:
        stats = step.stats()
        return {
            "planned": stats["planned_steps"],
            "recomputed_ops": stats["recomputed_ops"],
            "swapped_bytes": stats["swapped_bytes"],
            "refusal": step.refusal,
        }

    runs = {
        "planned": planned,
        "planned, checked": planned,
        "compiled with a budget": budgeted,
        "in a budget's block": in_block,
    }
    return {"eager": eager, "run": runs[config["kind"]]}


# ---- In the parent


def grown(looks: list, warm_up: float) -> tuple[int, int]:
    """Bytes and files by which the last tenth is above the first after the warm-up."""
    after = looks[int(len(looks) * warm_up) :]
    part = max(1, len(after) // 10)
    first, last = after[:part], after[-part:]
    return tuple(
        int(statistics.median(look[i] for look in last) - statistics.median(look[i] for look in first)) for i in (1, 2)
    )


def case(world: str, kind: str, arguments, expected: dict) -> dict:
    with common.Worker({"world": world, "kind": kind, "width": arguments.width}, 1) as worker:
        got = worker.ask("run", steps=arguments.steps)
    bytes_, files = grown(got["looks"], arguments.warm_up)
    eager_bytes, _ = grown(expected["looks"], arguments.warm_up)
    same = sum(got["losses"][i : i + 8] == expected["losses"][i : i + 8] for i in range(0, len(expected["losses"]), 8))
    return {
        "world": world,
        "kind": kind,
        "steps": arguments.steps,
        "planned": got["planned"],
        "same_losses": same,
        "grown_bytes": bytes_,
        "grown_files": files,
        "eager_grown_bytes": eager_bytes,
        "resident_bytes": got["looks"][-1][1],
        "open_files": got["looks"][-1][2],
        "limit_bytes": got.get("limit_bytes"),
        "evictions": got.get("evictions", 0),
        "swapped_bytes": got.get("swapped_bytes", 0),
        "recomputed_ops": got.get("recomputed_ops", 0),
        "refusal": got.get("refusal", ""),
        "step_us": got["wall_s"] / arguments.steps * 1e6,
        "eager_step_us": expected["wall_s"] / arguments.steps * 1e6,
        "looks": got["looks"],
        "constant": bytes_ <= TOLERATED_BYTES and files <= 0 and same == arguments.steps and not got.get("refusal"),
    }


def table(results: dict) -> str:
    def made_room(c: dict) -> str:
        if c["kind"] == "in a budget's block":
            return f"{c['evictions']:,} let go"
        return (
            f"{c['recomputed_ops']} ops again, {c['swapped_bytes'] / 1024:.0f} KiB out a step"
            if c["limit_bytes"]
            else "-"
        )

    rows = [
        [
            c["world"],
            c["kind"],
            f"{c['steps']:,}",
            f"{c['planned']:,}",
            f"{c['same_losses']:,}",
            made_room(c),
            f"{c['resident_bytes'] / 2**20:.1f}",
            f"{c['grown_bytes'] / 2**20:+.2f}",
            f"{c['eager_grown_bytes'] / 2**20:+.2f}",
            c["open_files"],
            f"{c['grown_files']:+d}",
        ]
        for c in results["cases"]
    ]
    return common.markdown(
        [
            "model",
            "steps are",
            "steps",
            "planned",
            "losses as eager",
            "to make room",
            "RSS, MiB",
            "grown",
            "eager grown",
            "open files",
            "grown",
        ],
        rows,
        left=2,
    )


def main() -> None:
    parser = common.parser(__doc__, "long_runs")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument(
        "--warm-up",
        type=float,
        default=0.1,
        help="share of the steps; in a block its timeline fills for some thousand steps",
    )
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    arguments = parser.parse_args()
    cases = []
    for world in arguments.worlds:
        with common.Worker({"world": world, "kind": KINDS[0], "width": arguments.width}, 1) as worker:
            expected = worker.ask("eager", steps=arguments.steps)
        for kind in arguments.kinds:
            cases.append(case(world, kind, arguments, expected))
            shown = {k: v for k, v in cases[-1].items() if k != "looks"}
            common.say(f"{'' if cases[-1]['constant'] else 'FAILS: '}{shown}")
    results = {"cases": cases}
    common.publish("long_runs", {"results": results}, table(results), arguments.output)
    sys.exit(not all(c["constant"] for c in cases))


if __name__ == "__main__":
    common.serve(handlers) if common.is_worker() else main()
