"""A diagnosis as one screen of text."""

from __future__ import annotations

from stowage.doctor.causes import Diagnosis
from stowage.sizes import in_words

_LINES = 6


def as_text(diagnosis: Diagnosis) -> str:
    m = diagnosis.moment
    out = []
    if m.request_bytes and not m.reserved_bytes:
        left = f", about {in_words(m.device_free_bytes)} were left" if m.device_free_bytes else ""
        where = f" at {m.request_line}" if m.request_line else ""
        out.append(f"Out of memory: {in_words(m.request_bytes)} more were asked for{where}; {in_words(m.live_bytes)} were live{left}.")  # fmt: skip
    elif m.request_bytes:
        where = f" at {m.request_line}" if m.request_line else ""
        out.append(
            f"Out of memory: {in_words(m.request_bytes)} were asked for{where}; {in_words(m.device_free_bytes)} were left."
        )
        out.append(f"PyTorch held {in_words(m.reserved_bytes)}, of which {in_words(m.live_bytes)} were live. Short by {in_words(diagnosis.shortage_bytes, 1)}.")  # fmt: skip
    elif not m.reserved_bytes:
        out.append(f"Out of memory: the error does not say how much was asked for; {in_words(m.live_bytes)} were live.")
    else:
        out.append("No request failed in this snapshot. This is the moment with the most live bytes:")
        out.append(f"PyTorch held {in_words(m.reserved_bytes)}, of which {in_words(m.live_bytes)} were live.")
    out += ["", "Why"]
    out += [f"  {n}. {cause.text}" for n, cause in enumerate(diagnosis.causes, 1)] or ["  nothing was live"]
    out += ["", "What held the bytes"]
    for line, kind, size, count in diagnosis.by_line[:_LINES]:
        out.append(f"  {in_words(size):>12}  {kind:<25} {line}" + (f"  ({count} blocks)" if count > 1 else ""))
    rest = diagnosis.by_line[_LINES:]
    if rest:
        out.append(f"  {in_words(sum(row[2] for row in rest)):>12}  on {len(rest)} more lines")
    out += ["", "What to change"]
    for suggestion in diagnosis.suggestions:
        fits = "fits" if suggestion.fits else "not enough alone"
        numbers = "the same numbers" if suggestion.same_numbers else "other numbers"
        out.append(
            f"  {suggestion.change}: frees {in_words(suggestion.frees_bytes, -1)} ({suggestion.known}); {fits}; {numbers}"
        )
        out.append(f"      {suggestion.code}")
    return "\n".join(out) + "\n"


__all__ = ["as_text"]
