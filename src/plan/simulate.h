// Rules 2 to 5: what each buffer holds at each step of a plan.
#pragma once

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::checker {

// Throws Violation at the first broken rule. Every op step must name an op of the graph (rule 1). Afterwards placements
// name buffers of the graph, lie inside the steps, begin at a step that gives content, and no two of one buffer share a
// step. O(P + S + the sizes of the ops that run).
void simulate(const Graph& graph, const Plan& plan);

}  // namespace stowage::checker
