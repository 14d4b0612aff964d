// Branch and bound on who goes first: proofs, and the better orders that pinch() misses.
//
//   root: cut bound 1495                        A node is the problem with some precedences added. Its bound: the largest
//      ├── w ──▶ x : 1499 ── pinch() finds 1499  must-live bytes and minimum cuts in it. pinch() is tried under that bound; if it
//      └── x ──▶ w : 1508 (cut off)              fits, the node is solved exactly. If not, it names an op w in conflict with
//                                                where other ops were put: of those that w would rather see on its other side
//                                                (its minimum cut tells) take the heaviest, x. In every order w runs before x
//                                                or after it: two children.
//
// Nodes are taken by least bound, so the least bound among open nodes bounds the whole at any time. Complete: every conflict
// shrinks the set of orders, or raises the node's bound. Disjunctive branching is that of job-shop scheduling (Carlier and Pinson,
// "An algorithm for solving the job-shop problem", Management Science 35, 1989), with cuts for bounds.
#pragma once

#include <functional>

#include "order/ordering.h"
#include "order/problem.h"

namespace stowage {

struct BranchResult {
  Ordering order;          // the best found; no worse than `start`
  std::int64_t bound = 0;  // no order of the problem has a smaller peak
};

// `start` may be a peak without its order, which the caller keeps; then the result has no order unless a better one is found.
// `bound` is a proven bound to start from; `work` about a nanosecond a unit.
BranchResult branch(const OrderProblem& problem, Ordering start, std::int64_t bound, std::int64_t& work,
                    const std::function<bool()>& should_stop);

}  // namespace stowage
