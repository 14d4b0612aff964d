"""What bench/budget/budget.py has measured, judged: frontier, dominance, table and picture.

A point is worse than another when that needs no more bytes and no more time. The frontier is what no other point makes
worse:

    time │ x
         │    x   .       . is worse than the x below and left of it
         │        x
         └────────────► peak bytes
"""

from __future__ import annotations

import math
import pathlib
import statistics

from bench import common

HOST = "host"


def quartiles(values: list[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]] if values else []
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


def frontier(points: list[dict], slack: float = 0.0) -> list[str]:
    """Names of the points that no other beats in bytes and, by more than ``slack``, in time; fewest bytes first."""
    kept = [p for p in points if not any(_beats(q, p, slack) for q in points if q is not p)]
    return [p["name"] for p in sorted(kept, key=lambda p: (p["peak_bytes"], p["ratio"]))]


def _beats(q: dict, p: dict, slack: float) -> bool:
    if q["peak_bytes"] > p["peak_bytes"] or q["ratio"] * (1 + slack) > p["ratio"]:
        return False
    return q["peak_bytes"] < p["peak_bytes"] or q["ratio"] * (1 + slack) < p["ratio"] or q["name"] < p["name"]


def is_ours(point: dict) -> bool:
    return "stowage" in point


def uses_host(point: dict) -> bool:
    return point.get("host_bytes", 0) > 0


def same_bits(point: dict) -> bool:
    return all(value for key, value in point["bits"].items() if key != "steps")


def bits_text(point: dict) -> str:
    bits = point["bits"]
    if same_bits(point):
        return "="
    wrong = [part for part in ("losses", "parameters", "buffers", "state", "generator") if not bits[part]]
    return "buffers differ" if wrong == ["buffers"] else "differ"


def judge(result: dict, host: bool) -> dict:
    """Stowage against the rivals: ``host`` with, without it, what copies to the host. ``if_free``: the mean of times if
    a limit cost nothing, and every budget were met in the time of Stowage's fastest point."""
    measured = [p for p in result["points"] if "ratio" in p and (host or not uses_host(p))]
    ours, theirs = [p for p in measured if is_ours(p)], [p for p in measured if not is_ours(p)]
    if not ours or not theirs:
        return {}
    by_name = {p["name"]: p for p in theirs}
    rows = []
    for name in frontier(theirs):
        rival = by_name[name]
        within = [p for p in ours if p["peak_bytes"] <= rival["peak_bytes"]]
        best = min(within, key=lambda p: p["ratio"]) if within else None
        rows.append(
            {
                "rival": name,
                "best": best["name"] if best else None,
                "time": best["ratio"] / rival["ratio"] if best else None,
            }
        )
    times = [row["time"] for row in rows if row["time"]]
    return {
        "at_their_peaks": rows,
        "not_dominated": [row["rival"] for row in rows if row["time"] is None or row["time"] > 1],
        "geometric_mean": _geometric_mean(times),
        "if_free": _geometric_mean(
            [min(p["ratio"] for p in ours) / by_name[row["rival"]]["ratio"] for row in rows if row["time"]]
        ),
        "smallest": min(p["peak_bytes"] for p in ours) / min(p["peak_bytes"] for p in theirs),
    }


def _geometric_mean(values: list[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def prediction_errors(result: dict) -> list[float]:
    """Predicted over measured step time, less 1, of Stowage's points; both relative to the plan without a limit."""
    ours = [p for p in result["points"] if is_ours(p) and "ratio" in p]
    return [p["step_ns"] / (1e6 * p["step_ms"]) - 1 for p in ours]


# ---- Table


def table(results: list[dict]) -> str:
    return "\n\n".join(_table(result) for result in results) + "\n\n" + _verdicts(results)


def _table(result: dict) -> str:
    eager = result["eager_peak_bytes"]
    best = {
        name
        for host in (True, False)
        for name in frontier([p for p in result["points"] if "ratio" in p and (host or not uses_host(p))])
    }
    rows = []
    for p in sorted(result["points"], key=lambda p: -p.get("peak_bytes", 0)):
        if "ratio" not in p:
            rows.append([p["name"], "", "", f"as {p['same_as']}" if "same_as" in p else "failed", "", "", "", "", ""])
            continue
        low, high = p["quartiles"]
        predicted = f"{p['step_ns'] / (1e6 * p['step_ms']):.2f}" if is_ours(p) else ""
        rows.append(
            [
                ("**" + p["name"] + "**") if p["name"] in best else p["name"],
                common.mebibytes(p["peak_bytes"]),
                f"{p['peak_bytes'] / eager:.3f}",
                f"{p['ratio']:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{p['cpu_ratio']:.3f}",
                len(p["rounds"]),
                common.mebibytes(p["host_bytes"]) if uses_host(p) else "",
                predicted,
                bits_text(p),
            ]
        )
    header = [
        f"{result['model']}, MiB",
        "peak",
        "to eager",
        "time",
        "quartiles",
        "CPU time",
        "rounds",
        "on the host",
        "predicted / measured",
        "bits",
    ]
    title = (
        f"{result['model']}: {result['what']} No dropout, fused AdamW, {common.threads_text(result['threads'])}. Residents "
        f"{common.mebibytes(result['resident_bytes'])} MiB. Times are relative to eager under tcmalloc ({result['eager_ms']:.0f} ms){', in CPU seconds' if result['clock'] == 'cpu' else ''}."
    )
    return title + "\n\n" + common.markdown(header, [row + [""] * (len(header) - len(row)) for row in rows])


def _verdicts(results: list[dict]) -> str:
    rows = []
    for result in results:
        errors = [abs(e) for e in prediction_errors(result)]
        for host in (False, True):
            verdict = judge(result, host)
            if not verdict:
                continue
            mean = verdict["geometric_mean"]
            rows.append(
                [
                    result["model"] if not host else "",
                    "with the host" if host else "recomputation alone",
                    ", ".join(verdict["not_dominated"]) or "all",
                    f"{mean:.3f}" if mean else "",
                    f"{verdict['if_free']:.3f}" if mean else "",
                    f"{verdict['smallest']:.3f}",
                    f"{100 * common.median(errors):.0f} %" if host else "",
                ]
            )
    if not rows:
        return ""
    return common.markdown(
        [
            "Stowage against the best rivals",
            "",
            "not dominated",
            "time at their peaks",
            "if a limit cost nothing",
            "least peak to theirs",
            "prediction off by",
        ],
        rows,
        left=3,
    )


# ---- Picture


def draw(results: list[dict], path: pathlib.Path) -> None:
    """PATH.png and PATH.svg: a panel for each model, both frontiers as staircases."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "stowage"
    import matplotlib.pyplot as plt

    columns = min(3, len(results))
    lines = -(-len(results) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(5.2 * columns, 4.2 * lines), squeeze=False, layout="constrained"
    )
    for axis, result in zip(axes.flat, results):
        _draw_panel(axis, result)
    for axis in list(axes.flat)[len(results) :]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=8, loc="upper right")
    for suffix, extra in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
        figure.savefig(path.with_suffix(suffix), **extra)
    plt.close(figure)
    common.say(f"wrote {path.with_suffix('.png').name} and {path.with_suffix('.svg').name}")


SERIES = (  # label, which points, colour, marker
    ("PyTorch", lambda p: not is_ours(p) and not uses_host(p), "tab:gray", "o"),
    ("PyTorch, host", lambda p: not is_ours(p) and uses_host(p), "tab:brown", "s"),
    ("Stowage, recomputation", lambda p: is_ours(p) and not uses_host(p), "tab:blue", "o"),
    ("Stowage, host", lambda p: is_ours(p) and uses_host(p), "tab:green", "s"),
)


def _draw_panel(axis, result: dict) -> None:
    eager = result["eager_peak_bytes"]
    measured = [p for p in result["points"] if "ratio" in p]
    for label, belongs, colour, marker in SERIES:
        points = [p for p in measured if belongs(p)]
        axis.scatter(
            [p["peak_bytes"] / eager for p in points],
            [p["ratio"] for p in points],
            s=22,
            color=colour,
            marker=marker,
            label=label,
            facecolors=[colour if same_bits(p) else "none" for p in points],
        )
        best = frontier(points)
        steps = [(p["peak_bytes"] / eager, p["ratio"]) for name in best for p in points if p["name"] == name]
        if steps:
            axis.step(
                [x for x, _ in steps] + [1.02],
                [y for _, y in steps] + [steps[-1][1]],
                where="post",
                color=colour,
                linewidth=1,
            )
    axis.set_title(f"{result['model']} (hollow: other bits than eager)", fontsize=9)
    axis.set_xlabel("peak beyond residents / eager's")
    axis.set_ylabel("step time / eager's under tcmalloc")
    axis.set_xlim(0, 1.05)
    high = sorted(p["ratio"] for p in measured)[int(0.95 * (len(measured) - 1))]
    axis.set_ylim(min(0.8, min(p["ratio"] for p in measured) - 0.02), max(1.3, high + 0.05))
    axis.grid(alpha=0.3)
