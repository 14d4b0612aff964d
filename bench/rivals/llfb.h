// LLFB, "long-lived first, best fit": the layout that ROAM is compared with (arXiv 2310.19295, baselines), after the
// best-fit heuristic of Sekiyama et al., "Profile-guided memory optimization for deep neural networks" (arXiv
// 1804.10001).
//
//   offset │        ┌─────┐            The skyline is a row of ledges. On the lowest one (the leftmost of equals) goes the
//          │  ┌─────┘     │  ledge     longest-lived item that fits between its ends (the larger, then the first of equals).
//          │──┘           └────────    When none fits, the ledge is raised to its lower neighbour.
//          └────────────────── time
//
// O(n) ledges and raises, each with a pass over the unplaced items that begin inside the ledge.
#pragma once

#include <cstdint>
#include <vector>

#include "stowage/layout.h"

namespace stowage::rivals {

// Sizes are rounded up to `align`, so that every offset is a multiple of it.
std::vector<std::int64_t> llfb_layout(const std::vector<LayoutItem>& items, std::int64_t align);

}  // namespace stowage::rivals
