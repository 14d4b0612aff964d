// The fullest stretch of time first, alone; what lies before and after it around its layout.
//
//   bound ┤──────────┬─────────┬──────     times fuller than a share of the bound span a window
//         │          │ window  │
//         │   before │ solved  │ after    lives that cross all of it: one stack without a hole, the last freed lowest
//         │          ├─────────┤          lives that begin or end in it: clipped to it and searched below what the stack leaves
//         │        ▂▃│ through │▃▂        all others: list fit around both, by several preferences
//         └──────────┴─────────┴──────
//
// Two rects that meet the window overlap exactly when they do inside it, so clipping loses nothing. In a step of
// training hundreds of buffers cross the turn from forward to backward, and what moves there is a few dozen: small
// enough for complete search, and the only place without room for holes. Narrow windows first.
// One list fit per window and preference, and the search of each window.
#pragma once

#include <functional>
#include <vector>

#include "layout/instance.h"
#include "layout/portfolio.h"

namespace stowage {

// A layout of the window, of a height of `target` if it can.
using WindowSearch = std::function<Offsets(const LayoutInstance& window, std::int64_t target)>;

// Packings for several windows, best first, up to the first that meets `target`. `work` is reduced by the rects that
// list fits look at; none goes on at a height of `ceiling`.
std::vector<Packing> core_window(const LayoutInstance& instance, std::int64_t target, const WindowSearch& search,
                                 std::int64_t ceiling, std::int64_t& work);

}  // namespace stowage
