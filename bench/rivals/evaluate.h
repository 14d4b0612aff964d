// A rival's answer on the common scale: made a Plan, verified by the independent checker, counted as Stowage's own
// plans are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "stowage/graph.h"
#include "stowage/layout.h"

namespace stowage::rivals {

using LayoutRule = std::function<std::vector<std::int64_t>(const std::vector<LayoutItem>&, std::int64_t align)>;

struct Evaluation {
  std::int64_t peak_bytes = 0;   // as the checker counts it
  std::int64_t arena_bytes = 0;  // of the layout
};

// Throws Error when the order or the layout is not valid.
Evaluation evaluate(const Graph& graph, std::span<const OpId> order, const LayoutRule& layout);

// The peak alone, for rivals that leave addresses to an allocator. Throws Error when the order is not valid.
std::int64_t evaluate_peak(const Graph& graph, std::span<const OpId> order);

}  // namespace stowage::rivals
