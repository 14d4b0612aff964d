"""Does the limit hold, and are the bits those of eager? Model x optimizer x budget, each trained twice and compared.

A case trains a small model eagerly and under a budget, and notes whether all results, parameters, buffers, optimizer
state and the generator are equal, whether the allocator ever counted more than the limit in a planned step, misses,
predicted time and that of the fastest planned step. Budgets go from what eager needs to the smallest for which a plan
is found."""

from __future__ import annotations

import statistics
import sys
import time

from bench import common

sys.path.insert(0, str(common.ROOT / "tests" / "python"))

LOSS_BYTES = 4  # the result that is not there yet when a step begins
SHARES = (1.0, 0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.0)  # of eager's peak besides the residents; 0: the smallest found


def limit(share: float, options: dict) -> int:
    from training import train

    import stowage

    graph = train(compiled=True, count=2, **options).step.graph
    if share > 0:
        return graph.resident_bytes + int(share * graph.program_peak_bytes)
    try:
        stowage.plan(graph, 1)
    except stowage.Infeasible as infeasible:
        return infeasible.smallest_bytes
    raise AssertionError("a step that needs nothing")


def trained_within(budget: int, options: dict):
    """The run, its budget, the largest count of the allocator in a planned step, less what does not belong to the step,
    and the fastest planned step without the optimizer's Python."""
    import zoo
    from training import train

    import stowage
    from stowage import _runtime

    counted, walls = [], []
    started: list = []

    def note(i, model, optimizer):
        if not started:
            return
        stats = started[0].stats()
        if note.planned < stats["planned_steps"]:
            counted.append(_runtime.peak_bytes() - note.outside)
            walls.append(started[0]._latest.last_run.wall_ns)
        note.planned = stats["planned_steps"]
        note.outside = _runtime.live_bytes() - started[0]._room.arena.bytes - (stats["resident_bytes"] - LOSS_BYTES)
        _runtime.reset_peak()

    note.planned, note.outside = 0, 0
    for _ in range(4):
        started.clear()
        try:
            run = train(compiled=True, budget=budget, between=note, started=started, count=zoo.STEPS + 2, **options)
        except stowage.Infeasible as infeasible:
            budget = infeasible.smallest_bytes
            continue
        return run, budget, max(counted, default=0), min(walls, default=0)
    raise AssertionError("no plan")


def case(share: float, options: dict) -> dict:
    import zoo
    from training import assert_same_state, train

    begin = time.monotonic()
    budget = limit(share, options)
    run, met, counted, executed_ns = trained_within(budget, options)
    eager = train(count=zoo.STEPS + 2, **options)
    try:
        assert_same_state(eager, run)
        differs = ""
    except AssertionError as difference:
        differs = str(difference)
    stats, summary = run.step.stats(), run.step.plan.summary()
    kept = (
        "arena_bytes",
        "resident_bytes",
        "planned_peak_bytes",
        "measured_peak_bytes",
        "misses",
        "planned_steps",
        "recomputed_ops",
        "swapped_bytes",
        "host_bytes",
        "step_ns",
    )
    return {
        **options, "share": share, "asked_bytes": budget, "budget_bytes": met, "counted_bytes": counted,
        "holds": stats["planned_steps"] > 0 and counted <= met and stats["misses"] == 0,
        "same_bits": not differs, "differs": differs, "refusal": run.step.refusal, "predicted_ns": summary["step_ns"],
        "executed_ns": executed_ns, **{k: stats[k] for k in kept}, "seconds": time.monotonic() - begin,
    }  # fmt: skip


def table(results: dict) -> str:
    rows = []
    for name in dict.fromkeys(c["name"] for c in results["cases"]):
        mine = [c for c in results["cases"] if c["name"] == name]
        rows.append([name, len(mine), *(sum(c[key] for c in mine) for key in ("holds", "same_bits")),
                     f"{min(c['budget_bytes'] - c['counted_bytes'] for c in mine):,}",
                     f"{statistics.median(c['predicted_ns'] / c['executed_ns'] for c in mine):.2f}"])  # fmt: skip
    return common.markdown(
        ["model", "cases", "limit holds", "same bits", "least bytes to spare", "predicted / executed time, median"],
        rows,
    )


def main() -> None:
    import torch
    import zoo
    from training import FORMS, OPTIMIZERS

    parser = common.parser(__doc__, "limit_holds")
    parser.add_argument("--models", nargs="*", default=[n for n in zoo.BUILDERS if n != "resnet50"])
    parser.add_argument("--forms", nargs="*", default=["fused", "foreach"], choices=list(FORMS))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cases = []
    for name in arguments.models:
        for optimizer in OPTIMIZERS:
            for form in arguments.forms:
                for share in SHARES:
                    cases.append(case(share, {"name": name, "optimizer": optimizer, "form": form}))
                    if not (cases[-1]["holds"] and cases[-1]["same_bits"]):
                        common.say(f"FAILS: {cases[-1]}")
        common.say(f"{name}: {sum(c['name'] == name for c in cases)} cases")
    results = {"threads": arguments.threads, "cases": cases}
    common.publish("limit_holds", {"results": results}, table(results), arguments.output)
    sys.exit(sum(c["holds"] and c["same_bits"] for c in cases) < len(cases))


if __name__ == "__main__":
    main()
