// Guided ejection: all rects below a ceiling, by throwing out what lies in the way and placing it elsewhere.
//
//   ceiling ─────────┬───┬──────     d has no gap below the ceiling.            ┌───┐
//    ┌───┐  ┌──────┐ │ d │           For each address: the price of what it  ┌──┤ d ├──────┐
//    │ a │  │   b  │ └───┘           meets there. The cheapest (c) goes to    │ a└───┘   b  │
//    └───┘  └──┬───┴───┐             the pool, d takes its place, and c is    └─────────────┘
//              │   c   │   pool: d   placed next.                     pool: c
//
// Price of a rect: (1 + how often it found no gap) x the root of its area. What is hard to place becomes dear and stays,
// what is easy moves on: the search learns which rects matter, and works where it is full alone. The pool empty: the
// ceiling holds, and a lower one is tried from where the search stands; a ceiling is given up when the pool has not been
// smaller for a while.
//
// Two searches try each ceiling, on two threads if there are: one places what was thrown out last, which keeps changes
// together; the other the largest first, which fills like a greedy. Neither is better on all kinds; the lower of what they
// find is where both go on. So the result is the same at any number of threads.
//
// Nagata and Bräysy, "A powerful route minimization heuristic for the vehicle routing problem with time windows",
// Operations Research Letters 37 (2009): 333–338: the pool, the counters, ejection of the least sum. Here for rectangles
// that move in address alone; every address is looked at, by one sweep over the neighbours.
//
// A step looks at the k rects that live with one, O(k) when they are spread over the addresses. It proves nothing.
#pragma once

#include <cstdint>
#include <functional>

#include "layout/instance.h"

namespace stowage {

// Lowers `offsets` ceiling by ceiling until `work` (rects looked at) runs out, `target` is met, or told to stop. The
// result is never higher.
Offsets guided_ejection(const LayoutInstance& instance, Offsets offsets, std::int64_t target, std::int64_t& work,
                        int threads, const std::function<bool()>& should_stop);

}  // namespace stowage
