"""The tables of bench/shard/shard.py, from its results: one row a case, one column a strategy."""

from __future__ import annotations

import math
from statistics import median

from bench.common import markdown

CLOSE = 1.10  # of the time-first optimum
RIVALS = (
    "ddp",
    "zero-1",
    "zero-2",
    "zero-3",
    "megatron",
    "megatron +sp",
    "megatron +do",
    "megatron +sp +do",
    "time first",
    "capped",
)


def _planned(row: dict | None) -> bool:
    return bool(row) and bool(row.get("compute_ns"))


def _state(row: dict) -> int:
    b = row["bytes"]
    return b["parameters"] + b["gradients"] + b["optimizer_state"] + b["buffers"] + b["inputs"]


def _kept(row: dict) -> int:
    return _state(row) + row["bytes"]["saved"]


def _ns(row: dict) -> float:
    return row.get("overlapped_ns", row["compute_ns"] + row["communication_ns"])


def _gap(row: dict) -> float:
    """Of the modelled time, above what the search has proven."""
    bound = row["time"]["bound"]
    return max(0.0, _ns(row) / bound - 1) if bound > 0 else math.inf


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f}"


def _percent(part: float) -> str:
    return f"{100 * part:.2f} %" if part < math.inf else "-"


def _cell(row: dict | None, text) -> str:
    if _planned(row):
        return text(row)
    return "" if row is None else row["time"]["outcome"]


def eps_of(rows: dict) -> list[tuple[float, dict]]:
    return sorted((float(name.split()[-1]), row) for name, row in rows.items() if name.startswith("stowage eps"))


def _fastest(rows: dict) -> float:
    """A bound: no plan is faster. NaN where none was found."""
    first = rows.get("time first")
    return first["time"]["bound"] if _planned(first) and first["time"]["bound"] > 0 else math.nan


def _of_fastest(row: dict, rows: dict) -> str:
    ratio = _ns(row) / _fastest(rows)
    return "-" if math.isnan(ratio) else f"{ratio:.2f}"


def least_close(rows: dict) -> float | None:
    """The least eps that was tried whose time is within 1.10 of the time-first optimum's bound."""
    return next((e for e, row in eps_of(rows) if _planned(row) and _ns(row) <= CLOSE * _fastest(rows)), None)


def least(cases: dict) -> str:
    header = [
        "eps 0",
        "state GiB",
        "saved GiB",
        "redundant GiB",
        "gap of least",
        "largest copies GiB",
        "peak GiB",
        "time ms",
        "of fastest",
        "gap of time",
        "1.10 from eps",
        "CPU s",
    ]
    lines = []
    for case, rows in cases.items():
        row = rows.get("stowage eps 0")
        if not _planned(row):
            lines.append([case, _cell(row, str), *[""] * 10])
            continue
        close, b = least_close(rows), row["bytes"]
        lines.append(
            [
                case,
                _gib(_state(row)),
                _gib(b["saved"]),
                _gib(b["redundant"]),
                _percent(row["redundancy"]["gap"]),
                _gib(row["copies_bytes"]),
                _gib(b["peak"]),
                f"{_ns(row) / 1e6:.1f}",
                _of_fastest(row, rows),
                _percent(_gap(row)),
                "-" if close is None else f"{close:g}",
                f"{row['cpu_seconds']:.1f}",
            ]
        )
    return markdown(header, lines)


def _across(cases: dict, corner: str, text, own: tuple = ("stowage eps 0",)) -> str:
    names = (*own, *RIVALS)
    return markdown(
        [corner, *names],
        [
            [case, *(_cell(rows.get(n), lambda r, rows=rows: text(r, rows)) for n in names)]
            for case, rows in cases.items()
        ],
    )


def frontier(cases: dict) -> str:
    every = sorted({e for rows in cases.values() for e, _ in eps_of(rows)})

    def text(rows: dict, row: dict) -> str:
        gap = _gap(row)
        return _of_fastest(row, rows) + (f" (gap {_percent(gap)})" if gap > 0.005 else "")

    lines = []
    for case, rows in cases.items():
        found = dict(eps_of(rows))
        lines.append(
            [
                case,
                *(_cell(found.get(e), lambda r, rows=rows: text(rows, r)) for e in every),
                _cell(rows.get("capped"), lambda r, rows=rows: text(rows, r)),
            ]
        )
    return markdown(["time, of fastest", *(f"eps {e:g}" for e in every), "capped"], lines)


def savings(cases: dict) -> str:
    """1 - ours / theirs, over the cases where both are planned."""
    lines = []
    for label, chosen in (
        ("plain tensor x data parallel (megatron)", ["megatron"]),
        ("the best Megatron strategy", [r for r in RIVALS if r.startswith("megatron")]),
        ("ZeRO-3", ["zero-3"]),
        ("time first", ["time first"]),
    ):
        parts: dict[str, list] = {"state": [], "kept": []}
        for case, rows in cases.items():
            theirs = [rows[n] for n in chosen if _planned(rows.get(n))]
            if not theirs or not _planned(rows.get("stowage eps 0")):
                continue
            for key, count in (("state", _state), ("kept", _kept)):
                parts[key].append((1 - count(rows["stowage eps 0"]) / min(count(r) for r in theirs), case))
        if parts["state"]:
            lines.append(
                [
                    label,
                    len(parts["state"]),
                    *(
                        f"{100 * f(p[0] for p in parts[key]):.0f} %"
                        for key in ("state", "kept")
                        for f in (min, median, max)
                    ),
                ]
            )
    return markdown(
        ["less than", "cases", "state: least", "median", "most", "state + saved: least", "median", "most"], lines
    )


def searches(results: dict) -> str:
    lines = []
    for case, rows in {**results["cases"], **results["searches"]}.items():
        own, first = rows.get("stowage eps 0"), rows.get("time first")
        if _planned(own):
            lines.append(
                [
                    case,
                    f"{own['choices']:,}",
                    f"{own['variables']:,}",
                    own["time"]["outcome"],
                    f"{own['cpu_seconds']:.1f}",
                    _cell(first, lambda r: f"{r['cpu_seconds']:.1f}"),
                    f"{own['resident_set_bytes'] / 2**30:.2f}",
                ]
            )
    return markdown(["search", "choices", "columns", "eps 0", "CPU s", "time first CPU s", "resident set GiB"], lines)


def closeness(cases: dict) -> str:
    every = sorted({e for rows in cases.values() for e, _ in eps_of(rows)})
    counts = {
        e: sum(_planned(r := dict(eps_of(rows)).get(e)) and _ns(r) <= CLOSE * _fastest(rows) for rows in cases.values())
        for e in every
    }
    return (
        "Within 1.10 of the time-first optimum: "
        + ", ".join(f"{n} of {len(cases)} cases at eps {e:g}" for e, n in counts.items())
        + "."
    )


def overlapped(cases: dict) -> str:
    """Of the fastest plan that is known, as the bound is loose."""
    lines, close, full = [], 0, 0
    for case, rows in cases.items():
        own, more, first = (rows.get(name) for name in ("stowage eps 0", "stowage eps 0.1", "time first"))
        if not (_planned(own) and _planned(more) and _planned(first)):
            lines.append([case, *(_cell(row, lambda _: "") for row in (own, more, first)), *[""] * 7])
            continue
        more = min(own, more, key=_ns)  # more bytes may be used, not must
        fastest = min(_ns(row) for row in (own, more, first))
        if _ns(first) <= 1.01 * fastest:  # else its search ended poor, and says nothing
            full += 1
            close += _ns(more) <= CLOSE * fastest
        lines.append(
            [
                case,
                *(f"{_ns(row) / 1e6:.1f}" for row in (own, more, first)),
                *(f"{_ns(row) / fastest:.2f}" for row in (own, more)),
                _percent(_gap(first)),
                *(f"{_gib(row['bytes']['peak'])}" for row in (own, more, first)),
                f"{max(row['cpu_seconds'] for row in (own, more, first)):.0f}",
            ]
        )
    header = [
        "with overlap",
        "eps 0 ms",
        "eps 0.1 ms",
        "time first ms",
        "eps 0 of it",
        "eps 0.1 of it",
        "gap of time first",
    ]
    header += ["peak GiB, eps 0", "eps 0.1", "time first", "CPU s, most"]
    return (
        markdown(header, lines)
        + f"\n\nWithin 1.10 of time first at eps 0.1: {close} of the {full} cases in which no plan with fewer bytes beat that."
    )


def table(results: dict) -> str:
    cases = results["cases"]
    parts = [
        ("What the least redundancy holds and costs", least(cases)),
        ("What that saves", savings(cases)),
        (
            "State + saved activations, GiB per device",
            _across(cases, "state + saved", lambda r, _: f"{_gib(_state(r))} + {_gib(r['bytes']['saved'])}"),
        ),
        ("Modelled peak, GiB per device", _across(cases, "peak", lambda r, _: _gib(r["bytes"]["peak"]))),
        ("Modelled time, of the fastest", _across(cases, "time", _of_fastest)),
        (
            "Memory against time: state and saved may be 1 + eps times the least",
            frontier(cases) + "\n\n" + closeness(cases),
        ),
        ("The search", searches(results)),
    ]
    if results.get("overlapped"):
        parts.insert(
            -1,
            (
                "Modelled with overlap: state and saved may be 1 + eps times the least",
                overlapped(results["overlapped"]),
            ),
        )
    return "\n\n".join(f"**{title}.**\n\n{text}" for title, text in parts)
