// In-place reuse: a result that lies where an input lay which dies there.
//
//   step        k-1       k       k+1           The kernel of step k writes c over r, element by element, so both share one
//   r       ██████████████████                  address: in step k only r counts, from the next step on only c.
//   c                          ░░░░░░░░░░░░
//                                               Which pairs [r, c] a kernel allows says the graph; that r dies at k depends on
//                                               the order when r has several users.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stowage/graph.h"

namespace stowage {

// The pairs of `op` that can save something in some order: r is not returned, and neither is empty.
std::vector<ReusePair> useful_pairs(const Graph& graph, const Op& op);

// Padded bytes that `op` adds at its heaviest tick to what was live before it: the creations born so far, less those
// that lie over an input by the pairs `used`, and its scratch.
std::int64_t added_bytes(const Graph& graph, const Op& op, std::span<const ReusePair> used = {});

// Of `pairs` of one op, some in which no buffer occurs twice: those that leave the fewest added bytes, and among these
// the ones that reuse the most bytes, buffers of equal size first. Exact when there are few pairs (an op has one or
// two), else greedy.
std::vector<ReusePair> best_pairs(const Graph& graph, const Op& op, std::span<const ReusePair> pairs);

// added_bytes() with the best pairs; when there are too many pairs to try, a bound on it from below.
std::int64_t least_added_bytes(const Graph& graph, const Op& op, std::span<const ReusePair> pairs);

}  // namespace stowage
