// The must-live bound: bytes that are live when op v runs, in every order.
//
//   A weight must be live at v when some opener is v or an ancestor of v, and some closer is v or a descendant of v:
//
//        creator ──▶ … ──▶ v ──▶ … ──▶ user           (design.md, section 4)
//
// With bitsets over columns of ops: reach[u] = the ops v that come at or after u, held[u] = those at or before u; a
// weight counts in the columns (∪ reach[opener]) ∩ (∪ held[closer]). A block of 512 columns is held at a time, so
// memory is 128 bytes an op however large the graph; time O((V + E) C / 64) word operations for C columns, plus the
// runs of ones in the weights' rows (bytes are added by difference at the ends of a run).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "order/problem.h"

namespace stowage {

// Per op of `columns` (increasing): no order has a smaller step at that op. The maximum is a bound on the peak.
std::vector<std::int64_t> must_live(const OrderProblem& problem, std::span<const std::int32_t> columns);

// For all ops.
std::vector<std::int64_t> must_live(const OrderProblem& problem);

// What a sweep over `columns` of them costs, in the units in which searches count their work (about a nanosecond).
inline std::int64_t sweep_work(const OrderProblem& problem, std::int32_t columns) {
  const auto degree =
      static_cast<std::int64_t>(problem.preds.items.size() + problem.closers.items.size()) + problem.ops;
  return 8 * degree * (columns / 512 + 1);
}

}  // namespace stowage
