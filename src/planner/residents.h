// Which residents leave, where the budget cannot be met otherwise.
//
//   budget   │ residents that stay          │ arena: everything else, and those that are away, while they are used │
//
//   all that may leave, leave ──▶ plan of the away graph ──▶ fits? then as many stay as there is room for: those first that
//                                 (planner.h, unchanged)      the peak holds anyway, then those that are fetched most
//
// A resident of less than 64 KiB stays: its copies would cost more than its place is worth. The search for who stays
// halves the list, a plan each, and stops at kPlans. The fastest plan found is given. leaving_bounds.h proves what
// the budget must be at least, and how long a step within it must take.
#pragma once

#include <cstdint>

#include "stowage/planner.h"

namespace stowage {

// Could a plan let residents leave?
bool has_leaving(const Graph& graph);

// `stay`: the result when none leaves, without a plan. Gives its outcome, plan and figures when some do; they are at least as good.
PlanResult plan_with_leaving(const Graph& graph, const PlanOptions& options, const PlanResult& stay);

}  // namespace stowage
