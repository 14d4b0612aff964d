// From an order to a Plan: lifetimes become intervals on a fine time axis, the layout gives them addresses.
//
//   step         0         1                 2            Each step takes as many units of time as its op has ticks, so a scratch
//   ticks     0 │ 1     0 │ 1 │ 2          0              and a buffer born late are intervals like all others.
//   a         ████████████████████
//   scratch             ░░░░░
//   b                       ████████████████████
//
// A buffer that takes over another joins its interval, as wide as the wider of the two: what is laid out as one lies at
// one address.
#pragma once

#include <span>
#include <vector>

#include "graph/takeover.h"
#include "stowage/graph.h"
#include "stowage/layout.h"
#include "stowage/plan.h"

namespace stowage {

// Per step, and once past the last: the time at which it starts.
std::vector<std::int64_t> step_starts(const Graph& graph, std::span<const OpId> order);

// The intervals of one order.
struct Timeline {
  std::vector<Placement> placements;  // offsets not yet set
  std::vector<ScratchPlacement> scratch;
  std::vector<LayoutItem> items;
  std::vector<std::int32_t> item_of;  // per placement, then per scratch: its place in the items
};
Timeline timeline(const Graph& graph, std::span<const OpId> order, std::span<const TakeoverAt> used);

// The plan that runs `order` with `layout` as the addresses of its timeline. O(V + E + n log n).
Plan assemble(const Graph& graph, std::span<const OpId> order, Timeline timeline, const LayoutResult& layout);

}  // namespace stowage
