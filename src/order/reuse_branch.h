// Branch and bound on where inputs die: exact orders when the saving of in-place reuse depends on the order.
//
//   root: relaxed, all open pairs granted                 A node has settled some of the questions "does r die at k?".
//      ├── r dies at k:  u ──▶ k for all other users u    Yes: k becomes the last user of r by more precedence, and the pair is sure.
//      └── it does not:  the pairs [r, ·] of k go         No: those pairs are gone. What is still open is granted, so the
//                                                         optimum of the node's problem bounds all orders of the node.
//
// The order of a node is judged by what it really takes. If that is more than the node's problem says, some granted r
// did not die: the one at the largest step is asked next. Nodes are taken by least bound, the newest among equals, so
// that the first answers dive.
#pragma once

#include <functional>

#include "order/model.h"
#include "order/ordering.h"
#include "order/problem.h"

namespace stowage {

// Solves a problem as well as `work` allows, from a start and a bound.
using SolveOrder =
    std::function<BoundedOrder(const OrderProblem&, Ordering start, std::int64_t bound, std::int64_t work)>;

// `best` is an order with what it really takes, `bound` proven. `work` about a nanosecond a unit.
BoundedOrder branch_on_reuse(const OrderModel& model, Ordering best, std::int64_t bound, std::int64_t work,
                             const SolveOrder& solve);

}  // namespace stowage
