"""What bench/eager/eager.py has measured, as tables and judgements."""

from __future__ import annotations

import math

from bench import common

POLICIES = ("default", "delta", "dtr", "capuchin", "lru", "size", "random")
KINDS = {"ratio": "wall", "beside_ratio": "copies beside"}
RIVALS = ("delta", "dtr", "capuchin", "lru")


def ratio(run: dict, eager: dict, clock: str = "wall") -> float:
    """Median over the counted steps of one step's time over that of eager's same step, beside it in time."""
    return common.median([a / b for a, b in zip(run[clock], eager[clock])])


def beside_ratio(run: dict, eager: dict) -> float:
    """The same where copies have a processor of their own: the program's thread, and what it waited for them."""
    stall_s = per_step_ms(run, "stall_ns") / 1e3
    return ratio(run, eager, "own") + stall_s / common.median(eager["own"])


def geometric(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def per_step_ms(run: dict, key: str) -> float:
    return run["changes"][key] / len(run["wall"]) / 1e6


def cell(point: dict | None) -> str:
    if point is None:
        return ""
    return "–" if "failed" in point else f"{point['ratio']:.2f} ({point['beside_ratio']:.2f})"


def step_table(result: dict) -> str:
    """Rows: model, link, share of eager's peak. Columns: policies."""
    measured = {p["policy"] for m in result["models"] for g in m["groups"] for p in g["points"]}
    policies = [p for p in (*POLICIES, "default/recompute", "default/swap") if p in measured]
    rows = []
    for model in result["models"]:
        for group in model["groups"]:
            points = {p["policy"]: p for p in group["points"]}
            own = points["default"]
            bound = f"{group['bound_ratio']:.2f}" if "bound_ratio" in group else ""
            more = (
                [""] * 3
                if "failed" in own
                else [
                    f"{own['peak_bytes'] / model['peak_bytes']:.0%}",
                    f"{own['recompute_share']:.1%}",
                    f"{own['stall_ms']:.1f}",
                ]
            )
            rows.append(
                [
                    model["name"],
                    f"{group['link_gbps']:g}",
                    group["label"],
                    *more,
                    bound,
                    *(cell(points.get(p)) for p in policies),
                ]
            )
    return common.markdown(
        ["model", "GB/s", "limit", "peak", "recomputed", "stall ms", "bound", *policies], rows, left=1
    )


def ways_table(result: dict) -> str:
    rows = []
    for model in result["models"]:
        row = [
            model["name"],
            f"{1e3 * model['step_s']:.0f}",
            common.mebibytes(model["peak_bytes"]),
            common.mebibytes(model["resident_bytes"]),
            f"{model['unbound_ratio']:.2f} ({model['unbound_beside_ratio']:.2f})",
        ]
        for way in ("checkpoint", "host"):
            point = model["ways"].get(way)
            row.append(f"{point['peak_bytes'] / model['peak_bytes']:.0%} at {point['ratio']:.2f}" if point else "")
        smallest = model["smallest_bytes"]
        saved = 1 - max(smallest - model["resident_bytes"], 0) / (model["peak_bytes"] - model["resident_bytes"])
        row += [f"{smallest / model['peak_bytes']:.0%}", f"{saved:.0%}"]
        rows.append(row)
    return common.markdown(
        [
            "model",
            "step ms",
            "peak MiB",
            "residents MiB",
            "limit not binding",
            "checkpoint",
            "saved tensors on host",
            "smallest limit",
            "saved beyond residents",
        ],
        rows,
    )


def table(result: dict) -> str:
    judged = "\n".join(f"- {line}" for line in judge(result))
    return "\n\n".join([ways_table(result), step_table(result), judged])


def over_the_best(groups: list[dict], what: str) -> list[float]:
    """For each limit that the default policy and a rival meet. What is below half a percent counts as that."""
    shares = []
    for points in groups:
        rivals = [points[r][what] for r in RIVALS if r in points]
        if "default" in points and rivals:
            shares.append(max(points["default"][what] - 1, 0.005) / max(min(rivals) - 1, 0.005))
    return shares


def judge(result: dict) -> list[str]:
    """The targets, each with what was measured."""
    lines = []
    groups = [(m, g) for m in result["models"] for g in m["groups"]]
    for label, target in (("50%", 1.15), ("20%", 1.35)):
        own = [next(p for p in g["points"] if p["policy"] == "default") for _, g in groups if g["label"] == label]
        for what in KINDS:
            ratios = [p[what] for p in own if "failed" not in p]
            if ratios:
                lines.append(
                    f"default at {label}, {KINDS[what]}: geometric mean {geometric(ratios):.2f}, largest {max(ratios):.2f}, "
                    f"{sum(r <= target for r in ratios)} of {len(ratios)} within {target}"
                )
    for label in dict.fromkeys(g["label"] for _, g in groups):
        here = [{p["policy"]: p for p in g["points"] if "failed" not in p} for _, g in groups if g["label"] == label]
        means = {what: over_the_best(here, what) for what in KINDS}
        if all(means.values()):
            lines.append(
                f"overhead of default over that of the best of {', '.join(RIVALS)} at {label}: "
                + "; ".join(f"{KINDS[what]} {geometric(shares):.2f}" for what, shares in means.items())
                + f" (geometric means of {len(means['ratio'])})"
            )
    for model in result["models"]:
        for p in model.get("prefetch", []):
            lines.append(
                f"{model['name']}, {p['policy']}, swap only, {p['link_gbps']:g} GB/s, {p['label']}: stalls {p['with_ms']:.1f} ms a step "
                f"with prefetch, {p['without_ms']:.1f} ms without"
            )
    for b in result.get("batches", []):
        lines.append(
            f"{b['model']}: batch {b['batch']} -> {b['largest']} ({b['largest'] / b['batch']:.2f} times) in "
            f"{common.mebibytes(b['limit_bytes'])} MiB, {b['slowdown']:.2f} times the time an image"
        )
    return lines
