// What no plan can be below when residents may wait on the host, whoever of them leaves.
//
//   bytes   │ residents that may not leave │ all that one op touches │            at the op that touches most
//
//   time    │ residents that may not leave │ one op │ one that it touches and that is away │ who stays │
//           ops       ████████████████████████████████       all others are fetched once at least,
//           in lane   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ and those that are written go back
//           out lane  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
//
// A step takes at least as long as its ops, and as either lane. O(n log n) in the size of the graph.
#pragma once

#include <cstdint>

#include "budget/lanes.h"
#include "stowage/graph.h"

namespace stowage {

// No budget below it can be kept.
std::int64_t bound_with_leaving(const Graph& graph);

// No step within the budget takes less than this; the budget is at least bound_with_leaving().
std::int64_t time_bound_with_leaving(const Graph& graph, std::int64_t budget_bytes, budget::Link link);

}  // namespace stowage
