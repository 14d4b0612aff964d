"""The tables of bench/strangers: each case and why it was not planned, and the counts of PyTorch's operator
database."""

from __future__ import annotations

import collections
import re

from bench import common

_BITS = {True: "equal", False: "DIFFER", None: "-"}
OUTCOMES = ("planned", "data", "refused", "wrong", "crash", "hang", "not counted")


# ---- Cases


def cases(runs: list[dict]) -> str:
    """The counts, a row for each case, and the reasons of those that were not planned."""
    return f"{summary(runs)}\n\n{_rows(runs)}\n\nNot planned:\n\n{_reasons(runs)}"


def summary(runs: list[dict]) -> str:
    count = collections.Counter(r["outcome"] for r in runs)
    share = 100 * count["planned"] / len(runs) if runs else 0
    return (
        f"{len(runs)} cases: "
        + ", ".join(f"{n} {outcome}" for outcome, n in count.most_common())
        + f"; planned with eager's bits: {share:.0f} %."
    )


def _rows(runs: list[dict]) -> str:
    rows = []
    for r in runs:
        planned = r.get("planned_steps", 0)
        peak = (
            f"{r['planned_peak_bytes'] / r['eager_peak_bytes']:.2f}"
            if planned and r.get("eager_peak_bytes", 0) > 0
            else "-"
        )
        pace = f"{r['planned_s'] / r['eager_s']:.2f}" if planned and r.get("eager_s") else "-"
        rows.append(
            [
                r["package"],
                r["title"],
                r["outcome"],
                _BITS[r.get("bits_equal")],
                f"{planned} of {r.get('steps', 0)}",
                r.get("ops") or "-",
                peak,
                pace,
                f"{r['plan_s']:.2f}" if planned else "-",
            ]
        )
    return common.markdown(
        ["package", "what", "outcome", "bits", "planned calls", "ops", "peak / eager", "time / eager", "s to plan"],
        rows,
        left=4,
    )


def _reasons(runs: list[dict]) -> str:
    lines = []
    for r in runs:
        if r["outcome"] != "planned":
            why = "; ".join(r.get("differences") or []) if r["outcome"] == "wrong" else r.get("reason", "")
            why += f" ({r['data_decides']})" if r["outcome"] == "data" else ""
            lines.append(f"- {r['title']} ({r['case']}): {r['outcome']}: {' '.join(why.split())[:300]}")
    return "\n".join(lines) or "- none"


# ---- Operators


def counted(found: list[dict]) -> list[dict]:
    """Samples by way, dtype and form, from findings."""
    groups: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for f in found:
        way, _, dtype, form, _ = f["sample"].split()
        groups[way, dtype, form][f["outcome"]] += 1
    return [
        {"way": way, "dtype": dtype, "form": form, "counts": dict(count)}
        for (way, dtype, form), count in groups.items()
    ]


def refused(found: list[dict]) -> list[dict]:
    """Reasons without line and operator, and how many samples were refused for each."""
    why = collections.Counter(
        (f["sample"].split()[0], _general(f["reason"])) for f in found if f["outcome"] == "refused"
    )
    return [{"way": way, "reason": reason, "samples": n} for (way, reason), n in why.most_common()]


def _general(reason: str) -> str:
    reason = re.sub(r"^\S+:\d+: ", "", reason)
    reason = re.sub(r"aten::\S+", "aten::*", reason)
    return re.sub(r"\d[\d,.]*", "N", reason)[:140]


def operators(results: dict) -> str:
    rows = []
    for group in results["groups"]:
        count = collections.Counter(group["counts"])
        total = count.total() - count["not counted"]
        share = 100 * (count["planned"] + count["data"]) / total if total else 0
        rows.append(
            [group["way"], group["dtype"], group["form"], *(count[what] for what in OUTCOMES), f"{share:.1f} %"]
        )
    why = "\n".join(f"- {r['way']}, {r['samples']} samples: {r['reason']}" for r in results["refused"][:20])
    return (
        common.markdown(["way", "dtype", "form", *OUTCOMES, "planned or data"], rows, left=3)
        + f"\n\nRefused:\n\n{why or '- none'}"
    )
