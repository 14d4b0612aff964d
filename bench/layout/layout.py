"""Heights of layouts with fixed lifetimes: greedy packers, as other systems use them, and Stowage, with bound and
outcome.

Each set is a CSV `id,lower,upper,size` (the format of MiniMalloc's benchmarks). The sets are not part of this
repository; the default folder is the project's shared data. Every layout of Stowage is verified here, by a sweep that
shares no code with it.

    LLFB        skyline, long-lived first: the layout that ROAM is compared with
    best greedy the least of eight: size, area, lifetime or start first, into the lowest or the tightest gap

    ./dev bench layout
    ./dev bench layout --data FOLDER --only 'minimalloc-*'
"""

from __future__ import annotations

import csv
import fnmatch
import pathlib
import tempfile

from bench import common
from bench.order import order

DATA = common.ROOT.parent / "shared" / "data" / "layout"


def verify(path: pathlib.Path, height: int) -> None:
    """No two items overlap in time and address, none lies above `height`, and one reaches it."""
    items = [
        {key: int(row[key]) for key in ("lower", "upper", "size", "offset")} for row in csv.DictReader(path.open())
    ]
    items = [i for i in items if i["size"] > 0 and i["lower"] < i["upper"]]
    live: list[dict] = []
    for item in sorted(items, key=lambda i: i["lower"]):
        live = [other for other in live if other["upper"] > item["lower"]]
        for other in live:
            if item["offset"] < other["offset"] + other["size"] and other["offset"] < item["offset"] + item["size"]:
                raise SystemExit(f"{path.name}: two items overlap at time {item['lower']}")
        live.append(item)
    if max((i["offset"] + i["size"] for i in items), default=0) != height:
        raise SystemExit(f"{path.name}: the layout has another height than {height}")


def measure(rivals: str, path: pathlib.Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / path.name
        command = [order.stowage(), "layout", str(path), "-o", str(target), "--json"]
        runs = [order.json_of(*command)]
        while runs[0]["seconds"] < order.SHORT_SECONDS and len(runs) < 3:
            runs.append(order.json_of(*command))
        verify(target, runs[0]["height_bytes"])
    result = dict(runs[0], seconds=common.median([r["seconds"] for r in runs]))
    return {"name": path.stem, "stowage": result, "rivals": order.json_of(rivals, "layout", str(path))}


def _over(height: int, bound: int) -> str:
    return f"{100 * (height / bound - 1):.2f} %" if height != bound else "0"


def table(results: list[dict]) -> str:
    rows = []
    for r in results:
        s, bound = r["stowage"], r["stowage"]["lower_bound_bytes"]
        greedy = {name: v["height_bytes"] for name, v in r["rivals"].items() if name != "llfb"}
        best = min(greedy, key=greedy.get)
        rows.append(
            [
                r["name"],
                s["buffers"],
                f"{bound:,}",
                _over(r["rivals"]["llfb"]["height_bytes"], bound),
                f"{_over(greedy[best], bound)} ({best.replace('_', ' ')})",
                f"{s['height_bytes']:,}",
                _over(s["height_bytes"], bound),
                s["outcome"],
                f"{s['seconds']:.2f}",
            ]
        )
    header = [
        "bytes",
        "buffers",
        "bound",
        "LLFB above it",
        "best greedy above it",
        "**Stowage**",
        "above it",
        "outcome",
        "s",
    ]
    return common.markdown(header, rows)


def main() -> None:
    parser = common.parser(__doc__, "layout")
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of CSV files")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="sets to lay out; * and ? match as in a shell")
    options = parser.parse_args()
    paths = [
        p
        for p in sorted(options.data.glob("*.csv"))
        if not options.only or any(fnmatch.fnmatch(p.stem, o) for o in options.only)
    ]
    if not paths:
        raise SystemExit(f"no such CSV file in {options.data}; --data names another folder")
    others = order.rivals()
    results = []
    for path in paths:
        results.append(measure(others, path))
        s = results[-1]["stowage"]
        common.say(
            f"{path.stem}: {s['height_bytes']:,} of {s['lower_bound_bytes']:,}, {s['outcome']}, {s['seconds']:.2f} s"
        )
    common.publish("layout", {"results": results}, table(results), options.output or ("-" if options.only else None))


if __name__ == "__main__":
    main()
