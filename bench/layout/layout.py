"""Heights of layouts with fixed lifetimes: greedy packers, as other systems use them, and Stowage, with bound and
outcome.

Each set is a CSV `id,lower,upper,size` (the format of MiniMalloc's benchmarks). The sets are not part of this
repository; the default folder is the project's shared data. Behind them come larger ones of the kinds that
bench/rivals/layout_kinds.h makes, KIND-COUNT-SEED. Every layout of Stowage is verified here, by a sweep that shares no
code with it.

    LLFB        skyline, long-lived first: the layout that ROAM is compared with; quadratic, so not on large sets
    best greedy the least of twelve: size, area, lifetime, start or end first, or by start and life, into the lowest or the
                tightest gap

    ./dev bench layout
    ./dev bench layout --data FOLDER --only 'minimalloc-*' --threads 1
    ./dev bench layout --only 'periodic-*' --made periodic-1000000-7
"""

from __future__ import annotations

import bisect
import csv
import fnmatch
import os
import pathlib
import subprocess
import tempfile

from bench import common
from bench.order import order

DATA = common.ROOT.parent / "shared" / "data" / "layout"
MADE = [
    f"{kind}-{count}-1"
    for count in (20_000, 100_000)
    for kind in ("somas", "lifetimes", "nested", "short_long", "periodic", "slivers", "random", "power")
]


def verify(path: pathlib.Path, height: int) -> None:
    """No two items overlap in time and address, none lies above `height`, and one reaches it."""
    items = [
        {key: int(row[key]) for key in ("lower", "upper", "size", "offset")} for row in csv.DictReader(path.open())
    ]
    items = [i for i in items if i["size"] > 0 and i["lower"] < i["upper"]]
    live: list[tuple[int, int]] = []  # offset and end of the addresses, sorted
    events = [(i["upper"], 0, i) for i in items] + [(i["lower"], 1, i) for i in items]
    for time, begins, item in sorted(events, key=lambda e: e[:2]):
        block = (item["offset"], item["offset"] + item["size"])
        at = bisect.bisect_left(live, block)
        if not begins:
            del live[at]
            continue
        if (at > 0 and live[at - 1][1] > block[0]) or (at < len(live) and live[at][0] < block[1]):
            raise SystemExit(f"{path.name}: two items overlap at time {time}")
        live.insert(at, block)
    if max((i["offset"] + i["size"] for i in items), default=0) != height:
        raise SystemExit(f"{path.name}: the layout has another height than {height}")


def make(rivals: str, name: str, folder: pathlib.Path) -> pathlib.Path:
    path = folder / f"{name}.csv"
    with path.open("w") as file:
        subprocess.run([rivals, "intervals", *name.split("-")], stdout=file, check=True)
    return path


def measure(rivals: str, path: pathlib.Path, threads: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / path.name
        command = [order.stowage(), "layout", str(path), "-o", str(target), "--json", "--threads", str(threads)]
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
                _over(r["rivals"]["llfb"]["height_bytes"], bound) if "llfb" in r["rivals"] else "-",
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
    parser.add_argument("--made", nargs="*", metavar="KIND-COUNT-SEED", default=MADE, help="sets to make and lay out")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    paths = sorted(options.data.glob("*.csv"))
    names = [
        n
        for n in [*(p.stem for p in paths), *options.made]
        if not options.only or any(fnmatch.fnmatch(n, o) for o in options.only)
    ]
    if not names:
        raise SystemExit(f"no such CSV file in {options.data}; --data names another folder")
    others = order.rivals()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            known = options.data / f"{name}.csv"
            path = known if known in paths else make(others, name, pathlib.Path(folder))
            results.append(measure(others, path, options.threads))
            s = results[-1]["stowage"]
            common.say(
                f"{name}: {s['height_bytes']:,} of {s['lower_bound_bytes']:,}, {s['outcome']}, {s['seconds']:.2f} s"
            )
    common.publish("layout", {"results": results}, table(results), options.output or ("-" if options.only else None))


if __name__ == "__main__":
    main()
