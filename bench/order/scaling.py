"""Time and memory of `stowage plan` on synthetic transformer steps (bench/order/synthetic.py) of 10^4 to 10^6 ops.

Each size is planned once, in a process of its own, from the graph's file to the checked plan's; memory is that
process's largest resident set. The exponent is the slope of log(seconds) over log(ops) by least squares, from the
smallest to the largest size. Targets for a million ops: 60 s and 8 GiB.

    ./dev bench scaling               writes bench/results/scaling.json and docs/scaling.svg
    ./dev bench scaling --sizes 10000 30000 --kind plain
"""

from __future__ import annotations

import json
import math

from bench import common
from bench.order import order, synthetic

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
KINDS = ("plain", "checkpointed")
PICTURE = common.ROOT / "docs" / "scaling.svg"


def measure(kind: str, size: int, limit: float) -> dict:
    folder = common.ROOT / "build" / "scaling"
    folder.mkdir(parents=True, exist_ok=True)
    graph, target = folder / f"{kind}-{size}.graph.json", folder / "p.plan.json"
    if not graph.exists():
        synthetic.write(str(graph), size, kind == "checkpointed")
    command = [order.stowage(), "plan", str(graph), "-o", str(target), "--json", "--time-limit", str(limit)]
    text, took = common.measured_run(command)
    graph.unlink()
    target.unlink()
    return {"kind": kind, **json.loads(text), **took}


def exponent(rows: list[dict]) -> float:
    points = [(math.log(r["ops"]), math.log(r["wall_s"])) for r in rows]
    x, y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        s, n = r["seconds"], r["ops"]
        rows.append(
            [
                r["kind"],
                f"{n:,}",
                f"{r['wall_s']:.2f}",
                f"{s['load']:.2f}",
                f"{s['order']:.2f}",
                f"{s['layout']:.2f}",
                f"{s['verify']:.2f}",
                f"{1e6 * r['wall_s'] / (n * math.log2(n)):.2f}",
                f"{r['resident_set_bytes'] / 2**30:.2f}",
                f"{100 * r['gap']:.3f} %",
                f"{100 * (r['arena_bytes'] / r['peak_bytes'] - 1):.3f} %",
            ]
        )
    header = ["step", "ops", "seconds", "load", "order", "layout", "verify", "us / (n log2 n)", "GiB", "gap", "holes"]
    lines = [common.markdown(header, rows)]
    for kind in KINDS:
        chosen = [r for r in results if r["kind"] == kind]
        if len(chosen) > 1:
            lines.append(f"Seconds grow with the {exponent(chosen):.2f}th power of the ops ({kind}).")
    return "\n\n".join(lines)


# ---- The picture: logarithmic axes, drawn by hand so that nothing need be installed


def picture(results: list[dict]) -> str:
    left, top, width, height = 60, 20, 520, 300
    x0, x1 = math.log10(min(r["ops"] for r in results)), math.log10(max(r["ops"] for r in results))
    y0 = math.floor(math.log10(min(r["wall_s"] for r in results)))
    y1 = math.ceil(math.log10(max(r["wall_s"] for r in results)))
    at_x = lambda n: left + width * (math.log10(n) - x0) / (x1 - x0)
    at_y = lambda s: top + height * (y1 - math.log10(s)) / (y1 - y0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 150}" height="{top + height + 50}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]

    def line(points: list[tuple[float, float]], color: str, dashes: str = "") -> None:
        coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{coordinates}" fill="none" stroke="{color}" stroke-width="1.5" stroke-dasharray="{dashes}"/>'
        )

    for decade in range(y0, y1 + 1):
        line([(left, at_y(10**decade)), (left + width, at_y(10**decade))], "#ddd")
        parts.append(f'<text x="{left - 8}" y="{at_y(10**decade) + 4:.1f}" text-anchor="end">{10**decade:g} s</text>')
    for decade in range(math.ceil(x0 - 0.01), math.floor(x1 + 0.01) + 1):
        parts.append(
            f'<text x="{at_x(10**decade):.1f}" y="{top + height + 20}" text-anchor="middle">{10**decade:,}</text>'
        )
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">ops</text>')
    for kind, color in zip(KINDS, ("#1f6fb4", "#d9541e")):
        rows = sorted((r for r in results if r["kind"] == kind), key=lambda r: r["ops"])
        if not rows:
            continue
        points = [(at_x(r["ops"]), at_y(r["wall_s"])) for r in rows]
        line(points, color)
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points]
        parts.append(f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 4:.1f}" fill="{color}">{kind}</text>')
        first = rows[0]
        scale = first["wall_s"] / (first["ops"] * math.log(first["ops"]))
        guide = [(at_x(r["ops"]), at_y(scale * r["ops"] * math.log(r["ops"]))) for r in rows]
        line(guide, color, "4 4")
    parts.append(f'<text x="{left + 10}" y="{top + 15}" fill="#555">dashed: n log n from the smallest size</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = common.parser(__doc__, "scaling")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--time-limit", type=float, default=600, help="outer stop of one plan in seconds (default 600)")
    options = parser.parse_args()
    results = []
    for kind in options.kind:
        for size in options.sizes:
            results.append(measure(kind, size, options.time_limit))
            r = results[-1]
            common.say(
                f"{kind}, {r['ops']:,} ops: {r['wall_s']:.2f} s, {r['resident_set_bytes'] / 2**30:.2f} GiB, {r['outcome']}"
            )
    whole = tuple(options.sizes) == SIZES and tuple(options.kind) == KINDS
    output = options.output or (None if whole else "-")
    if output is None:
        PICTURE.write_text(picture(results))
    common.publish("scaling", {"results": results}, table(results), output)


if __name__ == "__main__":
    main()
