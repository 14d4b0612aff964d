"""Figures and tables of bench/order/order.py, from its results."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from bench import common
from bench.order import graphs

MIB = 2**20

# What Stowage is compared with: the bytes of each rival's plan, None where it has none.
RIVALS: dict[str, Callable[[dict], int | None]] = {
    "program": lambda r: r["program"]["peak_bytes"],
    "PyTorch (model)": lambda r: r["program"]["reserved_bytes"],
    "LESCEA+LLFB": lambda r: r["lescea_llfb"]["arena_bytes"],
    "Inductor": lambda r: r["inductor"]["peak_bytes"],
    "MODeL": lambda r: r["model"]["arena_bytes"] if r.get("model") else None,
    "ROAM": lambda r: r["roam"]["arena_bytes"] if r.get("roam") else None,
}


def saving(results: list[dict], of: Callable[[dict], int | None], parameters: bool, mode: str, ours: str) -> float:
    """Mean of 1 - Stowage's bytes / the rival's, as ROAM's paper averages; with the parameters on both sides, as the
    paper counts."""
    each = []
    for r in results:
        more = r["parameter_bytes"] if parameters else 0
        each.append(1 - (r[mode][ours] + more) / (of(r) + more))
    return sum(each) / len(each)


def name_of(r: dict) -> str:
    return f"{r['name']}.{r['form']}"


def worse_than(r: dict, mode: str) -> list[str]:
    return [rival for rival, of in RIVALS.items() if (theirs := of(r)) is not None and r[mode]["arena_bytes"] > theirs]


def counts(results: list[dict], mode: str) -> dict:
    """mode: "stowage" (no in-place reuse) or "takeover" (with it)."""
    gaps = {name_of(r): r[mode]["gap"] for r in results}
    return {
        "graphs": len(results),
        "optimal": sum(gap == 0 for gap in gaps.values()),
        "gap_at_most_0.1_percent": sum(gap <= 1e-3 for gap in gaps.values()),
        "open": {name: gap for name, gap in gaps.items() if gap > 1e-3},
        "with_holes": {
            name_of(r): r[mode]["arena_bytes"] / r[mode]["peak_bytes"] - 1
            for r in results
            if r[mode]["arena_bytes"] != r[mode]["peak_bytes"]
        },
        "worse_than_a_rival": {name_of(r): worse_than(r, mode) for r in results if worse_than(r, mode)},
        "slowest_proven_seconds": max((r[mode]["seconds"]["total"] for r in results if r[mode]["gap"] == 0), default=0),
        "slowest_seconds": max(r[mode]["seconds"]["total"] for r in results),
    }


# ---- Tables


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / MIB:,.1f}"


def _percent(fraction: float) -> str:
    return "0" if fraction == 0 else f"{100 * fraction:.3f} %"


def main_table(results: list[dict]) -> str:
    rows = []
    for r in results:
        s = r["stowage"]
        rows.append(
            [
                r["name"],
                r["form"],
                s["ops"],
                *(_mib(of(r)) for of in RIVALS.values()),
                _mib(s["arena_bytes"]),
                _mib(s["lower_bound_bytes"]),
                _percent(s["gap"]),
                f"{s['seconds']['total']:.2f}",
                _mib(r["takeover"]["arena_bytes"]),
                _percent(r["takeover"]["gap"]),
            ]
        )
    return common.markdown(
        ["MiB", "Adam", "ops", *RIVALS, "**Stowage**", "bound", "gap", "s", "with reuse", "its gap"], rows, left=2
    )


def headline_table(results: list[dict]) -> str:
    """Savings over the 14 cases of ROAM's evaluation; beside each what a plan that met every lower bound would save."""
    against = {name: RIVALS[name] for name in ("PyTorch (model)", "LESCEA+LLFB", "MODeL", "ROAM")}
    rows = []
    for form in graphs.FORMS:
        cases = [r for r in results if r["form"] == form and graphs.CASES[r["name"]].paper]
        if not cases:
            continue
        for parameters, mode in itertools.product((True, False), ("stowage", "takeover")):
            cells = []
            for of in against.values():
                if any(of(r) is None for r in cases):
                    cells.append("-")
                    continue
                ours, most = (saving(cases, of, parameters, mode, key) for key in ("arena_bytes", "lower_bound_bytes"))
                cells.append(f"{100 * ours:.1f} % (at most {100 * most:.1f} %)")
            rows.append(
                [form, "with" if parameters else "without", "yes" if mode == "takeover" else "no", len(cases), *cells]
            )
    return common.markdown(
        ["Adam", "parameters", "in-place reuse", "cases", *(f"saved against {name}" for name in against)], rows, left=3
    )


def ablation_table(results: list[dict]) -> str:
    """Arena of ROAM with one part off, relative to all of ROAM."""
    chosen = [r for r in results if r.get("ablation")]
    if not chosen:
        return "No graph of the ablation was planned."
    parts = list(chosen[0]["ablation"])
    rows = []
    for r in chosen:
        whole = r["roam"]["arena_bytes"]
        rows.append(
            [
                name_of(r),
                _mib(whole),
                *(f"{r['ablation'][part]['arena_bytes'] / whole:.3f}" for part in parts),
                f"{r['roam']['seconds']['total']:.1f}",
                f"{r['stowage']['arena_bytes'] / whole:.3f}",
            ]
        )
    return common.markdown(["ROAM", "MiB", *(f"without {part}" for part in parts), "s", "Stowage"], rows)


def counts_text(results: list[dict], mode: str) -> str:
    c = counts(results, mode)
    listed = lambda d: ", ".join(f"{k} ({100 * v:.2f} %)" for k, v in d.items()) or "none"
    worse = ", ".join(f"{k} ({', '.join(v)})" for k, v in c["worse_than_a_rival"].items()) or "none"
    return "\n".join(
        [
            f"- Proven optimal: {c['optimal']} of {c['graphs']}; within 0.1 % of the bound: {c['gap_at_most_0.1_percent']}.",
            f"- Open: {listed(c['open'])}.",
            f"- Arena above the peak: {listed(c['with_holes'])}.",
            f"- Worse than a rival: {worse}.",
            f"- Slowest: {c['slowest_proven_seconds']:.1f} s of those proven, {c['slowest_seconds']:.1f} s of all.",
        ]
    )


def table(results: list[dict]) -> str:
    return "\n\n".join(
        [
            main_table(results),
            headline_table(results),
            "Without in-place reuse:",
            counts_text(results, "stowage"),
            "With it:",
            counts_text(results, "takeover"),
            ablation_table(results),
        ]
    )
