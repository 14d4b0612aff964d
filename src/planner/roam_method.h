// ROAM's order and layout as a plan: the glue between its two stages.
#pragma once

#include <functional>
#include <vector>

#include "planner/assemble.h"
#include "stowage/layout.h"
#include "stowage/planner.h"

namespace stowage {

struct RoamCandidate {
  std::vector<OpId> order;
  Timeline times;
  LayoutResult addresses;
  RoamStats stats;
  double order_seconds = 0;
  double layout_seconds = 0;
};

// Takeovers are not used. Throws SolverMissing.
RoamCandidate plan_by_roam(const Graph& graph, const PlanOptions& options, const std::function<bool()>& should_stop);

}  // namespace stowage
