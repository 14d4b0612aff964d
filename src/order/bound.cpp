#include "order/bound.h"

#include <algorithm>

#include "order/min_cut.h"

namespace stowage {

std::int64_t cut_bound(const OrderProblem& problem, std::span<const CriticalOp> critical, std::size_t cuts,
                       std::int64_t enough, std::int64_t& work) {
  std::int64_t bound = critical.empty() ? problem.base : critical.front().bytes;
  for (const CriticalOp& v : critical.first(std::min(cuts, critical.size()))) {
    if (bound >= enough || work <= 0) break;
    bound = std::max(bound, min_cut(problem, v.op, CutSide::kSmallest, work).step_bytes);
  }
  return bound;
}

}  // namespace stowage
