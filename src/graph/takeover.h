// Takeover: a result that lies where an input lay which dies there.
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

#include "graph/liveness.h"
#include "stowage/graph.h"

namespace stowage {

// The pair is used in this step of an order.
struct TakeoverAt {
  std::int32_t step = 0;
  Takeover pair;
};

// The pairs of `op` that can save something in some order: r is not returned, and neither is empty.
std::vector<Takeover> useful_takeovers(const Graph& graph, const Op& op);

// Of `pairs` of one op, some in which no buffer occurs twice: those that leave the fewest added bytes, and among these
// the ones that take over the most bytes, buffers of equal size first. Exact when there are few pairs (an op has one or
// two), else greedy.
std::vector<Takeover> best_takeovers(const Graph& graph, const Op& op, std::span<const Takeover> pairs);

// added_bytes() with the best takeovers; when there are too many pairs to try, a bound on it from below.
std::int64_t least_added_bytes(const Graph& graph, const Op& op, std::span<const Takeover> pairs);

// For each step of `order`: the best of the pairs whose r has its last use there. By step. O(V + E).
std::vector<TakeoverAt> takeovers(const Graph& graph, std::span<const OpId> order);

// Largest sum of padded bytes live at one tick of one step of `order`, with the takeovers `used`, which are by step.
// O(V + E).
std::int64_t peak_bytes(const Graph& graph, std::span<const OpId> order, std::span<const TakeoverAt> used);

// Per step: what peak_bytes() is the largest of.
std::vector<std::int64_t> step_bytes(const Graph& graph, std::span<const OpId> order, std::span<const TakeoverAt> used);

}  // namespace stowage
