// From steps to a Plan: lifetimes become intervals on a fine time axis, the layout gives them addresses.
//
//   step         0         1                 2            Each step takes as many units of time as its op has ticks, so a scratch
//   ticks     0 │ 1     0 │ 1 │ 2          0              and a buffer born late are intervals like all others. A copy takes one.
//   a         ████████████████████
//   scratch             ░░░░░
//   b                       ████████████████████
//
// A buffer that lies over another by in-place reuse joins its interval, as wide as the wider of the two: what is laid
// out as one lies at one address. Where it is the narrower one, the item becomes narrower after its first step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/ordered_graph.h"
#include "stowage/layout.h"
#include "stowage/plan.h"

namespace stowage {

// The intervals of a line of steps.
struct Timeline {
  std::vector<Step> steps;
  std::vector<std::int64_t> start;    // per step, and once past the last: the time at which it starts
  std::vector<Placement> placements;  // offsets not yet set; by (from, buffer)
  std::vector<ScratchPlacement> scratch;
  std::vector<LayoutItem> items;
  std::vector<std::int32_t> item_of;  // per placement, then per scratch: its place in the items
};

// A stretch of steps in which the device holds a buffer.
struct Piece {
  BufferId buffer;
  std::int32_t from = 0, to = 0;
  std::int32_t tick = 0;  // born within its first step
  BufferId over;          // the buffer that it lies over by in-place reuse; invalid: none
};

// `pieces` are by (from, buffer). O(steps + pieces + scratch).
Timeline timeline(const Graph& graph, std::vector<Step> steps, std::span<const Piece> pieces);

// Of an order, with the reuse `used`, which is by step. O(V + E).
Timeline timeline(const OrderedGraph& ordered, std::span<const ReuseAt> used);

// The plan of these steps with `layout` as the addresses of the items.
Plan assemble(const Graph& graph, Timeline timeline, const LayoutResult& layout);

}  // namespace stowage
