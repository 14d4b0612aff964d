// Which ops a plan moved, and what that saved.
//
//   program   1 2 3 4 5 6 7 8          The longest increasing run of op ids stays; all others moved. Those of one source line, one
//   plan      1 2 7 3 4 8 5 6          kernel and one direction are one decision: {7, 8} earlier.
//   stays     1 2   3 4   5 6
//
// Undone: the group goes back to where the program has it, all others stay as near to where they are as dependencies
// allow. Fredman, "On computing the length of longest increasing subsequences", Discrete Mathematics 11, 1975. O(V log
// V), and O((V + E) log V) for each group that is undone.
#pragma once

#include <span>
#include <vector>

#include "report/decisions.h"

namespace stowage::report {

// `order`: the first runs of the plan; `step`: the step of each. `order_peak`: the peak of `order` alone.
std::vector<Decision> moves(const Graph& graph, std::span<const OpId> order, std::span<const std::int32_t> step,
                            std::int64_t order_peak);

}  // namespace stowage::report
