// Exact search over a few critical ops while all others are free: the projection bound.
//
//   U = {a, b, c}, ops that matter       An order of all ops passes U in some order. Whoever is not in U may stand where it likes:
//                                        for a subset S of U that has run and v of U next, the step of v is at least
//          ∅ ─a─▶ a ─b─▶ ab
//          │             │c              g(S, v) = the minimum cut at v with S pinned before it and the rest of U after.
//          b      …      ▼
//          ╰─────▶ … ─▶ abc              So the path from ∅ to U whose largest g is least bounds the peak of every order.
//
//   With one op in U this is the cut bound, with two the pair bound (select.h), with all of them the exact peak. U grows where the
//   path cannot be realized: the smallest minimum cuts along a path are nested (by submodularity), so they divide the order into
//   stretches; each is ordered alone (pinch.h). If all stay under the bound, the order is optimal; if one does not, its heaviest
//   ops join U. Paths are found depth first at the level of the bound, which rises only when no path is left below.
//
// Moves of U are forced as in forced.h: let h(S) be the fewest live bytes while exactly S of U has run. If g(S, v)
// keeps to the level and h(S ∪ v) <= h(S), v may come first: with T the state of h(S ∪ v), the order that runs through
// R ∪ T instead of R is no heavier, since f(R ∪ T) <= f(R) + f(T) - f(R ∩ T) and f(R ∩ T) >= h(S) or h(S ∪ v).
//
// The loop is that of counterexample-guided refinement (Clarke et al., "Counterexample-guided abstraction refinement",
// CAV 2000). A step costs one minimum cut; U has at most 64 ops.
#pragma once

#include <functional>
#include <vector>

#include "order/ordering.h"
#include "order/problem.h"

namespace stowage {

// `members` are U: empty at first; kept by the caller, the search goes on with them when it is called again. Else as
// prove().
BoundedOrder project(const OrderProblem& problem, Ordering start, std::int64_t bound,
                     std::vector<std::int32_t>& members, std::int64_t& work, const std::function<bool()>& should_stop);

}  // namespace stowage
