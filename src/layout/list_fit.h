// Lowest fit in a given order: each rect goes to the lowest (or tightest) gap that all its time neighbours leave.
//
//   ┌──────┐                 order: big first. What is placed later slips under what hangs over it,
//   │  1   └──┐              so a good order makes a good layout; every layout that cannot be
//   │ ┌──┐ 2  │              pushed down is the lowest fit of some order (its offsets increasing).
//   └─┤3 ├────┘
//
// Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (arXiv 2001.03288), greedy by size.
// Differs: any order, and the gap below the lowest neighbour counts. A rect costs a look at the placed ones that
// placed_rects.h offers.
#pragma once

#include <limits>
#include <span>

#include "layout/instance.h"
#include "layout/placed_rects.h"

namespace stowage {

// `work` is reduced by the placed rects looked at; when it runs out, or as soon as the height is `ceiling`, the result
// has no addresses.
Offsets list_fit(const LayoutInstance& instance, std::span<const std::int32_t> order, Gap gap, std::int64_t& work,
                 std::int64_t ceiling = std::numeric_limits<std::int64_t>::max());

}  // namespace stowage
