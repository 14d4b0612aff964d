// The step made ready for division: a start order, and control edges that keep what dangles between memory-insensitive
// ops.
//
//   k1 ─▶ … ─▶ k2 ─▶ … ─▶ k3      k: insensitive ops of the step without updates and without loose ops
//    └─▶ update ─▶┘               an update branch runs between the two k around the place that updates.h chose
//                 └─▶ loose ─▶┘   loose: short chains that nothing but themselves leads to (masks, position ids; they run just before
//                                 their first user) or that lead to nothing but themselves (weight gradients, statistics; they keep
//                                 their place in the program)
//
// A branch that dangles is incomparable with everything that follows, and would leave no op insensitive. ROAM's code
// has such edges for updates ("forced early", "forced late") and rules written by hand for some models; this is the
// same by one rule. Edges only narrow the choice of orders: every order of the result is one of the graph. O(V + E).
#pragma once

#include <cstdint>
#include <vector>

#include "order/problem.h"
#include "roam/updates.h"
#include "stowage/roam.h"

namespace stowage::roam {

struct Arranged {
  OrderProblem problem;           // with the control edges; op i runs at step i of the start order
  std::vector<std::int32_t> ops;  // per step: the op of the graph
  std::int32_t loss = 0;          // step of the last op of the forward pass
  std::int64_t update_branches = 0;
  std::int64_t delayed_branches = 0;
};

// `plain` is order_problem() of `graph`.
Arranged arrange(const AnalysedGraph& graph, const OrderProblem& plain, const RoamOptions& options);

// `problem` with its ops in another order, which must respect the precedence. Throws Error when it does not.
OrderProblem in_order(const OrderProblem& problem, const std::vector<std::int32_t>& order);

}  // namespace stowage::roam
