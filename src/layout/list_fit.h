// Lowest fit in a given order: each rect goes to the lowest (or tightest) gap that all its time neighbours leave.
//
//   ┌──────┐                 order: big first. What is placed later slips under what hangs over it,
//   │  1   └──┐              so a good order makes a good layout; every layout that cannot be
//   │ ┌──┐ 2  │              pushed down is the lowest fit of some order (its offsets increasing).
//   └─┤3 ├────┘
//
// Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (arXiv 2001.03288), greedy by size. Differs: any
// order, and the gap below the lowest neighbour counts. Placed rects lie in offset order in flat arrays, so that a scan touches
// memory in a line; O(n) a rect, O(n²) in all with a small constant (62,000 rects: seconds).
#pragma once

#include <functional>
#include <span>

#include "layout/instance.h"

namespace stowage {

enum class Gap : std::uint8_t { kLowest, kTightest };

// Rects placed so far, in offset order.
class PlacedRects {
 public:
  explicit PlacedRects(std::size_t capacity);
  void clear();
  [[nodiscard]] std::int64_t find(const Rect& rect, Gap gap) const;
  void insert(const Rect& rect, std::int64_t offset);

 private:
  std::vector<std::int64_t> begin_, end_;
  std::vector<std::int32_t> lower_, upper_;
};

Offsets list_fit(const LayoutInstance& instance, std::span<const std::int32_t> order, Gap gap);

}  // namespace stowage
