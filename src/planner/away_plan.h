// From the plan of an AwayGraph to a plan of the graph: fetches and stores become copies, and are spread out.
//
//   as planned     … k1  fetch p  k2(p)  k3 …               every copy is waited for at once
//   lanes          ░░░░░░░░▒▒▒p▒▒▒
//   spread out     … fetch p  k1  k2(p)  k3 …               p's place is taken that early where there is room below the
//   p              ───██████████████                        capacity, and only as early as the lane needs it
//
// Stores likewise stay until their copy is through. Copies are looked at backwards and forwards like those of
// budget/retime.h; the addresses are then chosen anew. Where they do not fit the capacity, less is spread out, in the end
// nothing: that is the plan as it came, at its own addresses. O(copies · steps moved + layout).
#pragma once

#include "budget/lanes.h"
#include "planner/away_graph.h"
#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage {

struct AwayPlan {
  Plan plan;
  std::int64_t step_ns = 0;        // predicted
  std::int64_t swapped_bytes = 0;  // copied out
  std::int64_t fetched_bytes = 0;  // copied in, of residents
};

// `planned`: a valid plan of away.graph with an arena of at most `capacity`.
AwayPlan spread_out(const Graph& graph, const AwayGraph& away, const std::vector<BufferId>& sent, const Plan& planned,
                    std::int64_t capacity, budget::Link link);

}  // namespace stowage
