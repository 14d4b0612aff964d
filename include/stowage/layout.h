// Layout: addresses for buffers whose live intervals are fixed (dynamic storage allocation).
//
//   offset
//     3 ┤    ┌────┐        Each buffer is a rectangle: time [lower, upper) by address [offset, offset + bytes).
//     2 ┤┌───┤ b  │        No two rectangles overlap; the height of the tallest stack is to be least.
//     1 ┤│ a └────┤        Bound: the largest sum of bytes live at one time.
//     0 ┤└────────┘
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "stowage/outcome.h"

namespace stowage {

struct LayoutItem {
  std::int64_t lower = 0;  // live in [lower, upper)
  std::int64_t upper = 0;
  std::int64_t bytes = 0;
  // From then on only the first `narrow_bytes` are used; by default to its end all of them
  std::int64_t narrow_from = std::numeric_limits<std::int64_t>::max();
  std::int64_t narrow_bytes = 0;
};

struct LayoutOptions {
  std::int64_t align = 1;                // every offset is a multiple of this
  std::optional<std::int64_t> capacity;  // stop as soon as the height is at most this; proven above it: infeasible
  std::int64_t node_budget = 5'000'000;  // nodes of complete search
  // Rects that the best-fit family may look at; a quarter of the search's is added
  std::int64_t family_work = 200'000'000;
  // All plain greedies are tried where the bound is not met, however large they are: no layout is above their best
  bool all_greedies = true;
  int threads = 1;  // the result is the same at any number
  std::uint64_t seed = 0;
  std::function<bool()> should_stop;  // outer stop (wall time); empty: never
};

struct LayoutResult {
  Outcome outcome = Outcome::kUnknown;
  std::vector<std::int64_t> offsets;  // one per item; empty when there is no layout to show
  std::int64_t height_bytes = 0;
  std::int64_t lower_bound_bytes = 0;
  std::int64_t work = 0;  // rects and times looked at: about a nanosecond each, the same on every machine
};

// Items that become narrower are laid out as wide as they begin, and, where that leaves the height above what is live,
// also as they are (layout/narrowing_fit.h). Items with zero bytes or an empty interval get offset 0. The same input
// gives the same result.
LayoutResult layout(const std::vector<LayoutItem>& items, const LayoutOptions& options);

}  // namespace stowage
