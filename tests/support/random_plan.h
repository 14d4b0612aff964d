// Random plans for a graph, valid and broken.
#pragma once

#include <random>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::testing {

// A valid plan: program order, nothing recomputed or swapped, no address used twice.
Plan simple_plan(const Graph& graph);

// One small change to a valid plan that a careless planner might make: a step moved, inserted or dropped, a time or an
// address shifted, a placement split by a recomputation or by a swap. The result may or may not be valid.
Plan mutate(const Graph& graph, Plan plan, std::mt19937_64& random);

}  // namespace stowage::testing
