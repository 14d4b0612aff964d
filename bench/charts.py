"""Draws the charts of docs/benchmarks.md from bench/results/*.json, as docs/pictures/charts/*.svg.

    ./dev bench charts

Each panel is a file of 360 x 304, so that a phone shows it at its size, and a wide page two beside each other. Colours
are variables: a file by itself follows the reader's system, and docs/site/extra.css sets them where the site has put
the panel into its page. Same results, same bytes."""

from __future__ import annotations

import json
import math
import pathlib
from html import escape

from bench import common
from bench.order import order_tables

FOLDER = common.ROOT / "docs" / "pictures" / "charts"
WIDTH, HEIGHT = 360, 304
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 44, 108  # what the axes leave to words: below, the legend
MIB, GIB = 2**20, 2**30
STYLE = """<style>
.chart{--ink:#24292f;--grid:#d5d9de;--ours:#1f5fbf;--also:#0a7a6c;--b:#b3501a;--c:#7a3fa0;--d:#8a6d00;--e:#b3294e;--f:#5d6670}
@media (prefers-color-scheme:dark){.chart{--ink:#e4e7eb;--grid:#474d57;--ours:#7db2ff;--also:#4fd1be;--b:#ffa066;--c:#cf9cf0;--d:#e3c04c;--e:#ff8aa8;--f:#a8b0ba}}
.chart text{fill:var(--ink);font:12px system-ui,sans-serif}.chart .title{font-weight:600;font-size:13px}
</style>"""


class Axis:
    """Values to places along a line; ``log``: equal ratios are equal distances."""

    def __init__(self, low: float, high: float, begin: float, end: float, ticks: list, log: bool = False):
        self.ticks = ticks
        self._scale = math.log if log else float
        self._low, self._high, self._begin, self._end = self._scale(low), self._scale(high), begin, end

    def __call__(self, value: float) -> float:
        share = (self._scale(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)


class Panel:
    """One chart: axes, points, lines and a legend of what was drawn."""

    def __init__(self, title: str, x_name: str, y_name: str):
        self.title = title
        self._parts: list[str] = []
        self._legend: list[tuple[str, str, bool]] = []
        self.text(LEFT - 38, 16, title, kind="title")
        self.text(LEFT - 38, 34, y_name)
        self.text(WIDTH - RIGHT, HEIGHT - BOTTOM + 32, x_name, "end")

    def axes(self, x: Axis, y: Axis) -> None:
        self.x, self.y = x, y
        for value, words in y.ticks:
            at = y(value)
            self._parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="var(--grid)"/>')
            self.text(LEFT - 6, at + 4, words, "end")
        for value, words in x.ticks:
            at = x(value)
            self._parts.append(f'<path d="M{at:.1f} {HEIGHT - BOTTOM}v4" stroke="var(--ink)"/>')
            self.text(at, HEIGHT - BOTTOM + 17, words, "middle")
        self._parts.append(f'<path d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="var(--ink)"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> None:
        extra = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>')

    def points(
        self, name: str, colour: str, where: list[tuple[float, float, str]], line: bool = False, size: float = 3.6
    ):
        """where: x, y and what the point is, shown when it is pointed at."""
        if not where:
            return
        self._legend.append((name, colour, line))
        if line:
            path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y, _ in sorted(where))
            self._parts.append(f'<polyline points="{path}" fill="none" stroke="var(--{colour})" stroke-width="2"/>')
        for x, y, words in where:
            shape = _shape(colour, self.x(x), self.y(y), size)
            self._parts.append(f"<g>{shape}<title>{escape(words)}</title></g>")

    def bar(self, row: int, name: str, low: float, middle: float, high: float, words: str) -> None:
        """A span with its median, named at the left above it."""
        y = self.y(row)
        self.text(LEFT - 38, y - 9, name)
        self.text(WIDTH - RIGHT, y - 9, words, "end")
        self._parts.append(
            f'<path d="M{self.x(low):.1f} {y:.1f}H{self.x(high):.1f}" stroke="var(--ours)" stroke-width="7" opacity=".45"/>'
            f'<path d="M{self.x(middle):.1f} {y - 6:.1f}v12" stroke="var(--ours)" stroke-width="4"/>'
        )

    def svg(self) -> str:
        parts = [*self._parts]
        for i, (name, colour, line) in enumerate(self._legend):
            x, y = LEFT - 38 + (i % 2) * 176, HEIGHT - BOTTOM + 50 + (i // 2) * 15
            if line:
                parts.append(f'<path d="M{x} {y - 4}h16" stroke="var(--{colour})" stroke-width="2"/>')
            parts.append(_shape(colour, x + 8, y - 4, 3.6))
            parts.append(f'<text x="{x + 20}" y="{y}">{escape(name)}</text>')
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        )
        return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def _shape(colour: str, x: float, y: float, r: float) -> str:
    """Each colour has a form of its own, for those who do not tell colours apart."""
    fill = f'fill="var(--{colour})"'
    if colour in ("ours", "f"):
        hollow = 'fill="none" stroke="var(--f)" stroke-width="1.6"'
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {fill if colour == "ours" else hollow}/>'
    if colour == "b":
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:.1f}" height="{2 * r:.1f}" {fill}/>'
    corners = {
        "c": [(0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        "d": [(0, 1.2), (1.1, -0.9), (-1.1, -0.9)],
    }.get(colour, [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)])
    points = " ".join(f"{x + a * r:.1f},{y + b * r:.1f}" for a, b in corners)
    return f'<polygon points="{points}" {fill}/>'


def results(name: str):
    return json.loads((common.RESULTS / f"{name}.json").read_text())["results"]


def ticks(values, words="{:g}") -> list[tuple[float, str]]:
    return [(value, words.format(value)) for value in values]


def across(low: float, high: float, marks, log: bool = False) -> Axis:
    return Axis(low, high, LEFT, WIDTH - RIGHT, marks, log)


def upwards(low: float, high: float, marks, log: bool = False) -> Axis:
    return Axis(low, high, HEIGHT - BOTTOM, TOP, marks, log)


def nice(most: float, count: int = 4) -> float:
    """A round distance, so that about ``count`` of them reach ``most``."""
    power = 10 ** math.floor(math.log10(most / count))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step * count >= most * 0.8)


# ---- Bytes against time


def frontiers() -> dict[str, str]:
    names = {"gpt2": "GPT-2 (124 M)", "bert": "BERT-base", "resnet50": "ResNet-50", "llama": "Llama-style"}
    made = {}
    for result in results("budget"):
        points = [p for p in result["points"] if "ratio" in p]
        panel = Panel(names[result["model"]], "MiB beside residents", "step time, of eager's on tcmalloc")
        most = max(p["peak_bytes"] for p in points) / MIB
        step = nice(most)
        marks = ticks([step * i for i in range(int(most * 1.04 / step) + 1)], "{:,g}")
        panel.axes(across(0, most * 1.04, marks), upwards(0.85, 1.6, ticks([1.0, 1.2, 1.4, 1.6], "{:.1f}")))

        def of(chosen, points=points):
            return [(p["peak_bytes"] / MIB, p["ratio"], _told(p)) for p in points if chosen(p["name"])]

        panel.points("Stowage, with the host", "ours", of(lambda n: "joint" in n or n.endswith("no limit")), line=True)
        panel.points("Stowage, recompute", "also", of(lambda n: n.startswith("stowage recompute")), line=True)
        panel.points("eager", "f", of(lambda n: n == "eager"))
        panel.points("checkpointing", "b", of(lambda n: "checkpoint/" in n or n.startswith("selective")))
        panel.points("saved tensors on host", "c", of(lambda n: n in ("host", "inside+host")))
        panel.points("activation budget", "d", of(lambda n: n.startswith("activation budget")))
        panel.points("update in backward", "e", of(lambda n: n == "inside"))
        made[f"frontier-{result['model']}"] = panel.svg()
    return made


def _told(point: dict) -> str:
    return f"{point['name']}: {common.mebibytes(point['peak_bytes'])} MiB, {point['ratio']:.3f} of the time"


# ---- What the order saves


def orders() -> dict[str, str]:
    found = results("order")
    graphs = sorted(found, key=lambda r: r["takeover"]["arena_bytes"] / r["program"]["peak_bytes"])
    panel = Panel(f"{len(graphs)} graphs, best gain first", "graph", "bytes, of the program's order")
    panel.axes(
        across(0, len(graphs) + 1, ticks([1, 20, 40, 60, 77])),
        upwards(0, 1.25, ticks([0, 0.25, 0.5, 0.75, 1.0], "{:.2f}")),
    )

    def share(of):
        return [
            (i + 1, size / r["program"]["peak_bytes"], f"{order_tables.name_of(r)}: {size / MIB:,.1f} MiB")
            for i, r in enumerate(graphs)
            if (size := of(r)) is not None and size <= 1.25 * r["program"]["peak_bytes"]
        ]

    beyond = sum(r["lescea_llfb"]["arena_bytes"] > 1.25 * r["program"]["peak_bytes"] for r in graphs)
    panel.text(6, HEIGHT - 10, f"Above 1.25, not drawn: LESCEA + LLFB, {beyond} graphs.")
    panel.points("LESCEA + LLFB", "b", share(order_tables.RIVALS["LESCEA+LLFB"]), size=2.4)
    panel.points("ROAM (52 graphs)", "c", share(order_tables.RIVALS["ROAM"]), size=2.4)
    panel.points("Stowage, no reuse", "also", share(lambda r: r["stowage"]["arena_bytes"]), size=2.4)
    panel.points("Stowage", "ours", share(lambda r: r["takeover"]["arena_bytes"]), size=2.4)

    savings = Panel("Saved against each rival", "bytes saved by Stowage", "least to most, and the median")
    savings.axes(across(-0.02, 1, ticks([0, 0.25, 0.5, 0.75], "{:.0%}")), Axis(-0.7, 5.2, TOP, HEIGHT - BOTTOM, []))
    for row, (name, of) in enumerate(order_tables.RIVALS.items()):
        each = sorted(1 - r["stowage"]["arena_bytes"] / of(r) for r in found if of(r) is not None)
        middle = common.median(each)
        words = f"{middle:.0%}, {len(each)} graphs"
        savings.bar(row, {"program": "program order"}.get(name, name), each[0], middle, each[-1], words)
    savings.text(6, HEIGHT - 34, "Without in-place reuse, which the rivals do not have.")
    savings.text(6, HEIGHT - 18, '"PyTorch" is a model of its caching allocator.')
    return {"order-graphs": panel.svg(), "order-rivals": savings.svg()}


# ---- A limit around any loop


def eager_limits() -> dict[str, str]:
    names = {"gpt2": "GPT-2", "bert": "BERT", "resnet50": "ResNet-50", "depth": "a net of changing depth"}
    colours = {"default": "ours", "delta": "b", "dtr": "c", "capuchin": "d", "lru": "f"}
    labels = {"default": "Stowage", "delta": "DELTA's rule", "dtr": "DTR's", "capuchin": "Capuchin's", "lru": "LRU"}
    made = {}
    for model in results("eager")["models"]:
        if model["name"] not in names:
            continue
        panel = Panel(names[model["name"]], "limit, of eager's peak (link of 4 GB/s)", "step time, of eager's")
        panel.axes(
            across(1.0, 0.1, ticks([0.9, 0.75, 0.5, 0.35, 0.2], "{:.0%}")),
            upwards(0.9, 2.2, ticks([1.0, 1.25, 1.5, 1.75, 2.0], "{:.2f}")),
        )
        groups = [g for g in model["groups"] if g["link_gbps"] == 4 and g["label"] != "smallest"]
        for policy in ("lru", "delta", "dtr", "capuchin", "default"):
            where = [
                (g["limit_bytes"] / model["peak_bytes"], p["ratio"], f"{policy} at {g['label']}: {p['ratio']:.2f}")
                for g in groups
                for p in g["points"]
                if p["policy"] == policy and "failed" not in p
            ]
            panel.points(labels[policy], colours[policy], where, line=True)
        ways = {"checkpoint": "checkpointing", "host": "saved tensors on host"}
        for way, point in model["ways"].items():
            share = point["peak_bytes"] / model["peak_bytes"]
            words = f"{ways[way]}: {share:.0%} at {point['ratio']:.2f}"
            panel.points(ways[way], {"checkpoint": "e", "host": "also"}[way], [(share, point["ratio"], words)], size=5)
        made[f"eager-{model['name']}"] = panel.svg()
    return made


# ---- Over devices


def shards() -> dict[str, str]:
    names = {"gpt": "GPT", "llama-8b": "Llama 3 8B", "bert-large": "BERT-large", "moe": "mixture of experts"}
    made = {}
    for model, title in names.items():
        case = results("shard")["cases"][f"{model} (4,8)"]
        fastest = case["time first"]["time"]["bound"]

        def at(name, case=case, fastest=fastest):
            b = case[name]["bytes"]
            held = sum(b[k] for k in ("parameters", "gradients", "optimizer_state", "buffers", "inputs", "saved"))
            ratio = case[name]["time"]["value"] / fastest
            return held / GIB, ratio, f"{name}: {held / GIB:.2f} GiB, {ratio:.2f} of the fastest"

        groups = {
            ("Stowage, eps 0 to 0.5", "ours"): [n for n in case if n.startswith("stowage eps")],
            ("fastest, and capped", "also"): ["time first", "capped"],
            ("DDP, ZeRO 1 to 3", "b"): ["ddp", "zero-1", "zero-2", "zero-3"],
            ("Megatron, four forms", "c"): [n for n in case if n.startswith("megatron")],
        }
        places = {key: [at(n) for n in members if n in case] for key, members in groups.items()}
        everything = [p for members in places.values() for p in members]
        low, high = min(p[0] for p in everything) * 0.9, max(p[0] for p in everything) * 1.1
        most = max(1.5, max(p[1] for p in everything) * 1.05)
        marks = [v for v in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200) if low <= v <= high]
        panel = Panel(f"{title}, 4 x 8 devices", "GiB a device (log)", "modelled time, of the fastest")
        step = nice(most - 1)
        panel.axes(
            across(low, high, ticks(marks), log=True),
            upwards(0.9, most, ticks([1 + step * i for i in range(int((most - 1) / step) + 1)])),
        )
        for (name, colour), where in places.items():
            panel.points(name, colour, where, line=colour == "ours")
        made[f"shard-{model}"] = panel.svg()
    return made


# ---- Planning time


def planning() -> dict[str, str]:
    panel = Panel("Time to plan, on one core", "ops of the step (log)", "seconds (log)")
    panel.axes(
        across(
            80, 1.5e6, [(100, "100"), (1e3, "1,000"), (1e4, "10,000"), (1e5, "100,000"), (1e6, "million")], log=True
        ),
        upwards(0.001, 40, [(0.001, "1 ms"), (0.01, "10 ms"), (0.1, "0.1 s"), (1, "1 s"), (10, "10 s")], log=True),
    )
    captured = [
        (
            r["takeover"]["ops"],
            r["takeover"]["seconds"]["total"],
            f"{order_tables.name_of(r)}: {r['takeover']['ops']:,} ops",
        )
        for r in results("order")
    ]
    panel.points("77 captured steps", "f", captured, size=2.6)
    for kind, name, colour in (
        ("plain", "synthetic", "ours"),
        ("checkpointed", "synthetic, checkpointed", "b"),
    ):
        where = [
            (r["ops"], r["seconds"]["total"], f"{r['ops']:,} ops: {r['seconds']['total']:.2f} s")
            for r in results("scaling")
            if r["kind"] == kind
        ]
        panel.points(name, colour, where, line=True)
    return {"planning": panel.svg()}


def charts() -> dict[str, str]:
    return {**frontiers(), **orders(), **eager_limits(), **shards(), **planning()}


def main(folder: pathlib.Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = charts()
    for name, text in made.items():
        (folder / f"{name}.svg").write_text(text)
    common.say(f"{len(made)} charts in {folder.relative_to(common.ROOT)}")


if __name__ == "__main__":
    main()
