// ROAM's order of a training step: arrange, divide, solve the leaves, put together.
//
//   graph ─▶ updates scheduled, control edges (arrange.h) ─▶ segments (segments.h), long ones ordered greedily and cut into windows
//         ─▶ subgraph tree (tree.h) ─▶ leaf ILPs (leaves.h, order_ilp.h) ─▶ one order
//
// ROAM (arXiv 2310.19295). Differs: a segment of more than node_limit ops, which the paper's graphs seldom have, starts
// from the better of program order and four greedy orders, and is cut into windows of node_limit consecutive ops; each
// is a leaf.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "order/problem.h"
#include "roam/tree.h"
#include "stowage/roam.h"

namespace stowage::roam {

struct Ordered {
  std::vector<OpId> order;
  std::vector<Shell> shells;  // in steps of `order`, outermost first
  std::int32_t loss = 0;      // step of the last op of the forward pass
};

// Throws SolverMissing when the order ILP is on and HiGHS is not there. Counts into `stats`.
// `plain` is order_problem() of `graph`.
Ordered find_order(const AnalysedGraph& graph, const OrderProblem& plain, const RoamOptions& options,
                   const std::string& library, const std::function<bool()>& should_stop, RoamStats& stats);

}  // namespace stowage::roam
