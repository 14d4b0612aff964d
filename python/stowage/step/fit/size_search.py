"""The largest size that fits, in few trials, as each means to record a step and to plan it.

    bytes        needs, as far as known, on a line through the two nearest to the limit
      │              ╱·
    limit ─────────╱─┼──── guess: where the line meets it
      │        ·╱    │
      │    ·         │     sizes   1   2        32 33  48   the last that fits and the first that does not: the answer
      └──────────────┴──

Needs only guide the search; where they are unknown, or mislead, it doubles and bisects. O(log sizes) trials in the worst
case; four to seven for networks that were measured."""

from __future__ import annotations

from collections.abc import Callable

_FURTHEST = 16  # times the largest that fits


def largest_size(
    fits: Callable[[int], bool], need: Callable[[int], int | None], limit: int, least: int, start: int, most: int
) -> int | None:
    """The largest of the sizes from ``least`` to ``most`` with fits(size), where one that fits less than another is larger. None:
    not even ``least``.

    need(size): bytes, of a size that was asked for; None: unknown. start: the first that is asked for.
    """
    known: dict[int, int] = {}
    low, high, guess, turns = least - 1, most + 1, min(max(start, least), most), 0
    while high - low > 1:
        if fits(guess):
            low = guess
        else:
            high = guess
        bytes_ = need(guess)
        if bytes_ is not None:
            known[guess] = bytes_
        turns += 1
        guess = _next(known, limit, low, high, turns)
    return low if low >= least else None


def _next(known: dict[int, int], limit: int, low: int, high: int, turns: int) -> int:
    near = sorted(known, key=lambda size: abs(known[size] - limit))[:2]
    if len(near) == 2 and known[near[0]] != known[near[1]] and turns % 4:
        a, b = near
        guess = a + (limit - known[a]) * (b - a) // (known[b] - known[a])
        guess = min(guess, _FURTHEST * low) if low > 0 else guess
    else:
        guess = (low + high) // 2 if high <= 8 * max(low, 1) else 2 * low
        guess = guess if low > 0 else high // 2
    return min(max(guess, low + 1), high - 1)


__all__ = ["largest_size"]
