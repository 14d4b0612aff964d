// Lowest fit above a floor, for a handful to some thousands of rects.
//
//        ┌───────┐          A rect goes to the lowest offset, at or above its own floor, at which it meets none of the placed rects
//   ┌────┤  new  │          that live at the same time.
//   │    └───┬───┘          O(n) for each rect, O(n²) for all; n log n where few live together.
//   └────────┴── floor
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "layout/instance.h"

namespace stowage::roam {

// Rects with the lowest offset that each may take. All multiples of the alignment.
struct Floored {
  std::vector<Rect> rects;
  std::vector<std::int64_t> floor;
};

inline bool meet(const Rect& a, const Rect& b) { return a.lower < b.upper && b.lower < a.upper; }

// The lowest offset >= floor at which `bytes` bytes fit between the taken [begin, end) ranges. Sorts `taken`.
std::int64_t lowest_gap(std::vector<std::pair<std::int64_t, std::int64_t>>& taken, std::int64_t floor,
                        std::int64_t bytes);

// Lowest fit in the given order.
Offsets fit_in_order(const Floored& problem, std::span<const std::int32_t> order);

// The best lowest fit of four orders: by size, by area, by lifetime, by start; the first when equal.
Offsets best_fit(const Floored& problem);

// No layout is lower: at each time, what lives there with floors of at least f takes its bytes above f.
std::int64_t height_bound(const Floored& problem);

}  // namespace stowage::roam
