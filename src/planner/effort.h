// How much the searches of one plan may do. Counted in nodes and in units of about a nanosecond, never in time: the
// same input gives the same plan on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "stowage/planner.h"

namespace stowage {

struct Effort {
  std::int64_t order_work = 0;    // of the search for orders
  std::int64_t layout_nodes = 0;  // of the complete search of one layout
  std::int64_t layout_work = 0;   // of the best-fit family of one layout
  std::int64_t quick_work = 0;    // of all layouts that are tried quickly

  // Of a graph of so many ops; a `share`-th of what the options grant.
  Effort(std::size_t ops, const PlanOptions& options, std::int64_t share = 1)
      : order_work(scaled(ops, options.order_node_budget / share) * 500),
        layout_nodes(scaled(ops, options.layout_node_budget / share)),
        layout_work(layout_nodes * 800),
        quick_work(layout_nodes * 1600) {}

 private:
  // Large graphs need more to be searched as well, and their steps take longer: in proportion from 10,000 ops to 40,000.
  static std::int64_t scaled(std::size_t ops, std::int64_t budget) {
    constexpr std::size_t kSmall = 10'000, kMost = 4;
    return budget * static_cast<std::int64_t>(std::clamp(ops, kSmall, kSmall * kMost)) /
           static_cast<std::int64_t>(kSmall);
  }
};

}  // namespace stowage
